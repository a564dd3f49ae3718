//! What the end or the return of a message means for the others of its key. The rules are at the head of
//! `queue/key.rs`.

use crate::error::Error;
use crate::pg::read::fetch::ById;
use crate::pg::read::snapshot::Latest;
use crate::pg::read::versions::DirtyScan;
use crate::pg::rows::table::{Against, Outcome, RowId, Table, Wait, Xid};
use crate::pg::session::server;
use crate::pg::value::datum::Text;
use crate::shmem::pending;
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::find::Lookup;
use crate::tables::key::{KeyMessages, Keyed, Part};
use crate::tables::topic::TopicRules;
use crate::{shmem, tables};
use std::collections::{BTreeMap, HashSet};

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
    let mut scan = KeyMessages::open(deliveries, Part::Ready, snapshot)?;
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
    let mut scan = KeyMessages::open(deliveries, Part::Ready, snapshot)?;
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
        if KeyMessages::open(deliveries, part, snapshot)?.younger(keyed, seq).next().is_some() {
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
    let mut scan = KeyMessages::open(deliveries, Part::Ready, &snapshot)?;
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

/// Waits for claims, and other changes, that are leasing messages of a key younger than `seq`: they may not have seen
/// it.
fn await_younger(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, seq: i64) -> Result<(), Error> {
    let mut ready = DirtyScan::of_key(deliveries, Part::Ready)?;
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
        pending::touched(seq)?;
    }
    Ok(())
}

/// Records that a message is `dead`, and parks the younger ones of its key whose leases end with it. It fails, and has
/// recorded nothing, if a session is changing the message, is parking another one behind it, or, where the dead block
/// their key, is changing a younger lease or that rule; or if, by a death in `sent_back`, messages of its key are not
/// any more as the snapshot has them.
pub fn bury(
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    id: RowId,
    row: &Delivery<'_>,
    dead: &Delivery<'_>,
    rules: &mut TopicRules<'_>,
    sent_back: &mut HashSet<Vec<u8>>,
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
    if let Outcome::Lost(xid) = deliveries.update(id, dead, snapshot, Wait::No) {
        return Ok(Err(xid));
    }
    pending::touched(row.seq)?;
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
    let mut scan = DirtyScan::of_key(deliveries, Part::Later)?;
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
    let mut later = DirtyScan::of_key(deliveries, Part::Later)?;
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
                        // A session makes it due or leases it. If that is rolled back, its turn has come nevertheless.
                        Some(xid) if before == Before::Nothing => break xid,
                        // Then what is ended with it is there again.
                        Some(_) => return Ok(()),
                        None if before == Before::Message => return Ok(()),
                        None => {}
                    }
                    let mut row = version.row;
                    let now = server::clock();
                    row.take_turn(now);
                    let _waiting = shmem::low_water::enter_due(keyed.topic, now)?;
                    if deliveries.update(version.id, &row, &snapshot, Wait::No) == Outcome::Done {
                        pending::touched(row.seq)?;
                        pending::will_be_due(keyed.topic, now)?;
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
    for key in tables::key::parked_keys(deliveries, topic, &Latest::push())? {
        unblock(deliveries, Keyed::new(topic, key), i64::MIN, Wait::Yes)?;
    }
    Ok(())
}

/// What is ready or leased of a key before one of its messages, at this moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Only messages that a session is changing.
    Changing,
    Message,
}

fn before(deliveries: &Table<Deliveries>, keyed: Keyed<'_>, seq: i64) -> Result<Before, Error> {
    let mut scan = DirtyScan::of_key(deliveries, Part::Ready)?;
    let mut older = scan.older(keyed, shmem::low_water::known()?.since(keyed.hash), seq);
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
    later: DirtyScan<'t, Deliveries>,
    /// If anybody waits for them: to wake nobody for nothing.
    ready: Option<DirtyScan<'t, Deliveries>>,
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
                later: DirtyScan::of_key(self.deliveries, Part::Later)?,
                ready: match shmem::wake::somebody_waits() {
                    true => Some(DirtyScan::of_key(self.deliveries, Part::Ready)?),
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
        pending::will_make_way(keyed.topic, seq, follows)
    }

    /// Unblocks the keys, once everything is removed.
    pub fn unblock(self, wait: Wait) -> Result<(), Error> {
        for (keyed, seq) in self.blocked.into_values() {
            unblock(self.deliveries, keyed, seq, wait)?;
        }
        Ok(())
    }
}
