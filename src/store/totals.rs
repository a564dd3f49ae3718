//! What has happened per topic since the server started, and when messages were last purged: statistics, kept in
//! shared memory, not in rows that everybody would update.
//!
//! They are counted when a transaction commits, or is prepared. They start at zero with the server, and are not
//! replicated. [`TOPICS`] topics of all databases are counted; further ones are not.
//!
//! A megabyte is more than a server keeps for late comers, so it is a segment of its own, and a small anchor tells where.
//! Entries never move or vanish, so they are read without a lock; the lock is for adding one.

use super::value::{Text, Time};
use super::{installation, lock, version};
use crate::error::Error;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU64};

/// The name carries the version: sessions with libraries of two versions share nothing.
const NAME: &CStr =
    match CStr::from_bytes_with_nul(concat!("outbox totals ", env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(name) => name,
        Err(_) => c"outbox totals",
    };
/// Topics that are counted.
const TOPICS: usize = 4096;
/// Installations, one a database, whose purges are remembered.
const INSTALLATIONS: usize = 256;
const NAME_BYTES: usize = crate::argument::NAME_BYTES;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Delivered,
    /// Failed or abandoned.
    Failed,
    /// An answer whose lease was not current.
    Stale,
}

/// What was counted for a topic.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    pub delivered: i64,
    pub failed: i64,
    pub stale: i64,
}

#[repr(C)]
struct Anchor {
    lock: pg_sys::LWLock,
    tranche: i32,
    /// Zero until it is made.
    segment: pg_sys::dsm_handle,
}

#[repr(C)]
struct Segment {
    lock: pg_sys::LWLock,
    topics: [Topic; TOPICS],
    purges: [Purge; INSTALLATIONS],
}

#[repr(C)]
struct Topic {
    /// Zero until the name is there.
    installation: AtomicU64,
    /// One per [`Event`], in its order.
    counts: [AtomicI64; 3],
    length: u8,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct Purge {
    installation: AtomicU64,
    /// When a purge last found nothing left to do.
    finished_at: AtomicI64,
}

/// Counted in the open transaction.
struct Pending {
    topic: &'static Topic,
    event: Event,
    count: i64,
    within: pg_sys::SubTransactionId,
}

thread_local! {
    static SEGMENT: Cell<Option<Option<&'static Segment>>> = const { Cell::new(None) };
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<Option<&'static Topic>> = const { Cell::new(None) };
}

/// One more, once the transaction is committed.
pub fn count(topic: Text<'_>, event: Event) -> Result<(), Error> {
    let installation = installation::current()?;
    let Some(topic) = place(installation, topic.bytes()) else { return Ok(()) };
    // SAFETY: reads a number of this session.
    let within = unsafe { pg_sys::GetCurrentSubTransactionId() };
    PENDING.with_borrow_mut(|pending| {
        match pending
            .iter_mut()
            .rev()
            .find(|last| std::ptr::eq(last.topic, topic) && last.event == event && last.within == within)
        {
            Some(last) => last.count += 1,
            None => {
                listen();
                pending.push(Pending { topic, event, count: 1, within });
            }
        }
    });
    Ok(())
}

/// What was counted in this installation.
#[derive(Default)]
pub struct Counted {
    pub by_topic: BTreeMap<Vec<u8>, Totals>,
    /// Of all other topics: nothing happened, or it was not counted.
    pub others: Option<Totals>,
}

pub fn all() -> Result<Counted, Error> {
    let installation = installation::current()?;
    let Some(segment) = segment() else { return Ok(Counted::default()) };
    let mut room = false;
    let mut by_topic = BTreeMap::new();
    for topic in &segment.topics {
        let owner = topic.installation.load(Acquire);
        room |= owner == 0;
        if owner == installation {
            let [delivered, failed, stale] = topic.counts.each_ref().map(|count| count.load(Relaxed));
            by_topic.insert(topic.name().to_vec(), Totals { delivered, failed, stale });
        }
    }
    Ok(Counted { by_topic, others: room.then(Totals::default) })
}

/// False if there is no memory for it.
pub fn is_attached() -> bool {
    segment().is_some()
}

/// A purge has found nothing left to do.
pub fn purged(now: Time) -> Result<(), Error> {
    let installation = installation::current()?;
    let purge = segment().and_then(|segment| {
        segment.purges.iter().find(|purge| {
            let taken = purge.installation.compare_exchange(0, installation, Relaxed, Relaxed);
            taken.is_ok() || taken == Err(installation)
        })
    });
    if let Some(purge) = purge {
        purge.finished_at.store(now.0, Relaxed);
    }
    Ok(())
}

/// When a purge last found nothing left to do.
pub fn last_purge() -> Result<Option<Time>, Error> {
    let installation = installation::current()?;
    let purge = segment().and_then(|segment| {
        segment.purges.iter().find(|purge| purge.installation.load(Relaxed) == installation)
    });
    Ok(purge.map(|purge| Time(purge.finished_at.load(Relaxed))))
}

impl Topic {
    fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.length)]
    }

    fn is(&self, installation: u64, name: &[u8]) -> bool {
        self.installation.load(Acquire) == installation && self.name() == name
    }
}

/// The topic's entry, a new one if it has none; None if there is no room.
fn place(installation: u64, name: &[u8]) -> Option<&'static Topic> {
    if let Some(last) = LAST.get()
        && last.is(installation, name)
    {
        return Some(last);
    }
    let segment = segment()?;
    let found = segment.find(installation, name).or_else(|| segment.add(installation, name));
    LAST.set(found);
    found
}

impl Segment {
    /// The places that a topic may have, the best first.
    fn places(&self, installation: u64, name: &[u8]) -> impl Iterator<Item = &Topic> {
        let mut hasher = DefaultHasher::new();
        (installation, name).hash(&mut hasher);
        let first = hasher.finish() as usize % TOPICS;
        self.topics[first..].iter().chain(&self.topics[..first])
    }

    fn find(&'static self, installation: u64, name: &[u8]) -> Option<&'static Topic> {
        self.places(installation, name)
            .take_while(|topic| topic.installation.load(Acquire) != 0)
            .find(|topic| topic.is(installation, name))
    }

    fn add(&'static self, installation: u64, name: &[u8]) -> Option<&'static Topic> {
        let length = u8::try_from(name.len()).ok()?;
        // SAFETY: the lock and the entries live as long as the server. Whoever holds the lock is alone in writing to an
        // entry that is not published yet, and nobody reads one.
        unsafe {
            lock::locked((&raw const self.lock).cast_mut(), || {
                let place = self
                    .places(installation, name)
                    .find(|topic| topic.installation.load(Acquire) == 0 || topic.is(installation, name))?;
                if place.installation.load(Acquire) == 0 {
                    let topic = (&raw const *place).cast_mut();
                    (*topic).length = length;
                    (&raw mut (*topic).name).cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
                    (*topic).installation.store(installation, Release);
                }
                Some(place)
            })
        }
    }
}

fn listen() {
    thread_local! { static LISTENING: Cell<bool> = const { Cell::new(false) } }
    if !LISTENING.replace(true) {
        // SAFETY: the callbacks are plain functions that live as long as the session.
        unsafe {
            pg_sys::RegisterXactCallback(Some(transaction_ends), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_ends), std::ptr::null_mut());
        }
    }
}

/// Nothing here may fail.
extern "C-unwind" fn transaction_ends(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    let counts = match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT | pg_sys::XactEvent::XACT_EVENT_PREPARE => true,
        pg_sys::XactEvent::XACT_EVENT_ABORT => false,
        _ => return,
    };
    PENDING.with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        for Pending { topic, event, count, .. } in pending.drain(..).filter(|_| counts) {
            topic.counts[event as usize].fetch_add(count, Relaxed);
        }
    });
}

/// What a savepoint's rollback takes back, its inner ones with it: their numbers are higher.
extern "C-unwind" fn subtransaction_ends(
    event: pg_sys::SubXactEvent::Type,
    id: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        PENDING.with(|pending| {
            if let Ok(mut pending) = pending.try_borrow_mut() {
                pending.retain(|counted| counted.within < id);
            }
        });
    }
}

fn segment() -> Option<&'static Segment> {
    SEGMENT.get().unwrap_or_else(|| {
        let segment = attach();
        SEGMENT.set(Some(segment));
        segment
    })
}

/// Finds the memory, or makes it. None if there is no room.
fn attach() -> Option<&'static Segment> {
    let anchor = version::shared_memory(NAME, size_of::<Anchor>(), fill)?.cast::<Anchor>().as_ptr();
    // SAFETY: under the anchor's lock, whoever does not find the segment makes it. It is pinned, so it lives as long as
    // the server, and its mapping as long as the session.
    unsafe {
        pg_sys::LWLockRegisterTranche((*anchor).tranche, c"outbox totals".as_ptr());
        let segment = lock::tried(&raw mut (*anchor).lock, || {
            let made = (*anchor).segment != 0;
            NonNull::new(if made { pg_sys::dsm_attach((*anchor).segment) } else { make(anchor) })
        })?
        .as_ptr();
        pg_sys::dsm_pin_mapping(segment);
        NonNull::new(pg_sys::dsm_segment_address(segment).cast::<Segment>()).map(|place| place.as_ref())
    }
}

/// # Safety
/// `anchor` is locked and has no segment.
unsafe fn make(anchor: *mut Anchor) -> *mut pg_sys::dsm_segment {
    // SAFETY: by the contract above; zeros are an empty segment.
    unsafe {
        let segment = pg_sys::dsm_create(size_of::<Segment>(), pg_sys::DSM_CREATE_NULL_IF_MAXSEGMENTS as i32);
        if !segment.is_null() {
            let place = pg_sys::dsm_segment_address(segment).cast::<Segment>();
            place.cast::<u8>().write_bytes(0, size_of::<Segment>());
            pg_sys::LWLockInitialize(&raw mut (*place).lock, (*anchor).tranche);
            pg_sys::dsm_pin_segment(segment);
            (*anchor).segment = pg_sys::dsm_segment_handle(segment);
        }
        segment
    }
}

/// # Safety
/// `place` points to an anchor that nobody else uses yet.
unsafe extern "C-unwind" fn fill(place: *mut std::ffi::c_void) {
    let anchor = place.cast::<Anchor>();
    // SAFETY: by the contract above.
    unsafe {
        anchor.cast::<u8>().write_bytes(0, size_of::<Anchor>());
        (*anchor).tranche = pg_sys::LWLockNewTrancheId();
        pg_sys::LWLockInitialize(&raw mut (*anchor).lock, (*anchor).tranche);
    }
}
