//! The sequence that numbers arrivals.
//!
//! It is not trusted: a dump restored in part, a promoted subscriber and ALTER SEQUENCE leave it behind what is stored.
//! So a session that does not know better compares the value it took with the highest number stored, and skips ahead.
//! Sessions do this one after the other. A skip goes [`AHEAD`] values further than it must, so it repeats no value that
//! another session has taken and not compared yet.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::read::index_end::from_end;
use crate::pg::rows::table::{Access, Table};
use crate::pg::sequence;
use crate::pg::session::lock::RelationLock;
use crate::rules::receipt;
use crate::tables::delivery::Deliveries;
use crate::tables::envelope::Envelopes;
use crate::tables::receipt::Receipts;
use pgrx::pg_sys;
use std::cell::Cell;
use uuid::Uuid;

/// Messages that one value of the sequence numbers.
pub const BLOCK: usize = 1024;
/// Values that a skip leaves out. A server has fewer sessions.
const AHEAD: i64 = 1 << 18;
/// Its numbers fit a token.
const MAX: i64 = (1 << 50) - 1;

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
        let value = sequence::next(sequence);
        if value > last {
            return Ok(value * BLOCK as i64);
        }
    }
    // Before the sequence: who waits for this table holds nobody up.
    let receipts = Table::<Receipts>::open(Access::Read)?;
    // This lock keeps out those who compare, not those who take values.
    let alone = RelationLock::take(sequence, pg_sys::ShareUpdateExclusiveLock);
    sequence::check(sequence, MAX)?;
    let value = loop {
        let (value, stored) = (sequence::next(sequence), highest_stored()?);
        let least = stored / BLOCK as i64;
        if value > least {
            break value;
        }
        if least >= MAX - AHEAD {
            return Err(Error::Numbers(stored));
        }
        sequence::set(sequence, least + AHEAD);
    };
    alone.release();
    receipts.release();
    Ok(value * BLOCK as i64)
}

/// The block that begins with `first` is stored, so the next value needs no comparison if it is higher.
pub fn stored(first: i64) {
    LAST.set(first / BLOCK as i64);
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

/// The highest number that may have been taken: every later [`next_block`] answers a higher one. Some 0.2 µs; it also
/// knows what was taken before the server was started.
///
/// # Errors
/// [`Error::Version`], see [`catalog::oid`], and if the extension was dropped just now.
pub fn highest() -> Result<i64, Error> {
    let (last, taken) = sequence::last(catalog::oid(Object::Arrival)?)?;
    Ok(last.saturating_add(i64::from(taken)).saturating_mul(BLOCK as i64) - 1)
}
