//! Worker side, first half: `claim` leases the oldest ready messages, and never waits for anybody.
//!
//! In Rust because of the update without waiting: whatever somebody else is changing is skipped by the update itself,
//! so a lease costs one WAL record where SELECT … FOR UPDATE SKIP LOCKED and UPDATE write two.

use crate::argument::{self, Fault};
use crate::error::Error;
use crate::floor::{self, Cost, Seen};
use crate::keys::{self, Ended, Keys, Turn};
use crate::settings;
use crate::store::procedure::Call;
use crate::store::record::{Deliveries, Delivery, Envelopes, Place, TopicRow, Topics};
use crate::store::rights::{self, Right};
use crate::store::rows::{Caller, ClaimedRows};
use crate::store::scan::{self, ById, Lookup, Scan, TopicRules};
use crate::store::server::{self, Meter};
use crate::store::shared::{self, Looking};
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Outcome, RowId, Table, Wait};
use crate::store::value::{Text, Time};
use crate::store::waiting;
use crate::token;
use crate::wake::{self, Found};
use std::collections::BTreeMap;

/// Due messages that one claim considers besides as many as it may lease: the oldest among them come first.
const DUE_BESIDES: usize = 500;
/// Looks of one claim while those before have only cleared the way.
const LOOKS_AT_MOST: usize = 100;
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
    wake::look_until(deadline, claim.topic, || attempt(&claim, Some(&mut rows)))?;
    Ok(rows)
}

/// Waits up to `wait_seconds` until a claim would find something. Leases nothing, and holds no snapshot if `call` need not.
pub fn wait(topic: Option<Text<'_>>, wait_seconds: Option<i32>, call: Call<'_>) -> Result<(), Error> {
    let (owner, one) = (Some(Text::new(b"nobody")), Some(1));
    // A value that is stored out of line can be read only as long as there is a snapshot.
    let topic = topic.map(Text::copied);
    let claim = checked(Request { owner, topic, batch_size: one, lease_seconds: one, wait_seconds })?;
    call.let_go_of_snapshot();
    let deadline = server::clock().plus_seconds(claim.wait_seconds);
    wake::look_until(deadline, claim.topic, || attempt(&claim, None))
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
    let rights = rights::topics(Right::Worker)?;
    request.topic.map_or_else(|| rights.check_all(), |topic| rights.check(topic))?;
    Ok(Claim {
        owner,
        topic: request.topic,
        batch_size: within("batch_size", request.batch_size, argument::BATCH_SIZE)?,
        lease_seconds: within("lease_seconds", request.lease_seconds, argument::LEASE_SECONDS)?,
        wait_seconds: argument::within("wait_seconds", wait_seconds, argument::WAIT_SECONDS)?,
    })
}

/// What a look in vain must not change, lest it stay locked until the time to wait is up: nothing is parked, and no
/// death recorded, until something is leased. But what is next of a key comes only after the death before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tidying {
    AfterLease,
    AtOnce,
}

/// What a look came to.
enum Looked {
    Found(Found),
    /// Nothing; but there may be something behind what has been, or is to be, recorded or parked.
    Untidy,
}

/// Looks at the table. Without `rows` it leases nothing.
fn attempt(claim: &Claim<'_>, mut rows: Option<&mut ClaimedRows<'_>>) -> Result<Found, Error> {
    let mut tidying = if claim.wait_seconds > 0 { Tidying::AfterLease } else { Tidying::AtOnce };
    let mut changed = false;
    for _ in 0..LOOKS_AT_MOST {
        match look_once(claim, rows.as_deref_mut(), tidying)? {
            Looked::Untidy => {
                changed |= tidying == Tidying::AtOnce;
                tidying = Tidying::AtOnce;
            }
            // The call ends, so that what it has recorded or parked counts.
            Looked::Found(Found::Nothing { .. }) if changed && claim.wait_seconds > 0 => break,
            Looked::Found(found) => return Ok(found),
        }
    }
    Ok(Found::Something { more: false })
}

/// One look, under one snapshot.
fn look_once(
    claim: &Claim<'_>,
    rows: Option<&mut ClaimedRows<'_>>,
    tidying: Tidying,
) -> Result<Looked, Error> {
    let now = server::clock();
    let waiting = shared::look_at_waiting(claim.topic, now)?;
    let ready = shared::look_at_ready(claim.topic, now)?;
    let tables = Tables {
        deliveries: Table::open(Access::Write)?,
        envelopes: Table::open(Access::Read)?,
        topics: Table::open(Access::Read)?,
    };
    let looked = look(claim, rows, tidying, now, &tables, waiting, ready)?;
    if let Looked::Found(Found::Nothing { .. }) = looked
        && claim.wait_seconds > 0
    {
        tables.release();
    }
    Ok(looked)
}

fn look(
    claim: &Claim<'_>,
    rows: Option<&mut ClaimedRows<'_>>,
    tidying: Tidying,
    now: Time,
    tables: &Tables,
    waiting: Looking,
    ready: Looking,
) -> Result<Looked, Error> {
    let snapshot = Latest::push();
    let mut rules = TopicRules::new(&tables.topics, &snapshot);
    let topic = claim.topic.map(|topic| rules.of(topic)).transpose()?.unwrap_or_default();
    if topic.paused {
        return Ok(Looked::Found(Found::Nothing { next: Time(floor::NEVER) }));
    }
    let batch_size = claim.batch_size.unwrap_or_else(|| settings::batch_size(&topic)).unsigned_abs() as usize;
    let mut batch = Batch {
        claim,
        now,
        deliveries: &tables.deliveries,
        snapshot: &snapshot,
        rules,
        bodies: Lookup::open(&tables.envelopes, &snapshot)?,
        keys: Keys::new(&tables.deliveries, &snapshot, now, ready.start() <= 0),
        ended: Ended::new(&tables.deliveries),
        aside: Aside::default(),
        nonce: token::nonce(),
        left: batch_size,
        more: false,
        tidies: tidying == Tidying::AtOnce,
        changed: false,
        untidy: false,
        cut: false,
        blocked: false,
        buried: 0,
        deaths: Vec::new(),
        expiry: floor::NEVER,
        rows,
    };
    let mut walk = batch.find_due(&waiting)?;
    let reach = batch.fill(&ready)?;
    let (is_vain, leases) = (batch.left == batch_size, batch.rows.is_some());
    let changed = leases && (!is_vain || batch.changed || claim.wait_seconds == 0);
    // Of those that are due, only so many were looked at, and they stand behind others: those may be due as well.
    let hidden = is_vain && batch.cut && batch.blocked;
    let untidy = leases && is_vain && claim.wait_seconds > 0 && (batch.untidy || batch.changed)
        || leases && hidden && (batch.changed || !batch.tidies);
    let (expiry, more) = (batch.expiry, leases && batch.more);
    let left = batch.finish(reach)?;
    walk.end_at(left.cost);
    let next_end = ready.finish(Seen { reach: left.ready, expiry }, changed);
    let due = left.due.map(|due| due.0);
    waiting.finish(Seen { reach: due, expiry: floor::NEVER }, changed);
    if untidy {
        return Ok(Looked::Untidy);
    }
    if !is_vain || hidden && !leases {
        return Ok(Looked::Found(Found::Something { more }));
    }
    if claim.wait_seconds == 0 {
        return Ok(Looked::Found(Found::Nothing { next: next_end }));
    }
    let next_due = scan::next_due(&tables.deliveries, &snapshot, claim.topic, now)?;
    let next = next_due.into_iter().chain([next_end]).min().unwrap_or(next_end);
    Ok(Looked::Found(Found::Nothing { next }))
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

/// Messages that a look at the ready ones does not bring, by number.
#[derive(Default)]
struct Aside {
    messages: BTreeMap<i64, (RowId, From)>,
    /// The longest due of those that must stay reachable.
    left: Option<Time>,
    /// Of the walk to the longest due of those that are leased.
    cost: Option<Cost>,
}

/// How a claim has come upon a message.
#[derive(Clone, Copy)]
enum From {
    Ready,
    /// Waiting, and due since then; and what the walk to it has cost, if that is measured.
    Due(Time, Option<Cost>),
    /// Parked, or due, and the next of a key.
    Key,
    /// Its lease ends with that of an older message of its key. Locked.
    GivenBack,
}

impl From {
    /// What we have locked nobody else is changing; but only who would wait may change it.
    fn wait(self) -> Wait {
        if let From::GivenBack = self { Wait::Yes } else { Wait::No }
    }
}

impl Aside {
    fn leave(&mut self, at: Time) {
        self.left = self.left.into_iter().chain([at]).min();
    }

    fn lease(&mut self, cost: Option<Cost>) {
        self.cost = self.cost.into_iter().chain(cost).min();
    }

    fn first_before(&mut self, seq: i64) -> Option<(i64, RowId, From)> {
        let first = self.messages.first_entry().filter(|first| *first.key() < seq)?;
        let (seq, (id, from)) = first.remove_entry();
        Some((seq, id, from))
    }
}

/// What a claim leaves to be found: the first number, and the earliest due time; and what the walk to it has cost.
struct Left {
    ready: Option<i64>,
    due: Option<Time>,
    cost: Option<Cost>,
}

/// A batch being filled.
struct Batch<'c, 'r, 's> {
    claim: &'c Claim<'c>,
    now: Time,
    deliveries: &'s Table<Deliveries>,
    snapshot: &'s Latest,
    rules: TopicRules<'s>,
    bodies: Lookup<'s, Envelopes>,
    keys: Keys<'s>,
    ended: Ended<'s>,
    aside: Aside,
    nonce: i64,
    left: usize,
    /// It was filled, and something is left for others.
    more: bool,
    /// See [`Tidying`]; from the first lease on.
    tidies: bool,
    /// Something was changed, or locked, that is no lease.
    changed: bool,
    /// A keyed message with no attempt left was met that this look could not record as dead.
    untidy: bool,
    /// More are due than it looks at.
    cut: bool,
    /// A message was met that another of its key stands before.
    blocked: bool,
    /// Deaths recorded.
    buried: usize,
    /// Messages that have no attempt left, to be recorded as dead once something is leased.
    deaths: Vec<RowId>,
    /// The earliest end of a lease met or given.
    expiry: i64,
    /// None: it only looks.
    rows: Option<&'c mut ClaimedRows<'r>>,
}

/// What became of a message that a claim met.
enum Met {
    Leased,
    /// Nothing to be had from it, whatever others do: it stays as it is, is parked, or died.
    Passed,
    /// Claimable, but not now: it must stay reachable.
    Held,
}

impl<'c, 's> Batch<'c, '_, 's> {
    /// Looks for waiting messages that are due, enough to fill the batch. They are leased where they lie.
    fn find_due<'l>(&mut self, waiting: &'l Looking) -> Result<Walk<'l>, Error> {
        let walk = Walk::begin(waiting);
        let (topic, start) = (self.claim.topic, Time(waiting.start()));
        let mut scan = Scan::due(self.deliveries, self.snapshot, topic, start, self.now)?;
        while let Some(found) = scan.next() {
            server::check_for_interrupts();
            if self.rules.of(found.row.topic)?.paused {
                continue;
            }
            let at = found.row.available_at.unwrap_or(self.now);
            if self.aside.messages.len() == self.left + DUE_BESIDES {
                self.aside.leave(at);
                self.cut = true;
                break;
            }
            self.aside.messages.insert(found.row.seq, (found.id, From::Due(at, walk.cost())));
        }
        Ok(walk)
    }

    /// Leases what is ready and what lies aside, merged in arrival order. Returns the first number that must stay
    /// reachable, or None if the end was reached and nothing left.
    fn fill(&mut self, ready: &Looking) -> Result<Option<i64>, Error> {
        let mut reach: Option<i64> = None;
        let mut scan = Scan::in_order(self.deliveries, self.snapshot, self.claim.topic, ready.start())?;
        let mut walk = Walk::begin(ready);
        while self.left > 0 {
            server::check_for_interrupts();
            let Some(found) = scan.next() else {
                walk.end_at(None);
                self.fill_from_aside(i64::MAX, ready)?;
                self.more = self.aside.messages.values().any(|(_, from)| matches!(from, From::Due(..)));
                return Ok(reach);
            };
            let seq = found.row.seq;
            if found.row.place != Place::Ready {
                continue;
            }
            if found.row.is_leased(self.now) {
                self.expires(found.row.leased_until);
                self.keys.met_leased(&found.row);
                continue;
            }
            let cost = walk.cost();
            self.fill_from_aside(seq, ready)?;
            let from = self.aside.messages.remove(&seq).map_or(From::Ready, |(_, from)| from);
            let is_asked = self.left > 0;
            match self.meet(found.id, found.row, from, ready)? {
                Met::Leased => walk.end_at(cost),
                Met::Held => reach = reach.or(Some(seq)),
                Met::Passed => {}
            }
            if self.left == 0 {
                self.more = !is_asked || (waiting::somebody_waits() && scan.next().is_some());
                return Ok(reach.or(Some(seq + 1)));
            }
        }
        Ok(reach)
    }

    /// Leases messages that lie aside and arrived before number `before`.
    fn fill_from_aside(&mut self, before: i64, ready: &Looking) -> Result<(), Error> {
        if self.aside.messages.is_empty() {
            return Ok(());
        }
        let mut rows = ById::open(self.deliveries, self.snapshot);
        while self.left > 0 {
            let Some((_, id, from)) = self.aside.first_before(before) else { break };
            let Some(found) = rows.find(id) else { continue };
            match (self.meet(found.id, found.row, from, ready)?, from) {
                (Met::Leased, From::Due(_, cost)) => self.aside.lease(cost),
                (Met::Held, From::Due(at, _)) => self.aside.leave(at),
                _ => {}
            }
        }
        Ok(())
    }

    /// Leases one message that nobody has leased and that is due, if it may be had and the batch is not full.
    fn meet(&mut self, id: RowId, row: Delivery<'_>, from: From, looking: &Looking) -> Result<Met, Error> {
        let topic = self.rules.of(row.topic)?;
        if topic.paused {
            return Ok(Met::Passed);
        }
        if self.left == 0 {
            return self.leave(id, row.seq, from);
        }
        let mut leased: Delivery<'_> = row;
        if let From::GivenBack = from {
            leased.release();
        }
        let keyed = row.keyed();
        let turn = match keyed {
            Some(keyed) => self.keys.turn(&row, keyed, &topic, looking)?,
            None => Turn::Free,
        };
        if leased.attempts >= settings::max_attempts(&topic) {
            return self.bury(id, leased, from, turn, &topic, looking);
        }
        self.blocked |= turn != Turn::Free;
        match (turn, keyed) {
            (Turn::Blocked, Some(keyed))
                if self.tidies
                    && !matches!(from, From::GivenBack)
                    && self.keys.park(id, &leased, keyed, &mut self.rules)? =>
            {
                self.changed = true;
                return Ok(Met::Passed);
            }
            (Turn::Blocked | Turn::Busy, _) => return self.leave(id, row.seq, from),
            (Turn::Free, _) => {}
        }
        let Some(body) = self.bodies.find(row.seq) else { return Ok(Met::Passed) };
        let Some(rows) = &mut self.rows else {
            if !self.deliveries.is_being_changed(id) {
                self.left -= 1;
            }
            return Ok(Met::Held);
        };
        let mut younger = Vec::new();
        if let Some(keyed) = keyed.filter(|_| leased.lease.is_some()) {
            // Leased again: the younger leases of its key go back with it.
            match keys::lock_younger(self.deliveries, self.snapshot, keyed, row.seq, Wait::No)? {
                Some(locked) => younger = locked,
                None => {
                    self.changed = true;
                    self.keys.lost(&row, keyed, &topic, looking)?;
                    return Ok(Met::Held);
                }
            }
        }
        let seconds = self.claim.lease_seconds.unwrap_or_else(|| settings::lease_seconds(&topic));
        let until = self.now.plus_seconds(seconds);
        leased.lease(self.nonce, self.claim.owner, until);
        match self.deliveries.update(id, &leased, self.snapshot, from.wait()) {
            Outcome::Lost(xid) => {
                if let Some(keyed) = keyed {
                    self.keys.lost(&row, keyed, &topic, looking)?;
                }
                Ok(if looking.is_held_by(xid) { Met::Held } else { Met::Passed })
            }
            Outcome::Done => {
                rows.push(&body.row, token::encode(row.seq, self.nonce), leased.attempts, until);
                shared::leased(row.topic, row.seq, until)?;
                self.tidies = true;
                self.expires(Some(until));
                self.left -= 1;
                self.give_back(younger);
                self.pass(&row)?;
                Ok(Met::Leased)
            }
        }
    }

    /// Records the death of a message whose attempts are used up.
    fn bury(
        &mut self,
        id: RowId,
        row: Delivery<'_>,
        from: From,
        turn: Turn,
        topic: &TopicRow,
        looking: &Looking,
    ) -> Result<Met, Error> {
        if let From::GivenBack = from {
            return self.leave(id, row.seq, from); // until its turn
        }
        if !self.tidies {
            self.untidy |= row.key.is_some();
            if self.rows.is_none() && row.key.is_some() && !self.deliveries.is_being_changed(id) {
                self.left -= 1; // a claim would record it, and go on with its key
            } else if self.deaths.len() < DEATHS_AT_MOST {
                self.deaths.push(id);
            }
            return Ok(Met::Passed);
        }
        let mut younger = None;
        if self.buried < DEATHS_AT_MOST {
            self.buried += 1;
            younger = keys::bury(self.deliveries, self.snapshot, id, &row, &mut self.rules, self.now)?;
            self.changed |= younger.is_some();
        }
        if younger.is_none() {
            self.expires(row.leased_until); // left for a later look
        }
        let (Some(younger), Some(keyed)) = (younger, row.keyed()) else { return Ok(Met::Passed) };
        if topic.blocks_when_dead() {
            self.give_back(younger);
            self.keys.lost(&row, keyed, topic, looking)?;
        } else {
            self.ended.add(keyed, row.seq)?;
            if turn == Turn::Free {
                self.pass(&row)?;
            }
        }
        Ok(Met::Passed)
    }

    /// Records the deaths that were met before anything was leased.
    fn bury_put_off(&mut self) -> Result<(), Error> {
        let mut rows = ById::open(self.deliveries, self.snapshot);
        for id in std::mem::take(&mut self.deaths) {
            let Some(found) = rows.find(id) else { continue };
            let row = found.row;
            let buried = keys::bury(self.deliveries, self.snapshot, id, &row, &mut self.rules, self.now)?;
            let (Some(younger), Some(keyed)) = (buried, row.keyed()) else { continue };
            keys::park_locked(self.deliveries, self.snapshot, younger)?;
            if !self.rules.of(row.topic)?.blocks_when_dead() {
                self.ended.add(keyed, row.seq)?;
            }
        }
        Ok(())
    }

    /// A message is leased or over: the next of its key may be leased too.
    fn pass(&mut self, row: &Delivery<'_>) -> Result<(), Error> {
        if let Some(keyed) = row.keyed()
            && let Some(next) = self.keys.passed(row, keyed)?
        {
            self.aside.messages.entry(next.seq).or_insert((next.id, From::Key));
        }
        Ok(())
    }

    fn give_back(&mut self, locked: Vec<(i64, RowId)>) {
        self.aside.messages.extend(locked.into_iter().map(|(seq, id)| (seq, (id, From::GivenBack))));
    }

    /// Leaves a message for later.
    fn leave(&mut self, id: RowId, seq: i64, from: From) -> Result<Met, Error> {
        if let From::GivenBack = from {
            keys::park_locked(self.deliveries, self.snapshot, [(seq, id)])?;
            return Ok(Met::Passed);
        }
        Ok(Met::Held)
    }

    fn expires(&mut self, until: Option<Time>) {
        self.expiry = until.map_or(self.expiry, |until| self.expiry.min(until.0));
    }

    /// Ends the call; `reach` is what [`Batch::fill`] has returned. What lies aside still, nobody has asked for.
    fn finish(mut self, reach: Option<i64>) -> Result<Left, Error> {
        for (seq, (id, from)) in std::mem::take(&mut self.aside.messages) {
            match from {
                From::Due(at, cost) => {
                    self.aside.leave(at);
                    self.aside.lease(cost);
                }
                From::GivenBack => keys::park_locked(self.deliveries, self.snapshot, [(seq, id)])?,
                From::Ready | From::Key => {}
            }
        }
        if self.tidies {
            self.bury_put_off()?;
        }
        let unparked = self.keys.finish()?;
        self.ended.unblock(Wait::No)?;
        Ok(Left {
            ready: reach.into_iter().chain(unparked.ready).min(),
            due: self.aside.left.into_iter().chain(unparked.due).min(),
            cost: self.aside.cost,
        })
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
