//! Where a claim starts to look: the floor, and the sweep that looks below it. Pure; `shmem/floor.rs` keeps it.
//!
//! While any snapshot is held, finished rows cannot be removed, and a scan from the beginning of the ready index walks
//! over all of them. So a look leaves a *floor*: below it, it found nothing that can be claimed. The next look starts
//! there. All of this is a cache. Forgotten, claims start at the beginning and are right.
//!
//! What keeps the floor from passing a message:
//! - A transaction that appends publishes, before it takes sequence numbers, that it is about to ([`NUMBERING`]), then
//!   the lowest number it took. It withdraws after its commit is visible. A look reads, in this order: the highest
//!   number handed out (of the sequence), the lowest one in flight ([`lowest`]), the entry's version; then it takes
//!   its snapshot. The floor it leaves is at most the first of these plus one, and at most the second.
//! - A change that makes an older message claimable (release, a new life, a delay that is over) lowers the floor once
//!   it is committed, and leaves the number in a short log with a version. A look that began before that raises the
//!   floor no further.
//! - A look raises the floor only once its own transaction is committed, so a claim that rolls back passes nothing.
//! - A row that another session is changing holds the floor: that change may roll back.
//! - A message of a paused topic holds no floor, or its backlog would be walked by every claim on any topic. A session
//!   that resumes the topic lowers the floor; the sweep finds what was resumed by other means.
//! - A transaction older than [`PATIENCE`] holds nothing back: when it commits, it lowers the floor itself, or, if it
//!   was prepared, the sweep finds what it left.
//!
//! The *sweep* is a look from the beginning. It is due when a lease that the floor has passed runs out, and otherwise
//! every [`SWEEP_EVERY`]; but it takes at most a twentieth of the time. Where looking from the beginning is cheap,
//! every look does. After the table was rewritten or truncated nothing is known any more.

/// Of a slot whose transaction is about to take a number.
pub const NUMBERING: i64 = -1;
/// Of a slot whose transaction has taken none.
pub const IDLE: i64 = 0;
/// How long an open transaction holds the floor, in microseconds.
pub const PATIENCE: i64 = 1_000_000;
/// Longest time between two sweeps while claims come, in microseconds, unless they are expensive.
pub const SWEEP_EVERY: i64 = 1_000_000;
/// A sweep is followed by this many times its duration without one.
const REST: i64 = 20;
/// Pages that a walk to the first claimable row may touch and still count as cheap.
const CHEAP_PAGES: i64 = 64;
/// Lowerings that the log remembers.
const LOG: usize = 8;
/// No lease known that could run out.
pub const NEVER: i64 = i64::MAX;

/// What one session publishes about its open transaction.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// [`IDLE`], [`NUMBERING`], or the lowest number the transaction has taken.
    pub low: i64,
    /// When the transaction took its first number.
    pub since: i64,
}

/// The lowest number of a transaction in flight, the patience with which is not over at `now`. While one is about to
/// take its number, nothing can be said: 0.
pub fn lowest(slots: impl Iterator<Item = Slot>, now: i64) -> i64 {
    slots
        .filter(|slot| slot.low != IDLE && distance(slot.since, now) <= PATIENCE)
        .map(|slot| if slot.low == NUMBERING { 0 } else { slot.low })
        .min()
        .unwrap_or(i64::MAX)
}

/// True if a transaction that took its first number at `since` may have been passed by a floor.
pub fn may_be_passed(since: i64, now: i64) -> bool {
    // Half the patience: clocks of two sessions are read at different moments.
    distance(since, now) > PATIENCE / 2
}

/// How long ago `then` was. A time that is ahead comes of a clock that was set back since, and counts as long ago as it
/// is ahead.
pub fn distance(then: i64, now: i64) -> i64 {
    now.saturating_sub(then).saturating_abs()
}

/// What some work has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Cost {
    pub pages: i64,
    pub micros: i64,
}

/// How often something may look from the beginning: as often as it likes where that is cheap, else for a twentieth of
/// the time.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pace {
    began: i64,
    cost: Cost,
}

impl Pace {
    pub const UNKNOWN: Pace = Pace { began: 0, cost: Cost { pages: 0, micros: 0 } };

    /// True if a look may begin at `now`; then it has.
    pub fn begin(&mut self, now: i64) -> bool {
        let may = self.has_rested(now);
        if may {
            self.began = now;
        }
        may
    }

    /// Takes down what the look has cost.
    pub fn took(&mut self, cost: Cost) {
        self.cost = cost;
    }

    fn is_cheap(&self) -> bool {
        self.cost.pages <= CHEAP_PAGES
    }

    /// From when on a look may begin.
    fn rested_at(&self) -> i64 {
        let rest = if self.is_cheap() { 0 } else { self.cost.micros.saturating_mul(REST) };
        self.began.saturating_add(rest)
    }

    fn has_rested(&self, now: i64) -> bool {
        self.is_ahead(now) || self.rested_at() <= now
    }

    /// The clock was set back since: the last look was long ago.
    fn is_ahead(&self, now: i64) -> bool {
        now < self.began
    }

    fn since(&self, now: i64) -> i64 {
        if self.is_ahead(now) { i64::MAX } else { now.saturating_sub(self.began) }
    }
}

/// Of the walks over the first parked message of each key: for a twentieth of the time, a part of a round at a time.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Heads {
    /// The hash of the key where the round goes on.
    at: i64,
    began: i64,
    rested_at: i64,
}

impl Heads {
    pub const UNKNOWN: Heads = Heads { at: i64::MIN, began: 0, rested_at: 0 };
    /// Longest part of a round, in microseconds.
    const LONGEST: i64 = 20_000;

    /// Where a part of a round may begin, and how many microseconds it may take. None: not now.
    pub fn begin(&mut self, now: i64) -> Option<(i64, i64)> {
        if self.began <= now && now < self.rested_at {
            return None;
        }
        let most = (distance(self.began, now) / REST).clamp(Self::LONGEST / REST, Self::LONGEST);
        (self.began, self.rested_at) = (now, now.saturating_add(Self::LONGEST * REST));
        Some((self.at, most))
    }

    /// A part has ended so many microseconds later, and the round at its end if there is nowhere to go on.
    pub fn walked(&mut self, next: Option<i64>, micros: i64) {
        let rest = micros.saturating_mul(REST);
        self.at = next.unwrap_or(i64::MIN);
        let rest = if next.is_some() { rest } else { rest.max(SWEEP_EVERY) };
        self.rested_at = self.began.saturating_add(rest);
    }

    /// One was found, and left to the next who looks.
    pub fn left(&mut self, at: i64) {
        (self.at, self.rested_at) = (at, self.began);
    }
}

/// What is known about one index range: the ready messages of a topic, or of all.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// Nothing claimable below, but what an open lease may give back.
    floor: i64,
    /// The earliest end of a lease below the floor.
    next_expiry: i64,
    /// How often the floor was lowered, and to what, the last times.
    version: u64,
    lowered: [i64; LOG],
    /// Of the sweeps: what the walk from the beginning to the first claimable row takes.
    pace: Pace,
}

/// A look in progress: where it starts, and what it may leave.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub start: i64,
    pub sweep: bool,
    /// The floor may not pass this.
    bound: i64,
    version: u64,
}

impl Look {
    /// Starts no later than at what an earlier look of the same transaction has left.
    pub fn from(self, left: Option<i64>) -> Look {
        Look { start: left.map_or(self.start, |left| left.min(self.start)), ..self }
    }

    /// This one and a later one of the same transaction.
    pub fn and(&self, later: &Look) -> Look {
        Look {
            start: self.start.min(later.start),
            sweep: self.sweep || later.sweep,
            bound: self.bound.min(later.bound),
            version: self.version.min(later.version),
        }
    }
}

/// What a look has seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The first number that must stay reachable: of a row left unclaimed or held by another session, or one past the
    /// last row if the batch was full. None if the look reached the end.
    pub reach: Option<i64>,
    /// The earliest end of a lease met or given.
    pub expiry: i64,
}

impl Entry {
    pub const UNKNOWN: Entry =
        Entry { floor: 0, next_expiry: NEVER, version: 0, lowered: [0; LOG], pace: Pace::UNKNOWN };

    /// Below it the last look found nothing left, but for leases of which the first runs out at [`Entry::next_expiry`].
    pub fn floor(&self) -> i64 {
        self.floor
    }

    pub fn next_expiry(&self) -> i64 {
        self.next_expiry
    }

    /// Begins a look at `now`, a sweep if that is due. `highest` and `lowest` were read before, in this order; the
    /// snapshot is taken after.
    pub fn look(&mut self, now: i64, highest: i64, lowest: i64) -> Look {
        let sweep = self.sweep_is_due(now);
        if sweep {
            self.pace.began = now;
            self.next_expiry = NEVER;
        }
        Look {
            start: if sweep { 0 } else { self.floor },
            sweep,
            bound: lowest.min(highest.saturating_add(1)),
            version: self.version,
        }
    }

    fn sweep_is_due(&self, now: i64) -> bool {
        let wanted = now >= self.next_expiry || self.pace.since(now) >= SWEEP_EVERY;
        self.floor == 0 || self.pace.is_cheap() || (wanted && self.pace.has_rested(now))
    }

    /// True if the last sweep was cheap.
    pub fn is_cheap(&self) -> bool {
        self.pace.is_cheap()
    }

    /// Takes down what a walk from the beginning to the first claimable row, or to the end, has cost.
    pub fn walked(&mut self, cost: Cost) {
        self.pace.took(cost);
    }

    /// Keeps what a look has seen, once its transaction is committed.
    pub fn keep(&mut self, look: &Look, seen: &Seen) {
        self.next_expiry = self.next_expiry.min(seen.expiry);
        if let Some(reach) = seen.reach.filter(|_| look.sweep) {
            // Its beginning forgot the leases from there on: no look in progress may pass them.
            self.lower(reach.max(0));
        }
        let added = self.version.wrapping_sub(look.version);
        if added > LOG as u64 {
            return;
        }
        let told = (0..added).map(|back| self.lowered[(self.version - 1 - back) as usize % LOG]);
        let reach = told.chain(seen.reach).min().map(|reach| reach.max(0));
        // The bound keeps the floor from rising; what was reached before it stays reached.
        self.floor = self.floor.max(reach.map_or(look.bound, |reach| reach.min(look.bound)));
    }

    /// When a lease ends that is known here, and a look may look for it.
    pub fn next_end(&self) -> i64 {
        self.next_expiry.max(self.pace.rested_at())
    }

    /// A message numbered `seq` has become claimable.
    pub fn lower(&mut self, seq: i64) {
        self.lowered[self.version as usize % LOG] = seq;
        self.version += 1;
        self.floor = self.floor.min(seq);
    }

    /// A lease may end earlier than known, at `time`.
    pub fn expire(&mut self, time: i64) {
        self.next_expiry = self.next_expiry.min(time);
    }
}
