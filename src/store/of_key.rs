//! The messages of one key: as a snapshot has them, or as they are at this moment, uncommitted changes included.

use super::catalog::Object;
use super::record::{Deliveries, Delivery, Place};
use super::scan::{Found, Key, Scan};
use super::snapshot::{Dirty, Latest};
use super::table::{RowId, Table};
use super::value::Text;
use crate::error::Error;
use pgrx::pg_sys;

/// Which of a key's messages.
#[derive(Clone, Copy)]
pub enum Part {
    /// Ready or leased.
    Ready,
    /// Waiting or parked.
    Later,
    Dead,
}

impl Part {
    fn index(self) -> Object {
        match self {
            Part::Ready => Object::DeliveryKeyReady,
            Part::Later => Object::DeliveryKeyLater,
            Part::Dead => Object::DeliveryKeyDead,
        }
    }
}

/// Messages of a key, as a snapshot has them.
pub struct OfKey<'t>(Scan<'t, Deliveries>);

/// Some of them, in order.
pub struct Messages<'s, 't>(&'s mut Scan<'t, Deliveries>);

impl<'t> OfKey<'t> {
    pub fn open(table: &'t Table<Deliveries>, part: Part, snapshot: &'t Latest) -> Result<Self, Error> {
        Ok(OfKey(Scan::open(table, part.index(), snapshot, 3)?))
    }

    /// Those younger than number `seq`, the oldest first.
    pub fn younger<'s>(&'s mut self, topic: Text<'s>, key: Text<'s>, seq: i64) -> Messages<'s, 't> {
        self.0.start(younger(&topic, &key, &seq));
        Messages(&mut self.0)
    }

    /// Those older than number `seq`, the youngest first.
    pub fn older<'s>(&'s mut self, topic: Text<'s>, key: Text<'s>, seq: i64) -> Messages<'s, 't> {
        self.0.start_backward(older(&topic, &key, &seq));
        Messages(&mut self.0)
    }
}

impl Messages<'_, '_> {
    pub fn next(&mut self) -> Option<Found<'_, Deliveries>> {
        self.0.next()
    }
}

/// Messages as they are at this moment. One that somebody is changing comes once as it was and once as it will be; one
/// that changes while the scan passes may not come at all.
pub struct Now<'t> {
    scan: Scan<'t, Deliveries>,
    snapshot: Dirty,
}

/// Versions of some messages of a key at this moment, in order.
pub struct Versions<'s, 't>(&'s mut Now<'t>);

/// A version of a message at this moment.
pub struct Version<'s> {
    pub id: RowId,
    pub row: Delivery<'s>,
    /// The other open transaction that has written it.
    pub written_by: Option<pg_sys::TransactionId>,
    /// The other open transaction that has replaced or removed it.
    pub ended_by: Option<pg_sys::TransactionId>,
}

impl Version<'_> {
    /// True if no open transaction has anything to do with it.
    pub fn is_settled(&self) -> bool {
        self.written_by.is_none() && self.ended_by.is_none()
    }
}

impl<'t> Now<'t> {
    fn open(table: &'t Table<Deliveries>, index: Object, keys: usize) -> Result<Self, Error> {
        let snapshot = Dirty::new();
        // SAFETY: the snapshot is dropped after the scan.
        let scan = unsafe { Scan::open_with(table, index, snapshot.as_ptr(), keys)? };
        Ok(Now { scan, snapshot })
    }

    pub fn of_key(table: &'t Table<Deliveries>, part: Part) -> Result<Self, Error> {
        Now::open(table, part.index(), 3)
    }

    /// As [`OfKey::younger`].
    pub fn younger<'s>(&'s mut self, topic: Text<'s>, key: Text<'s>, seq: i64) -> Versions<'s, 't> {
        self.scan.start(younger(&topic, &key, &seq));
        Versions(self)
    }

    /// As [`OfKey::older`].
    pub fn older<'s>(&'s mut self, topic: Text<'s>, key: Text<'s>, seq: i64) -> Versions<'s, 't> {
        self.scan.start_backward(older(&topic, &key, &seq));
        Versions(self)
    }

    fn next(&mut self) -> Option<Version<'_>> {
        let found = self.scan.next()?;
        let (written_by, ended_by) = self.snapshot.in_progress();
        Some(Version { id: found.id, row: found.row, written_by, ended_by })
    }
}

impl Versions<'_, '_> {
    pub fn next(&mut self) -> Option<Version<'_>> {
        self.0.next()
    }
}

/// What may become of a message by the changes in progress.
#[derive(Clone, Copy)]
pub struct Outlook {
    /// Whichever of them commit, it is still to be delivered, or dead if `dead_lasts`.
    pub lasts: bool,
    /// Who is changing it.
    pub changed_by: Option<pg_sys::TransactionId>,
}

impl Outlook {
    pub fn of(seq: i64, table: &Table<Deliveries>, dead_lasts: bool) -> Result<Outlook, Error> {
        let mut now = Now::open(table, Object::DeliveryPkey, 1)?;
        now.scan.start([Key::new(1, pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ, &seq)]);
        let mut outlook = Outlook { lasts: true, changed_by: None };
        let mut has_newest = false;
        while let Some(version) = now.next() {
            outlook.lasts &= dead_lasts || version.row.place != Place::Dead;
            outlook.changed_by = outlook.changed_by.or(version.written_by).or(version.ended_by);
            has_newest |= version.ended_by.is_none();
        }
        outlook.lasts &= has_newest;
        Ok(outlook)
    }
}

/// The first key of a topic, after `last`, that has waiting or parked messages.
pub fn next_later_key(
    table: &Table<Deliveries>,
    topic: Text<'_>,
    last: Option<Text<'_>>,
    snapshot: &Latest,
) -> Result<Option<Text<'static>>, Error> {
    let last = last.unwrap_or_else(|| Text::new(b""));
    let mut scan = Scan::open(table, Part::Later.index(), snapshot, 2)?;
    let from = Key::new(2, pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT, &last);
    scan.start([Key::text(1, &topic), from]);
    Ok(scan.next().and_then(|found| found.row.key).map(Text::copied))
}

fn younger(topic: &Text<'_>, key: &Text<'_>, seq: &i64) -> [Key; 3] {
    let from = Key::new(3, pg_sys::BTGreaterStrategyNumber, pg_sys::F_INT8GT, seq);
    [Key::text(1, topic), Key::text(2, key), from]
}

fn older(topic: &Text<'_>, key: &Text<'_>, seq: &i64) -> [Key; 3] {
    let to = Key::new(3, pg_sys::BTLessStrategyNumber, pg_sys::F_INT8LT, seq);
    [Key::text(1, topic), Key::text(2, key), to]
}
