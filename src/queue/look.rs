//! Worker side, first half: one look for what is claimable, which never waits for anybody.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::queue::batch::{Batch, Purpose, Source, Wanted, Writes};
use crate::queue::result::ClaimedRows;
use crate::queue::wake::Found;
use crate::rules::argument::{self, Fault};
use crate::rules::floor::{self, Seen};
use crate::shmem::floor::ScanStart;
use crate::tables::access::{self, Right};
use crate::tables::delivery::Deliveries;
use crate::tables::envelope::Envelopes;
use crate::tables::scan::next_due;
use crate::tables::topic::{TopicRules, Topics};
use crate::{settings, shmem};

pub struct Request<'a> {
    pub owner: Option<Text<'a>>,
    pub topic: Option<Text<'a>>,
    pub batch_size: Option<i32>,
    pub lease_seconds: Option<i32>,
    pub wait_seconds: Option<i32>,
}

/// A request that passed its checks.
pub struct Claim<'a> {
    owner: Text<'a>,
    pub topic: Option<Text<'a>>,
    batch_size: Option<i32>,
    lease_seconds: Option<i32>,
    pub wait_seconds: i32,
}

pub fn checked(request: Request<'_>) -> Result<Claim<'_>, Error> {
    let owner = argument::required("owner", request.owner)?;
    argument::name("owner", owner.letters())?;
    if let Some(topic) = request.topic {
        argument::name("topic", topic.letters())?;
    }
    let within = |name, value: Option<i32>, range| -> Result<Option<i32>, Fault> {
        value.map(|value| argument::within(name, value, range)).transpose()
    };
    let wait_seconds = argument::required("wait_seconds", request.wait_seconds)?;
    let rights = access::topics(Right::Worker)?;
    request.topic.map_or_else(|| rights.check_all(), |topic| rights.check(topic))?;
    Ok(Claim {
        owner,
        topic: request.topic,
        batch_size: within("batch_size", request.batch_size, argument::BATCH_SIZE)?,
        lease_seconds: within("lease_seconds", request.lease_seconds, argument::LEASE_SECONDS)?,
        wait_seconds: argument::within("wait_seconds", wait_seconds, argument::WAIT_SECONDS)?,
    })
}

/// One look, under one snapshot. Without `rows` it leases nothing.
pub fn look(claim: &Claim<'_>, rows: Option<&mut ClaimedRows<'_>>) -> Result<Found, Error> {
    let now = server::clock();
    shmem::raise::raise(now)?;
    let waiting = shmem::floor::look_at_waiting(claim.topic, now)?;
    let ready = shmem::floor::look_at_ready(claim.topic, now)?;
    let tables = Tables {
        deliveries: Table::open(Access::Write)?,
        envelopes: Table::open(Access::Read)?,
        topics: Table::open(Access::Read)?,
    };
    let found = look_at(claim, rows, now, &tables, waiting, ready)?;
    if let Found::Nothing { .. } = found
        && claim.wait_seconds > 0
    {
        tables.release();
    }
    Ok(found)
}

fn look_at(
    claim: &Claim<'_>,
    rows: Option<&mut ClaimedRows<'_>>,
    now: Time,
    tables: &Tables,
    waiting: ScanStart,
    ready: ScanStart,
) -> Result<Found, Error> {
    let snapshot = Latest::push();
    let mut rules = TopicRules::new(&tables.topics, &snapshot);
    let topic = claim.topic.map(|topic| rules.of(topic)).transpose()?.unwrap_or_default();
    if topic.paused {
        return Ok(Found::Nothing { next: Time(floor::NEVER) });
    }
    let size = claim.batch_size.unwrap_or_else(|| settings::batch_size(&topic)).unsigned_abs() as usize;
    let (leases, waits) = (rows.is_some(), claim.wait_seconds > 0);
    let wanted = Wanted { owner: claim.owner, topic: claim.topic, size, lease_seconds: claim.lease_seconds };
    let source =
        Source { deliveries: &tables.deliveries, envelopes: &tables.envelopes, rules, snapshot: &snapshot };
    let writes = if waits { Writes::OnceLeased } else { Writes::AtOnce };
    let batch = Batch::new(wanted, source, now, writes, ready.at() <= 0, Purpose::of(rows))?;
    let filled = batch.fill(&waiting, &ready)?;
    let expiry = filled.expiry.map_or(floor::NEVER, |end| end.0);
    let next_end = ready.finish(Seen { reach: filled.ready, expiry }, filled.wrote);
    waiting.finish(Seen { reach: filled.due.map(|due| due.0), expiry: floor::NEVER }, filled.wrote);
    if filled.count > 0 {
        let taken = Found::Taken { count: filled.count, all: filled.count < size, more: filled.more };
        return Ok(if leases { taken } else { Found::Something });
    }
    if leases && filled.refused {
        return Ok(Found::Something); // the call ends, so that what it has failed counts
    }
    if !waits {
        return Ok(Found::Nothing { next: next_end });
    }
    let next_due = next_due(&tables.deliveries, &snapshot, claim.topic, now)?;
    // What ran out before now, this look has looked for.
    let next_end = Some(next_end).filter(|end| *end > now);
    let next = next_due.into_iter().chain(next_end).min().unwrap_or(Time(floor::NEVER));
    Ok(Found::Nothing { next })
}

struct Tables {
    deliveries: Table<Deliveries>,
    envelopes: Table<Envelopes>,
    topics: Table<Topics>,
}

impl Tables {
    /// For a look that changed nothing, before a sleep: it holds up nobody who alters or drops the tables.
    fn release(self) {
        self.deliveries.release();
        self.envelopes.release();
        self.topics.release();
    }
}
