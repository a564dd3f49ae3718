//! Order by key: of one topic and key, messages are delivered one after another, in arrival order.
//!
//! A message may be leased if every older one of its key is over, or leased by the same call. One that may not is
//! *parked*: out of the ready index, so that no claim meets it again before its turn. In every snapshot there is, for
//! each parked message, an older one of its key that is not over. What keeps it so:
//!
//! - A session that ends a message (delivered, or dead) then looks for the first of the key after it: if that is
//!   parked and nothing older is left, it is due now (`key_release.rs`).
//! - A claim that parks writes first and looks at the older message afterwards ([`Keys::finish`]); if that one may be
//!   over soon, it takes the parking back. Who ends a message writes first and looks for parked ones afterwards,
//!   uncommitted ones too, for which it waits. So one of the two sees the other.
//! - Of two that end neighbours at the same time each takes the other's for over already, and one of them makes the
//!   first parked message due. If that one rolls back, the message it had ended stands before the parked one again.
//!   To make one due too early is harmless: the next claim parks it again.
//! - When a message goes back, the younger leases of its key do (`key_release.rs`): parked, because it stands before
//!   them.
//! - Should it not be so nevertheless, a claim that looks finds the message within seconds ([`Keys::find_orphans`]).
//!
//! What one open transaction has written and ended again, nobody else will ever see: it stands before nothing.
//!
//! Where the dead block their key, a dead message is as one that is not over. A session that parks, or records a death,
//! by that rule holds the rule until its transaction ends; so one that unblocks a topic after a change of it misses
//! nobody.
//!
//! Single calls cannot wait for each other in a circle. Answers take messages in ascending order, and those that go
//! back are all locked before the first is parked; so the one that looks for parked ones waits for nobody that waits.
//! Claims never wait.

use crate::error::Error;
use crate::pg::read::fetch::ById;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Outcome, RowId, Table, Wait};
use crate::pg::session::server::{self, Meter};
use crate::pg::value::datum::Time;
use crate::shmem;
use crate::shmem::floor::ScanStart;
use crate::shmem::low_water::Known;
use crate::shmem::pending;
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::key::{Fate, Hashes, KeyMessages, Keyed, Part};
use crate::tables::topic::{TopicRow, TopicRules};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Messages that one claim parks. More stay as they are, for the next one.
const PARK_AT_MOST: usize = 1000;

/// Whether a message may be leased, as for its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Free,
    /// An older message stands before it, and will for a while.
    Blocked,
    /// An older message stands before it that a session is claiming or ending: `soon` to be over, as far as one knows.
    Busy {
        soon: bool,
    },
}

/// What a claim knows about a key.
enum Standing {
    Free(Free),
    /// The rest stands behind message `by`.
    Behind {
        by: i64,
        turn: Turn,
    },
}

/// A key of which this claim may lease what comes next.
struct Free {
    /// Up to this number, everything is over or leased by this claim.
    to: i64,
    /// The first message after it that waits or is parked, once looked for.
    next: Option<Option<Follower>>,
    /// The message asked for last.
    asked: i64,
    /// Those met under a lease that runs.
    leased: Vec<i64>,
    /// Of what is over: those that are dead, once that is recorded.
    doomed: Vec<(i64, RowId)>,
}

impl Free {
    const UNKNOWN: Free =
        Free { to: i64::MIN, next: None, asked: i64::MIN, leased: Vec::new(), doomed: Vec::new() };

    /// A ready or leased message before `seq` that the look has met and this claim has not leased.
    fn met_before(&self, seq: i64) -> Option<i64> {
        let met = self.leased.iter().copied().chain([self.asked]);
        met.filter(|met| self.to < *met && *met < seq).min()
    }
}

/// A message that waits or is parked.
#[derive(Clone, Copy)]
pub struct Follower {
    pub seq: i64,
    pub id: RowId,
    /// Only its key may keep it from being leased.
    is_due: bool,
}

/// A message that this claim has parked behind message `by`, and where it was.
struct Parked {
    by: i64,
    dead_lasts: bool,
    id: RowId,
    place: Place,
}

/// What a parking that was taken back leaves to be claimed.
#[derive(Default)]
pub struct Unparked {
    /// The lowest number of a ready message.
    pub ready: Option<i64>,
    /// When the first of the waiting ones was due.
    pub due: Option<Time>,
}

/// The keys that one claim has met.
pub struct Keys<'s> {
    deliveries: &'s Table<Deliveries>,
    snapshot: &'s Latest,
    now: Time,
    scans: Option<Scans<'s>>,
    known: HashMap<Vec<u8>, Standing>,
    low_water: Rc<Known>,
    /// The look began at the beginning: it meets every ready or leased message, in order.
    meets_all: bool,
    parked: Vec<Parked>,
    /// Their numbers: they are not any more as the snapshot has them.
    parked_seqs: HashSet<i64>,
}

/// Open once a keyed message is met: others shall not pay.
struct Scans<'s> {
    ready: KeyMessages<'s>,
    /// None: no message waits or is parked, of any key.
    later: Option<KeyMessages<'s>>,
}

impl<'s> Keys<'s> {
    pub fn new(
        deliveries: &'s Table<Deliveries>,
        snapshot: &'s Latest,
        now: Time,
        meets_all: bool,
    ) -> Result<Self, Error> {
        let low_water = shmem::low_water::known()?;
        Ok(Keys {
            deliveries,
            snapshot,
            now,
            scans: None,
            known: HashMap::new(),
            low_water,
            meets_all,
            parked: Vec::new(),
            parked_seqs: HashSet::new(),
        })
    }

    /// The look has met a message under a lease that runs.
    pub fn met_leased(&mut self, row: &Delivery<'_>) {
        if !self.meets_all {
            return;
        }
        let Some(keyed) = row.keyed() else { return };
        let unknown = || Standing::Free(Free::UNKNOWN);
        if let Standing::Free(free) = self.known.entry(keyed.bytes()).or_insert_with(unknown) {
            free.leased.push(row.seq);
        }
    }

    /// Whether it is the turn of `row`, which this claim has met and not leased.
    pub fn turn(
        &mut self,
        row: &Delivery<'_>,
        keyed: Keyed<'_>,
        topic: &TopicRow,
        scan_start: &ScanStart,
    ) -> Result<Turn, Error> {
        let name = keyed.bytes();
        let mut free = match self.known.remove(&name) {
            Some(Standing::Free(free)) => free,
            Some(Standing::Behind { by, turn }) if by < row.seq => {
                self.known.insert(name, Standing::Behind { by, turn });
                return Ok(turn);
            }
            // The due ones do not come in order.
            _ => Free::UNKNOWN,
        };
        let to = free.to;
        let next = free.next.map_or_else(|| self.first_later(keyed, to), Ok)?;
        free.next = Some(next);
        let mut blocker = next.map(|next| next.seq).filter(|seq| *seq < row.seq);
        if self.meets_all {
            blocker = blocker.or(free.met_before(row.seq));
        } else if blocker.is_none() {
            let since = self.low_water.since(keyed.hash).max(to.saturating_add(1));
            let mut older = self.scans()?.ready.older(keyed, since, row.seq);
            blocker = older.next().map(|older| older.row.seq);
        }
        if blocker.is_none() && topic.blocks_when_dead() {
            let mut dead = KeyMessages::open(self.deliveries, Part::Dead, self.snapshot)?;
            let mut older = dead.older(keyed, 0, row.seq);
            blocker = older.next().map(|older| older.row.seq).filter(|seq| *seq > to);
        }
        let (standing, turn) = match blocker {
            None => {
                free.asked = row.seq;
                (Standing::Free(free), Turn::Free)
            }
            Some(by) => self.behind(by, topic, scan_start)?,
        };
        self.known.insert(name, standing);
        Ok(turn)
    }

    /// This claim has leased a message that was free, or recorded its death. Returns the next one of the key, if it is
    /// parked or has come due: a look at the ready ones will not meet it.
    pub fn passed(&mut self, row: &Delivery<'_>, keyed: Keyed<'_>) -> Result<Option<Follower>, Error> {
        let name = keyed.bytes();
        let Some(Standing::Free(mut free)) = self.known.remove(&name) else { return Ok(None) };
        let known = free.next.filter(|next| next.is_none_or(|next| next.seq > row.seq));
        let next = known.map_or_else(|| self.first_later(keyed, row.seq), Ok)?;
        (free.to, free.next) = (row.seq, Some(next));
        self.known.insert(name, Standing::Free(free));
        Ok(next.filter(|next| next.is_due && !self.parked_seqs.contains(&next.seq)))
    }

    /// Message `seq`, which was free, has no attempt left: the next of its key may be leased once that is recorded.
    pub fn doom(&mut self, seq: i64, id: RowId, keyed: Keyed<'_>) {
        if let Some(Standing::Free(free)) = self.known.get_mut(&keyed.bytes()) {
            free.doomed.push((seq, id));
        }
    }

    /// Those that must be recorded as dead before the next message of a key is leased.
    pub fn take_doomed(&mut self, keyed: Keyed<'_>) -> Vec<(i64, RowId)> {
        match self.known.get_mut(&keyed.bytes()) {
            Some(Standing::Free(free)) => std::mem::take(&mut free.doomed),
            _ => Vec::new(),
        }
    }

    /// The same of all keys.
    pub fn take_all_doomed(&mut self) -> Vec<(i64, RowId)> {
        let doomed = self.known.values_mut().map(|standing| match standing {
            Standing::Free(free) => std::mem::take(&mut free.doomed),
            Standing::Behind { .. } => Vec::new(),
        });
        doomed.flatten().collect()
    }

    /// `row` was free, but another session is changing it or has changed it. It stands before the rest.
    pub fn lost(
        &mut self,
        row: &Delivery<'_>,
        keyed: Keyed<'_>,
        topic: &TopicRow,
        scan_start: &ScanStart,
    ) -> Result<(), Error> {
        let (standing, _) = self.behind(row.seq, topic, scan_start)?;
        self.known.insert(keyed.bytes(), standing);
        Ok(())
    }

    /// Looks among the first parked message of each key, from hash `at` on and for so many microseconds, for those that
    /// nothing is before: they would wait for ever for an end of what is not there. Hands them over; returns
    /// where to go on, if it has not reached the end, and what time it took.
    pub fn find_orphans(
        &mut self,
        mut at: i64,
        most: i64,
        rules: &mut TopicRules<'_>,
        mut take: impl FnMut(RowId, &Delivery<'_>),
    ) -> Result<(Option<i64>, i64), Error> {
        let meter = Meter::start();
        let mut hashes = Hashes::open(self.deliveries, self.snapshot)?;
        let mut first = KeyMessages::open(self.deliveries, Part::Later, self.snapshot)?;
        loop {
            server::check_for_interrupts();
            let Some(hash) = hashes.next_from(at) else { break };
            if let Some(found) = first.first_of_hash(hash, self.low_water.since(hash))
                && found.row.place == Place::Parked
                && let Some(keyed) = found.row.keyed()
                && self.is_first(keyed, found.row.seq, rules.of(found.row.topic)?.blocks_when_dead())?
            {
                take(found.id, &found.row);
            }
            let Some(next) = hash.checked_add(1) else { break };
            at = next;
            if meter.read().micros > most {
                return Ok((Some(at), meter.read().micros));
            }
        }
        Ok((None, meter.read().micros))
    }

    /// True if nothing that stands before message `seq` of a key is ready or leased, or dead.
    fn is_first(&mut self, keyed: Keyed<'_>, seq: i64, dead_block: bool) -> Result<bool, Error> {
        let since = self.low_water.since(keyed.hash);
        if self.scans()?.ready.older(keyed, since, seq).next().is_some() {
            return Ok(false);
        }
        let mut dead = KeyMessages::open(self.deliveries, Part::Dead, self.snapshot)?;
        Ok(!dead_block || dead.older(keyed, 0, seq).next().is_none())
    }

    /// Parks a blocked message, unless there were too many in this claim, it holds a lease that has run out, or
    /// another session is changing it or the rule by which it is blocked.
    pub fn park(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        keyed: Keyed<'_>,
        rules: &mut TopicRules<'_>,
    ) -> Result<bool, Error> {
        let Some(Standing::Behind { by, .. }) = self.known.get(&keyed.bytes()) else { return Ok(false) };
        if row.lease.is_some() || self.parked.len() == PARK_AT_MOST {
            return Ok(false);
        }
        let (by, dead_lasts) = (*by, rules.of(row.topic)?.blocks_when_dead());
        if dead_lasts && !rules.hold(row.topic, Wait::No)? {
            return Ok(false);
        }
        let mut after = *row;
        after.park();
        if self.deliveries.update(id, &after, self.snapshot, Wait::No) != Outcome::Done {
            return Ok(false);
        }
        pending::touched(row.seq)?;
        self.parked_seqs.insert(row.seq);
        self.parked.push(Parked { by, dead_lasts, id: self.deliveries.last(), place: row.place });
        Ok(true)
    }

    /// Looks again at the messages behind which others were parked.
    pub fn finish(mut self) -> Result<Unparked, Error> {
        self.parked.sort_by_key(|parked| parked.by);
        let mut unparked = Unparked::default();
        for behind in self.parked.chunk_by(|one, next| one.by == next.by) {
            if Fate::of(behind[0].by, self.deliveries, behind[0].dead_lasts)?.lasts {
                continue;
            }
            let snapshot = Latest::push();
            let mut rows = ById::open(self.deliveries, &snapshot);
            for Parked { id, place, .. } in behind {
                let Some(found) = rows.find(*id) else { continue };
                let row = Delivery { place: *place, ..found.row };
                let due = row.available_at.filter(|_| *place == Place::Waiting);
                let _waiting = due.map(|due| shmem::low_water::enter_due(row.topic, due)).transpose()?;
                self.deliveries.update(*id, &row, &snapshot, Wait::No);
                match place {
                    Place::Waiting => unparked.due = unparked.due.into_iter().chain(row.available_at).min(),
                    _ => unparked.ready = unparked.ready.into_iter().chain([row.seq]).min(),
                }
            }
        }
        Ok(unparked)
    }

    fn behind(&self, by: i64, topic: &TopicRow, scan_start: &ScanStart) -> Result<(Standing, Turn), Error> {
        let dead_lasts = topic.blocks_when_dead();
        let fate = Fate::of(by, self.deliveries, dead_lasts)?;
        if fate.lasts && !fate.changed_by.is_some_and(|xid| scan_start.is_held_by(xid)) {
            return Ok((Standing::Behind { by, turn: Turn::Blocked }, Turn::Blocked));
        }
        let turn = Turn::Busy { soon: fate.changed_by.is_none_or(|xid| scan_start.is_held_by(xid)) };
        Ok((Standing::Behind { by, turn }, turn))
    }

    fn first_later(&mut self, keyed: Keyed<'_>, after: i64) -> Result<Option<Follower>, Error> {
        let now = self.now;
        let after = after.max(self.low_water.since(keyed.hash) - 1);
        let Some(later) = &mut self.scans()?.later else { return Ok(None) };
        Ok(later.younger(keyed, after).next().map(|found| Follower {
            seq: found.row.seq,
            id: found.id,
            is_due: found.row.place == Place::Parked || found.row.available_at.is_none_or(|due| due <= now),
        }))
    }

    fn scans(&mut self) -> Result<&mut Scans<'s>, Error> {
        let scans = match self.scans.take() {
            Some(scans) => scans,
            None => {
                let ready = KeyMessages::open(self.deliveries, Part::Ready, self.snapshot)?;
                let mut later = KeyMessages::open(self.deliveries, Part::Later, self.snapshot)?;
                Scans { ready, later: later.may_have_any().then_some(later) }
            }
        };
        Ok(self.scans.insert(scans))
    }
}
