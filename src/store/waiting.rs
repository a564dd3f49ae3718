//! Sleeping until something can be claimed, see `waiters.rs`: the sleeper's side, and that of who wakes it.
//!
//! Nothing is held during the sleep: no lock, no snapshot of ours, no count that somebody would have to take back. A
//! session that is cancelled or terminated leaves when its transaction is aborted.

use super::cache::Shared;
use super::shared::{self, Keys};
use super::value::{Text, Time};
use super::{server, snapshot, version};
use crate::error::Error;
use crate::places::Key;
use crate::waiters::{Call, Left, Sleep};
use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::Duration;

/// How long a session sleeps that nobody can wake, there being no shared memory.
const POLL: Duration = Duration::from_millis(50);

thread_local! {
    /// What this session waits for.
    static ENTERED: Cell<Option<Keys>> = const { Cell::new(None) };
}

/// This session waits. Until [`Waiting::end`] whatever is committed in its topic, or in any, wakes it or somebody else.
pub struct Waiting<'a> {
    topic: Option<Text<'a>>,
}

impl<'a> Waiting<'a> {
    /// To be called before the look that decides whether to sleep.
    pub fn begin(topic: Option<Text<'a>>) -> Result<Self, Error> {
        shared::listen();
        enter(shared::keys(topic)?);
        Ok(Waiting { topic })
    }

    /// Sleeps, after a look that found nothing, until there may be something: at `next` at the latest, by what the look
    /// knows of the clock, and not beyond `deadline`.
    pub fn sleep(&self, next: Time, deadline: Time) -> Result<(), Error> {
        snapshot::release_catalog();
        match Shared::attached() {
            Some(shared) => sleep(shared, next, deadline),
            None => server::sleep_for_messages(POLL.min(server::clock().until(deadline))),
        }
        server::accept_invalidations();
        let keys = shared::keys(self.topic)?;
        if ENTERED.get() != Some(keys) {
            leave(false);
            enter(keys);
        }
        Ok(())
    }

    /// The last look was finished, whatever it found.
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

fn enter(keys: Keys) {
    ENTERED.set(Some(keys));
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| contents.waiters.enter(version::session_number(), keys.wanted));
    }
    // Whoever commits after our look has begun must see us: its fence is between its commit and its look at the lists.
    fence(SeqCst);
}

fn sleep(shared: Shared, next: Time, deadline: Time) {
    let me = version::session_number();
    wake(shared.locked(|contents| contents.waiters.sleep(me, next.0)));
    loop {
        let now = server::clock();
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
    match shared.locked(|contents| contents.waiters.leave(version::session_number(), in_vain)) {
        Left::Nothing => {}
        Left::Keeper(session) => server::wake(session),
        Left::CallAnother(_) => call(shared, keys),
    }
}

/// An error has ended the wait, if there was one.
pub(super) fn abandon() {
    leave(true);
}

/// Something is left for others who wait for `topic`, or for any.
pub fn pass_on(topic: Option<Text<'_>>) -> Result<(), Error> {
    if let Some(shared) = Shared::attached().filter(|shared| shared.has_waiters()) {
        call(shared, shared::keys(topic)?);
    }
    Ok(())
}

/// True if somebody may be glad of what a claim leaves.
pub fn somebody_waits() -> bool {
    Shared::attached().is_some_and(Shared::has_waiters)
}

/// Somebody else is to look, at once.
fn call(shared: Shared, keys: Keys) {
    if !call_for(shared, keys.wanted, true) {
        call_for(shared, keys.any, true);
    }
}

/// Sees to it that a session that waits for `key` looks. False if there is none. `urgent`: see `Waiters::call`.
pub(super) fn call_for(shared: Shared, key: Key, urgent: bool) -> bool {
    if !shared.is_awaited(key) {
        return false;
    }
    let now = server::clock().0;
    match shared.locked(|contents| contents.waiters.call(key, now, urgent)) {
        Call::Wake(session) => {
            server::wake(session);
            true
        }
        Call::Absorbed => true,
        Call::Nobody => false,
    }
}

/// At `time` there may be something for `key`.
pub(super) fn expect(shared: Shared, key: Key, time: i64) {
    if shared.is_awaited(key) {
        wake(shared.locked(|contents| contents.waiters.expect(key, time)));
    }
}

fn wake(session: Option<usize>) {
    if let Some(session) = session {
        server::wake(session);
    }
}
