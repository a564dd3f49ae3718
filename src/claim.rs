//! Worker side, first half: `claim` leases the oldest ready messages, and never waits for anybody.
//!
//! In Rust because of the update without waiting: whatever somebody else is changing is skipped by the update itself,
//! so a lease costs one WAL record where SELECT … FOR UPDATE SKIP LOCKED and UPDATE write two.

use crate::argument::{self, Fault};
use crate::error::Error;
use crate::settings;
use crate::store::record::{Deliveries, Envelopes, Place, Topics};
use crate::store::rows::{Caller, ClaimedRows};
use crate::store::scan::{Scan, TopicRules};
use crate::store::server;
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Outcome, Table, Wait};
use crate::store::value::{Text, Time};
use crate::{token, wake};

/// Due messages that one claim moves into the ready index, as a multiple of its batch and at most.
const PROMOTED_PER_ROW: usize = 4;
const PROMOTED_AT_MOST: usize = 1_000;
/// Deaths that one claim records. More are skipped, as leased rows are.
const DEATHS_AT_MOST: usize = 100;

pub struct Request<'a> {
    pub owner: Option<Text<'a>>,
    pub topic: Option<Text<'a>>,
    pub batch_size: Option<i32>,
    pub lease_seconds: Option<i32>,
    pub wait_seconds: Option<i32>,
}

/// A request that passed its checks.
struct Claim<'a> {
    owner: Text<'a>,
    topic: Option<Text<'a>>,
    batch_size: Option<i32>,
    lease_seconds: Option<i32>,
    wait_seconds: i32,
}

/// Leases up to a batch of ready messages, oldest first. With nothing to lease, waits up to `wait_seconds`.
pub fn claim<'fcx>(request: Request<'_>, caller: Caller<'fcx>) -> Result<ClaimedRows<'fcx>, Error> {
    let claim = checked(request)?;
    let mut rows = caller.claimed_rows()?;
    let deadline = server::clock().plus_seconds(claim.wait_seconds);
    loop {
        attempt(&claim, &mut rows)?;
        if rows.count() > 0 || !wake::wait(deadline) {
            return Ok(rows);
        }
    }
}

fn checked(request: Request<'_>) -> Result<Claim<'_>, Error> {
    let owner = argument::required("owner", request.owner)?;
    argument::name("owner", owner.bytes())?;
    if let Some(topic) = request.topic {
        argument::name("topic", topic.bytes())?;
    }
    let within = |name, value: Option<i32>, range| -> Result<Option<i32>, Fault> {
        value.map(|value| argument::within(name, value, range)).transpose()
    };
    let wait_seconds = argument::required("wait_seconds", request.wait_seconds)?;
    Ok(Claim {
        owner,
        topic: request.topic,
        batch_size: within("batch_size", request.batch_size, argument::BATCH_SIZE)?,
        lease_seconds: within("lease_seconds", request.lease_seconds, argument::LEASE_SECONDS)?,
        wait_seconds: argument::within("wait_seconds", wait_seconds, argument::WAIT_SECONDS)?,
    })
}

/// One look at the table.
fn attempt(claim: &Claim<'_>, rows: &mut ClaimedRows<'_>) -> Result<(), Error> {
    let now = server::clock();
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let envelopes = Table::<Envelopes>::open(Access::Read)?;
    let first_look = Latest::push();
    let mut rules = TopicRules::new(&topics, &first_look);
    let topic = claim.topic.map(|topic| rules.of(topic)).transpose()?.unwrap_or_default();
    if topic.paused {
        return Ok(());
    }
    let batch_size = claim.batch_size.unwrap_or_else(|| settings::batch_size(&topic)).unsigned_abs() as usize;
    let promoted = promote_due(claim.topic, batch_size, now, &deliveries, &first_look)?;
    let second_look = (promoted > 0).then(Latest::push);
    let snapshot = second_look.as_ref().unwrap_or(&first_look);
    let mut bodies = Scan::<Envelopes>::by_seq(&envelopes, snapshot)?;
    let mut scan = Scan::in_order(&deliveries, snapshot, claim.topic)?;
    let nonce = token::nonce();
    let (mut leased, mut deaths) = (0, 0);
    while leased < batch_size {
        server::check_for_interrupts();
        let Some(found) = scan.next() else { break };
        let mut row = found.row;
        if row.place != Place::Ready || row.is_leased(now) {
            continue;
        }
        let topic = rules.of(row.topic)?;
        if topic.paused {
            continue;
        }
        if row.attempts >= settings::max_attempts(&topic) {
            if deaths < DEATHS_AT_MOST {
                row.die_exhausted(now);
                deliveries.update(found.id, &row, snapshot, Wait::No);
                deaths += 1;
            }
            continue;
        }
        let Some(body) = bodies.seek(row.seq) else { continue };
        let seconds = claim.lease_seconds.unwrap_or_else(|| settings::lease_seconds(&topic));
        let until = now.plus_seconds(seconds);
        row.lease(nonce, claim.owner, until);
        if deliveries.update(found.id, &row, snapshot, Wait::No) == Outcome::Done {
            rows.push(&body.row, token::encode(row.seq, nonce), row.attempts, until);
            leased += 1;
        }
    }
    Ok(())
}

/// Moves waiting messages that are due into the ready index, the longest due first. Returns how many.
fn promote_due(
    topic: Option<Text<'_>>,
    batch_size: usize,
    now: Time,
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
) -> Result<usize, Error> {
    let limit = (batch_size * PROMOTED_PER_ROW).min(PROMOTED_AT_MOST);
    let mut promoted = 0;
    let mut scan = Scan::due(deliveries, snapshot, topic, now)?;
    while promoted < limit {
        server::check_for_interrupts();
        let Some(found) = scan.next() else { break };
        let mut row = found.row;
        row.become_ready();
        if deliveries.update(found.id, &row, snapshot, Wait::No) == Outcome::Done {
            promoted += 1;
        }
    }
    Ok(promoted)
}
