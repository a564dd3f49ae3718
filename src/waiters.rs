//! Who sleeps until something can be claimed, and who is woken. Pure; `store/waiting.rs` keeps it in shared memory.
//!
//! A session *enters* before it looks, so that whatever is committed once its look has begun finds it here. A message
//! *calls* one session that waits for its topic, or else one that waits for any; not the whole herd. Whoever is called
//! looks again. It owes the others something for that: if it goes without having looked, or was called once more while
//! it looked, it passes the call on; and a claim that leaves something behind calls the next.
//!
//! One that is called and has not looked yet will find whatever else is committed meanwhile: it calls nobody else.
//!
//! What comes by the clock (a due time, the end of a lease) announces nobody. So among those who wait for the same, one
//! is the *keeper*: it sleeps no longer than until the next time known, and looks then. If it goes, another one is told
//! to keep. The others sleep until they are called.
//!
//! Where messages come *thick and fast*, by what claims took of late, there is one look in [`REST`], which finds many:
//! each look and each answer costs a commit and a wake-up, which those who append would wait for. Whoever comes rests
//! until it is time, and looks for all; who comes meanwhile sleeps. A message wakes nobody then. Who looked last will
//! mostly have come back; if nobody has, the keeper looks, [`LATE`] after that. What a claim has left does not wait.
//!
//! A keeper that knows of a message, or nothing of the clock, is *blind*. It looks at once; but where messages come thick
//! and fast, once the looks cease: each finds also what others know of.

use crate::places::Key;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Nothing known that the clock would bring.
pub const NEVER: i64 = i64::MAX;
/// Messages that come less than this apart come thick and fast, if they do for as long as [`REST`]. Microseconds.
pub const APART: i64 = 500;
/// Then the next look is so long after the last one.
pub const REST: i64 = 6_000;
/// If nobody has come by then, the keeper looks so much later.
pub const LATE: i64 = 1_000;
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
    /// A keeper knows of something that the clock brings then.
    alarm: i64,
    /// A blind keeper looks then, unless others still do.
    blind_until: i64,
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
        blind_until: NEVER,
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
    /// When one last began to look.
    looked_at: AtomicI64,
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
            looked_at: AtomicI64::new(0),
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

    /// Until when those who come for `key` at `now` rest.
    pub fn rests_until(&self, key: Key, now: i64) -> i64 {
        let emptied_at = self.emptied_at.load(SeqCst);
        let many = self.is_of(key) && self.lasts_until.load(SeqCst) >= emptied_at.saturating_add(REST);
        // The clock may have been set back.
        let last = emptied_at.max(self.looked_at.load(SeqCst)).min(now);
        if many { last.saturating_add(REST) } else { AT_ONCE }
    }

    /// Until when, as of `now`, a blind keeper waits for the looks to cease.
    fn blind_until(&self, key: Key, now: i64) -> i64 {
        self.rests_until(key, now).saturating_add(LATE)
    }

    /// Whoever comes for `key` asks: true if it need not rest. Then it looks.
    pub fn may_look(&self, key: Key, now: i64) -> bool {
        let may = now >= self.rests_until(key, now);
        if may {
            self.looks(key, now);
        }
        may
    }

    /// A look for `key` begins. A hint as well.
    fn looks(&self, key: Key, now: i64) {
        if self.is_of(key) {
            self.looked_at.store(now, SeqCst);
        }
    }

    /// No claim for another key has emptied it since.
    fn is_of(&self, key: Key) -> bool {
        self.emptied.load(SeqCst) == key.0
    }

    /// True if somebody has been called for `key` and has not looked yet: it will find what is committed by now. May be
    /// asked without the lock.
    pub fn absorbs(&self, key: Key, now: i64) -> bool {
        let counts_for = self.counts_until.load(SeqCst).saturating_sub(now);
        self.called.load(SeqCst) == key.0 && 0 < counts_for && counts_for <= ABSORBS
    }

    fn is_called(&self, key: Key, now: i64) {
        self.counts_until.store(now.saturating_add(ABSORBS), SeqCst);
        self.called.store(key.0, SeqCst);
    }

    fn is_called_no_more(&self, key: Key) {
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
    /// One that was called before, or will anyway.
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
        let bucket = bucket(key, self.buckets);
        if bucket.may_look(key, now) {
            return true;
        }
        if self.called(key, now).is_none() {
            self.is_called(me, now, false);
        } else {
            if self.keeper(key).is_none() {
                self.waiters[me].blind_until = bucket.blind_until(key, now);
            }
            self.sleep(me, NEVER);
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
            Some(keeper) if keeper != me => self.ring(keeper, time, NEVER),
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
            State::Called => bucket(waiter.key, self.buckets).rests_until(waiter.key, waiter.called_at),
            _ => waiter.alarm.min(waiter.blind_until),
        }
    }

    /// What `me` is to do at `now`. Over: it is about to look.
    pub fn wake(&mut self, me: usize, now: i64) -> Sleep {
        let time = self.looks_at(me);
        if now < time {
            return Sleep::Until(time);
        }
        let Waiter { key, state, alarm, .. } = self.waiters[me];
        let bucket = bucket(key, self.buckets);
        if state == State::Called {
            self.unlink(me);
            self.enter(me, key);
        } else {
            let blind_until = bucket.blind_until(key, now);
            if now < alarm.min(blind_until) {
                self.waiters[me].blind_until = blind_until;
                return Sleep::Until(alarm.min(blind_until));
            }
            self.waiters[me] =
                Waiter { state: State::Looking, alarm: NEVER, blind_until: NEVER, ..self.waiters[me] };
        }
        bucket.is_called_no_more(key);
        bucket.looks(key, now);
        Sleep::Over
    }

    /// `me` goes at `now`. `in_vain`: it did not finish its last look.
    pub fn leave(&mut self, me: usize, now: i64, in_vain: bool) -> Left {
        let waiter = self.waiters[me];
        if waiter.state != State::Away {
            self.unlink(me);
        }
        self.waiters[me] = Waiter::AWAY;
        let bucket = bucket(waiter.key, self.buckets);
        let heir = self.listed(waiter.key).last().filter(|_| waiter.keeper);
        if let Some(heir) = heir {
            let blind_until = match waiter.state {
                State::Asleep => waiter.blind_until,
                // It has not said yet what comes next.
                _ => bucket.blind_until(waiter.key, now),
            };
            self.waiters[heir].keeper = true;
            return self.ring(heir, waiter.alarm, blind_until).map_or(Left::Nothing, Left::Keeper);
        }
        let blind = waiter.blind_until != NEVER;
        let owes = match waiter.state {
            State::Away => false,
            State::Looking => blind || in_vain,
            State::Asleep => blind,
            State::Called => true,
        };
        if !owes {
            return Left::Nothing;
        }
        bucket.is_called_no_more(waiter.key);
        Left::CallAnother(waiter.key)
    }

    /// There is something for those who wait for `key`: one of them is called, the longest asleep that keeps no clock.
    /// Where messages come thick and fast, it is left to the next who comes, or else to the keeper; unless it is `urgent`:
    /// others have looked, and left it.
    pub fn call(&mut self, key: Key, now: i64, urgent: bool) -> Call {
        if let Some(called) = self.called(key, now) {
            let waiter = &mut self.waiters[called];
            let hurries = urgent && !waiter.urgent;
            waiter.urgent |= urgent;
            return if hurries { Call::Wake(called) } else { Call::Absorbed };
        }
        if !urgent && let Some(call) = self.leave_to_keeper(key, now) {
            return call;
        }
        // What a keeper knows would be lost to those who look; and who looks may pass it on.
        let last =
            |waiter: &usize| (self.waiters[*waiter].keeper, self.waiters[*waiter].state == State::Looking);
        let Some(called) = self.listed(key).min_by_key(last) else { return Call::Nobody };
        self.is_called(called, now, urgent);
        Call::Wake(called)
    }

    fn leave_to_keeper(&mut self, key: Key, now: i64) -> Option<Call> {
        let bucket = bucket(key, self.buckets);
        if now >= bucket.rests_until(key, now) {
            return None;
        }
        let keeper = self.appointed(key)?;
        if self.looks_at(keeper).saturating_add(ABSORBS) <= now {
            return None; // it is held up
        }
        bucket.is_called(key, now);
        Some(self.ring(keeper, NEVER, bucket.blind_until(key, now)).map_or(Call::Absorbed, Call::Wake))
    }

    fn is_called(&mut self, whom: usize, now: i64, urgent: bool) {
        let waiter = &mut self.waiters[whom];
        *waiter = Waiter { state: State::Called, called_at: now, urgent, keeper: false, ..*waiter };
        bucket(waiter.key, self.buckets).is_called(waiter.key, now);
    }

    /// At `time` there may be something for those who wait for `key`.
    pub fn expect(&mut self, key: Key, time: i64) -> Option<usize> {
        let keeper = self.appointed(key)?;
        self.ring(keeper, time, NEVER)
    }

    /// The keeper, appointed if there is none.
    fn appointed(&mut self, key: Key) -> Option<usize> {
        let keeper = self.keeper(key).or_else(|| self.listed(key).last())?;
        self.waiters[keeper].keeper = true;
        Some(keeper)
    }

    /// Sets a keeper's alarm, and until when it is blind, if they are later. Returns it if it is to wake earlier.
    fn ring(&mut self, keeper: usize, alarm: i64, blind_until: i64) -> Option<usize> {
        let earlier = alarm.min(blind_until) < self.looks_at(keeper);
        let waiter = &mut self.waiters[keeper];
        waiter.alarm = waiter.alarm.min(alarm);
        waiter.blind_until = waiter.blind_until.min(blind_until);
        (earlier && waiter.state == State::Asleep).then_some(keeper)
    }

    fn keeper(&self, key: Key) -> Option<usize> {
        self.listed(key).find(|waiter| self.waiters[*waiter].keeper)
    }

    /// Somebody who has been called for `key` and is to look still.
    fn called(&self, key: Key, now: i64) -> Option<usize> {
        let counts = |waiter: &Waiter| {
            waiter.state == State::Called && now.abs_diff(waiter.called_at) < ABSORBS.unsigned_abs()
        };
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
