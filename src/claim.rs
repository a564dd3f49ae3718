//! Worker side, first half: `claim` leases the oldest ready messages, and never waits for anybody.
//!
//! In Rust because of the update without waiting: whatever somebody else is changing is skipped by the update itself,
//! so a lease costs one WAL record where SELECT … FOR UPDATE SKIP LOCKED and UPDATE write two.

use crate::argument::{self, Fault};
use crate::error::Error;
use crate::floor::{self, Cost, Seen};
use crate::settings;
use crate::store::record::{Deliveries, Delivery, Envelopes, Place, Topics};
use crate::store::rows::{Caller, ClaimedRows};
use crate::store::scan::{Lookup, Scan, TopicRules};
use crate::store::server::{self, Meter};
use crate::store::shared::{self, Looking};
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Outcome, RowId, Table, Wait};
use crate::store::value::{Text, Time};
use crate::{token, wake};
use std::collections::VecDeque;

/// Due messages that one claim considers besides as many as it may lease: the oldest among them come first.
const DUE_BESIDES: usize = 500;
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
    argument::name("owner", owner.letters())?;
    if let Some(topic) = request.topic {
        argument::name("topic", topic.letters())?;
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

/// One look at the table, under one snapshot.
fn attempt(claim: &Claim<'_>, rows: &mut ClaimedRows<'_>) -> Result<(), Error> {
    let now = server::clock();
    let waiting = shared::look_at_waiting(claim.topic, now)?;
    let ready = shared::look_at_ready(claim.topic, now)?;
    let tables = Tables {
        deliveries: Table::open(Access::Write)?,
        envelopes: Table::open(Access::Read)?,
        topics: Table::open(Access::Read)?,
    };
    let snapshot = Latest::push();
    let mut rules = TopicRules::new(&tables.topics, &snapshot);
    let topic = claim.topic.map(|topic| rules.of(topic)).transpose()?.unwrap_or_default();
    if topic.paused {
        return Ok(());
    }
    let batch_size = claim.batch_size.unwrap_or_else(|| settings::batch_size(&topic)).unsigned_abs() as usize;
    let mut batch = Batch {
        claim,
        now,
        deliveries: &tables.deliveries,
        snapshot: &snapshot,
        rules,
        bodies: Lookup::open(&tables.envelopes, &snapshot)?,
        nonce: token::nonce(),
        left: batch_size,
        deaths: 0,
        expiry: floor::NEVER,
        rows,
    };
    let mut due = batch.due(&waiting)?;
    let reach = batch.fill(&mut due, &ready)?;
    let expiry = batch.expiry;
    let left = due.end();
    ready.finish(Seen { reach, expiry });
    waiting.finish(Seen { reach: left, expiry: floor::NEVER });
    Ok(())
}

struct Tables {
    deliveries: Table<Deliveries>,
    envelopes: Table<Envelopes>,
    topics: Table<Topics>,
}

/// A waiting message that is due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DueMessage {
    seq: i64,
    at: Time,
    /// Of the walk to it, if that is measured.
    cost: Option<Cost>,
}

/// Waiting messages that are due, oldest first.
struct Due<'l> {
    messages: VecDeque<DueMessage>,
    /// The longest due of those that must stay reachable.
    left: Option<Time>,
    walk: Walk<'l>,
    /// Of the walk to the longest due of those that are leased.
    cost: Option<Cost>,
}

impl Due<'_> {
    fn leave(&mut self, at: Time) {
        self.left = self.left.into_iter().chain([at]).min();
    }

    fn lease(&mut self, cost: Option<Cost>) {
        self.cost = self.cost.into_iter().chain(cost).min();
    }

    /// The due time that must stay reachable. What nobody has asked for could have been leased.
    fn end(mut self) -> Option<i64> {
        for message in std::mem::take(&mut self.messages) {
            self.leave(message.at);
            self.lease(message.cost);
        }
        self.walk.end_at(self.cost);
        self.left.map(|at| at.0)
    }
}

/// A batch being filled.
struct Batch<'c, 'r, 's> {
    claim: &'c Claim<'c>,
    now: Time,
    deliveries: &'s Table<Deliveries>,
    snapshot: &'s Latest,
    rules: TopicRules<'s>,
    bodies: Lookup<'s, Envelopes>,
    nonce: i64,
    left: usize,
    deaths: usize,
    /// The earliest end of a lease met or given.
    expiry: i64,
    rows: &'c mut ClaimedRows<'r>,
}

/// What became of a message that a claim met.
enum Met {
    Leased,
    /// Nothing to be had from it, whatever others do: it stays as it is, or died.
    Passed,
    /// Claimable, but not now: it must stay reachable.
    Held,
}

impl<'c, 's> Batch<'c, '_, 's> {
    /// Looks for waiting messages that are due, enough to fill the batch. They are leased where they lie.
    fn due<'l>(&mut self, waiting: &'l Looking) -> Result<Due<'l>, Error> {
        let mut due = Due { messages: VecDeque::new(), left: None, walk: Walk::begin(waiting), cost: None };
        let (topic, start) = (self.claim.topic, Time(waiting.start()));
        let mut scan = Scan::due(self.deliveries, self.snapshot, topic, start, self.now)?;
        while let Some(found) = scan.next() {
            server::check_for_interrupts();
            if self.rules.of(found.row.topic)?.paused {
                continue;
            }
            let at = found.row.available_at.unwrap_or(self.now);
            if due.messages.len() == self.left + DUE_BESIDES {
                due.leave(at);
                break;
            }
            due.messages.push_back(DueMessage { seq: found.row.seq, at, cost: due.walk.cost() });
        }
        due.messages.make_contiguous().sort_unstable();
        Ok(due)
    }

    /// Leases what is ready and what is due, merged in arrival order. Returns the first number that must stay
    /// reachable, or None if the end was reached and nothing left.
    fn fill(&mut self, due: &mut Due<'_>, ready: &Looking) -> Result<Option<i64>, Error> {
        let mut reach: Option<i64> = None;
        let mut scan = Scan::in_order(self.deliveries, self.snapshot, self.claim.topic, ready.start())?;
        let mut walk = Walk::begin(ready);
        while self.left > 0 {
            server::check_for_interrupts();
            let Some(found) = scan.next() else {
                walk.end_at(None);
                self.fill_from_due(due, i64::MAX, ready)?;
                return Ok(reach);
            };
            let seq = found.row.seq;
            if found.row.place != Place::Ready {
                continue;
            }
            if found.row.is_leased(self.now) {
                self.expires(found.row.leased_until);
                continue;
            }
            let cost = walk.cost();
            self.fill_from_due(due, seq, ready)?;
            let met = if self.left > 0 { self.meet(found.id, found.row, ready)? } else { Met::Held };
            match met {
                Met::Leased => walk.end_at(cost),
                Met::Held => reach = reach.or(Some(seq)),
                Met::Passed => {}
            }
            if self.left == 0 {
                return Ok(reach.or(Some(seq + 1)));
            }
        }
        Ok(reach)
    }

    /// Leases due messages that arrived before number `before`.
    fn fill_from_due(&mut self, due: &mut Due<'_>, before: i64, ready: &Looking) -> Result<(), Error> {
        if due.messages.is_empty() {
            return Ok(());
        }
        let mut scan = Lookup::open(self.deliveries, self.snapshot)?;
        while self.left > 0 {
            let Some(&message) = due.messages.front().filter(|message| message.seq < before) else { break };
            due.messages.pop_front();
            let Some(found) = scan.find(message.seq) else { continue };
            match self.meet(found.id, found.row, ready)? {
                Met::Leased => due.lease(message.cost),
                Met::Held => due.leave(message.at),
                Met::Passed => {}
            }
        }
        Ok(())
    }

    /// Leases one message that nobody has leased and that is due, if it may be had.
    fn meet(&mut self, id: RowId, row: Delivery<'_>, looking: &Looking) -> Result<Met, Error> {
        let mut row: Delivery<'_> = row;
        let topic = self.rules.of(row.topic)?;
        if topic.paused {
            return Ok(Met::Passed);
        }
        if row.attempts >= settings::max_attempts(&topic) {
            if self.deaths < DEATHS_AT_MOST {
                self.deaths += 1;
                row.die_exhausted(self.now);
                self.deliveries.update(id, &row, self.snapshot, Wait::No);
            }
            return Ok(Met::Passed);
        }
        let Some(body) = self.bodies.find(row.seq) else { return Ok(Met::Passed) };
        let seconds = self.claim.lease_seconds.unwrap_or_else(|| settings::lease_seconds(&topic));
        let until = self.now.plus_seconds(seconds);
        row.lease(self.nonce, self.claim.owner, until);
        match self.deliveries.update(id, &row, self.snapshot, Wait::No) {
            Outcome::Lost(xid) if looking.is_held_by(xid) => Ok(Met::Held),
            Outcome::Lost(_) => Ok(Met::Passed),
            Outcome::Done => {
                self.rows.push(&body.row, token::encode(row.seq, self.nonce), row.attempts, until);
                shared::touched(row.seq)?;
                self.expires(Some(until));
                self.left -= 1;
                Ok(Met::Leased)
            }
        }
    }

    fn expires(&mut self, until: Option<Time>) {
        self.expiry = until.map_or(self.expiry, |until| self.expiry.min(until.0));
    }
}

/// What it costs to walk from the beginning of an index to the first message of use: one that is leased. What an open
/// transaction holds is of none; it may stay there for long.
struct Walk<'l> {
    looking: Option<&'l Looking>,
    meter: Meter,
}

impl<'l> Walk<'l> {
    fn begin(looking: &'l Looking) -> Walk<'l> {
        Walk { looking: looking.is_sweep().then_some(looking), meter: Meter::start() }
    }

    /// Until now, while that is of interest.
    fn cost(&self) -> Option<Cost> {
        self.looking.map(|_| self.meter.read())
    }

    /// The first message of use was met at this cost; none: only now.
    fn end_at(&mut self, cost: Option<Cost>) {
        if let Some(looking) = self.looking.take() {
            looking.walked(cost.unwrap_or_else(|| self.meter.read()));
        }
    }
}
