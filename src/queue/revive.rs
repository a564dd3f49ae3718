//! Giving dead messages another life: one with `retry_dead`, those of a topic with `redrive`.
//!
//! Dead is also a message whose last lease ran out though nobody has recorded it. Whoever is changing a message at the
//! moment is waited for, and judged by what that leaves.

use crate::error::Error;
use crate::pg::datum::{Text, Time};
use crate::pg::scan::{InOrder, Scan};
use crate::pg::server;
use crate::pg::snapshot::Latest;
use crate::pg::table::{Access, Outcome, RowId, Table, Wait};
use crate::queue::key_release;
use crate::rules::argument::{self, Fault};
use crate::shmem::pending;
use crate::tables::find::{self, Lookup};
use crate::tables::row::{Deliveries, Envelopes, Place, Topics};
use crate::tables::topic::TopicRules;
use crate::{settings, shmem};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Ready again with no attempts counted, at its old place. True if it was dead.
pub fn retry_dead(id: Option<Uuid>) -> Result<bool, Error> {
    let id = argument::required("id", id)?;
    if id.is_nil() {
        return Err(Fault::NilUuid("id").into());
    }
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let seq = find::seq_of(id, &Latest::push())?;
    let Some(seq) = seq else { return Ok(false) };
    let mut going_back = GoingBack::new(&deliveries);
    let revived = revive(seq, &deliveries, &topics, &mut going_back)?;
    going_back.finish()?;
    Ok(revived)
}

/// Revives the dead messages of a topic, or those of one type, oldest first, and returns how many; with `dry_run` how
/// many it would.
pub fn redrive(
    topic: Option<Text<'_>>,
    kind: Option<Text<'_>>,
    max_messages: Option<i32>,
    dry_run: Option<bool>,
) -> Result<i64, Error> {
    let topic = argument::required("topic", topic)?;
    argument::name("topic", topic.letters())?;
    if let Some(kind) = kind {
        argument::name("type", kind.letters())?;
    }
    let limit = max_messages.map(|limit| argument::positive("max_messages", limit)).transpose()?;
    let limit = limit.map_or(i64::MAX, i64::from);
    let dry_run = argument::required("dry_run", dry_run)?;
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let envelopes = Table::<Envelopes>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut dead = Dead::of(topic, &deliveries, &topics, &snapshot)?;
    let mut bodies = Lookup::open(&envelopes, &snapshot)?;
    let mut going_back = GoingBack::new(&deliveries);
    let mut revived = 0;
    while revived < limit {
        let Some(seq) = dead.next() else { break };
        if let Some(kind) = kind
            && bodies.find(seq).is_none_or(|body| body.row.kind.bytes() != kind.bytes())
        {
            continue;
        }
        if dry_run {
            revived += 1;
            continue;
        }
        going_back.lock_before(seq)?;
        if revive(seq, &deliveries, &topics, &mut going_back)? {
            revived += 1;
        }
    }
    going_back.finish()?;
    Ok(revived)
}

/// Leases that go back with revived messages: locked in arrival order among those, as answers lock too, and parked when
/// all are locked. So single calls cannot wait for each other in a circle.
struct GoingBack<'t> {
    deliveries: &'t Table<Deliveries>,
    to_lock: BTreeSet<i64>,
    locked: Vec<(i64, RowId)>,
}

impl<'t> GoingBack<'t> {
    fn new(deliveries: &'t Table<Deliveries>) -> Self {
        GoingBack { deliveries, to_lock: BTreeSet::new(), locked: Vec::new() }
    }

    fn lock_before(&mut self, end: i64) -> Result<(), Error> {
        while let Some(seq) = self.to_lock.first().copied().filter(|seq| *seq < end) {
            self.to_lock.remove(&seq);
            self.locked.extend(key_release::lock_leased(self.deliveries, seq)?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        self.lock_before(i64::MAX)?;
        key_release::park_locked(self.deliveries, &Latest::push(), self.locked)
    }
}

/// Revives message `seq` if it is dead.
fn revive(
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
                going_back.to_lock.extend(key_release::leased_after(deliveries, keyed, seq)?);
            }
            return Ok(true);
        }
    }
}

/// The dead messages of a topic at one moment, in arrival order: recorded deaths and unrecorded ones, merged.
struct Dead<'s> {
    recorded: Scan<'s, Deliveries>,
    expiring: InOrder<'s>,
    /// The next of each, once looked for; the inner None is the end.
    ahead: [Option<Option<i64>>; 2],
    limit: i16,
    now: Time,
}

impl<'s> Dead<'s> {
    fn of(
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
