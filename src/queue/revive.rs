//! Giving dead messages another life.
//!
//! Dead is also a message whose last lease ran out though no session has recorded it. A session that is changing a
//! message at the moment is waited for, and judged by what that leaves.

use crate::error::Error;
use crate::pg::read::scan::Scan;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Outcome, RowId, Table, Wait};
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::queue::key_release;
use crate::settings;
use crate::shmem::in_order::InOrder;
use crate::shmem::{self, pending};
use crate::tables::delivery::{Deliveries, Place};
use crate::tables::find::Lookup;
use crate::tables::key::Keyed;
use crate::tables::topic::{TopicRules, Topics};
use std::collections::BTreeSet;

/// Leases that go back with revived messages: locked in arrival order among those, as answers lock too, and parked when
/// all are locked. So single calls cannot wait for each other in a circle.
pub struct GoingBack<'t> {
    deliveries: &'t Table<Deliveries>,
    to_lock: BTreeSet<i64>,
    locked: Vec<(i64, RowId)>,
}

impl<'t> GoingBack<'t> {
    pub fn new(deliveries: &'t Table<Deliveries>) -> Self {
        GoingBack { deliveries, to_lock: BTreeSet::new(), locked: Vec::new() }
    }

    pub fn lock_before(&mut self, end: i64) -> Result<(), Error> {
        while let Some(seq) = self.to_lock.first().copied().filter(|seq| *seq < end) {
            self.to_lock.remove(&seq);
            self.locked.extend(key_release::lock_leased(self.deliveries, seq)?);
        }
        Ok(())
    }

    /// Leases of a key that are younger than message `seq` go back too.
    pub fn send_back_after(&mut self, keyed: Keyed<'_>, seq: i64) -> Result<(), Error> {
        self.to_lock.extend(key_release::leased_after(self.deliveries, keyed, seq)?);
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), Error> {
        self.lock_before(i64::MAX)?;
        key_release::park_locked(self.deliveries, &Latest::push(), self.locked)
    }
}

/// Revives message `seq` if it is dead.
pub fn revive(
    seq: i64,
    deliveries: &Table<Deliveries>,
    topics: &Table<Topics>,
    going_back: &mut GoingBack<'_>,
) -> Result<bool, Error> {
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let mut scan = Lookup::open(deliveries, &snapshot)?;
        let Some(found) = scan.find(seq) else { return Ok(false) };
        let mut row = found.row;
        let mut sends_back = false;
        if row.place != Place::Dead {
            let topic = TopicRules::new(topics, &snapshot).of(row.topic)?;
            let now = server::clock();
            sends_back = topic.blocks_when_dead();
            if !row.has_expired_for_good(now, settings::max_attempts(&topic)) {
                return Ok(false);
            }
            row.die_exhausted(now);
        }
        let _entering = shmem::low_water::enter_ready(&found.row)?;
        row.revive();
        if deliveries.update(found.id, &row, &snapshot, Wait::Yes) == Outcome::Done {
            going_back.to_lock.remove(&seq);
            pending::touched(seq)?;
            pending::will_be_ready(row.topic, seq)?;
            if let Some(keyed) = row.keyed().filter(|_| sends_back) {
                going_back.send_back_after(keyed, seq)?;
            }
            return Ok(true);
        }
    }
}

/// The dead messages of a topic at one moment, in arrival order: recorded deaths and unrecorded ones, merged.
pub struct Dead<'s> {
    recorded: Scan<'s, Deliveries>,
    expiring: InOrder<'s>,
    /// The next of each, once looked for; the inner None is the end.
    ahead: [Option<Option<i64>>; 2],
    limit: i16,
    now: Time,
}

impl<'s> Dead<'s> {
    pub fn of(
        topic: Text<'s>,
        deliveries: &'s Table<Deliveries>,
        topics: &Table<Topics>,
        snapshot: &'s Latest,
    ) -> Result<Self, Error> {
        Ok(Dead {
            recorded: Scan::dead(deliveries, snapshot, topic)?,
            expiring: InOrder::from(deliveries, snapshot, Some(topic), 0)?,
            ahead: [None, None],
            limit: settings::max_attempts(&TopicRules::new(topics, snapshot).of(topic)?),
            now: server::clock(),
        })
    }
}

impl Iterator for Dead<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let recorded = *self.ahead[0].get_or_insert_with(|| self.recorded.next().map(|found| found.row.seq));
        let expired = *self.ahead[1].get_or_insert_with(|| {
            while let Some(found) = self.expiring.next() {
                server::check_for_interrupts();
                if found.row.has_expired_for_good(self.now, self.limit) {
                    return Some(found.row.seq);
                }
            }
            None
        });
        let next = recorded.into_iter().chain(expired).min();
        for ahead in self.ahead.iter_mut().filter(|ahead| next.is_some() && **ahead == Some(next)) {
            *ahead = None;
        }
        next
    }
}
