//! The floors in shared memory: layout, lock, and how a session finds them without preload.
//!
//! Locking: topics, marks and generation are read and written under the one lock; it is held for some dozen
//! instructions, also after a commit, where nothing may fail. Slots are atomics, written by their session alone.

use super::version;
use crate::floor::{self, Entry, Slot};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// Topics that the cache has room for; with more, it starts anew. They take 32 kB of the 100 kB that a server keeps
/// for such late comers.
const ENTRIES: usize = 128;
/// The cache is emptied when it is full, but not more often than this, in microseconds.
const FORGET_EVERY: i64 = 60_000_000;

/// Which range of an index a look is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Range {
    /// Ready and leased messages, by number.
    Ready,
    /// Waiting messages, by the time they are due.
    Waiting,
}

/// A topic, or all of them, of one installation.
pub(super) type Key = (u64, u64);

#[repr(C)]
pub(super) struct Header {
    lock: pg_sys::LWLock,
    tranche: i32,
    slots: u32,
    /// Counts how often everything was forgotten.
    pub(super) generation: u64,
    forgotten_at: i64,
    /// The next transaction id at `marked_at`, and the one before that: what is older has been open for a while.
    marked_at: i64,
    newer_xid: u32,
    pub(super) older_xid: u32,
    topics: [Topic; ENTRIES],
}

#[repr(C)]
pub(super) struct Topic {
    /// (0, 0) if unused.
    key: Key,
    installation: u64,
    pub(super) ready: Entry,
    waiting: Entry,
}

#[repr(C)]
pub(super) struct SharedSlot {
    pub(super) installation: AtomicU64,
    pub(super) low: AtomicI64,
    pub(super) last: AtomicI64,
    pub(super) since: AtomicI64,
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

/// The cache, once it is found.
#[derive(Clone, Copy)]
pub(super) struct Shared(NonNull<Header>);

impl Shared {
    pub(super) fn attached() -> Option<Shared> {
        match ATTACHED.get() {
            Attached::At(header) => Some(Shared(header)),
            Attached::Nowhere => None,
            Attached::NotYet => {
                let header = attach();
                ATTACHED.set(header.map_or(Attached::Nowhere, Attached::At));
                header.map(Shared)
            }
        }
    }

    pub(super) fn locked<T>(self, work: impl FnOnce(&mut Header) -> T) -> T {
        // SAFETY: the header lives as long as the server; under the exclusive lock nobody else refers to it, and
        // `work` does nothing that could raise an error while the lock is held.
        unsafe {
            let lock = &raw mut (*self.0.as_ptr()).lock;
            pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
            let result = work(&mut *self.0.as_ptr());
            pg_sys::LWLockRelease(lock);
            result
        }
    }

    fn all_slots(self) -> &'static [SharedSlot] {
        // SAFETY: the slots follow the header and are made of atomics; their number never changes.
        unsafe {
            let header = self.0.as_ptr();
            std::slice::from_raw_parts(header.add(1).cast::<SharedSlot>(), (*header).slots as usize)
        }
    }

    pub(super) fn slots(self, installation: u64) -> impl Iterator<Item = Slot> {
        self.all_slots().iter().filter_map(move |slot| {
            let belongs = || slot.installation.load(SeqCst) == installation;
            if !belongs() {
                return None;
            }
            let low = slot.low.load(SeqCst);
            let (last, since) = (slot.last.load(SeqCst), slot.since.load(SeqCst));
            // Asked again: the slot may have gone to another session meanwhile, and its numbers with it.
            belongs().then_some(Slot { low, last, since })
        })
    }

    pub(super) fn own_slot(self) -> Option<&'static SharedSlot> {
        self.all_slots().get(version::session_number())
    }
}

impl Header {
    pub(super) fn mark(&mut self, now: i64) {
        if now.saturating_sub(self.marked_at) > floor::PATIENCE {
            self.marked_at = now;
            self.older_xid = self.newer_xid;
            // SAFETY: reads a counter of the server.
            self.newer_xid = u32::from(unsafe { pg_sys::ReadNextTransactionId() });
        }
    }

    /// The topic's place; if it has none and `create` says so (installation and time), a new one. None if it is full.
    pub(super) fn topic(&mut self, key: Key, create: Option<(u64, i64)>) -> Option<&mut Topic> {
        let first = key.0 as usize % ENTRIES;
        let place = (0..ENTRIES)
            .map(|step| (first + step) % ENTRIES)
            .find(|place| self.topics[*place].key == key || self.topics[*place].key == (0, 0));
        match (place, create) {
            (Some(place), _) if self.topics[place].key == key => Some(&mut self.topics[place]),
            (_, None) => None,
            (Some(place), Some((installation, _))) => {
                self.topics[place] =
                    Topic { key, installation, ready: Entry::UNKNOWN, waiting: Entry::UNKNOWN };
                Some(&mut self.topics[place])
            }
            (None, Some((installation, now))) => {
                if now.saturating_sub(self.forgotten_at) < FORGET_EVERY {
                    return None;
                }
                self.forgotten_at = now;
                self.generation += 1;
                self.topics = [const { Topic::UNUSED }; ENTRIES];
                self.topics[first] =
                    Topic { key, installation, ready: Entry::UNKNOWN, waiting: Entry::UNKNOWN };
                Some(&mut self.topics[first])
            }
        }
    }

    pub(super) fn lower_all(&mut self, installation: u64, to: i64) {
        for topic in self.topics.iter_mut().filter(|topic| topic.installation == installation) {
            topic.ready.lower(to);
            topic.waiting.lower(0);
        }
    }
}

impl Topic {
    const UNUSED: Topic =
        Topic { key: (0, 0), installation: 0, ready: Entry::UNKNOWN, waiting: Entry::UNKNOWN };

    pub(super) fn entry(&mut self, range: Range) -> &mut Entry {
        match range {
            Range::Ready => &mut self.ready,
            Range::Waiting => &mut self.waiting,
        }
    }
}

/// Finds the cache in shared memory, or makes it. None if there is no room.
fn attach() -> Option<NonNull<Header>> {
    let slots = version::sessions();
    let size = size_of::<Header>() + slots * size_of::<SharedSlot>();
    // SAFETY: the protocol for late comers: under AddinShmemInitLock, whoever does not find the structure fills it in.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let found = pgrx::PgTryBuilder::new(|| {
            let mut found = false;
            let place = pg_sys::ShmemInitStruct(c"outbox".as_ptr(), size, &mut found);
            NonNull::new(place.cast::<Header>()).map(|place| (place, found))
        })
        .catch_others(|_| {
            // Raising the error has let interrupts in; LWLockRelease below expects them held.
            pg_sys::InterruptHoldoffCount += 1;
            None
        })
        .execute();
        let header = found.map(|(header, found)| {
            if !found {
                fill(header.as_ptr(), slots);
            }
            header
        });
        pg_sys::LWLockRelease(lock);
        if let Some(header) = header {
            pg_sys::LWLockRegisterTranche((*header.as_ptr()).tranche, c"outbox".as_ptr());
        }
        header
    }
}

/// `AddinShmemInitLock` in the server's array of named locks (lwlocknames.txt), a macro that bindings do not see.
const ADDIN_SHMEM_INIT_LOCK: usize = 21;

/// # Safety
/// `header` points to memory for a header and `slots` slots that nobody else uses yet.
unsafe fn fill(header: *mut Header, slots: usize) {
    // SAFETY: by the contract above.
    unsafe {
        std::ptr::write_bytes(header.cast::<u8>(), 0, size_of::<Header>() + slots * size_of::<SharedSlot>());
        (*header).tranche = pg_sys::LWLockNewTrancheId();
        pg_sys::LWLockInitialize(&raw mut (*header).lock, (*header).tranche);
        (*header).slots = slots as u32;
        (*header).topics = [const { Topic::UNUSED }; ENTRIES];
    }
}
