//! The messages of one key: as a snapshot has them, or as they are at this moment, uncommitted changes included.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan::{Found, Scan};
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::read::versions::{DirtyScan, Version};
use crate::pg::rows::table::{RowId, Table};
use crate::pg::value::datum::Text;
use crate::rules::key_hash;
use crate::tables::delivery::{Deliveries, Delivery, Place};
use pgrx::pg_sys;
use std::collections::HashSet;

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

/// One key of one topic.
#[derive(Clone, Copy)]
pub struct Keyed<'a> {
    pub topic: Text<'a>,
    key: Text<'a>,
    pub hash: i64,
}

impl<'a> Keyed<'a> {
    pub fn new(topic: Text<'a>, key: Text<'a>) -> Self {
        Keyed { topic, key, hash: key_hash::of(topic.bytes(), key.bytes()) }
    }

    /// In the current memory context, free of the scan it was read from.
    pub fn copied(self) -> Keyed<'static> {
        Keyed { topic: self.topic.copied(), key: self.key.copied(), hash: self.hash }
    }

    /// Both texts in one.
    pub fn bytes(self) -> Vec<u8> {
        [self.topic.bytes(), self.key.bytes()].join(&0) // a text has no zero byte
    }

    fn has(self, row: &Delivery<'_>) -> bool {
        row.key.is_some_and(|key| key.bytes() == self.key.bytes()) && row.topic.bytes() == self.topic.bytes()
    }
}

impl<'a> Delivery<'a> {
    /// The key and its topic, if the message has one.
    pub fn keyed(&self) -> Option<Keyed<'a>> {
        self.key.zip(self.key_hash).map(|(key, hash)| Keyed { topic: self.topic, key, hash })
    }
}

/// Messages of a key, as a snapshot has them.
pub struct KeyMessages<'t>(Scan<'t, Deliveries>);

/// Some of them, in order.
pub struct Messages<'s, 't>(&'s mut Scan<'t, Deliveries>, Keyed<'s>);

impl<'t> KeyMessages<'t> {
    pub fn open(table: &'t Table<Deliveries>, part: Part, snapshot: &'t Latest) -> Result<Self, Error> {
        Ok(KeyMessages(Scan::open(table, part.index(), snapshot, 3)?))
    }

    /// Those younger than number `seq`, the oldest first.
    pub fn younger<'s>(&'s mut self, keyed: Keyed<'s>, seq: i64) -> Messages<'s, 't> {
        self.0.start(between(keyed.hash, seq.saturating_add(1), i64::MAX));
        Messages(&mut self.0, keyed)
    }

    /// Those older than number `seq`, the youngest first; `since` is where the key's first may be.
    pub fn older<'s>(&'s mut self, keyed: Keyed<'s>, since: i64, seq: i64) -> Messages<'s, 't> {
        self.0.start_backward(between(keyed.hash, since, seq - 1));
        Messages(&mut self.0, keyed)
    }

    /// True if the part may have messages of any key: its index is more than one page, or has an entry. Of a
    /// message that the snapshot has, the entry was there before.
    pub fn may_have_any(&mut self) -> bool {
        if self.0.index_pages() > 1 {
            return true;
        }
        self.0.start([Key::at_least(1, &i64::MIN), Key::at_least(2, &i64::MIN), Key::at_most(2, &i64::MAX)]);
        self.0.step()
    }

    /// The first of all keys with that hash, from number `since` on.
    pub fn first_of_hash(&mut self, hash: i64, since: i64) -> Option<Found<'_, Deliveries>> {
        self.0.start(between(hash, since, i64::MAX));
        self.0.next()
    }

    /// Shows those of all keys with that hash, from number `first` to below `end`.
    pub fn of_hash(&mut self, hash: i64, first: i64, end: i64, show: &mut impl FnMut(RowId, &Delivery<'_>)) {
        self.0.start(between(hash, first, end - 1));
        while let Some(found) = self.0.next() {
            show(found.id, &found.row);
        }
    }
}

/// The keys that messages wait or are parked with, by hash; of some there may be none any more.
pub struct Hashes<'t>(Scan<'t, Deliveries>);

impl<'t> Hashes<'t> {
    pub fn open(table: &'t Table<Deliveries>, snapshot: &'t Latest) -> Result<Self, Error> {
        Ok(Hashes(Scan::open_for_entries(table, Part::Later.index(), snapshot, 1)?))
    }

    /// The first from `hash` on.
    pub fn next_from(&mut self, hash: i64) -> Option<i64> {
        self.0.start([Key::at_least(1, &hash)]);
        self.0.step().then(|| self.0.entry_number())
    }
}

impl Messages<'_, '_> {
    pub fn next(&mut self) -> Option<Found<'_, Deliveries>> {
        while let Some(found) = self.0.next() {
            if self.1.has(&found.row) {
                return Some(self.0.found());
            }
        }
        None
    }
}

/// Versions of some messages of a key at this moment, in order.
pub struct Versions<'s, 't>(&'s mut DirtyScan<'t, Deliveries>, Keyed<'s>);

impl<'t> DirtyScan<'t, Deliveries> {
    pub fn of_key(table: &'t Table<Deliveries>, part: Part) -> Result<Self, Error> {
        DirtyScan::open(table, part.index(), 3)
    }

    /// As [`KeyMessages::younger`].
    pub fn younger<'s>(&'s mut self, keyed: Keyed<'s>, seq: i64) -> Versions<'s, 't> {
        self.scan.start(between(keyed.hash, seq.saturating_add(1), i64::MAX));
        Versions(self, keyed)
    }

    /// As [`KeyMessages::older`].
    pub fn older<'s>(&'s mut self, keyed: Keyed<'s>, since: i64, seq: i64) -> Versions<'s, 't> {
        self.scan.start_backward(between(keyed.hash, since, seq - 1));
        Versions(self, keyed)
    }
}

impl Versions<'_, '_> {
    /// The next one that any session may ever see.
    pub fn next(&mut self) -> Option<Version<'_, Deliveries>> {
        while let Some(found) = self.0.scan.next() {
            if self.1.has(&found.row) {
                let Version { written_by, ended_by, .. } = self.0.version();
                if written_by.is_none() || ended_by.is_none() {
                    return Some(self.0.version());
                }
            }
        }
        None
    }
}

/// What may become of a message by the changes in progress.
#[derive(Clone, Copy)]
pub struct Fate {
    /// Whichever of them commit, it is still to be delivered, or dead if `dead_lasts`.
    pub lasts: bool,
    /// Who is changing it.
    pub changed_by: Option<pg_sys::TransactionId>,
}

impl Fate {
    pub fn of(seq: i64, table: &Table<Deliveries>, dead_lasts: bool) -> Result<Fate, Error> {
        let mut now = DirtyScan::open(table, Object::DeliveryPkey, 1)?;
        now.scan.start([Key::equal(1, &seq)]);
        let mut fate = Fate { lasts: true, changed_by: None };
        let mut has_newest = false;
        while now.scan.next().is_some() {
            let version = now.version();
            fate.lasts &= dead_lasts || version.row.place != Place::Dead;
            fate.changed_by = fate.changed_by.or(version.written_by).or(version.ended_by);
            has_newest |= version.ended_by.is_none();
        }
        fate.lasts &= has_newest;
        Ok(fate)
    }
}

/// The keys of a topic that have parked messages.
pub fn parked_keys(
    table: &Table<Deliveries>,
    topic: Text<'_>,
    snapshot: &Latest,
) -> Result<Vec<Text<'static>>, Error> {
    let (mut keys, mut known) = (Vec::new(), HashSet::new());
    let mut scan = Scan::open(table, Object::DeliveryParked, snapshot, 1)?;
    scan.start([Key::equal(1, &topic)]);
    while let Some(found) = scan.next() {
        crate::pg::session::server::check_for_interrupts();
        let Some(key) = found.row.key else { continue };
        if known.insert(key.bytes().to_vec()) {
            keys.push(key.copied());
        }
    }
    Ok(keys)
}

/// Messages with a key of that hash, numbered from `first` to `last`.
fn between(hash: i64, first: i64, last: i64) -> [Key; 3] {
    [Key::equal(1, &hash), Key::at_least(2, &first), Key::at_most(2, &last)]
}
