//! The end of a transaction: what it has to tell is told by one callback, to floors, slots, those who wait, those who
//! listen, and totals, in this order.
//!
//! After a commit an error would be a PANIC. So what is told was listed before, and the shared memory attached; telling
//! takes a lock, sets latches, and frees.

use crate::pg::session::callback::{self, End};
use crate::pg::session::server;
use crate::rules::counters::{self, Totals};
use crate::rules::floor::{self, NEVER};
use crate::shmem;
use crate::shmem::installations::key;
use crate::shmem::memory::{Range, Shared};
use crate::shmem::pending::{Effects, Pending, takes_back, with_pending};
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Has the ends of this session's transactions told, while the library is loaded.
pub fn register() {
    callback::at_ends(transaction_ends, savepoint_rolled_back);
}

/// A prepared transaction ends in another session, which knows nothing of this: the sweep finds what it leaves.
fn transaction_ends(end: End) {
    if end == End::Commits {
        let mut concerns_others = false;
        with_pending(|pending| concerns_others = pending.effects.values().any(Effects::concerns_others));
        if concerns_others {
            shmem::notify::ask_for_notifier();
        }
        return;
    }
    with_pending(|pending| {
        if let Some(shared) = Shared::attached() {
            pending.tell(shared, end);
        }
        pending.clear();
    });
    if end == End::RolledBack {
        shmem::wake::abandon();
    }
}

/// What its looks left is void, what it had changed is as before, and what was answered since is not counted; the
/// numbers of inner ones are higher.
fn savepoint_rolled_back(id: u32) {
    with_pending(|pending| {
        pending.effects.values_mut().for_each(|effects| effects.answers.retain(|(within, _)| *within < id));
    });
    if takes_back() {
        return;
    }
    with_pending(|pending| {
        if let Some(shared) = Shared::attached() {
            pending.tell_floors_aborted(shared);
            pending.tell_waiters(shared, false);
            pending.tell_listeners(shared, false);
        }
        pending.looks.clear();
    });
    shmem::wake::abandon();
}

impl Pending {
    fn tell(&self, shared: Shared, end: End) {
        let committed = end == End::Committed;
        match end {
            End::Committed => self.tell_floors(shared),
            End::RolledBack => self.tell_floors_aborted(shared),
            End::Commits | End::Prepared => {}
        }
        if let Some(slot) = shared.own_slot() {
            slot.withdraw();
        }
        if end != End::Prepared {
            self.tell_waiters(shared, committed);
            self.tell_listeners(shared, committed);
        }
        if end != End::RolledBack {
            self.tell_totals(shared);
        }
    }

    /// After a commit.
    fn tell_floors(&self, shared: Shared) {
        let now = server::clock().0;
        let late = shared.own_slot().and_then(|slot| {
            let low = slot.low.load(SeqCst);
            let late = low > 0 && floor::may_be_passed(slot.since.load(SeqCst), now);
            late.then(|| (slot.installation.load(SeqCst), low))
        });
        let all = self.effects.values().fold(Effects::NONE, Effects::and);
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
            let mut tell = |topic: Option<&[u8]>, effects: &Effects| {
                let makes_way = makes_way_late && effects.ended != NEVER;
                if (makes_way || effects.is_for_floors())
                    && let Some(topic) = contents.topic(key(self.installation, topic))
                {
                    let ended = if makes_way { effects.ended } else { NEVER };
                    if effects.lowered.min(ended) != NEVER {
                        topic.entry(Range::Ready).lower(effects.lowered.min(ended));
                    }
                    if makes_way || effects.due != NEVER {
                        topic.entry(Range::Waiting).lower(if makes_way { 0 } else { effects.due });
                    }
                    topic.entry(Range::Ready).expire(effects.expiry);
                }
            };
            for (topic, effects) in &self.effects {
                tell(Some(topic), effects);
            }
            tell(None, &all);
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
        // Between the commit and the look at the lists, see `shmem::wake::enter`.
        fence(SeqCst);
        if self.effects.is_empty() || !shared.has_waiters() {
            return;
        }
        let any = key(self.installation, None);
        let (mut is_for_any, mut next) = (false, NEVER);
        for (topic, effects) in self.effects.iter().filter(|(_, effects)| effects.concerns_others()) {
            let key = key(self.installation, Some(topic));
            if effects.is_ready(committed) {
                is_for_any |= !shmem::wake::call_for(shared, key, false);
            }
            if committed && effects.next() != NEVER {
                shmem::wake::expect(shared, key, effects.next());
                next = next.min(effects.next());
            }
        }
        if is_for_any {
            shmem::wake::call_for(shared, any, false);
        }
        if next != NEVER {
            shmem::wake::expect(shared, any, next);
        }
    }

    /// Those who LISTEN. A lease that runs out is not announced: too seldom does it matter.
    fn tell_listeners(&self, shared: Shared, committed: bool) {
        if self.effects.is_empty() || !shmem::notify::ENABLED.get() {
            return;
        }
        let now = server::clock().0;
        for (topic, effects) in &self.effects {
            if effects.is_ready(committed) || (committed && effects.due <= now) {
                shmem::notify::add(shared, topic);
            }
            if committed && effects.due > now && effects.due != NEVER {
                shmem::notify::expect(shared, effects.due);
            }
        }
    }

    /// What was answered.
    fn tell_totals(&self, shared: Shared) {
        for (topic, effects) in self.effects.iter().filter(|(_, effects)| !effects.answers.is_empty()) {
            let answered =
                effects.answers.iter().fold(Totals::default(), |sum, (_, answered)| sum.and(answered));
            let key = key(self.installation, Some(topic));
            shared.locked(|contents| counters::add(contents.totals, key, self.installation, topic, answered));
        }
    }
}
