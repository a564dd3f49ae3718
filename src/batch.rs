//! A batch being filled: what is ready and what is due, merged in arrival order, and leased.
//!
//! In Rust because of the update without waiting: whatever somebody else is changing is skipped by the update itself,
//! so a lease costs one WAL record where SELECT … FOR UPDATE SKIP LOCKED and UPDATE write two.

use crate::error::Error;
use crate::floor::{self, Cost};
use crate::keys::{self, Ended, Keys, Turn};
use crate::settings;
use crate::store::encoding::ToClient;
use crate::store::looks::Looking;
use crate::store::lookup::{ById, Lookup};
use crate::store::low_water;
use crate::store::record::{Deliveries, Delivery, Envelope, Envelopes, Place, TopicRow};
use crate::store::rows::ClaimedRows;
use crate::store::rules::TopicRules;
use crate::store::scan::{InOrder, Scan};
use crate::store::server::{self, Meter};
use crate::store::snapshot::Latest;
use crate::store::table::{Outcome, RowId, Table, Wait};
use crate::store::totals::{self, Event};
use crate::store::value::{Json, Text, Time};
use crate::store::{transaction, waiting};
use crate::{backoff, token};
use std::collections::BTreeMap;

/// Due messages that are considered besides as many as may be leased: the oldest among them come first.
const DUE_BESIDES: usize = 500;
/// Deaths that are recorded. More are skipped, as leased rows are.
const DEATHS_AT_MOST: usize = 100;

/// What a claim asks for.
pub struct Wanted<'a> {
    pub owner: Text<'a>,
    pub topic: Option<Text<'a>>,
    pub size: usize,
    /// None: as the topic has it.
    pub lease_seconds: Option<i32>,
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

/// Where it takes them from.
pub struct Source<'s> {
    pub deliveries: &'s Table<Deliveries>,
    pub envelopes: &'s Table<Envelopes>,
    pub rules: TopicRules<'s>,
    pub snapshot: &'s Latest,
}

/// What came of it.
pub struct Filled {
    /// How many were leased or, without rows, found.
    pub count: usize,
    /// It was filled, and something is left for others.
    pub more: bool,
    /// Something was changed, or locked, that is no lease.
    pub changed: bool,
    /// A message was failed: the client's encoding cannot show it.
    pub refused: bool,
    /// A keyed message with no attempt left was met that this look could not record as dead.
    pub untidy: bool,
    /// More are due than were looked at, and among those some stand behind others: what was not looked at may not.
    pub hides: bool,
    /// What it leaves to be found: the first number,
    pub ready: Option<i64>,
    /// and the earliest due time.
    pub due: Option<Time>,
    /// The earliest end of a lease met or given.
    pub expiry: i64,
}

/// A batch being filled.
pub struct Batch<'c, 'r, 's> {
    wanted: Wanted<'c>,
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
    more: bool,
    /// What is met may be recorded as dead, or parked; in any case from the first lease on.
    tidies: bool,
    changed: bool,
    client: Option<ToClient>,
    refused: bool,
    untidy: bool,
    /// More are due than it looks at.
    cut: bool,
    /// A message was met that another of its key stands before.
    blocked: bool,
    /// Deaths recorded.
    buried: usize,
    /// Messages that have no attempt left, to be recorded as dead once something is leased.
    deaths: Vec<RowId>,
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

impl<'c, 'r, 's> Batch<'c, 'r, 's> {
    /// `meets_all`: the look begins at the beginning.
    pub fn new(
        wanted: Wanted<'c>,
        source: Source<'s>,
        now: Time,
        tidies: bool,
        meets_all: bool,
        rows: Option<&'c mut ClaimedRows<'r>>,
    ) -> Result<Self, Error> {
        let Source { deliveries, envelopes, rules, snapshot } = source;
        Ok(Batch {
            left: wanted.size,
            wanted,
            now,
            deliveries,
            snapshot,
            rules,
            bodies: Lookup::open(envelopes, snapshot)?,
            keys: Keys::new(deliveries, snapshot, now, meets_all)?,
            ended: Ended::new(deliveries),
            aside: Aside::default(),
            nonce: token::nonce(),
            more: false,
            tidies,
            changed: false,
            client: ToClient::of_session(),
            refused: false,
            untidy: false,
            cut: false,
            blocked: false,
            buried: 0,
            deaths: Vec::new(),
            expiry: floor::NEVER,
            rows,
        })
    }

    /// Leases what there is, oldest first.
    pub fn fill(mut self, waiting: &Looking, ready: &Looking) -> Result<Filled, Error> {
        let mut walk = self.find_due(waiting)?;
        let reach = self.fill_in_order(ready)?;
        self.finish(reach, &mut walk)
    }

    /// Looks for waiting messages that are due, enough to fill the batch. They are leased where they lie.
    fn find_due<'l>(&mut self, waiting: &'l Looking) -> Result<Walk<'l>, Error> {
        let walk = Walk::begin(waiting);
        let (topic, start) = (self.wanted.topic, Time(waiting.start()));
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
    fn fill_in_order(&mut self, ready: &Looking) -> Result<Option<i64>, Error> {
        let mut reach: Option<i64> = None;
        let mut walk = Walk::begin(ready);
        let mut scan = InOrder::from(self.deliveries, self.snapshot, self.wanted.topic, ready.start())?;
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
        if self.bodies.find(row.seq).is_none() {
            // Without an envelope it can be given to nobody, and must not stand before others.
            return self.bury(id, leased, from, turn, &topic, looking);
        }
        let Some(body) = self.bodies.find(row.seq) else { return Ok(Met::Passed) };
        let Some(rows) = &mut self.rows else {
            if !self.deliveries.is_being_changed(id) {
                self.left -= 1;
            }
            return Ok(Met::Held);
        };
        let refusal = self.client.as_ref().and_then(|client| refusal(client, &body.row));
        let mut younger = Vec::new();
        if let Some(keyed) = keyed.filter(|_| leased.lease.is_some() || refusal.is_some()) {
            // Leased again, or failed: the younger leases of its key go back with it.
            match keys::lock_younger(self.deliveries, self.snapshot, keyed, row.seq, Wait::No)? {
                Some(locked) => younger = locked,
                None => {
                    self.changed = true;
                    self.keys.lost(&row, keyed, &topic, looking)?;
                    return Ok(Met::Held);
                }
            }
        }
        let seconds = self.wanted.lease_seconds.unwrap_or_else(|| settings::lease_seconds(&topic));
        let until = self.now.plus_seconds(seconds);
        leased.lease(self.nonce, self.wanted.owner, until);
        let refused = refusal.is_some();
        let mut _waiting = None;
        if let Some(reason) = refusal {
            if let From::GivenBack = from {
                keyed.map_or(Ok(()), |keyed| self.keys.lost(&row, keyed, &topic, looking))?;
                return self.leave(id, row.seq, from); // until its turn
            }
            (self.tidies, self.changed, self.refused) = (true, true, true);
            totals::count(row.topic, Event::Failed)?;
            let error = Some(Text::new(reason.as_bytes()));
            if leased.attempts >= settings::max_attempts(&topic) {
                (leased.leased_until, leased.last_error) = (None, error);
                return self.bury(id, leased, from, turn, &topic, looking);
            }
            let delay = backoff::delay(
                leased.attempts,
                settings::backoff_seconds(&topic),
                settings::backoff_max_seconds(&topic),
            );
            let due = self.now.plus_micros(delay);
            leased.wait_until(due, error);
            _waiting = low_water::enter_due(row.topic, due)?;
        }
        let _entering = low_water::enter_ready(&row)?;
        match self.deliveries.update(id, &leased, self.snapshot, from.wait()) {
            Outcome::Lost(xid) => {
                if let Some(keyed) = keyed {
                    self.keys.lost(&row, keyed, &topic, looking)?;
                }
                Ok(if looking.is_held_by(xid) { Met::Held } else { Met::Passed })
            }
            Outcome::Done if refused => {
                transaction::touched(row.seq)?;
                leased.available_at.map_or(Ok(()), |due| transaction::will_be_due(row.topic, due))?;
                self.give_back(younger);
                keyed.map_or(Ok(()), |keyed| self.keys.lost(&row, keyed, &topic, looking))?;
                Ok(Met::Passed)
            }
            Outcome::Done => {
                rows.push(&body.row, token::encode(row.seq, self.nonce), leased.attempts, until);
                transaction::leased(row.topic, row.seq, until)?;
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

    /// Ends it; `reach` is what [`Batch::fill_in_order`] has returned, `walk` is that to what was due. What lies aside
    /// still, nobody has asked for.
    fn finish(mut self, reach: Option<i64>, walk: &mut Walk<'_>) -> Result<Filled, Error> {
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
        walk.end_at(self.aside.cost);
        Ok(Filled {
            count: self.wanted.size - self.left,
            more: self.more,
            changed: self.changed,
            refused: self.refused,
            untidy: self.untidy,
            hides: self.cut && self.blocked,
            ready: reach.into_iter().chain(unparked.ready).min(),
            due: self.aside.left.into_iter().chain(unparked.due).min(),
            expiry: self.expiry,
        })
    }
}

/// Why a client cannot be shown a message.
fn refusal(client: &ToClient, message: &Envelope<'_>) -> Option<String> {
    let text = |column, text: Option<Text<'_>>| Some((column, client.refuses_text(text?)?));
    let json = |column, json: Option<Json<'_>>| Some((column, client.refuses_json(json?)?));
    let refused = text("topic", Some(message.topic))
        .or_else(|| text("type", Some(message.kind)))
        .or_else(|| text("key", message.key))
        .or_else(|| json("payload", Some(message.payload)))
        .or_else(|| json("headers", message.headers));
    refused.map(|(column, reason)| format!("{column}: {reason}"))
}

/// What it costs to walk from below the floor to the first message of use: one that is leased. What an open
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
