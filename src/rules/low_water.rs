//! The low-water mark of an installation: below it every delivery is over, but for the *survivors* it lists. Pure;
//! `shmem/low_water.rs` keeps it.
//!
//! While a snapshot is held, what is over cannot be removed from any index. Look-ups by key, sweeps, counts, redrive
//! and purge start at the mark and look the survivors up, so what they cost does not grow with what was delivered
//! before.
//!
//! A delivery is *covered* if it is ready or leased, or waits or is parked and has a key. A session that sweeps raises
//! the mark: it walks over the numbers from the mark on, with a snapshot and an eye for open transactions. A covered
//! delivery that is young stops the walk; an older one becomes a survivor. What keeps the mark right:
//!
//! - A session that is about to make a delivery covered (append, revive, lease of a waiting one) publishes its number
//!   as *entering*, then reads [`LowWater::limit`]. Below the limit it notes a survivor first. It withdraws the number
//!   once the row is written: from then on the row speaks for itself.
//! - A raise sets the limit to where it may end, then reads what is entering and stops below it, then takes its
//!   snapshot. So of a row that was not there for the walk, either the writer has seen the limit or the raise the
//!   writer.
//! - A reader takes its snapshot first and the mark afterwards: a row that the snapshot has was noted before it.
//! - A raise during which a survivor was noted leaves nothing.
//!
//! One survivor stands for a delivery without a key, or for all of a key from its number on. A full list stops the
//! mark. A number below the mark that is written by other means (COPY, a replica's apply) is found by the patrol.

/// Survivors that are remembered.
pub const SURVIVORS: usize = 256;
/// Ready deliveries of one key that a walk leaves behind: a reader collects them.
const READY: u32 = 64;
/// Unfinished deliveries become survivors once their numbers are so old, in microseconds, at the earliest.
const AGE: i64 = 1_000_000;
/// Shortest time between two raises, in microseconds, unless the first one had to leave some of its way. So short that
/// a drain's looks can begin at the mark, and need no look-up by key: at 100 ms, a keyed drain is 9 % slower.
const EVERY: i64 = 20_000;
/// A raise is followed by this many times its duration without one.
const REST: i64 = 10;
/// Longest time without one, in microseconds.
const LONGEST_REST: i64 = 10_000_000;

/// A delivery below the mark that is not over, or those of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Survivor {
    /// The number, or the lowest of the key.
    pub number: i64,
    /// Hash of topic and key; 0: no key.
    pub key: i64,
    /// How many ready ones of the key a walk has met.
    ready: u32,
}

impl Survivor {
    const NONE: Survivor = Survivor { number: 0, key: 0, ready: 0 };

    pub fn new(number: i64, key: Option<i64>) -> Survivor {
        Survivor { number, key: key.unwrap_or(0), ready: 0 }
    }
}

/// What is known of one installation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LowWater {
    mark: i64,
    /// Where the raise in progress may end.
    target: i64,
    /// Raises begun.
    raises: u64,
    /// Survivors noted by writers.
    notes: u64,
    count: usize,
    survivors: [Survivor; SURVIVORS],
    /// Numbers below this one were taken at least [`AGE`] before `aged_at`, and the highest then.
    aged: i64,
    highest: i64,
    aged_at: i64,
    next_raise: i64,
    /// The survivor to be looked at next, and where the patrol goes on.
    turn: usize,
    patrol: i64,
}

/// A raise in progress.
#[derive(Clone, Copy, Debug)]
pub struct Raise {
    pub from: i64,
    /// The mark ends at this number or below.
    pub to: i64,
    /// Unfinished deliveries below it become survivors.
    pub aged: i64,
    /// The patrol looks from here on, below `from`.
    pub patrol: i64,
    number: u64,
    notes: u64,
}

/// What the walk of a raise has found.
#[derive(Debug, Default)]
pub struct Walked {
    survivors: Vec<Survivor>,
    /// It was ended before its end.
    pub is_cut: bool,
}

impl Walked {
    /// A covered delivery that is not over. False: the mark stops at it.
    pub fn meet(&mut self, raise: &Raise, number: i64, key: Option<i64>, ready: bool) -> bool {
        if number >= raise.aged || self.survivors.len() == SURVIVORS {
            return false;
        }
        let new = Survivor { ready: u32::from(ready), ..Survivor::new(number, key) };
        match self.survivors.iter_mut().find(|known| known.stands_for(&new)) {
            Some(known) if known.ready + new.ready > READY => return false,
            Some(known) => known.ready += new.ready,
            None => self.survivors.push(new),
        }
        true
    }
}

impl Survivor {
    /// The same key from another number on.
    pub fn moved_to(&self, number: i64) -> Survivor {
        Survivor { number, ..*self }
    }

    /// True if this one stands for `other` too, or may once its number is low enough.
    fn stands_for(&self, other: &Survivor) -> bool {
        self.key == other.key && (self.key != 0 || self.number == other.number)
    }
}

impl LowWater {
    pub const UNKNOWN: LowWater = LowWater {
        mark: 0,
        target: 0,
        raises: 0,
        notes: 0,
        count: 0,
        survivors: [Survivor::NONE; SURVIVORS],
        aged: 0,
        highest: 0,
        aged_at: 0,
        next_raise: 0,
        turn: 0,
        patrol: 0,
    };

    pub fn mark(&self) -> i64 {
        self.mark
    }

    pub fn survivors(&self) -> &[Survivor] {
        &self.survivors[..self.count]
    }

    /// A session that writes a covered delivery below it notes a survivor first.
    pub fn limit(&self) -> i64 {
        self.mark.max(self.target)
    }

    /// A covered delivery is about to be written.
    pub fn note(&mut self, number: i64, key: Option<i64>) {
        self.notes += 1;
        if !self.add(Survivor::new(number, key)) {
            self.mark = self.mark.min(number);
        }
    }

    /// False if there is no room.
    fn add(&mut self, new: Survivor) -> bool {
        let known = self.survivors[..self.count].iter_mut().find(|known| known.stands_for(&new));
        if let Some(known) = known {
            let fits = new.ready == 0 || known.ready + new.ready <= READY;
            if fits {
                known.number = known.number.min(new.number);
                known.ready += new.ready;
            }
            return fits;
        }
        let room = self.count < SURVIVORS;
        if room {
            self.survivors[self.count] = new;
            self.count += 1;
        }
        room
    }

    /// When the next raise may begin.
    pub fn next_raise(&self) -> i64 {
        self.next_raise
    }

    /// True if it is not time for a raise that may begin at `next`; a clock that was set back does not stop it.
    pub fn is_early(next: i64, now: i64) -> bool {
        now < next && next.saturating_sub(now) <= LONGEST_REST
    }

    /// Begins a raise at `now`, if it is time and there is something to do. `highest` is the highest number taken,
    /// `lowest` that of a young transaction.
    pub fn begin(&mut self, now: i64, highest: i64, lowest: i64) -> Option<Raise> {
        if LowWater::is_early(self.next_raise, now) {
            return None;
        }
        if now < self.aged_at || now.saturating_sub(self.aged_at) >= AGE {
            (self.aged, self.highest, self.aged_at) = (self.highest, highest.saturating_add(1), now);
        }
        self.next_raise = now.saturating_add(EVERY);
        self.raises += 1;
        self.target = lowest.min(highest.saturating_add(1)).max(self.mark);
        Some(Raise {
            from: self.mark,
            to: self.target,
            aged: self.aged,
            patrol: self.patrol,
            number: self.raises,
            notes: self.notes,
        })
    }

    /// The survivors whose turn it is to be looked at again, at most `count`.
    pub fn next_turns(&mut self, count: usize) -> Vec<Survivor> {
        let first = if self.turn < self.count { self.turn } else { 0 };
        let turns = &self.survivors()[first..(first + count).min(self.count)];
        let turns = turns.to_vec();
        self.turn = first + turns.len();
        turns
    }

    /// Ends a raise that has walked up to number `reached`, and the patrol up to `patrolled`. `again`: survivors looked
    /// at again, and what they are now; None: they are over.
    pub fn finish(
        &mut self,
        raise: &Raise,
        reached: i64,
        walked: &Walked,
        patrolled: i64,
        again: &[(Survivor, Option<Survivor>)],
        micros: i64,
    ) {
        if raise.number != self.raises {
            return;
        }
        let rest = micros.saturating_mul(REST).min(LONGEST_REST - EVERY);
        self.next_raise = self.next_raise.saturating_add(if walked.is_cut { rest - EVERY } else { rest });
        self.target = self.mark;
        if raise.notes != self.notes {
            return;
        }
        for (known, now) in again {
            self.update(known, *now);
        }
        self.patrol = if patrolled < raise.from { patrolled } else { 0 };
        let stopped_at = walked.survivors.iter().find(|survivor| !self.add(**survivor));
        self.mark = stopped_at.map_or(reached, |stopped| stopped.number.min(reached)).max(self.mark);
        self.target = self.mark;
    }

    fn update(&mut self, known: &Survivor, now: Option<Survivor>) {
        let Some(index) = self.survivors().iter().position(|survivor| survivor.stands_for(known)) else {
            return;
        };
        match now {
            Some(survivor) => self.survivors[index] = survivor,
            None => {
                self.count -= 1;
                self.survivors[index] = self.survivors[self.count];
            }
        }
    }
}
