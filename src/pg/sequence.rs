//! A sequence: its shape, its value, and taking the next.

use crate::error::Error;
use crate::pg::session::role;
use pgrx::pg_sys;

/// What a sequence's only row looks like to the server (commands/sequence.h).
#[repr(C)]
struct Row {
    last_value: i64,
    log_cnt: i64,
    is_called: bool,
}

/// A row of pg_sequence, the same since PostgreSQL 10.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    sequence: pg_sys::Oid,
    kind: pg_sys::Oid,
    start: i64,
    increment: i64,
    max: i64,
    min: i64,
    cache: i64,
    cycle: bool,
}

/// Takes the next value. Nobody's permission is asked.
pub fn next(sequence: pg_sys::Oid) -> i64 {
    // Not among pgrx's bindings.
    unsafe extern "C-unwind" {
        fn nextval_internal(relation: pg_sys::Oid, check_permissions: bool) -> i64;
    }
    // SAFETY: the signature has been the same since PostgreSQL 10, and errors are caught at the boundary. EXECUTE on
    // the calling function is the permission.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// Refuses a sequence that is not of int8, from 1 to `max`, by one, without a cache or a cycle.
///
/// # Errors
/// [`Error::Sequence`], and [`Error::Version`] if it was dropped just now.
pub fn check(sequence: pg_sys::Oid, max: i64) -> Result<(), Error> {
    // SAFETY: a look-up in the catalog; the row is copied before it is released.
    let shape = unsafe {
        let id = pg_sys::SysCacheIdentifier::SEQRELID as i32;
        let tuple = pg_sys::SearchSysCache1(id, pg_sys::Datum::from(sequence));
        if tuple.is_null() {
            return Err(Error::Version(None));
        }
        let shape = *pg_sys::GETSTRUCT(tuple).cast::<Shape>();
        pg_sys::ReleaseSysCache(tuple);
        shape
    };
    let Shape { start, .. } = shape;
    let made =
        Shape { sequence, kind: pg_sys::INT8OID, start, increment: 1, max, min: 1, cache: 1, cycle: false };
    if shape == made { Ok(()) } else { Err(Error::Sequence) }
}

/// Sets it: the next value is one higher than `value`.
pub fn set(sequence: pg_sys::Oid, value: i64) {
    // SAFETY: the relation exists.
    let owner = unsafe {
        let relation = pg_sys::relation_open(sequence, pg_sys::NoLock as i32);
        let owner = (*(*relation).rd_rel).relowner;
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        owner
    };
    // SAFETY: the signature of setval; EXECUTE on the calling function is the permission.
    role::acting_as(owner, || unsafe {
        pg_sys::OidFunctionCall2Coll(
            pg_sys::F_SETVAL_REGCLASS_INT8.into(),
            pg_sys::InvalidOid,
            pg_sys::Datum::from(sequence),
            pg_sys::Datum::from(value),
        );
    });
}

/// Its last value, and whether that was taken.
///
/// # Errors
/// [`Error::Version`] if it was dropped just now.
pub fn last(sequence: pg_sys::Oid) -> Result<(i64, bool), Error> {
    // SAFETY: a sequence has one page and on it one row, changed in place under the exclusive lock of its buffer.
    unsafe {
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
        Ok(value)
    }
}
