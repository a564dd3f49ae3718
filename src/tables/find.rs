//! Single rows: by number, by id, by time.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan::{Found, Scan};
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::row::Read;
use crate::pg::rows::table::{Access, Table};
use crate::pg::value::datum::Time;
use crate::tables::delivery::{Deliveries, Delivery};
use crate::tables::envelope::{Envelope, Envelopes};
use crate::tables::number;
use uuid::Uuid;

/// A table whose rows are found by `seq`.
pub trait Numbered: Read {
    const INDEX: Object;
    fn seq(row: &Self::Row<'_>) -> i64;
}

impl Numbered for Deliveries {
    const INDEX: Object = Object::DeliveryPkey;
    fn seq(row: &Delivery<'_>) -> i64 {
        row.seq
    }
}

impl Numbered for Envelopes {
    const INDEX: Object = Object::EnvelopePkey;
    fn seq(row: &Envelope<'_>) -> i64 {
        row.seq
    }
}

/// Numbers that one descent of the index covers.
const SPAN: i64 = 1 << 16;
/// A number further ahead than this is looked up afresh: in between may be any number of dead entries.
const NEAR: i64 = 2 << 10;
/// Rows that are passed on the way to a near number; then it is looked up afresh. A descent costs as much as a dozen.
const PASSED: usize = 16;

/// Rows by number. Asked in ascending order, near numbers share a descent of the index: a tenth less for claim and
/// complete.
pub struct Lookup<'t, R: Numbered> {
    scan: Scan<'t, R>,
    /// The last number asked for; numbers from it to `end` are in reach.
    asked: i64,
    end: i64,
    /// The number of the row that the scan is at; none before the first, i64::MAX after the last.
    at: Option<i64>,
}

impl<'t, R: Numbered> Lookup<'t, R> {
    pub fn open(table: &'t Table<R>, snapshot: &'t Latest) -> Result<Self, Error> {
        Ok(Lookup { scan: Scan::open(table, R::INDEX, snapshot, 2)?, asked: i64::MAX, end: 0, at: None })
    }

    /// The row numbered `seq`.
    pub fn find(&mut self, seq: i64) -> Option<Found<'_, R>> {
        let near = self.asked <= seq && seq < self.end && seq - self.asked <= NEAR;
        if !near {
            self.descend(seq);
        }
        self.asked = seq;
        let mut passed = 0;
        while self.at.is_none_or(|at| at < seq) {
            if passed == PASSED {
                self.descend(seq);
            }
            passed += 1;
            self.at = Some(self.scan.next().map_or(i64::MAX, |found| R::seq(&found.row)));
        }
        (self.at == Some(seq)).then(|| self.scan.found())
    }

    fn descend(&mut self, seq: i64) {
        self.end = seq.saturating_add(SPAN);
        self.at = None;
        self.scan.start([Key::at_least(1, &seq), Key::below(1, &self.end)]);
    }
}

/// The number of the message `id`, if it is stored.
pub fn seq_of(id: Uuid, snapshot: &Latest) -> Result<Option<i64>, Error> {
    envelope_of(id, snapshot, |envelope| envelope.seq)
}

/// What `look` makes of the envelope of the message `id`, if it is stored.
pub fn envelope_of<T>(
    id: Uuid,
    snapshot: &Latest,
    look: impl FnOnce(Envelope<'_>) -> T,
) -> Result<Option<T>, Error> {
    let table = Table::<Envelopes>::open(Access::Read)?;
    let mut scan = Scan::open(&table, Object::EnvelopeId, snapshot, 1)?;
    scan.start([Key::equal(1, &id)]);
    let looked = scan.next().map(|found| look(found.row));
    Ok(looked)
}

/// The first message from number `from` on, and the first that was appended between `time` and `now`; or a number above
/// all. Found by halving, because numbers and times ascend together, but for clocks that were wrong; one that was ahead
/// counts as old.
pub fn first_appended_since(
    time: Time,
    now: Time,
    from: i64,
    snapshot: &Latest,
) -> Result<(i64, i64), Error> {
    let table = Table::<Envelopes>::open(Access::Read)?;
    let mut scan = Scan::open(&table, Object::EnvelopePkey, snapshot, 2)?;
    let mut young = number::highest_envelope()? + 1;
    let keys = |from: &i64, to: &i64| [Key::at_least(1, from), Key::below(1, to)];
    scan.start(keys(&from, &young));
    let lowest = scan.next().map_or(young, |found| found.row.seq);
    let (mut old, mut first) = (lowest, i64::MAX);
    while old < young {
        let middle = old + (young - old) / 2;
        scan.start(keys(&middle, &young));
        match scan.next().map(|found| found.row) {
            Some(row) if row.occurred_at < time || now < row.occurred_at => old = row.seq + 1,
            found => (first, young) = (found.map_or(first, |row| row.seq), middle),
        }
    }
    Ok((lowest, first))
}
