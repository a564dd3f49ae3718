//! What a transaction has to tell the others: the floors, those who wait and those who listen. It is noted while the
//! transaction runs, and told when it has ended.

use super::cache::{Range, Shared};
use super::installation::{self, key};
use super::value::{Text, Time};
use super::{listeners, server, waiting};
use crate::error::Error;
use crate::floor::{self, IDLE, Look, NEVER, NUMBERING, Seen};
use crate::places::Key;
use pgrx::{pg_guard, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{Ordering::SeqCst, fence};

/// What a transaction has to tell when it ends.
#[derive(Default)]
pub(super) struct Pending {
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
pub(super) struct Left {
    pub generation: u64,
    pub look: Look,
    pub seen: Seen,
}

impl Left {
    /// With what an earlier look of the transaction is to leave.
    fn and(self, earlier: &Left) -> Left {
        let seen = Seen {
            reach: self.seen.reach.into_iter().chain(earlier.seen.reach).min(),
            expiry: self.seen.expiry.min(earlier.seen.expiry),
        };
        Left { look: earlier.look.and(&self.look), seen, ..self }
    }
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
    /// The lowest number of a message that is over, and whose key may go on.
    ended: i64,
    /// There may be another one of such a key.
    follows: bool,
}

impl News {
    const NONE: News = News {
        ready: false,
        claimed: false,
        lowered: NEVER,
        due: NEVER,
        expiry: NEVER,
        leased_until: NEVER,
        ended: NEVER,
        follows: false,
    };

    fn and(self, other: &News) -> News {
        News {
            ready: self.ready || other.ready,
            claimed: self.claimed || other.claimed,
            lowered: self.lowered.min(other.lowered),
            due: self.due.min(other.due),
            expiry: self.expiry.min(other.expiry),
            leased_until: self.leased_until.min(other.leased_until),
            ended: self.ended.min(other.ended),
            follows: self.follows || other.follows,
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
    static TAKES_BACK: Cell<bool> = const { Cell::new(false) };
}

/// What the transaction's looks at `range` of `key` are to leave so far.
pub(super) fn left(key: Key, range: Range) -> Option<Seen> {
    PENDING.with_borrow(|pending| pending.looks.get(&(key, range)).map(|left| left.seen))
}

/// True if what a look of the transaction sees is the committed truth.
pub(super) fn has_changed_nothing() -> bool {
    PENDING.with_borrow(|pending| pending.touched.is_none() && pending.looks.is_empty())
}

/// Notes what a look at `range` of `key` is to leave.
pub(super) fn leave(key: Key, range: Range, left: Left) {
    note(|pending| {
        let left = match pending.looks.remove(&(key, range)) {
            Some(earlier) => left.and(&earlier),
            None => left,
        };
        pending.looks.insert((key, range), left);
    });
}

/// A transaction is about to take numbers: no floor rises until it has.
pub fn about_to_number() -> Result<(), Error> {
    let installation = installation::current()?;
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

/// Once committed, message `seq` of `topic` stands before no other one of its key. `follows`: there may be one.
pub fn will_make_way(topic: Text<'_>, seq: i64, follows: bool) -> Result<(), Error> {
    tell_of(topic, News { ended: seq, follows, ..News::NONE })
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
    note_in(installation::current()?, |pending| {
        pending.touched = pending.touched.into_iter().chain([seq]).min();
    });
    Ok(())
}

pub(super) fn lowest_touched() -> Option<i64> {
    PENDING.with_borrow(|pending| pending.touched)
}

/// Takes back a part of a transaction that was too short for anybody to notice, and that had nothing to tell.
pub(super) fn take_back(touched: Option<i64>, roll_back: impl FnOnce()) {
    TAKES_BACK.set(true);
    roll_back();
    TAKES_BACK.set(false);
    PENDING.with(|pending| {
        if let Ok(mut pending) = pending.try_borrow_mut() {
            pending.touched = touched;
        }
    });
}

fn tell_of(topic: Text<'_>, news: News) -> Result<(), Error> {
    note_in(installation::current()?, |pending| match pending.news.get_mut(topic.bytes()) {
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

pub(super) fn note(what: impl FnOnce(&mut Pending)) {
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
    if event != pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB || TAKES_BACK.get() {
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

    /// After a commit.
    fn tell_floors(&self, shared: Shared) {
        let now = server::clock().0;
        let late = shared.own_slot().and_then(|slot| {
            let low = slot.low.load(SeqCst);
            let late = low > 0 && floor::may_be_passed(slot.since.load(SeqCst), now);
            late.then(|| (slot.installation.load(SeqCst), low))
        });
        let all = self.news.values().fold(News::NONE, News::and);
        // Else who was kept waiting by this transaction still holds the floor for what follows.
        let makes_way_late = all.ended != NEVER && floor::may_be_passed(self.since, now);
        if self.looks.is_empty() && late.is_none() && !makes_way_late && !all.is_for_floors() {
            return;
        }
        shared.locked(|contents| {
            for (&(key, range), left) in &self.looks {
                if let Some(topic) = contents.same_topic(key, left.generation) {
                    topic.entry(range).keep(&left.look, &left.seen);
                }
            }
            let mut tell = |key: Key, news: &News| {
                let mut news = *news;
                if makes_way_late && news.ended != NEVER {
                    (news.lowered, news.due) = (news.lowered.min(news.ended), 0);
                }
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
            if news.is_ready(committed) || committed && news.follows {
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
