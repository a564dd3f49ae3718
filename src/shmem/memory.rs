//! What sessions share: floors, totals, waiters and the board in shared memory. Layout, lock, and how a session finds it.
//!
//! Locking: all but the slots is read and written under the one lock; it is held for some dozen instructions, also
//! after a commit, where nothing may fail. Slots are atomics, written by their session alone.

use crate::pg::{lwlock, version};
use crate::rules::due_mark::DueMark;
use crate::rules::floor::{self, Entry, Heads, IDLE, Pace, Slot};
use crate::rules::low_water::LowWater;
use crate::rules::notify::Board;
use crate::rules::slots::{self, Key, Tenant};
use crate::rules::wake::{self, Bucket, Waiter, Waiters};
use crate::shmem::counters::Counted;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;
use std::ptr::NonNull;
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

/// Followed by the waiters and the slots, by session.
#[repr(C)]
struct Header {
    lock: pg_sys::LWLock,
    tranche: i32,
    /// Counts the topics that were ever given a place.
    generation: u64,
    marks: Marks,
    buckets: [Bucket; BUCKETS],
    board: Board,
    topics: [Topic; TOPICS],
    totals: [Counted; TOPICS],
    marks_below: [LowWater; MARKS],
    mark_heads: [MarkHead; MARKS],
}

/// The next transaction id at `marked_at`, and the one before that: what is older has been open for a while.
#[derive(Clone, Copy)]
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
    tenant: Tenant,
    installation: u64,
    /// What was known under another generation is void.
    pub generation: u64,
    ready: Entry,
    waiting: Entry,
    pub due_mark: DueMark,
    /// Of purge's looks for deaths in all topics.
    pub deaths: Pace,
    pub heads: Heads,
    /// When it was given this place.
    pub known_since: i64,
    /// When a purge last found nothing left to do; 0: none has since. Of all topics only.
    pub purged_at: i64,
}

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
    At(NonNull<Header>),
}

thread_local! {
    static ATTACHED: Cell<Attached> = const { Cell::new(Attached::NotYet) };
}

/// False if there is no shared memory.
pub fn is_attached() -> bool {
    Shared::attached().is_some()
}

fn sessions() -> usize {
    version::sessions()
}

/// Bytes per session.
const SESSION: usize = size_of::<Waiter>() + size_of::<SharedSlot>();

fn size() -> usize {
    size_of::<Header>() + sessions() * SESSION
}

/// The cache, once it is found.
#[derive(Clone, Copy)]
pub struct Shared(NonNull<Header>);

impl Shared {
    pub fn attached() -> Option<Shared> {
        match ATTACHED.get() {
            Attached::At(header) => Some(Shared(header)),
            Attached::Nowhere => None,
            Attached::NotYet => {
                let header = version::shared_memory(NAME, size(), fill).map(NonNull::cast::<Header>);
                if let Some(header) = header {
                    // SAFETY: the tranche was set before anybody could find the header.
                    unsafe {
                        pg_sys::LWLockRegisterTranche((*header.as_ptr()).tranche, c"outbox".as_ptr());
                    }
                }
                ATTACHED.set(header.map_or(Attached::Nowhere, Attached::At));
                header.map(Shared)
            }
        }
    }

    pub fn locked<T>(self, work: impl FnOnce(&mut Contents<'_>) -> T) -> T {
        // SAFETY: all of it lives as long as the server; under the exclusive lock nobody else refers to what is
        // handed out but the buckets' atomics, and `work` does nothing that could raise an error.
        unsafe {
            let header = self.0.as_ptr();
            lwlock::locked(&raw mut (*header).lock, || {
                work(&mut Contents {
                    marks: &mut (*header).marks,
                    generation: &mut (*header).generation,
                    board: &mut (*header).board,
                    topics: &mut (*header).topics,
                    totals: &mut (*header).totals,
                    marks_below: &mut (*header).marks_below,
                    waiters: Waiters {
                        buckets: &(*header).buckets,
                        waiters: std::slice::from_raw_parts_mut(first_waiter(header), sessions()),
                    },
                })
            })
        }
    }

    fn buckets(self) -> &'static [Bucket] {
        // SAFETY: made of atomics.
        unsafe { &(*self.0.as_ptr()).buckets }
    }

    /// What may be asked without the lock of those who wait for `key`, or for one that shares its bucket.
    pub fn bucket(self, key: Key) -> &'static Bucket {
        wake::bucket(key, self.buckets())
    }

    /// True if anybody waits, for anything.
    pub fn has_waiters(self) -> bool {
        !self.buckets().iter().all(Bucket::is_empty)
    }

    fn all_slots(self) -> &'static [SharedSlot] {
        // SAFETY: the slots are made of atomics; their number never changes.
        unsafe { std::slice::from_raw_parts(first_slot(self.0.as_ptr()), sessions()) }
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
        // SAFETY: made of atomics.
        unsafe { &(*self.0.as_ptr()).mark_heads }
    }

    fn published<T>(self, installation: u64, read: impl Fn(&SharedSlot) -> T) -> impl Iterator<Item = T> {
        self.all_slots().iter().filter_map(move |slot| {
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
        self.all_slots().get(version::session_number())
    }
}

/// What is behind the lock.
pub struct Contents<'l> {
    marks: &'l mut Marks,
    generation: &'l mut u64,
    pub board: &'l mut Board,
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
            // SAFETY: reads a counter of the server.
            self.marks.newer_xid = u32::from(unsafe { pg_sys::ReadNextTransactionId() });
        }
        self.marks.older_xid
    }

    fn find(&self, key: Key) -> Option<usize> {
        slots::find(key, self.topics.len(), |place| self.topics[place].tenant)
    }

    /// What is known of a topic, if it has a place.
    pub fn topic(&mut self, key: Key) -> Option<&mut Topic> {
        self.find(key).map(|place| &mut self.topics[place])
    }

    /// The same, unless it was given away since `generation`.
    pub fn same_topic(&mut self, key: Key, generation: u64) -> Option<&mut Topic> {
        self.topic(key).filter(|topic| topic.generation == generation)
    }

    /// The same for somebody who uses it: it is given a place if one can be had.
    pub fn topic_in_use(&mut self, key: Key, installation: u64, now: i64) -> Option<&mut Topic> {
        let place = self.find(key).or_else(|| {
            let place = slots::vacant(key, self.topics.len(), |place| self.topics[place].tenant, now)?;
            *self.generation += 1;
            let tenant = Tenant { key, used_at: now };
            self.topics[place] = Topic {
                tenant,
                installation,
                generation: *self.generation,
                known_since: now,
                ..Topic::UNKNOWN
            };
            Some(place)
        })?;
        self.topics[place].tenant.used_at = now;
        Some(&mut self.topics[place])
    }

    /// Nothing is known any more of an installation's topics.
    pub fn forget(&mut self, installation: u64) {
        for topic in self.topics.iter_mut().filter(|topic| topic.installation == installation) {
            *self.generation += 1;
            let Topic { tenant, deaths, .. } = *topic;
            *topic = Topic { tenant, installation, deaths, generation: *self.generation, ..Topic::UNKNOWN };
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
        tenant: Tenant::NOBODY,
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

fn first_waiter(header: *mut Header) -> *mut Waiter {
    header.wrapping_add(1).cast()
}

fn first_slot(header: *mut Header) -> *mut SharedSlot {
    first_waiter(header).wrapping_add(sessions()).cast()
}

/// # Safety
/// `place` points to [`size`] bytes that nobody else uses yet.
unsafe extern "C-unwind" fn fill(place: *mut std::ffi::c_void) {
    let header = place.cast::<Header>();
    // SAFETY: by the contract above; zeros are a header without marks and idle slots.
    unsafe {
        std::ptr::write_bytes(place.cast::<u8>(), 0, size());
        (*header).topics.fill(Topic::UNKNOWN);
        (*header).totals.fill(Counted::NOBODY);
        (0..sessions()).for_each(|session| first_waiter(header).add(session).write(Waiter::AWAY));
        (*header).marks_below.fill(LowWater::UNKNOWN);
        (*header).board = Board::EMPTY;
        (*header).buckets = [const { Bucket::empty() }; BUCKETS];
        (*header).tranche = pg_sys::LWLockNewTrancheId();
        pg_sys::LWLockInitialize(&raw mut (*header).lock, (*header).tranche);
    }
}
