//! A batch being filled: what is ready and what is due, merged in arrival order, and leased.
//!
//! A call that may sleep holds nothing meanwhile. So until it has leased something, it writes and locks nothing but what a
//! lease needs before it (deaths in front of it, leases behind it), in one [`Attempt`] with that lease: without it, all of
//! that is taken back. What else is to be recorded or parked is so once something is leased, or by a call that does not
//! sleep.
//!
//! In Rust because of the update without waiting: whatever somebody else is changing is skipped by the update itself,
//! so a lease costs one WAL record where SELECT … FOR UPDATE SKIP LOCKED and UPDATE write two.

use crate::error::Error;
use crate::floor::{self, Cost};
use crate::keys::{self, Ended, Keys, Tried, Turn};
use crate::settings;
use crate::store::attempt::Attempt;
use crate::store::encoding::ToClient;
use crate::store::looks::Looking;
use crate::store::lookup::{ById, Lookup};
use crate::store::low_water;
use crate::store::of_key::Keyed;
use crate::store::record::{Deliveries, Delivery, Envelope, Envelopes, Place, TopicRow};
use crate::store::rows::ClaimedRows;
use crate::store::rules::TopicRules;
use crate::store::scan::{InOrder, Scan};
use crate::store::server::{self, Meter};
use crate::store::snapshot::Latest;
use crate::store::table::{Outcome, RowId, Table, Wait, Xid};
use crate::store::totals::Event;
use crate::store::value::{Json, Text, Time};
use crate::store::{transaction, waiting};
use crate::{backoff, token};
use std::collections::{BTreeMap, HashSet};

/// Due messages that are considered at a time, besides as many as may be leased: the oldest among them come first.
const DUE_BESIDES: usize = 500;
/// Deaths that are recorded though no lease needs it.
const DEATHS_AT_MOST: usize = 100;
/// Of so many that were met: others may be recording some.
const DEATHS_MET_AT_MOST: usize = 1000;

/// When a look may record deaths, and park.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    AtOnce,
    OnceLeased,
}

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
    /// Something was written or locked.
    pub wrote: bool,
    /// A message was failed: the client's encoding cannot show it.
    pub refused: bool,
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
    writes: Writes,
    wrote: bool,
    client: Option<ToClient>,
    refused: bool,
    /// Messages that have no attempt left, and that nothing waits for.
    deaths: Vec<RowId>,
    /// What came next of a key, and so need not be met among the due ones.
    followers: HashSet<i64>,
    /// The hashes of keys whose first message was parked, and nothing before it.
    orphans: Vec<i64>,
    /// Keys of which leases went back with a death that was recorded.
    sent_back: HashSet<Vec<u8>>,
    expiry: i64,
    /// None: it only looks.
    rows: Option<&'c mut ClaimedRows<'r>>,
}

/// What is to be done with a message that a claim has met.
enum Verdict {
    Take,
    Leave(Met),
    Park,
    /// It has no attempt left.
    Bury,
    /// The same, and the next of its key may be leased once that is recorded.
    BuryBeforeNext,
}

/// What became of it.
enum Met {
    Leased,
    /// Nothing to be had from it, whatever others do: it stays as it is, is parked, or dies.
    Passed,
    /// Claimable, but not now: it must stay reachable.
    Held,
}

/// Of a message that transaction `xid` keeps from being had.
fn held(looking: &Looking, xid: Xid) -> Met {
    if looking.is_held_by(xid) { Met::Held } else { Met::Passed }
}

impl<'c, 'r, 's> Batch<'c, 'r, 's> {
    /// `meets_all`: the look begins at the beginning.
    pub fn new(
        wanted: Wanted<'c>,
        source: Source<'s>,
        now: Time,
        writes: Writes,
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
            writes,
            wrote: false,
            client: ToClient::of_session(),
            refused: false,
            deaths: Vec::new(),
            followers: HashSet::new(),
            orphans: Vec::new(),
            sent_back: HashSet::new(),
            expiry: floor::NEVER,
            rows,
        })
    }

    /// Leases what there is, oldest first.
    pub fn fill(mut self, waiting: &Looking, ready: &Looking) -> Result<Filled, Error> {
        let (topic, start) = (self.wanted.topic, Time(waiting.start()));
        let mut due = Some(Scan::due(self.deliveries, self.snapshot, topic, start, self.now)?);
        let mut walk = Walk::begin(waiting);
        self.find_due(&mut due, &walk)?;
        self.find_orphans(ready)?;
        let reach = self.fill_in_order(ready)?;
        while self.left > 0 && self.find_due(&mut due, &walk)? {
            self.fill_from_aside(i64::MAX, ready)?;
        }
        if let Some(due) = &mut due
            && let Some(found) = due.next()
        {
            self.aside.leave(found.row.available_at.unwrap_or(self.now));
        }
        if let Some(hash) = self.orphans.first()
            && (self.left == 0 || self.rows.is_none())
        {
            ready.left_head(*hash);
        }
        self.finish(reach, &mut walk)
    }

    /// Now and then: parked messages that nothing stands before, whatever has gone wrong.
    fn find_orphans(&mut self, ready: &Looking) -> Result<(), Error> {
        let Some((at, most)) = ready.heads else { return Ok(()) };
        let (topic, orphans, followers) = (self.wanted.topic, &mut self.orphans, &mut self.followers);
        let messages = &mut self.aside.messages;
        let (next, micros) = self.keys.find_orphans(at, most, &mut self.rules, |id, row| {
            if topic.is_none_or(|topic| topic.bytes() == row.topic.bytes()) {
                messages.entry(row.seq).or_insert((id, From::Key));
                followers.insert(row.seq);
                orphans.extend(row.key_hash);
            }
        })?;
        ready.walked_heads(next, micros);
        Ok(())
    }

    /// Looks for waiting messages that are due, a window of them. They are leased where they lie. False if there are none;
    /// at its end the scan is given up.
    fn find_due(&mut self, due: &mut Option<Scan<'_, Deliveries>>, walk: &Walk<'_>) -> Result<bool, Error> {
        let enough = self.left + DUE_BESIDES;
        while let Some(scan) = due
            && self.aside.messages.len() < enough
        {
            server::check_for_interrupts();
            let Some(found) = scan.next() else {
                *due = None;
                break;
            };
            if self.rules.of(found.row.topic)?.paused || self.followers.contains(&found.row.seq) {
                continue;
            }
            let at = found.row.available_at.unwrap_or(self.now);
            self.aside.messages.insert(found.row.seq, (found.id, From::Due(at, walk.cost())));
        }
        Ok(!self.aside.messages.is_empty())
    }

    /// Leases what is ready and what lies aside, merged in arrival order. Returns the first number that must stay
    /// reachable, or None if the end was reached and nothing left.
    fn fill_in_order(&mut self, ready: &Looking) -> Result<Option<i64>, Error> {
        let mut reach: Option<i64> = None;
        let mut scan = InOrder::open(self.deliveries, self.snapshot, self.wanted.topic, ready.start())?;
        let mut walk = Walk::begin(ready);
        scan.begin()?;
        while self.left > 0 {
            server::check_for_interrupts();
            let Some(found) = scan.next() else {
                walk.end_at(None);
                self.fill_from_aside(i64::MAX, ready)?;
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

    /// Deals with one message that nobody has leased and that is due.
    fn meet(&mut self, id: RowId, row: Delivery<'_>, from: From, looking: &Looking) -> Result<Met, Error> {
        let topic = self.rules.of(row.topic)?;
        let mut leased = row;
        if let From::GivenBack = from {
            leased.release();
        }
        match self.verdict(id, &row, &leased, from, &topic, looking)? {
            Verdict::Take => self.take(id, &row, leased, from, &topic, looking),
            Verdict::Leave(_) if matches!(from, From::GivenBack) => {
                keys::park_locked(self.deliveries, self.snapshot, [(row.seq, id)])?;
                Ok(Met::Passed)
            }
            Verdict::Leave(met) => Ok(met),
            Verdict::Park => self.park(id, &leased),
            Verdict::Bury => {
                if self.deaths.len() < DEATHS_MET_AT_MOST {
                    self.deaths.push(id);
                }
                Ok(Met::Passed)
            }
            Verdict::BuryBeforeNext => {
                if let Some(keyed) = row.keyed() {
                    self.keys.doom(row.seq, id, keyed);
                    self.pass(&row)?;
                }
                Ok(Met::Passed)
            }
        }
    }

    fn verdict(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        leased: &Delivery<'_>,
        from: From,
        topic: &TopicRow,
        looking: &Looking,
    ) -> Result<Verdict, Error> {
        if topic.paused {
            return Ok(Verdict::Leave(Met::Passed));
        }
        if self.left == 0 {
            return Ok(Verdict::Leave(Met::Held));
        }
        // Without an envelope it can be given to nobody, and must not stand before others.
        let dies = leased.attempts >= settings::max_attempts(topic) || self.bodies.find(row.seq).is_none();
        let Some(keyed) = row.keyed() else {
            return Ok(if dies { Verdict::Bury } else { Verdict::Take });
        };
        let turn = self.keys.turn(row, keyed, topic, looking)?;
        Ok(match turn {
            _ if dies && matches!(from, From::GivenBack) => Verdict::Leave(Met::Held), // until its turn
            Turn::Free if !dies => Verdict::Take,
            Turn::Free if topic.blocks_when_dead() => {
                self.keys.lost(row, keyed, topic, looking)?;
                Verdict::Bury
            }
            Turn::Free => match self.deliveries.held_by(id) {
                None => Verdict::BuryBeforeNext,
                Some(xid) => {
                    self.keys.lost(row, keyed, topic, looking)?;
                    Verdict::Leave(held(looking, xid))
                }
            },
            _ if dies => Verdict::Bury,
            Turn::Blocked if self.may_write() && !matches!(from, From::GivenBack) => Verdict::Park,
            Turn::Blocked | Turn::Busy { soon: true } => Verdict::Leave(Met::Held),
            Turn::Busy { soon: false } => Verdict::Leave(Met::Passed),
        })
    }

    /// Once something is leased, the call will not sleep.
    fn may_write(&self) -> bool {
        self.rows.is_some() && (self.writes == Writes::AtOnce || self.left < self.wanted.size)
    }

    /// Leases a message, if nobody else is changing it or what must be changed before.
    fn take(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        leased: Delivery<'_>,
        from: From,
        topic: &TopicRow,
        looking: &Looking,
    ) -> Result<Met, Error> {
        let keyed = row.keyed();
        // Leased again: the younger leases of its key go back with it.
        let again = keyed.filter(|_| leased.lease.is_some());
        if self.rows.is_none() {
            let mut held_by = self.deliveries.held_by(id);
            if let Some(keyed) = again.filter(|_| held_by.is_none()) {
                held_by = keys::younger_held_by(self.deliveries, self.snapshot, keyed, row.seq)?;
            }
            return Ok(match held_by {
                Some(xid) => {
                    self.lose(row, topic, looking)?;
                    held(looking, xid)
                }
                None => {
                    self.left -= 1;
                    Met::Held
                }
            });
        }
        if let (Some(client), Some(body)) = (&self.client, self.bodies.find(row.seq))
            && let Some(reason) = refusal(client, &body.row)
        {
            return self.refuse(id, row, leased, from, topic, looking, &reason);
        }
        let seconds = self.wanted.lease_seconds.unwrap_or_else(|| settings::lease_seconds(topic));
        let until = self.now.plus_seconds(seconds);
        let mut leased: Delivery<'_> = leased;
        leased.lease(self.nonce, self.wanted.owner, until);
        let doomed = keyed.map(|keyed| self.keys.take_doomed(keyed)).unwrap_or_default();
        let needs_more = again.is_some() || !doomed.is_empty();
        let attempt = (needs_more && !self.may_write()).then(Attempt::begin);
        self.wrote |= needs_more && attempt.is_none();
        let younger = match self.lease(id, row, &leased, again, &doomed)? {
            Ok(younger) => younger,
            Err(xid) => {
                drop(attempt);
                self.expires(doomed.first().map(|_| self.now)); // their deaths are for the next sweep
                self.lose(row, topic, looking)?;
                if let From::GivenBack = from {
                    keys::park_locked(self.deliveries, self.snapshot, [(row.seq, id)])?;
                }
                return Ok(held(looking, xid));
            }
        };
        if let Some(attempt) = attempt {
            attempt.keep();
        }
        if let (Some(rows), Some(body)) = (&mut self.rows, self.bodies.find(row.seq)) {
            rows.push(&body.row, token::encode(row.seq, self.nonce), leased.attempts, until);
        }
        transaction::leased(row.topic, row.seq, until)?;
        self.wrote = true;
        self.expires(Some(until));
        self.left -= 1;
        self.aside.messages.extend(younger.into_iter().map(|(seq, id)| (seq, (id, From::GivenBack))));
        self.pass(row)?;
        Ok(Met::Leased)
    }

    /// Records the deaths of `doomed`, and then that of `row`.
    fn record_death(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        doomed: &[(i64, RowId)],
    ) -> Tried<Vec<(i64, RowId)>> {
        for (_, dead) in doomed {
            if let Err(xid) = self.bury(*dead)? {
                return Ok(Err(xid));
            }
        }
        let (rules, sent_back) = (&mut self.rules, &mut self.sent_back);
        let done = keys::bury(self.deliveries, self.snapshot, id, row, rules, sent_back, self.now)?;
        Ok(done.map(|()| Vec::new()))
    }

    /// Records the deaths of `doomed`, locks the younger leases of a key that is leased `again`, and then leases.
    fn lease(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        leased: &Delivery<'_>,
        again: Option<Keyed<'_>>,
        doomed: &[(i64, RowId)],
    ) -> Tried<Vec<(i64, RowId)>> {
        for (_, dead) in doomed {
            if let Err(xid) = self.bury(*dead)? {
                return Ok(Err(xid));
            }
        }
        let younger = match again {
            Some(keyed) => keys::lock_younger(self.deliveries, self.snapshot, keyed, row.seq)?,
            None => Ok(Vec::new()),
        };
        let Ok(younger) = younger else { return Ok(younger) };
        let _entering = low_water::enter_ready(row)?;
        Ok(match self.deliveries.update(id, leased, self.snapshot, Wait::No) {
            Outcome::Lost(xid) => Err(xid),
            Outcome::Done => Ok(younger),
        })
    }

    /// Fails a message that the client cannot be shown: counted, and with the reason as its last error.
    #[allow(clippy::too_many_arguments)]
    fn refuse(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        leased: Delivery<'_>,
        from: From,
        topic: &TopicRow,
        looking: &Looking,
        reason: &str,
    ) -> Result<Met, Error> {
        if let From::GivenBack = from {
            self.lose(row, topic, looking)?;
            keys::park_locked(self.deliveries, self.snapshot, [(row.seq, id)])?; // until its turn
            return Ok(Met::Passed);
        }
        (self.wrote, self.refused, self.writes) = (true, true, Writes::AtOnce);
        let keyed = row.keyed();
        let doomed = keyed.map(|keyed| self.keys.take_doomed(keyed)).unwrap_or_default();
        let mut failed: Delivery<'_> = leased;
        failed.lease(self.nonce, self.wanted.owner, self.now);
        let error = Some(Text::new(reason.as_bytes()));
        let dies = failed.attempts >= settings::max_attempts(topic);
        let done = if dies {
            (failed.leased_until, failed.last_error) = (None, error);
            self.record_death(id, &failed, &doomed)?
        } else {
            let (first, longest) = (settings::backoff_seconds(topic), settings::backoff_max_seconds(topic));
            let delay = backoff::delay(failed.attempts, first, longest);
            let due = self.now.plus_micros(delay);
            let _waiting = low_water::enter_due(row.topic, due)?;
            failed.wait_until(due, error);
            self.lease(id, row, &failed, keyed, &doomed)?
        };
        let younger = match done {
            Ok(younger) => younger,
            Err(xid) => {
                self.lose(row, topic, looking)?;
                return Ok(held(looking, xid));
            }
        };
        transaction::answered(row.topic, Event::Failed)?;
        transaction::touched(row.seq)?;
        failed
            .available_at
            .filter(|_| !dies)
            .map_or(Ok(()), |due| transaction::will_be_due(row.topic, due))?;
        self.aside.messages.extend(younger.into_iter().map(|(seq, id)| (seq, (id, From::GivenBack))));
        match keyed {
            Some(keyed) if dies && !topic.blocks_when_dead() => {
                self.ended.add(keyed, row.seq)?;
                self.pass(row)?;
            }
            _ => self.lose(row, topic, looking)?,
        }
        Ok(Met::Passed)
    }

    /// Somebody else has the message: what comes after it of its key must wait.
    fn lose(&mut self, row: &Delivery<'_>, topic: &TopicRow, looking: &Looking) -> Result<(), Error> {
        row.keyed().map_or(Ok(()), |keyed| self.keys.lost(row, keyed, topic, looking))
    }

    fn park(&mut self, id: RowId, row: &Delivery<'_>) -> Result<Met, Error> {
        let Some(keyed) = row.keyed() else { return Ok(Met::Held) };
        let parked = self.keys.park(id, row, keyed, &mut self.rules)?;
        self.wrote |= parked;
        Ok(if parked { Met::Passed } else { Met::Held })
    }

    /// Records a death.
    fn bury(&mut self, id: RowId) -> Tried<()> {
        let mut rows = ById::open(self.deliveries, self.snapshot);
        let Some(found) = rows.find(id) else { return Ok(Ok(())) };
        let row = found.row;
        if let Err(xid) = keys::bury(
            self.deliveries,
            self.snapshot,
            id,
            &row,
            &mut self.rules,
            &mut self.sent_back,
            self.now,
        )? {
            return Ok(Err(xid));
        }
        if let Some(keyed) = row.keyed()
            && !self.rules.of(row.topic)?.blocks_when_dead()
        {
            self.ended.add(keyed, row.seq)?;
        }
        Ok(Ok(()))
    }

    /// True if there is a younger message of its key.
    fn is_followed(&self, id: RowId) -> Result<bool, Error> {
        let mut rows = ById::open(self.deliveries, self.snapshot);
        let row = rows.find(id).map(|found| found.row);
        let Some((row, keyed)) = row.and_then(|row| Some((row, row.keyed()?))) else { return Ok(false) };
        keys::is_followed(self.deliveries, self.snapshot, keyed, row.seq)
    }

    /// Records deaths that no lease needed. What is left is found by a later sweep.
    fn bury_the_rest(&mut self) -> Result<(), Error> {
        let mut buried = 0;
        for id in std::mem::take(&mut self.deaths) {
            if buried == DEATHS_AT_MOST || self.bury(id)?.is_err() {
                self.expires(Some(self.now));
                continue;
            }
            buried += 1;
            self.wrote = true;
        }
        Ok(())
    }

    /// A message is leased or over: the next of its key may be leased too.
    fn pass(&mut self, row: &Delivery<'_>) -> Result<(), Error> {
        if let Some(keyed) = row.keyed()
            && let Some(next) = self.keys.passed(row, keyed)?
        {
            self.aside.messages.entry(next.seq).or_insert((next.id, From::Key));
            self.followers.insert(next.seq);
        }
        Ok(())
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
                    self.more = true;
                    self.aside.leave(at);
                    self.aside.lease(cost);
                }
                From::GivenBack => keys::park_locked(self.deliveries, self.snapshot, [(seq, id)])?,
                From::Ready | From::Key => {}
            }
        }
        let writes = self.may_write();
        let mut reach = reach;
        for (seq, id) in self.keys.take_all_doomed() {
            if self.left == 0 && self.is_followed(id)? {
                // Others may lease what comes next, and record this first.
                reach = reach.into_iter().chain([seq]).min();
            } else if writes {
                self.deaths.push(id);
            } else {
                self.expires(Some(self.now));
            }
        }
        if writes {
            self.bury_the_rest()?;
        }
        let unparked = self.keys.finish()?;
        if writes {
            self.ended.unblock(Wait::No)?;
        }
        walk.end_at(self.aside.cost);
        Ok(Filled {
            count: self.wanted.size - self.left,
            more: self.more,
            wrote: self.wrote,
            refused: self.refused,
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
