//! Who sleeps until something can be claimed, and who is woken. Pure; `store/waiting.rs` keeps it in shared memory.
//!
//! A session *enters* before it looks, so that whatever is committed once its look has begun finds it here. A message
//! *calls* one session that waits for its topic, or else one that waits for any; not the whole herd. Whoever is called
//! looks again. It owes the others something for that: if it goes without having looked, or was called once more while
//! it looked, it passes the call on; and a claim that leaves something behind calls the next.
//!
//! One that is called and has not looked yet will find whatever else is committed meanwhile: it calls nobody else. Where
//! messages come thick and fast, by what claims took of late, whoever is called, or comes, rests first until [`REST`] after
//! the last of them, and finds many: each look and each answer costs a commit and a wake-up, which those who append would
//! wait for. Who comes while another rests leaves it to that one, and sleeps. What a claim has left does not wait.
//!
//! What comes by the clock (a due time, the end of a lease) announces nobody. So among those who wait for the same, one
//! is the *keeper*: it sleeps no longer than until the next time known, and looks then. If it goes, another one is told
//! to keep. The others sleep until they are called.

use crate::places::Key;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Nothing known that the clock would bring.
pub const NEVER: i64 = i64::MAX;
/// Messages that come less than this apart come thick and fast, if they do for as long as [`REST`]. Microseconds.
pub const APART: i64 = 500;
/// Then the next look is so long after the last claim.
pub const REST: i64 = 4_000;
/// Who is called counts on for this long: it may have been held up. Then somebody else is called.
const ABSORBS: i64 = 10_000;
/// Look now.
const AT_ONCE: i64 = i64::MIN;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum State {
    Away,
    /// A call now means one more look.
    Looking,
    Asleep,
    /// It is to look: it rests before, or is on its way.
    Called,
}

/// What is known of one session.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Waiter {
    key: Key,
    alarm: i64,
    called_at: i64,
    next: u32,
    previous: u32,
    state: State,
    keeper: bool,
    /// Called to look at once.
    urgent: bool,
}

impl Waiter {
    pub const AWAY: Waiter = Waiter {
        key: (0, 0),
        alarm: NEVER,
        called_at: 0,
        next: NONE,
        previous: NONE,
        state: State::Away,
        keeper: false,
        urgent: false,
    };
}

/// Those whose keys end up here, the longest waiting first.
#[derive(Debug)]
#[repr(C)]
pub struct Bucket {
    first: AtomicU32,
    last: AtomicU32,
    /// When a claim last took all there was,
    emptied_at: AtomicI64,
    /// and for what: half of a key.
    emptied: AtomicU64,
    /// Until when that and what was taken before would last, were it [`APART`]; not beyond [`REST`].
    lasts_until: AtomicI64,
    /// Whoever is called counts on until then,
    counts_until: AtomicI64,
    /// and for what likewise. 0: nobody is.
    called: AtomicU64,
}

impl Bucket {
    pub const fn empty() -> Bucket {
        Bucket {
            first: AtomicU32::new(NONE),
            last: AtomicU32::new(NONE),
            emptied_at: AtomicI64::new(0),
            emptied: AtomicU64::new(0),
            lasts_until: AtomicI64::new(0),
            counts_until: AtomicI64::new(0),
            called: AtomicU64::new(0),
        }
    }

    /// A claim for `key` has taken `count` messages, and left none. A hint: neither this nor what it is for needs the lock.
    pub fn emptied(&self, key: Key, count: usize, now: i64) {
        let lasts_until = if self.is_of(key) { self.lasts_until.load(SeqCst).max(now) } else { now };
        let longest = now.saturating_add(REST);
        let lasts_until = lasts_until.saturating_add(APART.saturating_mul(count as i64)).min(longest);
        self.lasts_until.store(lasts_until, SeqCst);
        self.emptied_at.store(now, SeqCst);
        self.emptied.store(key.0, SeqCst);
    }

    /// Until when those who come or are called for `key` rest.
    pub fn rests_until(&self, key: Key) -> i64 {
        let rested = self.emptied_at.load(SeqCst).saturating_add(REST);
        let many = self.is_of(key) && self.lasts_until.load(SeqCst) >= rested;
        if many { rested } else { AT_ONCE }
    }

    /// No claim for another key has emptied it since.
    fn is_of(&self, key: Key) -> bool {
        self.emptied.load(SeqCst) == key.0
    }

    /// True if somebody has been called for `key` and has not looked yet: it will find what is committed by now. May be
    /// asked without the lock.
    pub fn absorbs(&self, key: Key, now: i64) -> bool {
        self.called.load(SeqCst) == key.0 && now < self.counts_until.load(SeqCst)
    }

    fn is_called(&self, key: Key, now: i64) {
        self.counts_until.store(now.saturating_add(ABSORBS), SeqCst);
        self.called.store(key.0, SeqCst);
    }

    fn looks(&self, key: Key) {
        if self.called.load(SeqCst) == key.0 {
            self.called.store(0, SeqCst);
        }
    }

    /// True if somebody waits here. May be asked without the lock that guards the rest.
    pub fn is_empty(&self) -> bool {
        self.first.load(SeqCst) == NONE
    }
}

/// Where those are who wait for `key`.
pub fn bucket(key: Key, buckets: &[Bucket]) -> &Bucket {
    &buckets[key.1 as usize % buckets.len()]
}

/// What a sleeper finds when it wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Sleep on until this time.
    Until(i64),
    /// Look again.
    Over,
}

/// Who looks because of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// This one: wake it.
    Wake(usize),
    /// One that was called before.
    Absorbed,
    Nobody,
}

/// What becomes of somebody's duties when it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    Nothing,
    /// It was called in vain: somebody else is to be.
    CallAnother(Key),
    /// This one keeps the clock now: wake it, so that it notices.
    Keeper(usize),
}

/// All of them, under one lock. Sessions are numbers; whoever is returned is to be woken.
pub struct Waiters<'l> {
    pub buckets: &'l [Bucket],
    pub waiters: &'l mut [Waiter],
}

impl Waiters<'_> {
    /// `me` is about to look for what `key` stands for.
    pub fn enter(&mut self, me: usize, key: Key) {
        self.waiters[me] = Waiter { key, state: State::Looking, ..Waiter::AWAY };
        self.link(me);
    }

    /// `me` comes for what `key` stands for, and has not looked. True: it is to look. False: it is to sleep first.
    pub fn arrive(&mut self, me: usize, key: Key, now: i64) -> bool {
        self.enter(me, key);
        if now >= bucket(key, self.buckets).rests_until(key) {
            return true;
        }
        if self.called(key, now).is_none() {
            self.is_called(me, now, false);
        } else {
            // It knows nothing of the clock; a keeper does.
            let time = self.keeper(key).map_or(now.saturating_add(REST), |_| NEVER);
            self.sleep(me, time);
        }
        false
    }

    /// `me` has looked in vain, and knows of nothing that comes before `time`. May return somebody who keeps the clock.
    pub fn sleep(&mut self, me: usize, time: i64) -> Option<usize> {
        let key = self.waiters[me].key;
        if self.waiters[me].state != State::Looking {
            return None;
        }
        self.waiters[me].state = State::Asleep;
        match self.keeper(key) {
            Some(keeper) if keeper != me => self.ring(keeper, time),
            _ => {
                self.waiters[me].keeper = true;
                self.waiters[me].alarm = self.waiters[me].alarm.min(time);
                None
            }
        }
    }

    /// When `me` is to look again, as it stands.
    pub fn looks_at(&self, me: usize) -> i64 {
        let waiter = &self.waiters[me];
        match waiter.state {
            State::Called if waiter.urgent => AT_ONCE,
            State::Called => {
                let longest = waiter.called_at.saturating_add(REST); // should the clock have been set back
                bucket(waiter.key, self.buckets).rests_until(waiter.key).min(longest)
            }
            _ => waiter.alarm,
        }
    }

    /// What `me` is to do at `now`. Over: it is about to look.
    pub fn wake(&mut self, me: usize, now: i64) -> Sleep {
        let time = self.looks_at(me);
        if now < time {
            return Sleep::Until(time);
        }
        let Waiter { key, state, .. } = self.waiters[me];
        if state == State::Called {
            bucket(key, self.buckets).looks(key);
            self.unlink(me);
            self.enter(me, key);
        } else {
            self.waiters[me].state = State::Looking;
            self.waiters[me].alarm = NEVER;
        }
        Sleep::Over
    }

    /// `me` goes. `in_vain`: it did not finish its last look.
    pub fn leave(&mut self, me: usize, in_vain: bool) -> Left {
        let waiter = self.waiters[me];
        if waiter.state != State::Away {
            self.unlink(me);
        }
        self.waiters[me] = Waiter::AWAY;
        let heir = self.listed(waiter.key).last().filter(|_| waiter.keeper);
        match (waiter.state, heir) {
            (State::Away, _) => Left::Nothing,
            (State::Called, _) => {
                bucket(waiter.key, self.buckets).looks(waiter.key);
                Left::CallAnother(waiter.key)
            }
            (state, Some(heir)) => {
                // Who looks has not said yet what comes next.
                let time = if state == State::Asleep { waiter.alarm } else { AT_ONCE };
                self.waiters[heir].keeper = true;
                self.ring(heir, time).map_or(Left::Nothing, Left::Keeper)
            }
            (State::Looking, None) if in_vain => Left::CallAnother(waiter.key),
            (_, None) => Left::Nothing,
        }
    }

    /// There is something for those who wait for `key`: one of them is called, the longest waiting that keeps no clock.
    /// `urgent`: others have looked, and left it.
    pub fn call(&mut self, key: Key, now: i64, urgent: bool) -> Call {
        if let Some(called) = self.called(key, now) {
            let waiter = &mut self.waiters[called];
            let hurries = urgent && !waiter.urgent;
            waiter.urgent |= urgent;
            return if hurries { Call::Wake(called) } else { Call::Absorbed };
        }
        let keeps = |waiter: &usize| self.waiters[*waiter].keeper;
        let called = self.listed(key).find(|waiter| !keeps(waiter)).or_else(|| self.listed(key).next());
        let Some(called) = called else { return Call::Nobody };
        self.is_called(called, now, urgent);
        Call::Wake(called)
    }

    fn is_called(&mut self, whom: usize, now: i64, urgent: bool) {
        let waiter = &mut self.waiters[whom];
        *waiter = Waiter { state: State::Called, called_at: now, urgent, keeper: false, ..*waiter };
        bucket(waiter.key, self.buckets).is_called(waiter.key, now);
    }

    /// At `time` there may be something for those who wait for `key`.
    pub fn expect(&mut self, key: Key, time: i64) -> Option<usize> {
        let keeper = self.keeper(key).or_else(|| self.listed(key).last())?;
        self.waiters[keeper].keeper = true;
        self.ring(keeper, time)
    }

    /// Sets a keeper's alarm, if it is later.
    fn ring(&mut self, keeper: usize, time: i64) -> Option<usize> {
        let waiter = &mut self.waiters[keeper];
        let earlier = time < waiter.alarm;
        waiter.alarm = waiter.alarm.min(time);
        (earlier && waiter.state == State::Asleep).then_some(keeper)
    }

    fn keeper(&self, key: Key) -> Option<usize> {
        self.listed(key).find(|waiter| self.waiters[*waiter].keeper)
    }

    /// Somebody who has been called for `key` and is to look still.
    fn called(&self, key: Key, now: i64) -> Option<usize> {
        let counts =
            |waiter: &Waiter| waiter.state == State::Called && now.saturating_sub(waiter.called_at) < ABSORBS;
        self.all(key).find(|waiter| counts(&self.waiters[*waiter]))
    }

    /// Those who wait for `key` and are not called, the longest waiting first.
    fn listed(&self, key: Key) -> impl Iterator<Item = usize> {
        self.all(key).filter(|waiter| self.waiters[*waiter].state != State::Called)
    }

    fn all(&self, key: Key) -> impl Iterator<Item = usize> {
        let first = bucket(key, self.buckets).first.load(SeqCst);
        let at = |place: u32| (place != NONE).then_some(place as usize);
        std::iter::successors(at(first), move |place| at(self.waiters[*place].next))
            .filter(move |place| self.waiters[*place].key == key)
    }

    fn link(&mut self, me: usize) {
        let bucket = bucket(self.waiters[me].key, self.buckets);
        let last = bucket.last.load(SeqCst);
        self.waiters[me].previous = last;
        self.waiters[me].next = NONE;
        match last {
            NONE => bucket.first.store(me as u32, SeqCst),
            last => self.waiters[last as usize].next = me as u32,
        }
        bucket.last.store(me as u32, SeqCst);
    }

    fn unlink(&mut self, me: usize) {
        let Waiter { key, next, previous, .. } = self.waiters[me];
        let bucket = bucket(key, self.buckets);
        match previous {
            NONE => bucket.first.store(next, SeqCst),
            previous => self.waiters[previous as usize].next = next,
        }
        match next {
            NONE => bucket.last.store(previous, SeqCst),
            next => self.waiters[next as usize].previous = previous,
        }
    }
}
