//! What has been answered per topic since the server started: statistics, kept in shared memory, not in rows that
//! everybody would update. They start at zero with the server, and are not replicated.
//!
//! A topic that was counted keeps its place; one that finds none within its window is not counted.

use crate::error::Error;
use crate::pg::datum::{Text, Time};
use crate::pg::server;
use crate::rules::argument::NAME_BYTES;
use crate::rules::slots::{self, Key, Occupant};
use crate::shmem::installations;
use crate::shmem::memory::{Shared, TOPICS, Topic};
use std::collections::BTreeMap;

/// Places that are read at a time, under the lock: some ten microseconds.
const STRETCH: usize = 256;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Delivered,
    /// Failed or abandoned.
    Failed,
    /// An answer whose lease was not current.
    Stale,
}

/// How often.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Totals {
    pub delivered: i64,
    pub failed: i64,
    pub stale: i64,
}

impl Totals {
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Delivered => self.delivered += 1,
            Event::Failed => self.failed += 1,
            Event::Stale => self.stale += 1,
        }
    }

    pub fn and(self, other: &Totals) -> Totals {
        Totals {
            delivered: self.delivered + other.delivered,
            failed: self.failed + other.failed,
            stale: self.stale + other.stale,
        }
    }
}

/// Those of a topic.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Counted {
    key: Key,
    installation: u64,
    totals: Totals,
    length: u8,
    name: [u8; NAME_BYTES],
}

impl Counted {
    pub const NOBODY: Counted = Counted {
        key: Occupant::NOBODY.key,
        installation: 0,
        totals: Totals { delivered: 0, failed: 0, stale: 0 },
        length: 0,
        name: [0; NAME_BYTES],
    };

    fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.length)]
    }
}

/// The place of `key`, or one that nobody has. Nobody loses a place.
fn place(counted: &[Counted], key: Key) -> Option<usize> {
    let place_of =
        |key: Key, wanted: Key| slots::window(key, counted.len()).find(|place| counted[*place].key == wanted);
    place_of(key, key).or_else(|| place_of(key, Counted::NOBODY.key))
}

/// Adds to those of `topic`, which `key` stands for.
pub fn add(counted: &mut [Counted], key: Key, installation: u64, topic: &[u8], totals: Totals) {
    let Some(place) = place(counted, key) else { return };
    let counted = &mut counted[place];
    if counted.key != key {
        let length = topic.len().min(NAME_BYTES);
        *counted = Counted { key, installation, length: length as u8, ..Counted::NOBODY };
        counted.name[..length].copy_from_slice(&topic[..length]);
    }
    counted.totals = counted.totals.and(&totals);
}

/// Of all topics of this installation that were counted.
pub fn all() -> Result<BTreeMap<Vec<u8>, Totals>, Error> {
    let installation = installations::current()?;
    let Some(shared) = Shared::attached() else { return Ok(BTreeMap::new()) };
    let mut found: Vec<Counted> = Vec::new();
    for first in (0..TOPICS).step_by(STRETCH) {
        found.reserve(STRETCH);
        shared.locked(|contents| {
            let stretch = contents.totals.iter().skip(first).take(STRETCH);
            found.extend(stretch.filter(|counted| counted.installation == installation));
        });
    }
    Ok(found.iter().map(|counted| (counted.name().to_vec(), counted.totals)).collect())
}

/// Of one topic; None if it is not counted.
pub fn of(topic: Text<'_>) -> Result<Option<Totals>, Error> {
    let key = installations::wanted(Some(topic))?;
    Ok(Shared::attached().and_then(|shared| {
        shared.locked(|contents| {
            let counted = &contents.totals[place(contents.totals, key)?];
            Some(if counted.key == key { counted.totals } else { Totals::default() })
        })
    }))
}

/// When purges of this installation last found nothing left to do.
#[derive(Clone, Copy)]
pub struct Purges {
    pub last: Option<Time>,
    /// What was before is not known: the server started, or this installation was first heard of.
    pub known_since: Time,
}

/// A purge has found nothing left to do.
pub fn purged() -> Result<(), Error> {
    of_all_topics(|topic, now| topic.purged_at = now)?;
    Ok(())
}

/// None if there is no room to remember any.
pub fn purges() -> Result<Option<Purges>, Error> {
    of_all_topics(|topic, _| Purges {
        last: (topic.purged_at != 0).then_some(Time(topic.purged_at)),
        known_since: Time(topic.known_since),
    })
}

fn of_all_topics<T>(what: impl FnOnce(&mut Topic, i64) -> T) -> Result<Option<T>, Error> {
    let (installation, now) = (installations::current()?, server::clock().0);
    let key = installations::key(installation, None);
    Ok(Shared::attached().and_then(|shared| {
        shared.locked(|contents| contents.topic_in_use(key, installation, now).map(|topic| what(topic, now)))
    }))
}
