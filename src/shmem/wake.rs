//! Sleeping until something can be claimed, see `rules/wake.rs`: the sleeper's side, and that of who wakes it.
//!
//! Nothing is held during the sleep: no lock, no snapshot of ours, no count that would have to be taken back. A
//! session that is cancelled or terminated leaves when its transaction is aborted.

use crate::error::Error;
use crate::pg::read::snapshot;
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::pg::version;
use crate::rules::slots::Key;
use crate::rules::wake::{Call, Left, Sleep, Waiters};
use crate::shmem::installations::{self, Keys};
use crate::shmem::memory::Shared;
use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::Duration;

/// How long a session sleeps that nobody can wake, there being no shared memory.
const POLL: Duration = Duration::from_millis(50);

thread_local! {
    /// What this session waits for.
    static ENTERED: Cell<Option<Keys>> = const { Cell::new(None) };
}

/// This session waits. Until [`Waiting::end`] a commit in its topic, or in any, wakes it or another session.
pub struct Waiting<'a> {
    topic: Option<Text<'a>>,
}

impl<'a> Waiting<'a> {
    /// To be called before any look: during a pause in looks, sleeps first, and waits from then on.
    pub fn pause(topic: Option<Text<'a>>, deadline: Time) -> Result<Option<Self>, Error> {
        let Some(shared) = Shared::attached() else { return Ok(None) };
        let (wanted, now) = (installations::wanted(topic)?, server::clock().0);
        let Some(end) = shared.bucket(wanted).pause(wanted, now) else { return Ok(None) };
        enter(installations::keys(topic)?, |waiters, me| waiters.pause(me, wanted, end, now));
        let waiting = Waiting { topic };
        waiting.sleep_well(|| sleep(shared, deadline))?;
        Ok(Some(waiting))
    }

    /// To be called before the look that decides whether to sleep.
    pub fn begin(topic: Option<Text<'a>>) -> Result<Self, Error> {
        let keys = installations::keys(topic)?;
        enter(keys, |waiters, me| waiters.enter(me, keys.wanted));
        Ok(Waiting { topic })
    }

    /// Sleeps, after a look that found nothing, until there may be something: at `next` at the latest, by what the look
    /// knows of the clock, and not beyond `deadline`.
    pub fn sleep(&self, next: Time, deadline: Time) -> Result<(), Error> {
        self.sleep_well(|| match Shared::attached() {
            Some(shared) => {
                let (me, now) = (version::session_number(), server::clock().0);
                wake(shared.locked(|contents| contents.waiters.sleep(me, next.0, now)));
                sleep(shared, deadline);
            }
            None => server::sleep_for_messages(POLL.min(server::clock().until(deadline))),
        })
    }

    /// With no catalog snapshot; afterwards the topic's table may be another one.
    fn sleep_well(&self, sleep: impl FnOnce()) -> Result<(), Error> {
        snapshot::release_catalog();
        sleep();
        server::accept_invalidations();
        let keys = installations::keys(self.topic)?;
        if ENTERED.get() != Some(keys) {
            leave(false);
            enter(keys, |waiters, me| waiters.enter(me, keys.wanted));
        }
        Ok(())
    }

    /// The last look was finished.
    pub fn end(self) {
        leave(false);
    }
}

/// Without [`Waiting::end`]: an error.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            abandon();
        }
    }
}

fn enter(keys: Keys, how: impl FnOnce(&mut Waiters<'_>, usize)) {
    ENTERED.set(Some(keys));
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| how(&mut contents.waiters, version::session_number()));
    }
    // A session that commits after our look has begun must see us: its fence is between its commit and its look at the
    // lists.
    fence(SeqCst);
}

fn sleep(shared: Shared, deadline: Time) {
    let me = version::session_number();
    let began = server::clock();
    loop {
        let now = server::clock();
        if now < began {
            return; // the clock was set back: it is time to look
        }
        match shared.locked(|contents| contents.waiters.wake(me, now.0)) {
            Sleep::Until(time) if now < deadline => {
                server::sleep_for_messages(now.until(Time(time).min(deadline)));
            }
            Sleep::Until(_) | Sleep::Over => return,
        }
    }
}

fn leave(in_vain: bool) {
    let Some(keys) = ENTERED.take() else { return };
    let Some(shared) = Shared::attached() else { return };
    let (me, now) = (version::session_number(), server::clock().0);
    match shared.locked(|contents| contents.waiters.leave(me, now, in_vain)) {
        Left::Nothing => {}
        Left::Wake(session) => server::wake(session),
        Left::Call => call(shared, keys, false),
    }
}

/// An error has ended the wait, if there was one.
pub fn abandon() {
    leave(true);
}

/// Something is left for others who wait for `topic`, or for any.
pub fn pass_on(topic: Option<Text<'_>>) -> Result<(), Error> {
    if let Some(shared) = Shared::attached().filter(|shared| shared.has_waiters()) {
        call(shared, installations::keys(topic)?, true);
    }
    Ok(())
}

/// A claim has taken `count` messages of `topic`, or of any, and left none.
pub fn emptied(topic: Option<Text<'_>>, count: usize) -> Result<(), Error> {
    if let Some(shared) = Shared::attached() {
        let key = installations::wanted(topic)?;
        shared.bucket(key).emptied(key, count, server::clock().0);
    }
    Ok(())
}

/// True if another session may want what a claim leaves.
pub fn somebody_waits() -> bool {
    Shared::attached().is_some_and(Shared::has_waiters)
}

/// Another session is to look.
fn call(shared: Shared, keys: Keys, urgent: bool) {
    if !call_for(shared, keys.wanted, urgent) {
        call_for(shared, keys.any, urgent);
    }
}

/// Sees to it that a session that waits for `key` looks. False if there is none. `urgent`: see `Waiters::call`.
pub fn call_for(shared: Shared, key: Key, urgent: bool) -> bool {
    let (bucket, now) = (shared.bucket(key), server::clock().0);
    if bucket.is_empty() {
        return false;
    }
    if !urgent && bucket.is_called(key) {
        return true;
    }
    match shared.locked(|contents| contents.waiters.call(key, now, urgent)) {
        Call::Wake(session) => {
            server::wake(session);
            true
        }
        Call::Coalesced => true,
        Call::Nobody => false,
    }
}

/// At `time` there may be something for `key`.
pub fn expect(shared: Shared, key: Key, time: i64) {
    if !shared.bucket(key).is_empty() {
        wake(shared.locked(|contents| contents.waiters.expect(key, time)));
    }
}

fn wake(session: Option<usize>) {
    if let Some(session) = session {
        server::wake(session);
    }
}
