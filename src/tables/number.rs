//! The sequence that numbers arrivals.
//!
//! It is not trusted: a dump restored in part, a promoted subscriber and ALTER SEQUENCE leave it behind what is stored.
//! So a session that does not know better compares the value it took with the highest number stored, and skips ahead.
//! Sessions do this one after the other. A skip goes [`AHEAD`] values further than it must, so it repeats no value that
//! another session has taken and not compared yet.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::row::Record;
use crate::pg::snapshot::Dirty;
use crate::pg::table::{Access, Table};
use crate::pg::version;
use crate::rules::receipt;
use crate::tables::row::{Deliveries, Envelopes, Receipts};
use pgrx::pg_sys;
use std::cell::Cell;
use uuid::Uuid;

/// Messages that one value of the sequence numbers.
pub const BLOCK: usize = 1024;
/// Values that a skip leaves out. A server has fewer sessions.
const AHEAD: i64 = 1 << 18;
/// Its numbers fit a token.
const MAX: i64 = (1 << 50) - 1;

/// What the sequence's only row looks like to the server (commands/sequence.h).
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

/// Of [`LAST`]: the next value is to be compared.
const UNKNOWN: i64 = i64::MAX;

thread_local! {
    /// The session's last value, if it was higher than all that was stored and its messages are stored now.
    static LAST: Cell<i64> = const { Cell::new(UNKNOWN) };
}

/// The tables or the sequence have changed.
pub fn distrust() {
    LAST.set(UNKNOWN);
}

/// Takes a value of the sequence: the first of [`BLOCK`] numbers, of which none was ever stored.
///
/// # Errors
/// [`Error::Sequence`] if the sequence was altered, [`Error::Numbers`] if there is none left above what is stored.
pub fn next_block() -> Result<i64, Error> {
    let sequence = catalog::oid(Object::Arrival)?;
    let last = LAST.replace(UNKNOWN);
    if last != UNKNOWN {
        let value = next(sequence);
        if value > last {
            return Ok(value * BLOCK as i64);
        }
    }
    // Before the sequence: who waits for this table holds nobody up.
    let receipts = Table::<Receipts>::open(Access::Read)?;
    // SAFETY: this lock keeps out those who compare, not those who take values; the abort releases it too.
    unsafe { pg_sys::LockRelationOid(sequence, pg_sys::ShareUpdateExclusiveLock as i32) };
    check_shape(sequence)?;
    let value = loop {
        let (value, stored) = (next(sequence), highest_stored()?);
        let least = stored / BLOCK as i64;
        if value > least {
            break value;
        }
        if least >= MAX - AHEAD {
            return Err(Error::Numbers(stored));
        }
        skip_to(sequence, least + AHEAD);
    };
    // SAFETY: locked above.
    unsafe { pg_sys::UnlockRelationOid(sequence, pg_sys::ShareUpdateExclusiveLock as i32) };
    receipts.release();
    Ok(value * BLOCK as i64)
}

/// The block that begins with `first` is stored, so the next value needs no comparison if it is higher.
pub fn stored(first: i64) {
    LAST.set(first / BLOCK as i64);
}

fn next(sequence: pg_sys::Oid) -> i64 {
    // Not among pgrx's bindings.
    unsafe extern "C-unwind" {
        fn nextval_internal(relation: pg_sys::Oid, check_permissions: bool) -> i64;
    }
    // SAFETY: the signature has been the same since PostgreSQL 10, and errors are caught at the boundary. EXECUTE on
    // our function is the permission.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

fn check_shape(sequence: pg_sys::Oid) -> Result<(), Error> {
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
    let made = Shape {
        sequence,
        kind: pg_sys::INT8OID,
        start,
        increment: 1,
        max: MAX,
        min: 1,
        cache: 1,
        cycle: false,
    };
    if shape == made { Ok(()) } else { Err(Error::Sequence) }
}

/// The next value is one higher than `value`.
fn skip_to(sequence: pg_sys::Oid, value: i64) {
    // SAFETY: as the sequence's owner, because EXECUTE on our function is the permission; the abort resets the user.
    unsafe {
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        let relation = pg_sys::relation_open(sequence, pg_sys::NoLock as i32);
        let owner = (*(*relation).rd_rel).relowner;
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        pg_sys::SetUserIdAndSecContext(owner, context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
        pg_sys::OidFunctionCall2Coll(
            pg_sys::F_SETVAL_REGCLASS_INT8.into(),
            pg_sys::InvalidOid,
            pg_sys::Datum::from(sequence),
            pg_sys::Datum::from(value),
        );
        pg_sys::SetUserIdAndSecContext(user, context);
    }
}

/// No message, delivery or receipt, of an open transaction neither, has a higher number.
fn highest_stored() -> Result<i64, Error> {
    let mut highest = 0;
    from_end::<Envelopes>(Object::EnvelopePkey, |seq, _| {
        highest = highest.max(seq);
        false
    })?;
    from_end::<Deliveries>(Object::DeliveryPkey, |seq, _| {
        highest = highest.max(seq);
        false
    })?;
    let mut begins = None;
    from_end::<Receipts>(Object::ReceiptPkey, |first, last| {
        highest = highest.max(last);
        // One that begins further back does not reach as far as this one begins.
        first > *begins.get_or_insert(first) - receipt::SPAN
    })?;
    Ok(highest)
}

/// The highest number of a stored message, or one that is gone.
pub fn highest_envelope() -> Result<i64, Error> {
    let mut highest = 0;
    from_end::<Envelopes>(Object::EnvelopePkey, |seq, _| {
        highest = seq;
        false
    })?;
    Ok(highest)
}

/// True if numbers are stored that the sequence has not reached.
pub fn is_behind() -> Result<bool, Error> {
    Ok(highest()? < highest_envelope()?)
}

/// Any number from `first` on that a message below `end` may have.
pub fn some_number(first: i64, end: i64) -> Result<i64, Error> {
    let random = (Uuid::new_v4().as_u64_pair().1 >> 2).cast_signed();
    let end = end.min(highest_envelope()? + 1);
    Ok(first + random % (end - first).max(1))
}

/// Shows the first two columns of an index's entries, from the end, while `visit` says so. Rows are not looked at, so
/// what is gone is shown too, and nothing is walked over.
fn from_end<R: Record>(index: Object, mut visit: impl FnMut(i64, i64) -> bool) -> Result<(), Error> {
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

/// The highest number that may have been taken: every later [`next_block`] answers a higher one. Some 0.2 µs; it also
/// knows what was taken before the server was started.
///
/// # Errors
/// [`Error::Version`], see [`catalog::oid`], and if the extension was dropped just now.
pub fn highest() -> Result<i64, Error> {
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
    Ok(last.saturating_add(i64::from(taken)).saturating_mul(BLOCK as i64) - 1)
}
