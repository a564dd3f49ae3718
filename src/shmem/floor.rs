//! Looks at the ready and the waiting messages, see `rules/floor.rs`: where they start, and what they leave for the
//! next. A cache: where it cannot be had, every look starts at the beginning and is right.

use crate::error::Error;
use crate::pg::catalog;
use crate::pg::read::snapshot::Latest;
use crate::pg::read::versions::AllVersions;
use crate::pg::rows::table::{Access, Table, Xid};
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::rules::floor::{self, Cost, Look, NEVER, Seen};
use crate::rules::slots::Key;
use crate::shmem;
use crate::shmem::installations::{self, key};
use crate::shmem::memory::{Range, Shared, Topic};
use crate::shmem::pending::{self, Left};
use crate::tables::delivery::{Deliveries, Place};
use crate::tables::number;
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Versions that a raise of the due mark walks over.
const WALK: usize = 5_000;

/// A look at one range, from its start to what it leaves.
pub struct ScanStart {
    key: Key,
    range: Range,
    generation: u64,
    look: Option<Look>,
    /// Nothing is to be found before it.
    mark: i64,
    /// Transactions before this one have been open for a while and hold no floor.
    horizon: u32,
    /// Where a walk over parked messages is to begin, and how many microseconds it may take.
    pub heads: Option<(i64, i64)>,
}

/// Begins a look at what is ready in `topic`, or in all. To be called before the snapshot is taken.
pub fn look_at_ready(topic: Option<Text<'_>>, now: Time) -> Result<ScanStart, Error> {
    if catalog::take_changed() {
        shmem::low_water::forget_if_rewritten()?;
    }
    look(topic, Range::Ready, now)
}

/// Begins a look at what is waiting and due in `topic`, or in all. To be called before the snapshot is taken.
pub fn look_at_waiting(topic: Option<Text<'_>>, now: Time) -> Result<ScanStart, Error> {
    let mut scan_start = look(topic, Range::Waiting, now)?;
    if scan_start.is_sweep() {
        scan_start.raise_mark(topic, now)?;
    }
    Ok(scan_start)
}

fn look(topic: Option<Text<'_>>, range: Range, now: Time) -> Result<ScanStart, Error> {
    let installation = installations::current()?;
    let key = installations::key(installation, topic.map(Text::bytes));
    let nothing =
        ScanStart { key, range, generation: 0, look: None, mark: i64::MIN, horizon: 0, heads: None };
    let Some(shared) = Shared::attached() else { return Ok(nothing) };
    // The order matters: highest before lowest before the entry's version, and the snapshot after all of them.
    let (highest, lowest) = match range {
        Range::Ready => {
            let highest = number::highest()?;
            (highest, floor::lowest(shared.slots(installation), now.0))
        }
        // A session that makes a message wait lowers the floor once that is committed.
        Range::Waiting => (now.0, i64::MAX),
    };
    let earlier = pending::left(key, range).map(|seen| seen.reach);
    Ok(shared.locked(|contents| {
        let horizon = contents.mark(now.0);
        match contents.topic_in_use(key, installation, now.0) {
            Some(topic) => {
                let look = topic.entry(range).look(now.0, highest, lowest).from(earlier.flatten());
                let heads = if range == Range::Ready { topic.heads.begin(now.0) } else { None };
                let mark = if range == Range::Waiting { topic.due_mark.mark() } else { i64::MIN };
                ScanStart { generation: topic.generation, look: Some(look), mark, horizon, heads, ..nothing }
            }
            None => nothing,
        }
    }))
}

/// What claims have left behind.
#[derive(Clone, Copy)]
pub struct Passed {
    /// Below this number they have found nothing ready, and below this time nothing due,
    pub number: i64,
    pub due: i64,
    /// and nothing waits for a time before this one,
    pub due_mark: i64,
    /// but for leases, the first of which runs out at this time.
    pub expiry: i64,
}

/// What claims on `topic` have left behind, or also those on any topic. Nothing is certain: it is a cache.
pub fn passed(topic: Text<'_>, or_any: bool) -> Result<Passed, Error> {
    let installation = installations::current()?;
    let keys = [Some(key(installation, Some(topic.bytes()))), or_any.then(|| key(installation, None))];
    let mut passed = Passed { number: 0, due: 0, due_mark: i64::MIN, expiry: floor::NEVER };
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| {
            for key in keys.into_iter().flatten() {
                if let Some(topic) = contents.topic(key) {
                    passed.number = passed.number.max(topic.entry(Range::Ready).floor());
                    passed.due = passed.due.max(topic.entry(Range::Waiting).floor());
                    passed.due_mark = passed.due_mark.max(topic.due_mark.mark());
                    passed.expiry = passed.expiry.min(topic.entry(Range::Ready).next_expiry());
                }
            }
        });
    }
    Ok(passed)
}

impl ScanStart {
    /// The number or time to start at.
    pub fn at(&self) -> i64 {
        self.look.map_or(0, |look| look.start).max(self.mark)
    }

    /// Raises the due mark where a look from there was not cheap.
    fn raise_mark(&mut self, topic: Option<Text<'_>>, now: Time) -> Result<(), Error> {
        let installation = installations::current()?;
        let Some(shared) = Shared::attached() else { return Ok(()) };
        let begun = shared.locked(|contents| {
            let topic = contents.same_topic(self.key, self.generation)?;
            (!topic.entry(Range::Waiting).is_cheap()).then(|| topic.due_mark.begin(now.0))
        });
        let Some(raise) = begun else { return Ok(()) };
        fence(SeqCst);
        let end = raise.to.min(shared.entering_due(installation));
        let table = Table::<Deliveries>::open(Access::Read)?;
        let snapshot = Latest::push();
        let mut versions = AllVersions::waiting(&table, &snapshot, topic, Time(raise.from))?;
        let mut reached = end;
        for step in 0.. {
            server::check_for_interrupts();
            let Some(row) = versions.next() else { break };
            let due = row.available_at.map_or(raise.from, |due| due.0);
            if due >= end {
                break;
            }
            if step == WALK || row.place == Place::Waiting && versions.may_live() {
                reached = due;
                break;
            }
        }
        drop(versions);
        drop(snapshot);
        table.release();
        shared.locked(|contents| {
            if let Some(topic) = contents.same_topic(self.key, self.generation) {
                topic.due_mark.finish(&raise, reached);
                self.mark = topic.due_mark.mark();
            }
        });
        Ok(())
    }

    /// True if the row's change by transaction `xid` holds the floor: it may roll back, and soon.
    pub fn is_held_by(&self, xid: Xid) -> bool {
        self.horizon == 0 || !server::precedes(xid, self.horizon)
    }

    /// The walk over parked messages has ended, see [`floor::Heads::walked`].
    pub fn walked_heads(&self, next: Option<i64>, micros: i64) {
        self.of_topic(|topic| topic.heads.walked(next, micros));
    }

    /// One whose key hashes to this was left.
    pub fn left_head(&self, hash: i64) {
        self.of_topic(|topic| topic.heads.left(hash));
    }

    fn of_topic(&self, tell: impl FnOnce(&mut Topic)) {
        if let Some(shared) = Shared::attached() {
            shared.locked(|contents| {
                if let Some(topic) = contents.topic(self.key) {
                    tell(topic);
                }
            });
        }
    }

    /// True if this look starts below the floor, and is to tell what the way has cost.
    pub fn is_sweep(&self) -> bool {
        self.look.is_some_and(|look| look.sweep)
    }

    /// Takes down what the walk from the start to the first claimable row has cost.
    pub fn walked(&self, cost: Cost) {
        self.of_topic(|topic| topic.entry(self.range).walked(cost));
    }

    /// Leaves what was seen: at once if the look changed nothing, nor did the transaction before, else for when it is
    /// committed. Returns when, by what is known of leases, the next look may find more.
    pub fn finish(self, seen: Seen, changed: bool) -> Time {
        let (Some(look), Some(shared)) = (self.look, Shared::attached()) else { return Time(seen.expiry) };
        let at_once = !changed && pending::has_changed_nothing();
        let next_end = shared.locked(|contents| {
            let topic = contents.same_topic(self.key, self.generation)?;
            if at_once {
                topic.entry(self.range).keep(&look, &seen);
            }
            Some(topic.entry(self.range).next_end())
        });
        if !at_once {
            let ScanStart { key, range, generation, .. } = self;
            pending::leave(key, range, Left { generation, look, seen });
        }
        Time(next_end.unwrap_or(NEVER).min(seen.expiry))
    }
}

/// Begins a look for deaths in all topics; false if the last one was expensive and not long ago.
pub fn may_look_for_deaths(now: Time) -> Result<bool, Error> {
    let installation = installations::current()?;
    let key = installations::key(installation, None);
    Ok(Shared::attached().is_none_or(|shared| {
        shared.locked(|contents| {
            contents.topic_in_use(key, installation, now.0).is_none_or(|topic| topic.deaths.begin(now.0))
        })
    }))
}

/// Takes down what a look for deaths has cost.
pub fn looked_for_deaths(cost: Cost) -> Result<(), Error> {
    let key = installations::wanted(None)?;
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| {
            if let Some(topic) = contents.topic(key) {
                topic.deaths.took(cost);
            }
        });
    }
    Ok(())
}
