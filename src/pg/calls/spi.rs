//! SQL statements that pgrx has no safe way for.

use pgrx::pg_sys;
use std::ffi::CStr;

/// Runs a statement that returns nothing, in the database's encoding, with the rights of the current user.
pub fn execute(statement: &CStr) {
    // SAFETY: a C string; an error unwinds and takes the SPI connection with it.
    unsafe {
        pg_sys::SPI_connect();
        pg_sys::SPI_execute(statement.as_ptr(), false, 0);
        pg_sys::SPI_finish();
    }
}
