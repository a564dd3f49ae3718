//! What a transaction has to tell the others when it ends: noted while it runs, told by `commit.rs`.

use crate::error::Error;
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::rules::counters::{Event, Totals};
use crate::rules::floor::{IDLE, Look, NEVER, NUMBERING, Seen};
use crate::rules::slots::Key;
use crate::shmem::installations;
use crate::shmem::memory::{Range, Shared};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

/// What a transaction has to tell when it ends.
#[derive(Default)]
pub struct Pending {
    /// When the first of it was noted; 0: nothing noted.
    pub since: i64,
    pub installation: u64,
    pub looks: HashMap<(Key, Range), Left>,
    /// By topic.
    pub effects: HashMap<Vec<u8>, Effects>,
    /// The lowest number of a row that was changed.
    pub touched: Option<i64>,
}

/// What a look is to leave, once the transaction is committed.
pub struct Left {
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

/// What has happened to the messages of a topic.
pub struct Effects {
    /// There is something to claim.
    pub ready: bool,
    /// There will be, should the transaction roll back.
    pub claimed: bool,
    /// The lowest number that became reachable again.
    pub lowered: i64,
    /// The earliest time at which something is due.
    pub due: i64,
    /// The earliest end of a lease that floors do not know.
    pub expiry: i64,
    /// The earliest end of a lease that was given: floors hear of it by the look that gave it.
    pub leased_until: i64,
    /// The lowest number of a message that is over, and whose key may go on.
    pub ended: i64,
    /// There may be another one of such a key.
    pub follows: bool,
    /// What was answered, by savepoint.
    pub answers: Vec<(u32, Totals)>,
}

impl Effects {
    pub const NONE: Effects = Effects {
        ready: false,
        claimed: false,
        lowered: NEVER,
        due: NEVER,
        expiry: NEVER,
        leased_until: NEVER,
        ended: NEVER,
        follows: false,
        answers: Vec::new(),
    };

    /// Both, as far as floors go.
    pub fn and(self, other: &Effects) -> Effects {
        Effects {
            lowered: self.lowered.min(other.lowered),
            due: self.due.min(other.due),
            expiry: self.expiry.min(other.expiry),
            ended: self.ended.min(other.ended),
            ..self
        }
    }

    /// Of interest to floors.
    pub fn is_for_floors(&self) -> bool {
        self.lowered.min(self.due).min(self.expiry) != NEVER
    }

    /// There is something to claim, now that the transaction is committed, or rolled back.
    pub fn is_ready(&self, committed: bool) -> bool {
        if committed { self.ready || self.follows } else { self.claimed }
    }

    /// More than answers.
    pub fn concerns_others(&self) -> bool {
        self.ready || self.claimed || self.follows || self.lowered.min(self.next()) != NEVER
    }

    /// When the clock may bring something.
    pub fn next(&self) -> i64 {
        self.due.min(self.expiry).min(self.leased_until)
    }
}

thread_local! {
    static PENDING: RefCell<Pending> = RefCell::new(Pending::default());
    static TAKES_BACK: Cell<bool> = const { Cell::new(false) };
}

/// What the transaction's looks at `range` of `key` are to leave so far.
pub fn left(key: Key, range: Range) -> Option<Seen> {
    PENDING.with_borrow(|pending| pending.looks.get(&(key, range)).map(|left| left.seen))
}

/// True if what a look of the transaction sees is the committed truth.
pub fn has_changed_nothing() -> bool {
    PENDING.with_borrow(|pending| pending.touched.is_none() && pending.looks.is_empty())
}

/// Notes what a look at `range` of `key` is to leave.
pub fn leave(key: Key, range: Range, left: Left) {
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
    let installation = installations::current()?;
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
    tell_of(topic, |effects| effects.ready = true)
}

/// Once committed, message `seq` of `topic`, and perhaps younger ones, can be claimed again.
pub fn will_be_ready(topic: Text<'_>, seq: i64) -> Result<(), Error> {
    tell_of(topic, |effects| (effects.ready, effects.lowered) = (true, effects.lowered.min(seq)))
}

/// Once committed, a message of `topic` waits until `due`, perhaps others until later.
pub fn will_be_due(topic: Text<'_>, due: Time) -> Result<(), Error> {
    tell_of(topic, |effects| effects.due = effects.due.min(due.0))
}

/// Once committed, message `seq` of `topic` stands before no other one of its key. `follows`: there may be one.
pub fn will_make_way(topic: Text<'_>, seq: i64, follows: bool) -> Result<(), Error> {
    tell_of(topic, |effects| {
        (effects.ended, effects.follows) = (effects.ended.min(seq), effects.follows || follows)
    })
}

/// Once committed, a lease in `topic` ends at `time`, perhaps earlier than known.
pub fn will_expire(topic: Text<'_>, time: Time) -> Result<(), Error> {
    tell_of(topic, |effects| effects.expiry = effects.expiry.min(time.0))
}

/// The transaction has leased message `seq` of `topic`.
pub fn leased(topic: Text<'_>, seq: i64, until: Time) -> Result<(), Error> {
    touched(seq)?;
    tell_of(topic, |effects| {
        (effects.claimed, effects.leased_until) = (true, effects.leased_until.min(until.0))
    })
}

/// One more, once the transaction is committed or prepared.
pub fn answered(topic: Text<'_>, event: Event) -> Result<(), Error> {
    let within = server::savepoint_number();
    tell_of(topic, |effects| match effects.answers.last_mut() {
        Some((last, totals)) if *last == within => totals.add(event),
        _ => {
            let mut totals = Totals::default();
            totals.add(event);
            effects.answers.push((within, totals));
        }
    })
}

/// The transaction has changed message `seq`: should it roll back late, the message may be below a floor.
pub fn touched(seq: i64) -> Result<(), Error> {
    note_in(installations::current()?, |pending| {
        pending.touched = pending.touched.into_iter().chain([seq]).min();
    });
    Ok(())
}

pub fn lowest_touched() -> Option<i64> {
    PENDING.with_borrow(|pending| pending.touched)
}

/// Takes back a part of a transaction that was too short for anybody to notice, and that had nothing to tell.
pub fn take_back(touched: Option<i64>, roll_back: impl FnOnce()) {
    TAKES_BACK.set(true);
    roll_back();
    TAKES_BACK.set(false);
    with_pending(|pending| pending.touched = touched);
}

/// True while such a part is taken back.
pub fn takes_back() -> bool {
    TAKES_BACK.get()
}

fn tell_of(topic: Text<'_>, what: impl FnOnce(&mut Effects)) -> Result<(), Error> {
    note_in(installations::current()?, |pending| match pending.effects.get_mut(topic.bytes()) {
        Some(effects) => what(effects),
        None => what(pending.effects.entry(topic.bytes().to_vec()).or_insert(Effects::NONE)),
    });
    Ok(())
}

fn note_in(installation: u64, what: impl FnOnce(&mut Pending)) {
    note(|pending| {
        if pending.installation != installation {
            // What was noted before is about tables that this transaction has dropped.
            pending.effects.clear();
            pending.touched = None;
            pending.installation = installation;
        }
        what(pending);
    });
}

pub fn note(what: impl FnOnce(&mut Pending)) {
    // Now: what tells would find no transaction to attach in.
    let _ = Shared::attached();
    PENDING.with_borrow_mut(|pending| {
        if pending.since == 0 {
            // Not now: others judge the age of a change by the transaction's id, which may be as old as this.
            pending.since = server::transaction_start().0;
        }
        what(pending);
    });
}

/// Does something with what was noted, if anything was.
pub fn with_pending(what: impl FnOnce(&mut Pending)) {
    PENDING.with(|pending| {
        if let Ok(mut pending) = pending.try_borrow_mut()
            && pending.since != 0
        {
            what(&mut pending);
        }
    });
}

impl Pending {
    pub fn clear(&mut self) {
        self.since = 0;
        self.looks.clear();
        self.effects.clear();
        self.touched = None;
    }
}
