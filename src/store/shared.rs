//! What sessions tell each other about the ready and waiting messages: floors, in shared memory.
//!
//! A cache, see `floor.rs`: where it cannot be had, every look starts at the beginning and is right. It is made on
//! first use from the memory that the server keeps for such late comers, so it needs no preload.
//!
//! Locking: entries, marks and generation are read and written under the one lock; it is held for some dozen
//! instructions, also after a commit, where nothing may fail. Slots are atomics, written by their session alone.

use super::catalog::{self, Object};
use super::server;
use super::value::{Text, Time};
use super::version;
use crate::error::Error;
use crate::floor::{self, Entry, IDLE, Look, NUMBERING, Seen, Slot};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// Topics that the cache has room for; with more, it starts anew. They take 32 kB of the 100 kB that a server keeps
/// for such late comers.
const ENTRIES: usize = 128;
/// The cache is emptied when it is full, but not more often than this, in microseconds.
const FORGET_EVERY: i64 = 60_000_000;

/// Which range of an index a look is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Range {
    /// Ready and leased messages, by number.
    Ready,
    /// Waiting messages, by the time they are due.
    Waiting,
}

/// A topic, or all of them, of one installation.
type Key = (u64, u64);

#[repr(C)]
struct Header {
    lock: pg_sys::LWLock,
    tranche: i32,
    slots: u32,
    /// Counts how often everything was forgotten.
    generation: u64,
    forgotten_at: i64,
    /// The next transaction id at `marked_at`, and the one before that: what is older has been open for a while.
    marked_at: i64,
    newer_xid: u32,
    older_xid: u32,
    topics: [Topic; ENTRIES],
}

#[repr(C)]
struct Topic {
    /// (0, 0) if unused.
    key: Key,
    installation: u64,
    ready: Entry,
    waiting: Entry,
}

#[repr(C)]
struct SharedSlot {
    installation: AtomicU64,
    low: AtomicI64,
    last: AtomicI64,
    since: AtomicI64,
}

#[derive(Clone, Copy)]
enum Attached {
    NotYet,
    Nowhere,
    At(NonNull<Header>),
}

/// What a transaction has to tell when it ends.
#[derive(Default)]
struct Pending {
    /// When the first of it was noted; 0: nothing noted.
    since: i64,
    looks: HashMap<(Key, Range), (u64, Look, Seen)>,
    /// Numbers, or due times, that became reachable again.
    lowered: HashMap<(Key, Range), i64>,
    expiries: HashMap<Key, i64>,
    /// The lowest number of a row that was changed.
    touched: Option<i64>,
}

thread_local! {
    static ATTACHED: Cell<Attached> = const { Cell::new(Attached::NotYet) };
    static PENDING: RefCell<Pending> = RefCell::new(Pending::default());
}

/// A look at one range, from its start to what it leaves.
pub struct Looking {
    key: Key,
    range: Range,
    generation: u64,
    look: Option<Look>,
    /// Transactions before this one have been open for a while and hold no floor.
    horizon: u32,
}

/// Begins a look at what is ready in `topic`, or in all. To be called before the snapshot is taken.
pub fn look_at_ready(topic: Option<Text<'_>>, now: Time) -> Result<Looking, Error> {
    look(topic, Range::Ready, now, catalog::take_changed())
}

/// Begins a look at what is waiting and due in `topic`, or in all. To be called before the snapshot is taken.
pub fn look_at_waiting(topic: Option<Text<'_>>, now: Time) -> Result<Looking, Error> {
    look(topic, Range::Waiting, now, false)
}

fn look(topic: Option<Text<'_>>, range: Range, now: Time, asked: bool) -> Result<Looking, Error> {
    let installation = installation()?;
    let key = key(installation, topic);
    let nothing = Looking { key, range, generation: 0, look: None, horizon: 0 };
    let Some(shared) = Shared::attached() else { return Ok(nothing) };
    // The order matters: highest before lowest before the entry's version, and the snapshot after all of them.
    let (highest, lowest) = match range {
        Range::Ready => {
            let highest = floor::highest(shared.slots(installation));
            (highest, floor::lowest(shared.slots(installation), now.0))
        }
        // Whoever makes a message wait lowers the floor once that is committed.
        Range::Waiting => (now.0, i64::MAX),
    };
    Ok(shared.locked(|header| {
        header.mark(now.0);
        let (generation, horizon) = (header.generation, header.older_xid);
        match header.topic(key, Some((installation, now.0))) {
            Some(topic) => {
                let look = Some(topic.entry(range).look(now.0, highest, lowest, asked));
                Looking { generation, look, horizon, ..nothing }
            }
            None => nothing,
        }
    }))
}

impl Looking {
    /// The number or time to start at.
    pub fn start(&self) -> i64 {
        self.look.map_or(0, |look| look.start)
    }

    /// True if the row's change by transaction `xid` holds the floor: it may roll back, and soon.
    pub fn is_held_by(&self, xid: pg_sys::TransactionId) -> bool {
        let horizon = pg_sys::TransactionId::from(self.horizon);
        // SAFETY: compares two numbers.
        self.horizon == 0 || unsafe { !pg_sys::TransactionIdPrecedes(xid, horizon) }
    }

    /// True if this look starts at the beginning.
    pub fn is_sweep(&self) -> bool {
        self.look.is_some_and(|look| look.sweep)
    }

    /// Takes down what the walk from the beginning to the first claimable row has cost.
    pub fn walked(&self, pages: i64, micros: i64) {
        if let Some(shared) = Shared::attached() {
            shared.locked(|header| {
                if let Some(topic) = header.topic(self.key, None) {
                    topic.entry(self.range).walked(pages, micros);
                }
            });
        }
    }

    /// Leaves what was seen, for when the transaction is committed.
    pub fn finish(self, seen: Seen) {
        let Some(look) = self.look else { return };
        note(|pending| {
            pending
                .looks
                .entry((self.key, self.range))
                .and_modify(|kept| {
                    let expiry = kept.2.expiry.min(seen.expiry);
                    *kept = (self.generation, look, Seen { expiry, ..seen });
                })
                .or_insert((self.generation, look, seen));
        });
    }
}

/// A transaction is about to take numbers: no floor rises until it has.
pub fn about_to_number() -> Result<(), Error> {
    let installation = installation()?;
    let Some(slot) = Shared::attached().and_then(|shared| shared.own_slot()) else { return Ok(()) };
    if slot.low.load(SeqCst) == IDLE {
        note(|_| ());
        if slot.installation.load(SeqCst) != installation {
            slot.last.store(0, SeqCst);
            slot.installation.store(installation, SeqCst);
        }
        slot.since.store(server::clock().0, SeqCst);
        slot.low.store(NUMBERING, SeqCst);
    }
    Ok(())
}

/// It has taken the numbers from `first` to `last`.
pub fn numbered(first: i64, last: i64) {
    let Some(slot) = Shared::attached().and_then(|shared| shared.own_slot()) else { return };
    slot.last.fetch_max(last, SeqCst);
    if slot.low.load(SeqCst) == NUMBERING {
        slot.low.store(first, SeqCst);
    }
}

/// Once committed, message `seq` of `topic` can be claimed.
pub fn will_be_ready(topic: Text<'_>, seq: i64) -> Result<(), Error> {
    lower(topic, Range::Ready, seq)
}

/// Once committed, a message of `topic` waits until `due`.
pub fn will_be_due(topic: Text<'_>, due: Time) -> Result<(), Error> {
    lower(topic, Range::Waiting, due.0)
}

fn lower(topic: Text<'_>, range: Range, to: i64) -> Result<(), Error> {
    let installation = installation()?;
    note(|pending| {
        for key in [key(installation, Some(topic)), key(installation, None)] {
            let lowered = pending.lowered.entry((key, range)).or_insert(to);
            *lowered = to.min(*lowered);
        }
    });
    Ok(())
}

/// Once committed, a lease in `topic` ends at `time`, perhaps earlier than known.
pub fn will_expire(topic: Text<'_>, time: Time) -> Result<(), Error> {
    let installation = installation()?;
    note(|pending| {
        for key in [key(installation, Some(topic)), key(installation, None)] {
            let expiry = pending.expiries.entry(key).or_insert(time.0);
            *expiry = time.0.min(*expiry);
        }
    });
    Ok(())
}

/// The transaction has changed message `seq`: should it roll back late, the message may be below a floor.
pub fn touched(seq: i64) {
    note(|pending| pending.touched = Some(pending.touched.map_or(seq, |touched| touched.min(seq))));
}

fn note(what: impl FnOnce(&mut Pending)) {
    thread_local! { static LISTENING: Cell<bool> = const { Cell::new(false) } }
    if !LISTENING.replace(true) {
        // SAFETY: the callbacks are plain functions that live as long as the session.
        unsafe {
            pg_sys::RegisterXactCallback(Some(transaction_ends), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_ends), std::ptr::null_mut());
        }
    }
    PENDING.with_borrow_mut(|pending| {
        if pending.since == 0 {
            pending.since = server::clock().0;
        }
        what(pending);
    });
}

/// Tells the others. Nothing here may fail: after a commit an error would be a PANIC.
extern "C-unwind" fn transaction_ends(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    let committed = match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => true,
        pg_sys::XactEvent::XACT_EVENT_ABORT => false,
        pg_sys::XactEvent::XACT_EVENT_PREPARE => return forget(),
        _ => return,
    };
    PENDING.with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        if pending.since == 0 {
            return;
        }
        if let Some(shared) = Shared::attached() {
            if committed {
                shared.tell(&pending)
            } else {
                shared.tell_aborted(&pending)
            }
            if let Some(slot) = shared.own_slot() {
                slot.low.store(IDLE, SeqCst);
            }
        }
        pending.clear();
    });
}

/// A savepoint was rolled back: what its looks left is void, and what it had changed is as before.
extern "C-unwind" fn subtransaction_ends(
    event: pg_sys::SubXactEvent::Type,
    _id: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    if event != pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        return;
    }
    PENDING.with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        if pending.since != 0 {
            if let Some(shared) = Shared::attached() {
                shared.tell_aborted(&pending);
            }
            pending.looks.clear();
        }
    });
}

/// A prepared transaction ends in another session, which knows nothing of this: the sweep finds what it leaves.
fn forget() {
    PENDING.with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        if pending.since != 0 {
            if let Some(slot) = Shared::attached().and_then(|shared| shared.own_slot()) {
                slot.low.store(IDLE, SeqCst);
            }
            pending.clear();
        }
    });
}

impl Pending {
    fn clear(&mut self) {
        self.since = 0;
        self.looks.clear();
        self.lowered.clear();
        self.expiries.clear();
        self.touched = None;
    }
}

/// One installation of the extension: a database and its table, so that a new CREATE EXTENSION starts anew.
fn installation() -> Result<u64, Error> {
    let table = catalog::oid(Object::Delivery)?;
    // SAFETY: reads a number that is fixed for the session.
    let database = unsafe { pg_sys::MyDatabaseId };
    Ok((u64::from(u32::from(database)) << 32) | u64::from(u32::from(table)))
}

fn key(installation: u64, topic: Option<Text<'_>>) -> Key {
    let topic = topic.map(Text::bytes);
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, installation, topic).hash(&mut hasher);
        hasher.finish() | 1 // never the unused key
    };
    (half(0), half(1))
}

#[derive(Clone, Copy)]
struct Shared(NonNull<Header>);

impl Shared {
    fn attached() -> Option<Shared> {
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

    fn locked<T>(self, work: impl FnOnce(&mut Header) -> T) -> T {
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

    fn slots(self, installation: u64) -> impl Iterator<Item = Slot> {
        self.all_slots().iter().filter(move |slot| slot.installation.load(SeqCst) == installation).map(
            |slot| Slot {
                low: slot.low.load(SeqCst),
                last: slot.last.load(SeqCst),
                since: slot.since.load(SeqCst),
            },
        )
    }

    fn own_slot(self) -> Option<&'static SharedSlot> {
        self.all_slots().get(version::session_number())
    }

    /// After a commit.
    fn tell(self, pending: &Pending) {
        let now = server::clock().0;
        let late = self.own_slot().and_then(|slot| {
            let low = slot.low.load(SeqCst);
            let late = low > 0 && floor::may_be_passed(slot.since.load(SeqCst), now);
            late.then(|| (slot.installation.load(SeqCst), low))
        });
        if pending.looks.is_empty()
            && pending.lowered.is_empty()
            && pending.expiries.is_empty()
            && late.is_none()
        {
            return;
        }
        self.locked(|header| {
            for (&(key, range), (generation, look, seen)) in &pending.looks {
                if *generation == header.generation
                    && let Some(topic) = header.topic(key, None)
                {
                    topic.entry(range).keep(look, seen);
                }
            }
            for (&(key, range), &to) in &pending.lowered {
                if let Some(topic) = header.topic(key, None) {
                    topic.entry(range).lower(to);
                }
            }
            for (&key, &time) in &pending.expiries {
                if let Some(topic) = header.topic(key, None) {
                    topic.ready.expire(time);
                }
            }
            if let Some((installation, low)) = late {
                header.lower_all(installation, low);
            }
        });
    }

    /// After a rollback: what a floor may have passed meanwhile is as it was before.
    fn tell_aborted(self, pending: &Pending) {
        let Some(touched) = pending.touched else { return };
        if floor::may_be_passed(pending.since, server::clock().0)
            && let Ok(installation) = installation()
        {
            self.locked(|header| header.lower_all(installation, touched));
        }
    }
}

impl Header {
    fn mark(&mut self, now: i64) {
        if now.saturating_sub(self.marked_at) > floor::PATIENCE {
            self.marked_at = now;
            self.older_xid = self.newer_xid;
            // SAFETY: reads a counter of the server.
            self.newer_xid = u32::from(unsafe { pg_sys::ReadNextTransactionId() });
        }
    }

    /// The topic's place; if it has none and `create` says so (installation and time), a new one. None if it is full.
    fn topic(&mut self, key: Key, create: Option<(u64, i64)>) -> Option<&mut Topic> {
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

    fn lower_all(&mut self, installation: u64, to: i64) {
        for topic in self.topics.iter_mut().filter(|topic| topic.installation == installation) {
            topic.ready.lower(to);
            topic.waiting.lower(0);
        }
    }
}

impl Topic {
    const UNUSED: Topic =
        Topic { key: (0, 0), installation: 0, ready: Entry::UNKNOWN, waiting: Entry::UNKNOWN };

    fn entry(&mut self, range: Range) -> &mut Entry {
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
