//! What sessions share: floors, totals, waiters and pending notifications in shared memory. Layout, lock, and how a
//! session finds it.
//!
//! Locking: all but the slots is read and written under the one lock; it is held for some dozen instructions, also
//! after a commit, where nothing may fail. Slots are atomics, written by their session alone.

use crate::pg::session::server;
use crate::pg::session::shared_memory::{Each, Four, Initial, Memory, Two};
use crate::pg::version;
use crate::rules::counters::Counted;
use crate::rules::due_mark::DueMark;
use crate::rules::floor::{self, Entry, Heads, IDLE, Pace, Slot};
use crate::rules::low_water::LowWater;
use crate::rules::notify::PendingNotifications;
use crate::rules::slots::{self, Key, Occupant};
use crate::rules::wake::{self, Bucket, Waiter, Waiters};
use crate::shmem::installations;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// The name carries the version: sessions with libraries of two versions share nothing.
const NAME: &CStr =
    match CStr::from_bytes_with_nul(concat!("outbox ", env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(name) => name,
        Err(_) => c"outbox",
    };
/// Topics that there is room for: in 2.5 MB.
pub const TOPICS: usize = 4096;
/// Installations with a low-water mark, 6 kB each.
const MARKS: usize = 32;
/// A mark that was not used for so long may be given to another installation, in microseconds.
pub const MARK_UNUSED: i64 = 60_000_000;
/// Lists of waiters; topics whose waiters share one cost each other a few steps.
const BUCKETS: usize = 64;

/// Which range of an index a look is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Range {
    /// Ready and leased messages, by number.
    Ready,
    /// Waiting messages, by the time they are due.
    Waiting,
}

/// What is behind the lock but for the waiters.
type Locked = Four<Head, Each<Topic, TOPICS>, Each<Counted, TOPICS>, Each<LowWater, MARKS>>;
/// What is made of atomics but for the slots.
type Open = Two<Each<Bucket, BUCKETS>, Each<MarkHead, MARKS>>;

#[repr(C)]
struct Head {
    /// Counts the topics that were ever given a slot.
    generation: u64,
    marks: Marks,
    notifications: PendingNotifications,
}

impl Initial for Head {
    fn initial() -> Self {
        Head { generation: 0, marks: Marks::default(), notifications: PendingNotifications::EMPTY }
    }
}

impl Initial for Topic {
    fn initial() -> Self {
        Topic::UNKNOWN
    }
}

impl Initial for Counted {
    fn initial() -> Self {
        Counted::NOBODY
    }
}

impl Initial for LowWater {
    fn initial() -> Self {
        LowWater::UNKNOWN
    }
}

impl Initial for Bucket {
    fn initial() -> Self {
        Bucket::empty()
    }
}

impl Initial for MarkHead {
    fn initial() -> Self {
        MarkHead::default()
    }
}

impl Initial for Waiter {
    fn initial() -> Self {
        Waiter::AWAY
    }
}

impl Initial for SharedSlot {
    fn initial() -> Self {
        SharedSlot::default()
    }
}

/// The next transaction id at `marked_at`, and the one before that: what is older has been open for a while.
#[derive(Default)]
#[repr(C)]
struct Marks {
    marked_at: i64,
    newer_xid: u32,
    older_xid: u32,
}

#[derive(Clone)]
#[repr(C)]
pub struct Topic {
    /// Of a topic, or of all, in one installation.
    occupant: Occupant,
    installation: u64,
    /// What was known under another generation is void.
    pub generation: u64,
    ready: Entry,
    waiting: Entry,
    pub due_mark: DueMark,
    /// Of purge's looks for deaths in all topics.
    pub deaths: Pace,
    pub heads: Heads,
    /// When it was given this slot.
    pub known_since: i64,
    /// When a purge last found nothing left to do; 0: none has since. Of all topics only.
    pub purged_at: i64,
}

#[derive(Default)]
#[repr(C)]
pub struct SharedSlot {
    pub installation: AtomicU64,
    pub low: AtomicI64,
    pub since: AtomicI64,
    /// The lowest number of a delivery that the session is writing at this moment, or [`IDLE`].
    pub entering: AtomicI64,
    /// The earliest time until which it makes a delivery wait at this moment, or [`IDLE`].
    pub entering_due: AtomicI64,
}

/// What may be read of a low-water mark without the lock.
#[derive(Default)]
#[repr(C)]
pub struct MarkHead {
    /// 0: nobody's.
    pub installation: AtomicU64,
    /// [`LowWater::limit`].
    pub limit: AtomicI64,
    /// Goes up with every change.
    pub version: AtomicU64,
    /// The file that the deliveries are in.
    pub file: AtomicU64,
    /// When a raise may begin.
    pub next_raise: AtomicI64,
}

impl SharedSlot {
    /// The transaction is over.
    pub fn withdraw(&self) {
        self.low.store(IDLE, SeqCst);
        self.entering.store(IDLE, SeqCst);
        self.entering_due.store(IDLE, SeqCst);
    }
}

#[derive(Clone, Copy)]
enum Attached {
    NotYet,
    Nowhere,
    At(Shared),
}

thread_local! {
    static ATTACHED: Cell<Attached> = const { Cell::new(Attached::NotYet) };
}

/// False if there is no shared memory.
pub fn is_attached() -> bool {
    Shared::attached().is_some()
}

/// The cache, once it is found.
#[derive(Clone, Copy)]
pub struct Shared(Memory<Locked, Open, Waiter, SharedSlot>);

impl Shared {
    pub fn attached() -> Option<Shared> {
        match ATTACHED.get() {
            Attached::At(shared) => Some(shared),
            Attached::Nowhere => None,
            Attached::NotYet => {
                let shared = Memory::attach(NAME, c"outbox").map(Shared);
                ATTACHED.set(shared.map_or(Attached::Nowhere, Attached::At));
                shared
            }
        }
    }

    /// `work` takes some dozen instructions, and raises no error.
    pub fn locked<T>(self, work: impl FnOnce(&mut Contents<'_>) -> T) -> T {
        self.0.locked(|Four(head, topics, totals, marks_below), waiters| {
            work(&mut Contents {
                marks: &mut head.marks,
                generation: &mut head.generation,
                notifications: &mut head.notifications,
                topics: &mut **topics,
                totals: &mut **totals,
                marks_below: &mut **marks_below,
                waiters: Waiters { buckets: self.buckets(), waiters },
            })
        })
    }

    fn buckets(self) -> &'static [Bucket] {
        &*self.0.open().0
    }

    /// What may be asked without the lock of those who wait for `key`, or for one that shares its bucket.
    pub fn bucket(self, key: Key) -> &'static Bucket {
        wake::bucket(key, self.buckets())
    }

    /// True if anybody waits, for anything.
    pub fn has_waiters(self) -> bool {
        !self.buckets().iter().all(Bucket::is_empty)
    }

    /// What sessions publish, for floors.
    pub fn slots(self, installation: u64) -> impl Iterator<Item = Slot> {
        self.published(installation, |slot| Slot {
            low: slot.low.load(SeqCst),
            since: slot.since.load(SeqCst),
        })
    }

    /// The lowest number of a delivery that a session is writing at this moment.
    pub fn entering(self, installation: u64) -> i64 {
        let numbers = self.published(installation, |slot| slot.entering.load(SeqCst));
        numbers.filter(|number| *number != IDLE).min().unwrap_or(i64::MAX)
    }

    /// The earliest time until which a session makes a delivery wait at this moment.
    pub fn entering_due(self, installation: u64) -> i64 {
        let times = self.published(installation, |slot| slot.entering_due.load(SeqCst));
        times.filter(|time| *time != IDLE).min().unwrap_or(i64::MAX)
    }

    pub fn mark_heads(self) -> &'static [MarkHead] {
        &*self.0.open().1
    }

    fn published<T>(self, installation: u64, read: impl Fn(&SharedSlot) -> T) -> impl Iterator<Item = T> {
        self.0.open_of_sessions().iter().filter_map(move |slot| {
            let belongs = || slot.installation.load(SeqCst) == installation;
            if !belongs() {
                return None;
            }
            let numbers = read(slot);
            // Asked again: the slot may have gone to another session meanwhile, and its numbers with it.
            belongs().then_some(numbers)
        })
    }

    pub fn own_slot(self) -> Option<&'static SharedSlot> {
        self.0.open_of_sessions().get(version::session_number())
    }
}

/// What is behind the lock.
pub struct Contents<'l> {
    marks: &'l mut Marks,
    generation: &'l mut u64,
    pub notifications: &'l mut PendingNotifications,
    topics: &'l mut [Topic],
    pub totals: &'l mut [Counted],
    /// In the order of [`Shared::mark_heads`].
    pub marks_below: &'l mut [LowWater],
    pub waiters: Waiters<'l>,
}

impl Contents<'_> {
    /// Takes the time; returns a transaction id that all that have been open for a while precede.
    pub fn mark(&mut self, now: i64) -> u32 {
        if floor::distance(self.marks.marked_at, now) > floor::PATIENCE {
            self.marks.marked_at = now;
            self.marks.older_xid = self.marks.newer_xid;
            self.marks.newer_xid = server::next_transaction();
        }
        self.marks.older_xid
    }

    fn find(&self, key: Key) -> Option<usize> {
        slots::find(key, self.topics.len(), |slot| self.topics[slot].occupant)
    }

    /// What is known of a topic, if it has a slot.
    pub fn topic(&mut self, key: Key) -> Option<&mut Topic> {
        self.find(key).map(|slot| &mut self.topics[slot])
    }

    /// The same, unless it was given away since `generation`.
    pub fn same_topic(&mut self, key: Key, generation: u64) -> Option<&mut Topic> {
        self.topic(key).filter(|topic| topic.generation == generation)
    }

    /// The same for a session that uses it: it is given a slot if one can be had.
    pub fn topic_in_use(&mut self, key: Key, installation: u64, now: i64) -> Option<&mut Topic> {
        let slot = self.find(key).or_else(|| {
            let slot = slots::vacant(key, self.topics.len(), |slot| self.topics[slot].occupant, now)?;
            *self.generation += 1;
            let occupant = Occupant { key, used_at: now };
            // What waits in no topic waits not in this one.
            let all = self.topic(installations::key(installation, None));
            let due_mark = all.map_or(DueMark::UNKNOWN, |all| all.due_mark.of_part());
            self.topics[slot] = Topic {
                occupant,
                installation,
                due_mark,
                generation: *self.generation,
                known_since: now,
                ..Topic::UNKNOWN
            };
            Some(slot)
        })?;
        self.topics[slot].occupant.used_at = now;
        Some(&mut self.topics[slot])
    }

    /// Nothing is known any more of an installation's topics.
    pub fn forget(&mut self, installation: u64) {
        for topic in self.topics.iter_mut().filter(|topic| topic.installation == installation) {
            *self.generation += 1;
            let Topic { occupant, deaths, .. } = *topic;
            *topic = Topic { occupant, installation, deaths, generation: *self.generation, ..Topic::UNKNOWN };
        }
    }

    pub fn lower_all(&mut self, installation: u64, to: i64) {
        for topic in self.topics.iter_mut().filter(|topic| topic.installation == installation) {
            topic.ready.lower(to);
            topic.waiting.lower(0);
        }
    }
}

impl Topic {
    const UNKNOWN: Topic = Topic {
        occupant: Occupant::NOBODY,
        installation: 0,
        generation: 0,
        ready: Entry::UNKNOWN,
        waiting: Entry::UNKNOWN,
        due_mark: DueMark::UNKNOWN,
        deaths: Pace::UNKNOWN,
        heads: Heads::UNKNOWN,
        known_since: 0,
        purged_at: 0,
    };

    pub fn entry(&mut self, range: Range) -> &mut Entry {
        match range {
            Range::Ready => &mut self.ready,
            Range::Waiting => &mut self.waiting,
        }
    }
}
