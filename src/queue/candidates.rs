//! Messages that a look at the ready ones does not bring, put in arrival order.

use crate::pg::rows::table::RowId;
use crate::pg::value::datum::Time;
use crate::rules::floor::Cost;
use std::collections::{BTreeMap, HashSet};

/// How a claim has come upon a message.
#[derive(Clone, Copy)]
pub enum From {
    Ready,
    /// Waiting, and due since then; and what the walk to it has cost, if that is measured.
    Due(Time, Option<Cost>),
    /// Parked, or due, and the next of a key.
    Key,
    /// Its lease ends with that of an older message of its key. Locked.
    GivenBack,
}

/// Messages by number, met out of order.
#[derive(Default)]
pub struct Candidates {
    messages: BTreeMap<i64, (RowId, From)>,
    /// What came next of a key, and so need not be met among the due ones.
    followers: HashSet<i64>,
    /// The hashes of keys whose first message was parked, and nothing before it.
    orphans: Vec<i64>,
    /// The longest due of those that must stay reachable.
    left: Option<Time>,
    /// Of the walk to the longest due of those that are leased.
    cost: Option<Cost>,
}

impl Candidates {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// A waiting message is due since `at`.
    pub fn add_due(&mut self, seq: i64, id: RowId, at: Time, cost: Option<Cost>) {
        if !self.followers.contains(&seq) {
            self.messages.insert(seq, (id, From::Due(at, cost)));
        }
    }

    /// The next message of a key.
    pub fn add_follower(&mut self, seq: i64, id: RowId) {
        self.messages.entry(seq).or_insert((id, From::Key));
        self.followers.insert(seq);
    }

    /// The first message of a key was parked.
    pub fn add_orphan(&mut self, seq: i64, id: RowId, hash: Option<i64>) {
        self.add_follower(seq, id);
        self.orphans.extend(hash);
    }

    pub fn first_orphan(&self) -> Option<i64> {
        self.orphans.first().copied()
    }

    /// Leases that have ended with that of an older message. Their rows are locked.
    pub fn give_back(&mut self, locked: Vec<(i64, RowId)>) {
        self.messages.extend(locked.into_iter().map(|(seq, id)| (seq, (id, From::GivenBack))));
    }

    /// How a message that a look at the ready ones brings was come upon before.
    pub fn take(&mut self, seq: i64) -> From {
        self.messages.remove(&seq).map_or(From::Ready, |(_, from)| from)
    }

    pub fn take_first_before(&mut self, seq: i64) -> Option<(i64, RowId, From)> {
        let first = self.messages.first_entry().filter(|first| *first.key() < seq)?;
        let (seq, (id, from)) = first.remove_entry();
        Some((seq, id, from))
    }

    pub fn take_all(&mut self) -> BTreeMap<i64, (RowId, From)> {
        std::mem::take(&mut self.messages)
    }

    /// A message due since `at` is left.
    pub fn leave(&mut self, at: Time) {
        self.left = self.left.into_iter().chain([at]).min();
    }

    pub fn left(&self) -> Option<Time> {
        self.left
    }

    /// A message to which the walk has cost this is of use.
    pub fn reached(&mut self, cost: Option<Cost>) {
        self.cost = self.cost.into_iter().chain(cost).min();
    }

    pub fn cost(&self) -> Option<Cost> {
        self.cost
    }
}
