//! Order by key: of one topic and key, messages are delivered one after another, in arrival order.
//!
//! A message may be leased if every older one of its key is over, or leased by the same call. One that may not is
//! *parked*: out of the ready index, so that no claim meets it again before its turn. In every snapshot there is, for
//! each parked message, an older one of its key that is not over. What keeps it so:
//!
//! - Whoever ends a message (delivered, or dead) then looks for the first of the key after it: if that is parked and
//!   nothing older is left, it is due now ([`unblock`]).
//! - A claim that parks writes first and looks at the older message afterwards ([`Keys::finish`]); if that one may be
//!   over soon, it takes the parking back. Who ends a message writes first and looks for parked ones afterwards,
//!   uncommitted ones too, for which it waits. So one of the two sees the other.
//! - Of two that end neighbours at the same time each takes the other's for over already, and one of them makes the
//!   first parked message due. If that one rolls back, the message it had ended stands before the parked one again.
//!   To make one due too early is harmless: the next claim parks it again.
//! - When a message goes back, the younger leases of its key do ([`send_back`]): parked, because it stands before them.
//! - Should it not be so nevertheless, a claim that looks finds the message within seconds ([`Keys::find_orphans`]).
//!
//! What one open transaction has written and ended again, nobody else will ever see: it stands before nothing.
//!
//! Where the dead block their key, a dead message is as one that is not over. Whoever parks, or records a death, by that
//! rule holds the rule until the end of its transaction; so [`unblock_topic`], after a change of it, misses nobody.
//!
//! Single calls cannot wait for each other in a circle. Answers take messages in ascending order, and those that go
//! back are all locked before the first is parked; so what [`unblock`] waits for waits for nobody. Claims never wait.

use crate::error::Error;
use crate::store::looks::Looking;
use crate::store::lookup::{ById, Lookup};
use crate::store::low_water::{self, Known};
use crate::store::of_key::{self, Hashes, Keyed, Now, OfKey, Outlook, Part};
use crate::store::record::{Deliveries, Delivery, Place, TopicRow};
use crate::store::rules::TopicRules;
use crate::store::server::Meter;
use crate::store::snapshot::Latest;
use crate::store::table::{Against, Outcome, RowId, Table, Wait, Xid};
use crate::store::value::{Text, Time};
use crate::store::{server, transaction, waiting};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// Messages that one claim parks. More stay as they are, for the next one.
const PARK_AT_MOST: usize = 1000;

/// Whether a message may be leased, as for its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Free,
    /// An older message stands before it, and will for a while.
    Blocked,
    /// An older message stands before it that somebody is claiming or ending: `soon` to be over, as far as one knows.
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
    ready: OfKey<'s>,
    /// None: no message waits or is parked, of whatever key.
    later: Option<OfKey<'s>>,
}

impl<'s> Keys<'s> {
    pub fn new(
        deliveries: &'s Table<Deliveries>,
        snapshot: &'s Latest,
        now: Time,
        meets_all: bool,
    ) -> Result<Self, Error> {
        let low_water = low_water::known()?;
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
        looking: &Looking,
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
            let mut dead = OfKey::open(self.deliveries, Part::Dead, self.snapshot)?;
            let mut older = dead.older(keyed, 0, row.seq);
            blocker = older.next().map(|older| older.row.seq).filter(|seq| *seq > to);
        }
        let (standing, turn) = match blocker {
            None => {
                free.asked = row.seq;
                (Standing::Free(free), Turn::Free)
            }
            Some(by) => self.behind(by, topic, looking)?,
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

    /// `row` was free, but somebody else is changing it or has changed it. It stands before the rest.
    pub fn lost(
        &mut self,
        row: &Delivery<'_>,
        keyed: Keyed<'_>,
        topic: &TopicRow,
        looking: &Looking,
    ) -> Result<(), Error> {
        let (standing, _) = self.behind(row.seq, topic, looking)?;
        self.known.insert(keyed.bytes(), standing);
        Ok(())
    }

    /// Looks among the first parked message of each key, from hash `at` on and for so many microseconds, for those that
    /// nothing is before: they would wait for ever for somebody to end what is not there. Hands them over; returns where
    /// to go on, if it has not reached the end, and what time it took.
    pub fn find_orphans(
        &mut self,
        mut at: i64,
        most: i64,
        rules: &mut TopicRules<'_>,
        mut take: impl FnMut(RowId, &Delivery<'_>),
    ) -> Result<(Option<i64>, i64), Error> {
        let meter = Meter::start();
        let mut hashes = Hashes::open(self.deliveries, self.snapshot)?;
        let mut first = OfKey::open(self.deliveries, Part::Later, self.snapshot)?;
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
        let mut dead = OfKey::open(self.deliveries, Part::Dead, self.snapshot)?;
        Ok(!dead_block || dead.older(keyed, 0, seq).next().is_none())
    }

    /// Parks a blocked message, unless there were too many in this claim, it holds a lease that has run out, or somebody
    /// else is changing it or the rule by which it is blocked.
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
        transaction::touched(row.seq)?;
        self.parked_seqs.insert(row.seq);
        self.parked.push(Parked { by, dead_lasts, id: self.deliveries.last(), place: row.place });
        Ok(true)
    }

    /// Looks again at the messages behind which others were parked.
    pub fn finish(mut self) -> Result<Unparked, Error> {
        self.parked.sort_by_key(|parked| parked.by);
        let mut unparked = Unparked::default();
        for behind in self.parked.chunk_by(|one, next| one.by == next.by) {
            if Outlook::of(behind[0].by, self.deliveries, behind[0].dead_lasts)?.lasts {
                continue;
            }
            let snapshot = Latest::push();
            let mut rows = ById::open(self.deliveries, &snapshot);
            for Parked { id, place, .. } in behind {
                let Some(found) = rows.find(*id) else { continue };
                let row = Delivery { place: *place, ..found.row };
                let due = row.available_at.filter(|_| *place == Place::Waiting);
                let _waiting = due.map(|due| low_water::enter_due(row.topic, due)).transpose()?;
                self.deliveries.update(*id, &row, &snapshot, Wait::No);
                match place {
                    Place::Waiting => unparked.due = unparked.due.into_iter().chain(row.available_at).min(),
                    _ => unparked.ready = unparked.ready.into_iter().chain([row.seq]).min(),
                }
            }
        }
        Ok(unparked)
    }

    fn behind(&self, by: i64, topic: &TopicRow, looking: &Looking) -> Result<(Standing, Turn), Error> {
        let dead_lasts = topic.blocks_when_dead();
        let outlook = Outlook::of(by, self.deliveries, dead_lasts)?;
        if outlook.lasts && !outlook.changed_by.is_some_and(|xid| looking.is_held_by(xid)) {
            return Ok((Standing::Behind { by, turn: Turn::Blocked }, Turn::Blocked));
        }
        let turn = Turn::Busy { soon: outlook.changed_by.is_none_or(|xid| looking.is_held_by(xid)) };
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
                let ready = OfKey::open(self.deliveries, Part::Ready, self.snapshot)?;
                let mut later = OfKey::open(self.deliveries, Part::Later, self.snapshot)?;
                Scans { ready, later: later.may_have_any().then_some(later) }
            }
        };
        Ok(self.scans.insert(scans))
    }
}

/// What was done, or the transaction because of which it would have had to wait.
pub type Tried<T> = Result<Result<T, Xid>, Error>;

/// Locks the leased messages of a key that are younger than `seq`, in order. It fails if one of them cannot be had
/// without waiting, or has changed.
pub fn lock_younger(
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    keyed: Keyed<'_>,
    seq: i64,
) -> Tried<Vec<(i64, RowId)>> {
    let mut scan = OfKey::open(deliveries, Part::Ready, snapshot)?;
    let mut younger = scan.younger(keyed, seq);
    let mut locked = Vec::new();
    while let Some(found) = younger.next() {
        server::check_for_interrupts();
        if found.row.lease.is_none() {
            continue;
        }
        if let Outcome::Lost(xid) = deliveries.lock(found.id, Against::Everybody, snapshot, Wait::No) {
            return Ok(Err(xid));
        }
        locked.push((found.row.seq, found.id));
    }
    Ok(Ok(locked))
}

/// Who would keep [`lock_younger`] from locking them.
pub fn younger_held_by(
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    keyed: Keyed<'_>,
    seq: i64,
) -> Result<Option<Xid>, Error> {
    let mut scan = OfKey::open(deliveries, Part::Ready, snapshot)?;
    let mut younger = scan.younger(keyed, seq);
    while let Some(found) = younger.next() {
        server::check_for_interrupts();
        let held_by = deliveries.held_by(found.id).filter(|_| found.row.lease.is_some());
        if held_by.is_some() {
            return Ok(held_by);
        }
    }
    Ok(None)
}

/// True if a younger message of a key is to be delivered.
pub fn is_followed(
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    keyed: Keyed<'_>,
    seq: i64,
) -> Result<bool, Error> {
    for part in [Part::Ready, Part::Later] {
        if OfKey::open(deliveries, part, snapshot)?.younger(keyed, seq).next().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Message `seq` of a key has gone back: the younger leases go back with it, their attempt uncounted.
pub fn send_back(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, seq: i64) -> Result<(), Error> {
    let mut locked = Vec::new();
    for younger in leased_after(deliveries, keyed, seq)? {
        locked.extend(lock_leased(deliveries, younger)?);
    }
    park_locked(deliveries, &Latest::push(), locked)
}

/// The leased messages of a key that are younger than `seq`, in order. Claims that may not have seen what has become of
/// that one are waited for.
pub fn leased_after(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, seq: i64) -> Result<Vec<i64>, Error> {
    await_younger(deliveries, keyed, seq)?;
    let snapshot = Latest::push();
    let mut scan = OfKey::open(deliveries, Part::Ready, &snapshot)?;
    let mut younger = scan.younger(keyed, seq);
    let mut leased = Vec::new();
    while let Some(found) = younger.next() {
        if found.row.lease.is_some() {
            leased.push(found.row.seq);
        }
    }
    Ok(leased)
}

/// Locks a message if it is leased, as it is once nobody else is changing it.
pub fn lock_leased(deliveries: &Table<Deliveries>, seq: i64) -> Result<Option<(i64, RowId)>, Error> {
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let mut scan = Lookup::open(deliveries, &snapshot)?;
        let found =
            scan.find(seq).filter(|found| found.row.place == Place::Ready && found.row.lease.is_some());
        let Some(id) = found.map(|found| found.id) else { return Ok(None) };
        if deliveries.lock(id, Against::Everybody, &snapshot, Wait::Yes) == Outcome::Done {
            return Ok(Some((seq, id)));
        }
    }
}

/// Waits for claims, and other changes, that are leasing messages of a key younger than `seq`: they may not have seen it.
fn await_younger(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, seq: i64) -> Result<(), Error> {
    let mut ready = Now::of_key(deliveries, Part::Ready)?;
    loop {
        server::check_for_interrupts();
        let mut younger = ready.younger(keyed, seq);
        let leasing = loop {
            let Some(version) = younger.next() else { return Ok(()) };
            if let Some(xid) = version.written_by.filter(|_| version.row.lease.is_some()) {
                break xid;
            }
        };
        server::wait_for(leasing);
    }
}

/// Ends the leases of messages that [`lock_younger`] has locked, and parks them.
pub fn park_locked(
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    locked: impl IntoIterator<Item = (i64, RowId)>,
) -> Result<(), Error> {
    let mut rows = ById::open(deliveries, snapshot);
    for (seq, id) in locked {
        let Some(found) = rows.find(id) else { continue };
        let mut row = found.row;
        row.release();
        row.park();
        deliveries.update(id, &row, snapshot, Wait::Yes);
        transaction::touched(seq)?;
    }
    Ok(())
}

/// Records that no attempt is left for a message, and parks the younger ones of its key whose leases end with it. It
/// fails, and has recorded nothing, if somebody is changing the message, is parking another one behind it, or, where the
/// dead block their key, is changing a younger lease or that rule; or if, by a death in `sent_back`, messages of its key
/// are not any more as the snapshot has them.
pub fn bury(
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    id: RowId,
    row: &Delivery<'_>,
    rules: &mut TopicRules<'_>,
    sent_back: &mut HashSet<Vec<u8>>,
    now: Time,
) -> Tried<()> {
    let blocks = rules.of(row.topic)?.blocks_when_dead();
    let mut younger = Vec::new();
    if let Some(keyed) = row.keyed().filter(|_| blocks) {
        if sent_back.contains(&keyed.bytes()) || !rules.hold(row.topic, Wait::No)? {
            return Ok(Err(Xid::INVALID));
        }
        match lock_younger(deliveries, snapshot, keyed, row.seq)? {
            Ok(locked) => younger = locked,
            Err(xid) => return Ok(Err(xid)),
        }
    }
    let mut after = *row;
    after.die_exhausted(now);
    if let Outcome::Lost(xid) = deliveries.update(id, &after, snapshot, Wait::No) {
        return Ok(Err(xid));
    }
    transaction::touched(row.seq)?;
    if let Some(keyed) = row.keyed().filter(|_| !blocks)
        && let Some(xid) = is_being_parked_on(deliveries, keyed, row.seq)?
    {
        let id = deliveries.last();
        deliveries.update(id, row, &Latest::push(), Wait::No);
        return Ok(Err(xid));
    }
    if let Some(keyed) = row.keyed().filter(|_| !younger.is_empty()) {
        park_locked(deliveries, snapshot, younger)?;
        sent_back.insert(keyed.bytes());
    }
    Ok(Ok(()))
}

/// The open transaction that is parking the first message of a key after number `seq`.
fn is_being_parked_on(
    deliveries: &Table<Deliveries>,
    keyed: Keyed<'_>,
    seq: i64,
) -> Result<Option<Xid>, Error> {
    let mut scan = Now::of_key(deliveries, Part::Later)?;
    let mut younger = scan.younger(keyed, seq);
    while let Some(version) = younger.next() {
        match version.row.place {
            Place::Parked if version.written_by.is_some() => return Ok(version.written_by),
            _ if version.is_settled() => return Ok(None),
            _ => {}
        }
    }
    Ok(None)
}

/// Message `ended` of a key is over: if the next one is parked and nothing is left before it, it is due now. A
/// transaction that is parking it is waited for, or, with `Wait::No`, will see itself that the message is over.
fn unblock(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, ended: i64, wait: Wait) -> Result<(), Error> {
    let mut later = Now::of_key(deliveries, Part::Later)?;
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let mut younger = later.younger(keyed, ended);
        let other = loop {
            let Some(version) = younger.next() else { return Ok(()) };
            match (version.row.place, version.written_by) {
                (Place::Parked, Some(xid)) => break xid,
                (Place::Parked, None) => {
                    let before = before(deliveries, keyed, version.row.seq)?;
                    match version.ended_by {
                        // Somebody makes it due or leases it. If that is rolled back, its turn has come nevertheless.
                        Some(xid) if before == Before::Nothing => break xid,
                        // Then what is ended with it is there again.
                        Some(_) => return Ok(()),
                        None if before == Before::Message => return Ok(()),
                        None => {}
                    }
                    let mut row = version.row;
                    let now = server::clock();
                    row.take_turn(now);
                    let _waiting = low_water::enter_due(keyed.topic, now)?;
                    if deliveries.update(version.id, &row, &snapshot, Wait::No) == Outcome::Done {
                        transaction::touched(row.seq)?;
                        transaction::will_be_due(keyed.topic, now)?;
                    }
                    return Ok(());
                }
                // It waits, and stands before the rest.
                _ if version.is_settled() => return Ok(()),
                _ => {}
            }
        };
        if wait == Wait::No {
            return Ok(());
        }
        server::wait_for(other);
    }
}

/// The dead of a topic do not block their keys any more: what was parked behind them has its turn.
pub fn unblock_topic(deliveries: &Table<Deliveries>, topic: Text<'_>) -> Result<(), Error> {
    for key in of_key::parked_keys(deliveries, topic, &Latest::push())? {
        unblock(deliveries, Keyed::new(topic, key), i64::MIN, Wait::Yes)?;
    }
    Ok(())
}

/// What is ready or leased of a key before one of its messages, at this moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Only what somebody is changing.
    Changing,
    Message,
}

fn before(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, seq: i64) -> Result<Before, Error> {
    let mut scan = Now::of_key(deliveries, Part::Ready)?;
    let mut older = scan.older(keyed, low_water::known()?.since(keyed.hash), seq);
    let mut before = Before::Nothing;
    while let Some(version) = older.next() {
        if version.is_settled() {
            return Ok(Before::Message);
        }
        before = Before::Changing;
    }
    Ok(before)
}

/// The keys of messages that one call ends.
pub struct Ended<'t> {
    deliveries: &'t Table<Deliveries>,
    scans: Option<Followers<'t>>,
    /// Where another message waits or is parked: the key and the first message ended.
    blocked: BTreeMap<Vec<u8>, (Keyed<'static>, i64)>,
}

/// Open once a keyed message is met.
struct Followers<'t> {
    later: Now<'t>,
    /// If anybody waits for them: to wake nobody for nothing.
    ready: Option<Now<'t>>,
}

impl<'t> Ended<'t> {
    pub fn new(deliveries: &'t Table<Deliveries>) -> Self {
        Ended { deliveries, scans: None, blocked: BTreeMap::new() }
    }

    /// Message `seq` of a key has been removed, or is dead: the lowest of the call first.
    pub fn add(&mut self, keyed: Keyed<'_>, seq: i64) -> Result<(), Error> {
        let scans = match self.scans.take() {
            Some(scans) => scans,
            None => Followers {
                later: Now::of_key(self.deliveries, Part::Later)?,
                ready: match waiting::somebody_waits() {
                    true => Some(Now::of_key(self.deliveries, Part::Ready)?),
                    false => None,
                },
            },
        };
        let scans = self.scans.insert(scans);
        let mut follows = scans.later.younger(keyed, seq).next().is_some();
        if follows {
            self.blocked.entry(keyed.bytes()).or_insert_with(|| (keyed.copied(), seq));
        }
        follows =
            follows || scans.ready.as_mut().is_none_or(|ready| ready.younger(keyed, seq).next().is_some());
        transaction::will_make_way(keyed.topic, seq, follows)
    }

    /// Unblocks the keys, once everything is removed.
    pub fn unblock(self, wait: Wait) -> Result<(), Error> {
        for (keyed, seq) in self.blocked.into_values() {
            unblock(self.deliveries, keyed, seq, wait)?;
        }
        Ok(())
    }
}
