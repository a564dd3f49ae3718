//! Giving dead messages another life: one with `retry_dead`, those of a topic with `redrive`.
//!
//! Dead is also a message whose last lease ran out though nobody has recorded it. Whoever is changing a message at the
//! moment is waited for, and judged by what that leaves.

use crate::argument::{self, Fault};
use crate::error::Error;
use crate::keys;
use crate::settings;
use crate::store::lookup::{self, Lookup};
use crate::store::low_water;
use crate::store::record::{Deliveries, Envelopes, Place, Topics};
use crate::store::rules::TopicRules;
use crate::store::scan::{InOrder, Scan};
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Outcome, Table, Wait};
use crate::store::value::{Text, Time};
use crate::store::{server, transaction};
use uuid::Uuid;

/// Ready again with no attempts counted, at its old place. True if it was dead.
pub fn retry_dead(id: Option<Uuid>) -> Result<bool, Error> {
    let id = argument::required("id", id)?;
    if id.is_nil() {
        return Err(Fault::NilUuid("id").into());
    }
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let seq = lookup::seq_of(id, &Latest::push())?;
    seq.map_or(Ok(false), |seq| revive(seq, &deliveries, &topics))
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
    let mut revived = 0;
    while revived < limit {
        let Some(seq) = dead.next() else { break };
        if let Some(kind) = kind
            && bodies.find(seq).is_none_or(|body| body.row.kind.bytes() != kind.bytes())
        {
            continue;
        }
        if dry_run || revive(seq, &deliveries, &topics)? {
            revived += 1;
        }
    }
    Ok(revived)
}

/// Revives message `seq` if it is dead.
fn revive(seq: i64, deliveries: &Table<Deliveries>, topics: &Table<Topics>) -> Result<bool, Error> {
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
        let _entering = low_water::enter_ready(&found.row)?;
        row.revive();
        if deliveries.update(found.id, &row, &snapshot, Wait::Yes) == Outcome::Done {
            transaction::touched(seq)?;
            transaction::will_be_ready(row.topic, seq)?;
            if let Some(keyed) = row.keyed().filter(|_| sends_back) {
                keys::send_back(deliveries, keyed, seq)?;
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
        topic: Text<'_>,
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
