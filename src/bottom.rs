//! Below what number no message is ready or leased at all: the *bottom* of a topic's ready index, or of all. Pure;
//! `store/looks.rs` keeps it.
//!
//! Order by key asks of every message for an older one of its key. A claim that starts at the bottom meets them all on
//! its way, and need not look each up in an index of its own. That way is as long as there are messages in other hands.
//! Where it is not short, a claim starts at the floor (`floor.rs`) and looks back by key.
//!
//! Unlike the floor, the bottom must not be wrong: a younger message would be delivered before its turn. So:
//! - Who appends publishes the lowest number taken, as for the floor; and who puts a message with a key back among the
//!   ready ones (a waiting or parked one that is leased, a dead one that is revived) first publishes its number, then
//!   [disturbs](Bottom::disturb) the bottom, then changes the row. Both withdraw after the commit is visible.
//! - A look reads, in this order: the highest number handed out, the bottom, the lowest number published ([`lowest`]);
//!   then it takes its snapshot; then it asks whether the bottom was disturbed. Was it not, everything ready in
//!   the snapshot is above the bottom that was read.
//! - What it leaves is at most the first number it met, the highest plus one, and the lowest published; and nothing if
//!   the bottom was disturbed. It is left once its own transaction is committed.
//! - No patience: a long transaction holds the bottom for as long as it lasts. A prepared one could not, so where
//!   there may be any, this is not used. What is changed by hand, the next sweep sees.

use crate::floor::{Cost, IDLE, NUMBERING, Pace};

/// What is known of one topic, or of all.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bottom {
    number: i64,
    disturbed: u64,
    /// Of the walks from here: to the first message of use.
    pace: Pace,
    /// The last look that met anything has met messages with keys.
    keyed: bool,
}

/// What a look has to do with it.
#[derive(Clone, Copy, Debug)]
pub struct Dive {
    /// It starts at the bottom, which is here, or at the beginning: what it leaves is to be bounded.
    pub from: Option<i64>,
    disturbed: u64,
    /// What it leaves is at most this. None: nothing.
    pub bound: Option<i64>,
    /// The first message met, of those that are ready or leased.
    pub first: Option<i64>,
    /// A message with a key was met.
    pub keyed: bool,
}

impl Dive {
    pub const NONE: Dive = Dive { from: None, disturbed: 0, bound: None, first: None, keyed: false };

    /// Of several looks of one transaction, none leaves anything: each sees what the others did.
    pub fn void(self) -> Dive {
        Dive { bound: None, ..self }
    }
}

/// What one session publishes about its open transaction.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// As of [`crate::floor::Slot`].
    pub low: i64,
    /// The lowest number that it puts back among the ready ones, or [`IDLE`].
    pub back: i64,
}

/// The lowest number published; 0 if one is about to be.
pub fn lowest(slots: impl Iterator<Item = Slot>) -> i64 {
    let numbers = slots.flat_map(|slot| [slot.low, slot.back]).filter(|number| *number != IDLE);
    numbers.map(|number| if number == NUMBERING { 0 } else { number }).min().unwrap_or(i64::MAX)
}

impl Bottom {
    pub const UNKNOWN: Bottom = Bottom { number: 0, disturbed: 0, pace: Pace::UNKNOWN, keyed: false };

    /// Begins a look at `now`; a `sweep` starts at the beginning anyway. Without keys nobody pays for this.
    pub fn look(&mut self, now: i64, sweep: bool) -> Dive {
        let from = match sweep {
            _ if !self.keyed => None,
            true => Some(0),
            false => self.pace.begin(now).then_some(self.number),
        };
        Dive { from, disturbed: self.disturbed, ..Dive::NONE }
    }

    /// True if nothing has been put back since the look began.
    pub fn is_undisturbed_since(&self, look: &Dive) -> bool {
        self.disturbed == look.disturbed
    }

    /// Keeps what a look has seen, once its transaction is committed.
    pub fn keep(&mut self, look: &Dive) {
        self.keyed = look.keyed || self.keyed && (look.bound.is_none() || look.first.is_none());
        if let Some(bound) = look.bound.filter(|_| self.is_undisturbed_since(look)) {
            let seen = look.first.map_or(bound, |first| first.min(bound));
            // What a sweep has met below was changed by hand.
            self.number = if look.from == Some(0) { seen } else { self.number.max(seen) };
        }
    }

    /// Takes down what the walk from the bottom to the first message of use has cost.
    pub fn walked(&mut self, cost: Cost) {
        self.pace.took(cost);
    }

    /// Message `seq` is about to be put back, or has been.
    pub fn disturb(&mut self, seq: i64) {
        self.disturbed += 1;
        self.number = self.number.min(seq);
    }
}
