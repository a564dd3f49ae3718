//! A batch being filled: what is ready and what is due, merged in arrival order, and leased.
//!
//! A call that may sleep holds nothing meanwhile. So until it has leased something, it writes and locks nothing but
//! what a lease needs before it (deaths in front of it, leases behind it), in one [`Attempt`] with that lease: without
//! it, all of that is taken back. What else is to be recorded or parked is so once something is leased, or by a call
//! that does not sleep.
//!
//! In Rust because of the update without waiting: a row that another session is changing is skipped by the update
//! itself, so a lease costs one WAL record where SELECT … FOR UPDATE SKIP LOCKED and UPDATE write two.

use crate::error::Error;
use crate::pg::read::fetch::ById;
use crate::pg::read::scan::Scan;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{RowId, Table};
use crate::pg::session::server::{self, Meter};
use crate::pg::value::datum::{Text, Time};
use crate::pg::value::encoding::ToClient;
use crate::queue::candidates::{Candidates, From};
use crate::queue::deaths::Deaths;
use crate::queue::key::Keys;
use crate::queue::key_release;
use crate::queue::meeting::{Meeting, Met};
use crate::queue::result::ClaimedRows;
use crate::rules::floor::Cost;
use crate::rules::token;
use crate::shmem;
use crate::shmem::floor::ScanStart;
use crate::shmem::in_order::InOrder;
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::envelope::Envelopes;
use crate::tables::find::Lookup;
use crate::tables::topic::TopicRules;

/// Due messages that are considered at a time, besides as many as may be leased: the oldest among them come first.
const DUE_BESIDES: usize = 500;

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

/// Where it takes them from.
pub struct Source<'s> {
    pub deliveries: &'s Table<Deliveries>,
    pub envelopes: &'s Table<Envelopes>,
    pub rules: TopicRules<'s>,
    pub snapshot: &'s Latest,
}

/// What a look is for.
pub enum Purpose<'c, 'r> {
    /// Only to know whether there is something.
    Find,
    Lease {
        rows: &'c mut ClaimedRows<'r>,
        client: Option<ToClient>,
    },
}

impl<'c, 'r> Purpose<'c, 'r> {
    pub fn of(rows: Option<&'c mut ClaimedRows<'r>>) -> Self {
        rows.map_or(Purpose::Find, |rows| Purpose::Lease { rows, client: ToClient::of_session() })
    }
}

/// What came of it.
#[derive(Default)]
pub struct Filled {
    /// How many were leased, or found.
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
    pub expiry: Option<Time>,
}

/// A batch being filled.
pub struct Batch<'c, 'r, 's> {
    pub wanted: Wanted<'c>,
    pub now: Time,
    pub deliveries: &'s Table<Deliveries>,
    pub snapshot: &'s Latest,
    pub rules: TopicRules<'s>,
    pub bodies: Lookup<'s, Envelopes>,
    pub keys: Keys<'s>,
    pub candidates: Candidates,
    pub deaths: Deaths<'s>,
    pub nonce: i64,
    pub writes: Writes,
    pub purpose: Purpose<'c, 'r>,
    pub filled: Filled,
}

impl<'c, 'r, 's> Batch<'c, 'r, 's> {
    /// `meets_all`: the look begins at the beginning.
    pub fn new(
        wanted: Wanted<'c>,
        source: Source<'s>,
        now: Time,
        writes: Writes,
        meets_all: bool,
        purpose: Purpose<'c, 'r>,
    ) -> Result<Self, Error> {
        let Source { deliveries, envelopes, rules, snapshot } = source;
        Ok(Batch {
            wanted,
            now,
            deliveries,
            snapshot,
            rules,
            bodies: Lookup::open(envelopes, snapshot)?,
            keys: Keys::new(deliveries, snapshot, now, meets_all)?,
            candidates: Candidates::default(),
            deaths: Deaths::new(deliveries, snapshot, now),
            nonce: token::nonce(),
            writes,
            purpose,
            filled: Filled::default(),
        })
    }

    /// Leases what there is, oldest first.
    pub fn fill(mut self, waiting: &ScanStart, ready: &ScanStart) -> Result<Filled, Error> {
        let (topic, start) = (self.wanted.topic, Time(waiting.at()));
        let mut due = Some(Scan::due(self.deliveries, self.snapshot, topic, start, self.now)?);
        let mut walk = Walk::begin(waiting);
        self.find_due(&mut due, &walk)?;
        self.find_orphans(ready)?;
        let reach = self.fill_in_order(ready)?;
        while self.left() > 0 && self.find_due(&mut due, &walk)? {
            self.fill_from_candidates(i64::MAX, ready)?;
        }
        if let Some(due) = &mut due
            && let Some(found) = due.next()
        {
            self.candidates.leave(found.row.available_at.unwrap_or(self.now));
        }
        if let Some(hash) = self.candidates.first_orphan()
            && (self.left() == 0 || matches!(self.purpose, Purpose::Find))
        {
            ready.left_head(hash);
        }
        self.finish(reach, &mut walk)
    }

    /// How many may still be leased.
    pub fn left(&self) -> usize {
        self.wanted.size - self.filled.count
    }

    /// Now and then: parked messages that nothing stands before, after any fault.
    fn find_orphans(&mut self, ready: &ScanStart) -> Result<(), Error> {
        let Some((at, most)) = ready.heads else { return Ok(()) };
        let (topic, candidates) = (self.wanted.topic, &mut self.candidates);
        let (next, micros) = self.keys.find_orphans(at, most, &mut self.rules, |id, row| {
            if topic.is_none_or(|topic| topic.bytes() == row.topic.bytes()) {
                candidates.add_orphan(row.seq, id, row.key_hash);
            }
        })?;
        ready.walked_heads(next, micros);
        Ok(())
    }

    /// Looks for waiting messages that are due, a window of them. They are leased where they lie. False if there are
    /// none; at its end the scan is given up.
    fn find_due(&mut self, due: &mut Option<Scan<'_, Deliveries>>, walk: &Walk<'_>) -> Result<bool, Error> {
        let enough = self.left() + DUE_BESIDES;
        while let Some(scan) = due
            && self.candidates.len() < enough
        {
            server::check_for_interrupts();
            let Some(found) = scan.next() else {
                *due = None;
                break;
            };
            if !self.rules.of(found.row.topic)?.paused {
                let at = found.row.available_at.unwrap_or(self.now);
                self.candidates.add_due(found.row.seq, found.id, at, walk.cost());
            }
        }
        Ok(!self.candidates.is_empty())
    }

    /// Leases what is ready and the candidates, merged in arrival order. Returns the first number that must stay
    /// reachable, or None if the end was reached and nothing left.
    fn fill_in_order(&mut self, ready: &ScanStart) -> Result<Option<i64>, Error> {
        let mut reach: Option<i64> = None;
        let mut scan = InOrder::open(self.deliveries, self.snapshot, self.wanted.topic, ready.at())?;
        let mut walk = Walk::begin(ready);
        scan.begin()?;
        while self.left() > 0 {
            server::check_for_interrupts();
            let Some(found) = scan.next() else {
                walk.end_at(None);
                self.fill_from_candidates(i64::MAX, ready)?;
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
            self.fill_from_candidates(seq, ready)?;
            let from = self.candidates.take(seq);
            let is_asked = self.left() > 0;
            match self.meet(found.id, found.row, from, ready)? {
                Met::Leased => walk.end_at(cost),
                Met::Held => reach = reach.or(Some(seq)),
                Met::Passed => {}
            }
            if self.left() == 0 {
                self.filled.more = !is_asked || (shmem::wake::somebody_waits() && scan.next().is_some());
                return Ok(reach.or(Some(seq + 1)));
            }
        }
        Ok(reach)
    }

    /// Leases candidates that arrived before number `before`.
    fn fill_from_candidates(&mut self, before: i64, ready: &ScanStart) -> Result<(), Error> {
        if self.candidates.is_empty() {
            return Ok(());
        }
        let mut rows = ById::open(self.deliveries, self.snapshot);
        while self.left() > 0 {
            let Some((_, id, from)) = self.candidates.take_first_before(before) else { break };
            let Some(found) = rows.find(id) else { continue };
            match (self.meet(found.id, found.row, from, ready)?, from) {
                (Met::Leased, From::Due(_, cost)) => self.candidates.reached(cost),
                (Met::Held, From::Due(at, _)) => self.candidates.leave(at),
                _ => {}
            }
        }
        Ok(())
    }

    /// Once something is leased, the call will not sleep.
    pub fn may_write(&self) -> bool {
        match self.purpose {
            Purpose::Find => false,
            Purpose::Lease { .. } => self.writes == Writes::AtOnce || self.filled.count > 0,
        }
    }

    /// Another session has the message: what comes after it of its key must wait.
    pub fn lose(&mut self, met: &Meeting<'_>) -> Result<(), Error> {
        let Some(keyed) = met.row.keyed() else { return Ok(()) };
        self.keys.lost(&met.row, keyed, &met.topic, met.scan_start)
    }

    pub fn park(&mut self, met: &Meeting<'_>) -> Result<Met, Error> {
        let Some(keyed) = met.row.keyed() else { return Ok(Met::Held) };
        let parked = self.keys.park(met.id, &met.row, keyed, &mut self.rules)?;
        self.filled.wrote |= parked;
        Ok(if parked { Met::Passed } else { Met::Held })
    }

    /// True if there is a younger message of its key.
    fn is_followed(&self, id: RowId) -> Result<bool, Error> {
        let mut rows = ById::open(self.deliveries, self.snapshot);
        let row = rows.find(id).map(|found| found.row);
        let Some((row, keyed)) = row.and_then(|row| Some((row, row.keyed()?))) else { return Ok(false) };
        key_release::is_followed(self.deliveries, self.snapshot, keyed, row.seq)
    }

    /// A message is leased or over: the next of its key may be leased too.
    pub fn pass(&mut self, row: &Delivery<'_>) -> Result<(), Error> {
        if let Some(keyed) = row.keyed()
            && let Some(next) = self.keys.passed(row, keyed)?
        {
            self.candidates.add_follower(next.seq, next.id);
        }
        Ok(())
    }

    pub fn expires(&mut self, until: Option<Time>) {
        self.filled.expiry = self.filled.expiry.into_iter().chain(until).min();
    }

    /// Ends it; `reach` is what [`Batch::fill_in_order`] has returned, `walk` is that to what was due. Candidates that
    /// are left nobody has asked for.
    fn finish(mut self, reach: Option<i64>, walk: &mut Walk<'_>) -> Result<Filled, Error> {
        for (seq, (id, from)) in self.candidates.take_all() {
            match from {
                From::Due(at, cost) => {
                    self.filled.more = true;
                    self.candidates.leave(at);
                    self.candidates.reached(cost);
                }
                From::GivenBack => key_release::park_locked(self.deliveries, self.snapshot, [(seq, id)])?,
                From::Ready | From::Key => {}
            }
        }
        let writes = self.may_write();
        let mut reach = reach;
        for (seq, id) in self.keys.take_all_doomed() {
            if self.left() == 0 && self.is_followed(id)? {
                // Others may lease what comes next, and record this first.
                reach = reach.into_iter().chain([seq]).min();
            } else if writes {
                self.deaths.meet(id);
            } else {
                self.expires(Some(self.now));
            }
        }
        if writes && !self.deaths.bury_the_rest(&mut self.rules, &mut self.filled.wrote)? {
            self.expires(Some(self.now));
        }
        let unparked = self.keys.finish()?;
        if writes {
            self.deaths.finish()?;
        }
        walk.end_at(self.candidates.cost());
        Ok(Filled {
            ready: reach.into_iter().chain(unparked.ready).min(),
            due: self.candidates.left().into_iter().chain(unparked.due).min(),
            ..self.filled
        })
    }
}

/// What it costs to walk from below the floor to the first message of use: one that is leased. What an open
/// transaction holds is of none; it may stay there for long.
struct Walk<'l> {
    scan_start: Option<&'l ScanStart>,
    meter: Meter,
}

impl<'l> Walk<'l> {
    fn begin(scan_start: &'l ScanStart) -> Walk<'l> {
        Walk { scan_start: scan_start.is_sweep().then_some(scan_start), meter: Meter::start() }
    }

    /// Until now, while that is of interest.
    fn cost(&self) -> Option<Cost> {
        self.scan_start.map(|_| self.meter.read())
    }

    /// The first message of use was met at this cost; none: only now.
    fn end_at(&mut self, cost: Option<Cost>) {
        if let Some(scan_start) = self.scan_start.take() {
            scan_start.walked(cost.unwrap_or_else(|| self.meter.read()));
        }
    }
}
