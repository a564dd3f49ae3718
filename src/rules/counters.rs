//! What has been answered per topic, in a slot table without eviction. Pure; `shmem/counters.rs` keeps it.

use crate::argument::NAME_BYTES;
use crate::slots::{self, Key, Occupant};

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
pub struct Counted {
    key: Key,
    pub installation: u64,
    pub totals: Totals,
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

    pub fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.length)]
    }
}

/// The slot of `key`, or a free one. No topic loses its slot.
fn slot(counted: &[Counted], key: Key) -> Option<usize> {
    let slot_of =
        |key: Key, wanted: Key| slots::window(key, counted.len()).find(|slot| counted[*slot].key == wanted);
    slot_of(key, key).or_else(|| slot_of(key, Counted::NOBODY.key))
}

/// Adds to those of `topic`, which `key` stands for.
pub fn add(counted: &mut [Counted], key: Key, installation: u64, topic: &[u8], totals: Totals) {
    let Some(slot) = slot(counted, key) else { return };
    let counted = &mut counted[slot];
    if counted.key != key {
        let length = topic.len().min(NAME_BYTES);
        *counted = Counted { key, installation, length: length as u8, ..Counted::NOBODY };
        counted.name[..length].copy_from_slice(&topic[..length]);
    }
    counted.totals = counted.totals.and(&totals);
}

/// Those of the topic that `key` stands for; None if it is not counted.
pub fn of(counted: &[Counted], key: Key) -> Option<Totals> {
    let counted = &counted[slot(counted, key)?];
    Some(if counted.key == key { counted.totals } else { Totals::default() })
}
