//! The sequence that numbers arrivals.

use super::catalog::{self, Object};
use crate::error::Error;
use pgrx::pg_sys;

/// Messages that one value of the sequence numbers.
pub const BLOCK: usize = 1024;

/// What the sequence's only row looks like to the server (commands/sequence.h).
#[repr(C)]
struct Row {
    last_value: i64,
    log_cnt: i64,
    is_called: bool,
}

/// Takes a value of the sequence: the first of [`BLOCK`] numbers.
pub fn next_block() -> Result<i64, Error> {
    let sequence = catalog::oid(Object::Arrival)?;
    // Not among pgrx's bindings.
    unsafe extern "C-unwind" {
        fn nextval_internal(relation: pg_sys::Oid, check_permissions: bool) -> i64;
    }
    // SAFETY: the signature has been the same since PostgreSQL 10, and errors are caught at the boundary. EXECUTE on
    // our function is the permission.
    let value = unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) };
    Ok(value * BLOCK as i64)
}

/// The highest number that may have been taken: every later [`next_block`] answers a higher one. Some 0.2 µs; it also
/// knows what was taken before the server was started.
///
/// # Errors
/// [`Error::Version`], see [`catalog::oid`], and if the extension was dropped just now.
pub(super) fn highest() -> Result<i64, Error> {
    let sequence = catalog::oid(Object::Arrival)?;
    // SAFETY: a sequence has one page and on it one row, changed in place under the exclusive lock of its buffer.
    let (last, taken) = unsafe {
        let relation = pg_sys::try_relation_open(sequence, pg_sys::AccessShareLock as i32);
        if relation.is_null() {
            return Err(Error::Version(None));
        }
        let buffer = pg_sys::ReadBuffer(relation, 0);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let page = pg_sys::BufferGetPage(buffer);
        let item = pg_sys::PageGetItemId(page, pg_sys::FirstOffsetNumber);
        let tuple = pg_sys::PageGetItem(page, item).cast::<pg_sys::HeapTupleHeaderData>();
        let row = tuple.byte_add(usize::from((*tuple).t_hoff)).cast::<Row>();
        let value = ((*row).last_value, (*row).is_called);
        pg_sys::UnlockReleaseBuffer(buffer);
        pg_sys::relation_close(relation, pg_sys::AccessShareLock as i32);
        value
    };
    Ok((last + i64::from(taken)) * BLOCK as i64 - 1)
}
