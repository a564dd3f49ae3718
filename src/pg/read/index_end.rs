//! The last entries of an index.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::read::snapshot::Dirty;
use crate::pg::rows::row::TableShape;
use crate::pg::rows::table::{Access, Table};
use crate::pg::version;
use pgrx::pg_sys;

/// Shows the first two columns of an index's entries, numbers, from the end, while `visit` says so. Rows are not looked
/// at, so what is gone is shown too, and nothing is walked over.
pub fn from_end<R: TableShape>(index: Object, mut visit: impl FnMut(i64, i64) -> bool) -> Result<(), Error> {
    let index = catalog::oid(index)?;
    let table = Table::<R>::open(Access::Read)?;
    let snapshot = Dirty::new();
    // SAFETY: table and snapshot outlive the scan; the index has one or two columns, numbers that are never null.
    unsafe {
        let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let scan = version::index_beginscan(table.relation(), index, snapshot.as_ptr(), 0);
        (*scan).ignore_killed_tuples = false;
        (*scan).xs_want_itup = true;
        pg_sys::index_rescan(scan, std::ptr::null_mut(), 0, std::ptr::null_mut(), 0);
        while !pg_sys::index_getnext_tid(scan, pg_sys::ScanDirection::BackwardScanDirection).is_null() {
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0_i64); 2], [false; 2]);
            pg_sys::index_deform_tuple(
                (*scan).xs_itup,
                (*scan).xs_itupdesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            if !visit(values[0].value() as i64, values[1].value() as i64) {
                break;
            }
        }
        pg_sys::index_endscan(scan);
        pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
    }
    table.release();
    Ok(())
}
