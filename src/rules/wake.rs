//! Who sleeps until something can be claimed, and who is woken. Pure; `shmem/wake.rs` keeps it in shared memory.
//!
//! A session *enters* a list before it looks, so that a commit after the begin of its look finds it there. A
//! message *calls* one session that waits for its topic, or else one that waits for any: the last that came. Who is
//! called will look, and find what else is committed until then: meanwhile nobody else is called. Who goes and was
//! called has another called; a claim that leaves something behind calls the next.
//!
//! The clock calls nobody. The first in the list, the *leader*, sleeps until the next time known, [`RECHECK`] at most,
//! and looks then. If it goes, the next one leads, by the same alarm; or it is called, if the other has looked and not
//! slept since: then nobody knows what comes next.
//!
//! Under load one look in [`PAUSE`] finds many: each look and each answer is a commit and a wake-up that those who
//! append would wait for. Who is called, or comes, during a pause looks at its end.

use crate::slots::Key;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Nothing known that the clock would bring.
pub const NEVER: i64 = i64::MAX;
/// How long what no session can announce may stay unnoticed: COMMIT PREPARED, a row changed by hand. Microseconds.
pub const RECHECK: i64 = 1_000_000;
/// Under load, from one look to the next.
pub const PAUSE: i64 = 6_000;
/// Load: so far apart come messages, or closer, for as long as a pause.
pub const APART: i64 = 500;
const AT_ONCE: i64 = i64::MIN;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum State {
    Away,
    /// A call now means one more look.
    Looking,
    Asleep,
    Called,
}

/// What is known of one session.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Waiter {
    key: Key,
    /// When one that is called, or leads, is to look.
    alarm: i64,
    next: u32,
    previous: u32,
    state: State,
}

impl Waiter {
    pub const AWAY: Waiter =
        Waiter { key: (0, 0), alarm: NEVER, next: NONE, previous: NONE, state: State::Away };
}

/// Those whose keys end up here, in the order in which they came. What is no list is a hint, and needs no lock.
#[derive(Debug)]
#[repr(C)]
pub struct Bucket {
    first: AtomicU32,
    last: AtomicU32,
    /// Half of a key for which a session is called; 0: none is.
    called: AtomicU64,
    /// Half of a key, what of it was taken by the last claims,
    taken: AtomicU64,
    /// until when that would last, were it [`APART`], a pause at most,
    lasts_until: AtomicI64,
    /// and the end of the pause that follows if it lasts for one.
    pause_until: AtomicI64,
}

impl Bucket {
    pub const fn empty() -> Bucket {
        Bucket {
            first: AtomicU32::new(NONE),
            last: AtomicU32::new(NONE),
            called: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            lasts_until: AtomicI64::new(0),
            pause_until: AtomicI64::new(0),
        }
    }

    /// A claim for `key` has taken `count` messages, and left none.
    pub fn emptied(&self, key: Key, count: usize, now: i64) {
        let known = if self.taken.load(SeqCst) == key.0 { self.lasts_until.load(SeqCst) } else { now };
        let (lasts_until, longest) = (known.max(now), now.saturating_add(PAUSE));
        let lasts_until = lasts_until.saturating_add(APART.saturating_mul(count as i64)).min(longest);
        self.lasts_until.store(lasts_until, SeqCst);
        self.pause_until.store(if lasts_until == longest { longest } else { now }, SeqCst);
        self.taken.store(key.0, SeqCst);
    }

    /// The end of the pause in looks for `key`, if there is one at `now`.
    pub fn pause(&self, key: Key, now: i64) -> Option<i64> {
        let end = self.pause_until.load(SeqCst);
        // Further away, it is of before the clock was set back.
        let lasts = now < end && end <= now.saturating_add(PAUSE);
        (lasts && self.taken.load(SeqCst) == key.0).then_some(end)
    }

    /// True if a session that was called for `key` will find what is committed by now.
    pub fn is_called(&self, key: Key) -> bool {
        self.called.load(SeqCst) == key.0
    }

    fn is_called_no_more(&self, key: Key) {
        if self.is_called(key) {
            self.called.store(0, SeqCst);
        }
    }

    /// True if nobody waits here.
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
    Coalesced,
    Nobody,
}

/// What becomes of a session's duties when it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    Nothing,
    /// This one leads now: wake it, so that it notices.
    Wake(usize),
    /// It was called, and found nothing: another one is to be called.
    Call,
}

/// All of them, under one lock. Sessions are numbers; the one that is returned is to be woken.
pub struct Waiters<'l> {
    pub buckets: &'l [Bucket],
    pub waiters: &'l mut [Waiter],
}

impl Waiters<'_> {
    /// `me` is about to look for what `key` stands for.
    pub fn enter(&mut self, me: usize, key: Key) {
        if self.waiters[me].state != State::Away {
            self.unlink(me);
        }
        let bucket = bucket(key, self.buckets);
        let last = bucket.last.swap(me as u32, SeqCst);
        self.waiters[me] = Waiter { key, state: State::Looking, previous: last, ..Waiter::AWAY };
        match last {
            NONE => bucket.first.store(me as u32, SeqCst),
            last => self.waiters[last as usize].next = me as u32,
        }
    }

    /// `me` comes for what `key` stands for during a pause that ends at `end`, and sleeps before it looks.
    pub fn pause(&mut self, me: usize, key: Key, end: i64, now: i64) {
        self.enter(me, key);
        if self.called(key).is_some() {
            self.sleep(me, NEVER, now);
        } else {
            self.be_called(me, end);
        }
    }

    /// `me` has looked and found nothing, and knows of nothing that comes before `time`.
    pub fn sleep(&mut self, me: usize, time: i64, now: i64) -> Option<usize> {
        let Waiter { key, state, .. } = self.waiters[me];
        if state != State::Looking {
            return None;
        }
        self.waiters[me].state = State::Asleep;
        self.expect(key, time.min(now.saturating_add(RECHECK))).filter(|leader| *leader != me)
    }

    /// At `time` there may be something for those who wait for `key`.
    pub fn expect(&mut self, key: Key, time: i64) -> Option<usize> {
        self.leader(key).filter(|leader| self.ring(*leader, time))
    }

    /// When `me` is to look again, as it stands at `now`.
    pub fn looks_at(&self, me: usize, now: i64) -> i64 {
        let Waiter { key, alarm, state, .. } = self.waiters[me];
        if state != State::Called && self.leader(key) != Some(me) {
            return NEVER;
        }
        // Further away, it is of before the clock was set back.
        if alarm > now.saturating_add(RECHECK) { AT_ONCE } else { alarm }
    }

    /// What `me` is to do at `now`. Over: it is about to look.
    pub fn wake(&mut self, me: usize, now: i64) -> Sleep {
        let (key, time) = (self.waiters[me].key, self.looks_at(me, now));
        if now < time {
            return Sleep::Until(time);
        }
        self.waiters[me] = Waiter { state: State::Looking, alarm: NEVER, ..self.waiters[me] };
        bucket(key, self.buckets).is_called_no_more(key);
        Sleep::Over
    }

    /// `me` goes at `now`. `in_vain`: it did not finish its last look.
    pub fn leave(&mut self, me: usize, now: i64, in_vain: bool) -> Left {
        let Waiter { key, alarm, state, .. } = self.waiters[me];
        if state == State::Away {
            return Left::Nothing;
        }
        let led = self.leader(key) == Some(me);
        self.unlink(me);
        if let Some(heir) = self.leader(key).filter(|_| led) {
            let earlier = if state == State::Asleep {
                self.ring(heir, alarm)
            } else {
                let pause = bucket(key, self.buckets).pause(key, now);
                self.be_called(heir, pause.unwrap_or(AT_ONCE))
            };
            return if earlier { Left::Wake(heir) } else { Left::Nothing };
        }
        if state == State::Called || in_vain && state == State::Looking {
            bucket(key, self.buckets).is_called_no_more(key);
            return Left::Call;
        }
        Left::Nothing
    }

    /// There is something for those who wait for `key`: the last of them is called, who looks or leads if there is no
    /// other. After a pause, unless it is `urgent`: others have looked, and left it.
    pub fn call(&mut self, key: Key, now: i64, urgent: bool) -> Call {
        let pause = bucket(key, self.buckets).pause(key, now).filter(|_| !urgent);
        let leader = self.leader(key);
        let fitness =
            |waiter: &usize| (Some(*waiter) != leader, self.waiters[*waiter].state == State::Asleep);
        let called = self.called(key);
        let Some(whom) = called.or_else(|| self.listed(key).max_by_key(fitness)) else { return Call::Nobody };
        let earlier = (called.is_none() || urgent) && self.be_called(whom, pause.unwrap_or(AT_ONCE));
        if earlier { Call::Wake(whom) } else { Call::Coalesced }
    }

    /// True if it is to be woken.
    fn be_called(&mut self, whom: usize, at: i64) -> bool {
        let earlier = self.ring(whom, at);
        self.waiters[whom].state = State::Called;
        let key = self.waiters[whom].key;
        bucket(key, self.buckets).called.store(key.0, SeqCst);
        earlier
    }

    /// Sets a session's alarm, unless it is set to an earlier time. True if it is to be woken.
    fn ring(&mut self, whom: usize, alarm: i64) -> bool {
        let waiter = &mut self.waiters[whom];
        let earlier = alarm < waiter.alarm;
        waiter.alarm = waiter.alarm.min(alarm);
        earlier && waiter.state != State::Looking
    }

    fn leader(&self, key: Key) -> Option<usize> {
        self.listed(key).next()
    }

    fn called(&self, key: Key) -> Option<usize> {
        self.listed(key).find(|waiter| self.waiters[*waiter].state == State::Called)
    }

    /// Those who wait for `key`, the longest waiting first.
    fn listed(&self, key: Key) -> impl Iterator<Item = usize> {
        let at = |place: u32| (place != NONE).then_some(place as usize);
        let first = at(bucket(key, self.buckets).first.load(SeqCst));
        std::iter::successors(first, move |place| at(self.waiters[*place].next))
            .filter(move |place| self.waiters[*place].key == key)
    }

    fn unlink(&mut self, me: usize) {
        let Waiter { key, next, previous, .. } = std::mem::replace(&mut self.waiters[me], Waiter::AWAY);
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
