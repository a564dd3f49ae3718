//! What sessions tell each other about the ready and waiting messages, see `floor.rs`.
//!
//! A cache: where it cannot be had, every look starts at the beginning and is right. What a transaction has to tell, the
//! floors and those who wait, is noted while it runs and told when it has ended.

use super::arrival;
use super::cache::{self, Range, Shared};
use super::catalog::{self, Object};
use super::record::{Delivery, Place};
use super::value::{Text, Time};
use super::{listeners, server, waiting};
use crate::bottom::{self, Dive};
use crate::error::Error;
use crate::floor::{self, Cost, IDLE, Look, NEVER, NUMBERING, Seen};
use crate::places::Key;
use pgrx::{pg_guard, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{Ordering::SeqCst, fence};

/// What a transaction has to tell when it ends.
#[derive(Default)]
struct Pending {
    /// When the first of it was noted; 0: nothing noted.
    since: i64,
    installation: u64,
    looks: HashMap<(Key, Range), Left>,
    /// By topic.
    news: HashMap<Vec<u8>, News>,
    /// The lowest number of a row that was changed.
    touched: Option<i64>,
}

/// What a look is to leave, once the transaction is committed.
struct Left {
    generation: u64,
    look: Look,
    seen: Seen,
    dive: Dive,
}

/// What has happened to the messages of a topic, or of all.
#[derive(Clone, Copy)]
struct News {
    /// There is something to claim.
    ready: bool,
    /// There will be, should the transaction roll back.
    claimed: bool,
    /// The lowest number that became reachable again.
    lowered: i64,
    /// The earliest time at which something is due.
    due: i64,
    /// The earliest end of a lease that floors do not know.
    expiry: i64,
    /// The earliest end of a lease that was given: floors hear of it by the look that gave it.
    leased_until: i64,
}

impl News {
    const NONE: News =
        News { ready: false, claimed: false, lowered: NEVER, due: NEVER, expiry: NEVER, leased_until: NEVER };

    fn and(self, other: &News) -> News {
        News {
            ready: self.ready || other.ready,
            claimed: self.claimed || other.claimed,
            lowered: self.lowered.min(other.lowered),
            due: self.due.min(other.due),
            expiry: self.expiry.min(other.expiry),
            leased_until: self.leased_until.min(other.leased_until),
        }
    }

    /// Of interest to floors.
    fn is_for_floors(&self) -> bool {
        self.lowered.min(self.due).min(self.expiry) != NEVER
    }

    /// There is something to claim, now that the transaction is committed, or rolled back.
    fn is_ready(&self, committed: bool) -> bool {
        if committed { self.ready } else { self.claimed }
    }

    /// When the clock may bring something.
    fn next(&self) -> i64 {
        self.due.min(self.expiry).min(self.leased_until)
    }
}

thread_local! {
    static PENDING: RefCell<Pending> = RefCell::new(Pending::default());
}

/// Asks for shared memory, while the postmaster loads libraries.
pub fn reserve() {
    cache::reserve();
}

/// A look at one range, from its start to what it leaves.
pub struct Looking {
    key: Key,
    range: Range,
    generation: u64,
    look: Option<Look>,
    dive: Dive,
    /// Transactions before this one have been open for a while and hold no floor.
    horizon: u32,
}

/// False if there is no shared memory for it.
pub fn is_attached() -> bool {
    Shared::attached().is_some()
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
    let key = key(installation, topic.map(Text::bytes));
    let nothing = Looking { key, range, generation: 0, look: None, dive: Dive::NONE, horizon: 0 };
    let Some(shared) = Shared::attached() else { return Ok(nothing) };
    // The order matters: highest before lowest before the entry's version, and the snapshot after all of them.
    let (highest, lowest) = match range {
        Range::Ready => {
            let highest = arrival::highest()?;
            (highest, floor::lowest(shared.slots(installation), now.0))
        }
        // Whoever makes a message wait lowers the floor once that is committed.
        Range::Waiting => (now.0, i64::MAX),
    };
    let earlier = PENDING.with_borrow(|pending| pending.looks.get(&(key, range)).map(|left| left.seen.reach));
    let dives = range == Range::Ready && earlier.is_none() && !server::may_prepare_transactions();
    let mut looking = shared.locked(|contents| {
        let horizon = contents.mark(now.0);
        match contents.topic_in_use(key, installation, now.0) {
            Some(topic) => {
                let look = topic.entry(range).look(now.0, highest, lowest, asked).from(earlier.flatten());
                let dive = if dives { topic.bottom.look(now.0, look.sweep) } else { Dive::NONE };
                Looking { generation: topic.generation, look: Some(look), dive, horizon, ..nothing }
            }
            None => nothing,
        }
    });
    if looking.dive.from.is_some() {
        let lowest = bottom::lowest(shared.slots_below(installation));
        looking.dive.bound = Some(lowest.min(highest.saturating_add(1)));
    }
    Ok(looking)
}

/// What claims have left behind.
#[derive(Clone, Copy)]
pub struct Passed {
    /// Below this number they have found nothing ready, and below this time nothing due,
    pub number: i64,
    pub due: i64,
    /// but for leases, the first of which runs out at this time.
    pub expiry: i64,
}

/// What claims on `topic` have left behind, or also those on any topic. Nothing is certain: it is a cache.
pub fn passed(topic: Text<'_>, or_any: bool) -> Result<Passed, Error> {
    let installation = installation()?;
    let keys = [Some(key(installation, Some(topic.bytes()))), or_any.then(|| key(installation, None))];
    let mut passed = Passed { number: 0, due: 0, expiry: floor::NEVER };
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| {
            for key in keys.into_iter().flatten() {
                if let Some(topic) = contents.topic(key) {
                    passed.number = passed.number.max(topic.entry(Range::Ready).floor());
                    passed.due = passed.due.max(topic.entry(Range::Waiting).floor());
                    passed.expiry = passed.expiry.min(topic.entry(Range::Ready).next_expiry());
                }
            }
        });
    }
    Ok(passed)
}

impl Looking {
    /// The number or time to start at.
    pub fn start(&self) -> i64 {
        self.look.map_or(0, |look| self.dive.from.map_or(look.start, |from| from.min(look.start)))
    }

    /// To be asked once the snapshot is taken: true if all that is ready or leased in it is at [`Looking::start`] or above.
    pub fn meets_all(&self) -> bool {
        self.start() <= 0
            || self.dive.from.is_some()
                && Shared::attached().is_some_and(|shared| {
                    shared.locked(|contents| {
                        let topic = contents.same_topic(self.key, self.generation);
                        topic.is_some_and(|topic| topic.bottom.is_undisturbed_since(&self.dive))
                    })
                })
    }

    /// Notes the first ready or leased message that was met, and whether any had a key.
    pub fn has_met(&mut self, first: Option<i64>, keyed: bool) {
        (self.dive.first, self.dive.keyed) = (first, keyed);
    }

    /// True if the row's change by transaction `xid` holds the floor: it may roll back, and soon.
    pub fn is_held_by(&self, xid: pg_sys::TransactionId) -> bool {
        let horizon = pg_sys::TransactionId::from(self.horizon);
        // SAFETY: compares two numbers.
        self.horizon == 0 || unsafe { !pg_sys::TransactionIdPrecedes(xid, horizon) }
    }

    fn is_sweep(&self) -> bool {
        self.look.is_some_and(|look| look.sweep)
    }

    /// True if this look starts below the floor, and is to tell what the way has cost.
    pub fn is_measured(&self) -> bool {
        self.is_sweep() || self.dive.from.is_some()
    }

    /// Takes down what the walk from the start to the first claimable row has cost.
    pub fn walked(&self, cost: Cost) {
        if let Some(shared) = Shared::attached() {
            shared.locked(|contents| match contents.topic(self.key) {
                Some(topic) if self.is_sweep() => topic.entry(self.range).walked(cost),
                Some(topic) => topic.bottom.walked(cost),
                None => {}
            });
        }
    }

    /// Leaves what was seen: at once if the look changed nothing, nor did the transaction before, else for when it is
    /// committed. Returns when, by what is known of leases, the next look may find more.
    pub fn finish(self, seen: Seen, changed: bool) -> Time {
        let (Some(look), Some(shared)) = (self.look, Shared::attached()) else { return Time(seen.expiry) };
        let at_once = !changed && PENDING.with_borrow(Pending::has_changed_nothing);
        let next_end = shared.locked(|contents| {
            let topic = contents.same_topic(self.key, self.generation)?;
            if at_once {
                topic.keep(self.range, &look, &seen, &self.dive);
            }
            Some(topic.entry(self.range).next_end())
        });
        if !at_once {
            self.note(look, seen);
        }
        Time(next_end.unwrap_or(NEVER).min(seen.expiry))
    }

    fn note(&self, look: Look, seen: Seen) {
        let (generation, dive) = (self.generation, self.dive);
        note(|pending| {
            pending
                .looks
                .entry((self.key, self.range))
                .and_modify(|left| {
                    let both = Seen {
                        reach: seen.reach.into_iter().chain(left.seen.reach).min(),
                        expiry: left.seen.expiry.min(seen.expiry),
                    };
                    *left = Left { generation, look: left.look.and(&look), seen: both, dive: dive.void() };
                })
                .or_insert(Left { generation, look, seen, dive });
        });
    }
}

/// Begins a look for deaths in all topics; false if the last one was expensive and not long ago.
pub fn may_look_for_deaths(now: Time) -> Result<bool, Error> {
    let installation = installation()?;
    let key = key(installation, None);
    Ok(Shared::attached().is_none_or(|shared| {
        shared.locked(|contents| {
            contents.topic_in_use(key, installation, now.0).is_none_or(|topic| topic.deaths.begin(now.0))
        })
    }))
}

/// Takes down what a look for deaths has cost.
pub fn looked_for_deaths(cost: Cost) -> Result<(), Error> {
    let key = key(installation()?, None);
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| {
            if let Some(topic) = contents.topic(key) {
                topic.deaths.took(cost);
            }
        });
    }
    Ok(())
}

/// A transaction is about to take numbers: no floor rises until it has.
pub fn about_to_number() -> Result<(), Error> {
    let installation = installation()?;
    let Some(slot) = Shared::attached().and_then(|shared| shared.own_slot()) else { return Ok(()) };
    if slot.low.load(SeqCst) == IDLE {
        note(|_| ());
        slot.installation.store(installation, SeqCst);
        slot.since.store(server::clock().0, SeqCst);
        slot.low.store(NUMBERING, SeqCst);
    }
    Ok(())
}

/// It has taken the numbers from `first` on.
pub fn numbered(first: i64) {
    let Some(slot) = Shared::attached().and_then(|shared| shared.own_slot()) else { return };
    if slot.low.load(SeqCst) == NUMBERING {
        slot.low.store(first, SeqCst);
    }
}

/// The transaction is about to put a message, as it is in `row`, among the ready ones. Of interest if it has a key and is
/// not there already.
pub fn will_put_back(row: &Delivery<'_>) -> Result<(), Error> {
    if row.key.is_none() || row.place == Place::Ready {
        return Ok(());
    }
    let (installation, seq) = (installation()?, row.seq);
    let Some(shared) = Shared::attached() else { return Ok(()) };
    if let Some(slot) = shared.own_slot() {
        note(|_| ());
        slot.installation.store(installation, SeqCst);
        let back = slot.back.load(SeqCst);
        slot.back.store(if back == IDLE { seq } else { back.min(seq) }, SeqCst);
    }
    shared.locked(|contents| {
        for key in [key(installation, Some(row.topic.bytes())), key(installation, None)] {
            if let Some(topic) = contents.topic(key) {
                topic.bottom.disturb(seq);
            }
        }
    });
    Ok(())
}

/// Once committed, new messages of `topic` can be claimed.
pub fn will_arrive(topic: Text<'_>) -> Result<(), Error> {
    tell_of(topic, News { ready: true, ..News::NONE })
}

/// Once committed, message `seq` of `topic`, and perhaps younger ones, can be claimed again.
pub fn will_be_ready(topic: Text<'_>, seq: i64) -> Result<(), Error> {
    tell_of(topic, News { ready: true, lowered: seq, ..News::NONE })
}

/// Once committed, a message of `topic` waits until `due`, perhaps others until later.
pub fn will_be_due(topic: Text<'_>, due: Time) -> Result<(), Error> {
    tell_of(topic, News { due: due.0, ..News::NONE })
}

/// Once committed, a lease in `topic` ends at `time`, perhaps earlier than known.
pub fn will_expire(topic: Text<'_>, time: Time) -> Result<(), Error> {
    tell_of(topic, News { expiry: time.0, ..News::NONE })
}

/// The transaction has leased message `seq` of `topic`.
pub fn leased(topic: Text<'_>, seq: i64, until: Time) -> Result<(), Error> {
    touched(seq)?;
    tell_of(topic, News { claimed: true, leased_until: until.0, ..News::NONE })
}

/// The transaction has changed message `seq`: should it roll back late, the message may be below a floor.
pub fn touched(seq: i64) -> Result<(), Error> {
    note_in(installation()?, |pending| {
        pending.touched = pending.touched.into_iter().chain([seq]).min();
    });
    Ok(())
}

fn tell_of(topic: Text<'_>, news: News) -> Result<(), Error> {
    note_in(installation()?, |pending| match pending.news.get_mut(topic.bytes()) {
        Some(known) => *known = known.and(&news),
        None => {
            pending.news.insert(topic.bytes().to_vec(), news);
        }
    });
    Ok(())
}

fn note_in(installation: u64, what: impl FnOnce(&mut Pending)) {
    note(|pending| {
        if pending.installation != installation {
            // What was noted before is about tables that this transaction has dropped.
            pending.news.clear();
            pending.touched = None;
            pending.installation = installation;
        }
        what(pending);
    });
}

/// From now on the end of a transaction is noticed.
pub(super) fn listen() {
    thread_local! { static LISTENING: Cell<bool> = const { Cell::new(false) } }
    if !LISTENING.replace(true) {
        // Now, because at a transaction's end nothing may fail.
        let _ = Shared::attached();
        // SAFETY: the callbacks are plain functions that live as long as the session.
        unsafe {
            pg_sys::RegisterXactCallback(Some(transaction_will_commit), std::ptr::null_mut());
            pg_sys::RegisterXactCallback(Some(transaction_ends), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_ends), std::ptr::null_mut());
        }
    }
}

fn note(what: impl FnOnce(&mut Pending)) {
    listen();
    PENDING.with_borrow_mut(|pending| {
        if pending.since == 0 {
            // Not now: others judge the age of a change by the transaction's id, which may be as old as this.
            pending.since = server::transaction_start().0;
        }
        what(pending);
    });
}

#[pg_guard]
extern "C-unwind" fn transaction_will_commit(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    let has_news = || PENDING.with_borrow(|pending| pending.since != 0 && !pending.news.is_empty());
    if event == pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT && has_news() {
        listeners::ask_for_notifier();
    }
}

/// Tells the others. Nothing here may fail: after a commit an error would be a PANIC.
extern "C-unwind" fn transaction_ends(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    let committed = match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => true,
        pg_sys::XactEvent::XACT_EVENT_ABORT => false,
        pg_sys::XactEvent::XACT_EVENT_PREPARE => return forget(),
        _ => return,
    };
    if !committed {
        waiting::abandon();
    }
    PENDING.with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        if pending.since == 0 {
            return;
        }
        if let Some(shared) = Shared::attached() {
            if committed {
                pending.tell_floors(shared);
            } else {
                pending.tell_floors_aborted(shared);
            }
            if let Some(slot) = shared.own_slot() {
                slot.withdraw();
            }
            pending.tell_waiters(shared, committed);
            pending.tell_listeners(shared, committed);
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
    waiting::abandon();
    PENDING.with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        if pending.since != 0 {
            if let Some(shared) = Shared::attached() {
                pending.tell_floors_aborted(shared);
                pending.tell_waiters(shared, false);
                pending.tell_listeners(shared, false);
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
                slot.withdraw();
            }
            pending.clear();
        }
    });
}

impl Pending {
    fn clear(&mut self) {
        self.since = 0;
        self.looks.clear();
        self.news.clear();
        self.touched = None;
    }

    /// True if what its looks have seen is the committed truth.
    fn has_changed_nothing(&self) -> bool {
        self.touched.is_none() && self.looks.is_empty()
    }

    /// After a commit.
    fn tell_floors(&self, shared: Shared) {
        let now = server::clock().0;
        let late = shared.own_slot().and_then(|slot| {
            let low = slot.low.load(SeqCst);
            let late = low > 0 && floor::may_be_passed(slot.since.load(SeqCst), now);
            late.then(|| (slot.installation.load(SeqCst), low))
        });
        let all = self.news.values().fold(News::NONE, News::and);
        if self.looks.is_empty() && late.is_none() && !all.is_for_floors() {
            return;
        }
        shared.locked(|contents| {
            for (&(key, range), left) in &self.looks {
                if let Some(topic) = contents.same_topic(key, left.generation) {
                    topic.keep(range, &left.look, &left.seen, &left.dive);
                }
            }
            let mut tell = |key: Key, news: &News| {
                if let Some(topic) = contents.topic(key).filter(|_| news.is_for_floors()) {
                    if news.lowered != NEVER {
                        topic.entry(Range::Ready).lower(news.lowered);
                    }
                    if news.due != NEVER {
                        topic.entry(Range::Waiting).lower(news.due);
                    }
                    topic.entry(Range::Ready).expire(news.expiry);
                }
            };
            for (topic, news) in &self.news {
                tell(key(self.installation, Some(topic)), news);
            }
            tell(key(self.installation, None), &all);
            if let Some((installation, low)) = late {
                contents.lower_all(installation, low);
            }
        });
    }

    /// After a rollback: what a floor may have passed meanwhile is as it was before.
    fn tell_floors_aborted(&self, shared: Shared) {
        if let Some(touched) = self.touched
            && floor::may_be_passed(self.since, server::clock().0)
        {
            shared.locked(|contents| contents.lower_all(self.installation, touched));
        }
    }

    /// Those who wait for a topic, and those who wait for any.
    fn tell_waiters(&self, shared: Shared, committed: bool) {
        // Between the commit and the look at the lists, see `waiting::enter`.
        fence(SeqCst);
        if self.news.is_empty() || !shared.has_waiters() {
            return;
        }
        let any = key(self.installation, None);
        let (mut is_for_any, mut next) = (false, NEVER);
        for (topic, news) in &self.news {
            let key = key(self.installation, Some(topic));
            if news.is_ready(committed) {
                is_for_any |= !waiting::call_for(shared, key, false);
            }
            if committed && news.next() != NEVER {
                waiting::expect(shared, key, news.next());
                next = next.min(news.next());
            }
        }
        if is_for_any {
            waiting::call_for(shared, any, false);
        }
        if next != NEVER {
            waiting::expect(shared, any, next);
        }
    }

    /// Those who LISTEN. A lease that runs out is not announced: too seldom is it news.
    fn tell_listeners(&self, shared: Shared, committed: bool) {
        if self.news.is_empty() || !listeners::ENABLED.get() {
            return;
        }
        let now = server::clock().0;
        for (topic, news) in &self.news {
            if news.is_ready(committed) || (committed && news.due <= now) {
                listeners::mark(shared, topic);
            }
            if committed && news.due > now && news.due != NEVER {
                listeners::expect(shared, news.due);
            }
        }
    }
}

/// One installation of the extension: a database and its table, so that a new CREATE EXTENSION starts anew.
pub(super) fn installation() -> Result<u64, Error> {
    let table = catalog::oid(Object::Delivery)?;
    // SAFETY: reads a number that is fixed for the session.
    let database = unsafe { pg_sys::MyDatabaseId };
    Ok((u64::from(u32::from(database)) << 32) | u64::from(u32::from(table)))
}

/// What somebody wants who asks for a topic, or for any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys {
    /// Of the topic, or the same as `any`.
    pub wanted: Key,
    pub any: Key,
}

pub(super) fn keys(topic: Option<Text<'_>>) -> Result<Keys, Error> {
    let installation = installation()?;
    Ok(Keys { wanted: key(installation, topic.map(Text::bytes)), any: key(installation, None) })
}

fn key(installation: u64, topic: Option<&[u8]>) -> Key {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, installation, topic).hash(&mut hasher);
        hasher.finish() | 1 // never the unused key
    };
    (half(0), half(1))
}
