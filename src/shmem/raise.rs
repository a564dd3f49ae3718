//! Raising the low-water mark, see `rules/low_water.rs`: the walks of a session that claims.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::snapshot::Latest;
use crate::pg::read::versions::AllVersions;
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::server::{self, Meter};
use crate::pg::value::datum::Time;
use crate::rules::floor;
use crate::rules::low_water::{LowWater, Raise, Survivor, Walked};
use crate::shmem::installations;
use crate::shmem::low_water::{Numbered, known, own_head, publish};
use crate::shmem::memory::Range;
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::number;
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Versions of rows that a raise walks over, of those above the mark and of those below.
const WALK: usize = 5_000;
const PATROL: usize = 500;
/// Survivors that a raise looks at again, and versions of rows for each.
const AGAIN: usize = 16;
const AGAIN_WALK: usize = 500;

/// Raises the mark a little, if it is time. To be called before a snapshot is taken for anything else.
pub fn raise(now: Time) -> Result<(), Error> {
    let installation = installations::current()?;
    let Some((shared, index, head)) = own_head(installation, now.0) else { return Ok(()) };
    if LowWater::is_early(head.next_raise.load(SeqCst), now.0) {
        return Ok(());
    }
    let meter = Meter::start();
    // The order matters: numbers, the limit, what is entering, and the snapshot after all of them.
    let highest = number::highest()?;
    let lowest = floor::lowest(shared.slots(installation), now.0);
    let begun = shared.locked(|contents| {
        let low_water = &mut contents.marks_below[index];
        let raise = low_water.begin(now.0, highest, lowest);
        publish(head, low_water);
        raise.map(|raise| (raise, low_water.next_turns(AGAIN)))
    });
    let Some((raise, turns)) = begun else { return Ok(()) };
    fence(SeqCst);
    let entering = shared.entering(installation);
    let work = Work { raise: &raise, entering, now, table: Table::open(Access::Read)? };
    let (reached, walked) = work.walk()?;
    let again = work.look_again(&turns)?;
    let patrolled = work.patrol()?;
    work.table.release();
    shared.locked(|contents| {
        let low_water = &mut contents.marks_below[index];
        low_water.finish(&raise, reached, &walked, patrolled.reached, &again, meter.read().micros);
        for (number, key) in &patrolled.astray {
            low_water.note(*number, *key);
        }
        publish(head, low_water);
        for (topic, due) in &patrolled.overdue {
            for key in [installations::key(installation, Some(topic)), installations::key(installation, None)]
            {
                if let Some(topic) = contents.topic(key).filter(|topic| *due < topic.due_mark.mark()) {
                    topic.due_mark.note(*due);
                    topic.entry(Range::Waiting).lower(*due);
                }
            }
        }
    });
    Ok(())
}

/// The walks of one raise.
struct Work<'r> {
    raise: &'r Raise,
    /// The lowest number that is being written.
    entering: i64,
    now: Time,
    table: Table<Deliveries>,
}

/// What a patrol has found: how far it came, deliveries that are no survivors, and topics and times of those that have
/// waited for a while.
struct Patrolled {
    reached: i64,
    astray: Vec<Numbered>,
    overdue: Vec<(Vec<u8>, i64)>,
}

/// True if the mark covers such a delivery while it is not over.
fn is_covered(row: &Delivery<'_>) -> bool {
    match row.place {
        Place::Ready => true,
        Place::Waiting | Place::Parked => row.key.is_some(),
        Place::Dead => false,
    }
}

impl Work<'_> {
    /// From the mark on; how far it came, and what is not over.
    fn walk(&self) -> Result<(i64, Walked), Error> {
        let Raise { from, to, .. } = *self.raise;
        let snapshot = Latest::push();
        let mut versions = AllVersions::from_number(&self.table, &snapshot, from)?;
        let (mut walked, mut reached) = (Walked::default(), from);
        for step in 0.. {
            server::check_for_interrupts();
            let Some(row) = versions.next() else { break };
            let seq = row.seq;
            if seq >= to.min(self.entering) {
                break;
            }
            if step >= WALK && seq >= reached {
                walked.is_cut = true;
                break;
            }
            let (key, covered) = (row.key_hash, is_covered(&row));
            let ready = row.place == Place::Ready && !row.is_leased(self.now);
            if covered && versions.may_live() && !walked.meet(self.raise, seq, key, ready) {
                reached = seq;
                break;
            }
            reached = seq + 1;
        }
        Ok((reached, walked))
    }

    /// What has become of survivors.
    fn look_again(&self, turns: &[Survivor]) -> Result<Vec<(Survivor, Option<Survivor>)>, Error> {
        let mut again = Vec::new();
        // A delivery that was noted may not be written yet.
        if turns.is_empty() || self.entering < self.raise.from {
            return Ok(again);
        }
        let snapshot = Latest::push();
        for survivor in turns {
            server::check_for_interrupts();
            let now = if survivor.key == 0 {
                let mut versions = AllVersions::of_number(&self.table, &snapshot, survivor.number)?;
                let lives = versions.any(|row| row.place == Place::Ready);
                lives.then_some(*survivor)
            } else {
                self.first_of_key(survivor, &snapshot)?
            };
            if now != Some(*survivor) {
                again.push((*survivor, now));
            }
        }
        Ok(again)
    }

    /// Where the key's survivors begin now.
    fn first_of_key(&self, survivor: &Survivor, snapshot: &Latest) -> Result<Option<Survivor>, Error> {
        let end = self.raise.from;
        let mut first = end;
        for index in [Object::DeliveryKeyReady, Object::DeliveryKeyLater] {
            let mut versions =
                AllVersions::of_key(&self.table, snapshot, index, survivor.key, survivor.number)?;
            for step in 0.. {
                let Some(row) = versions.next().filter(|row| row.seq < first) else { break };
                let seq = row.seq;
                if step == AGAIN_WALK || is_covered(&row) && versions.may_live() {
                    first = seq;
                    break;
                }
            }
        }
        Ok((first < end).then(|| survivor.moved_to(first)))
    }

    /// Below the mark.
    fn patrol(&self) -> Result<Patrolled, Error> {
        let Raise { from, patrol, .. } = *self.raise;
        let snapshot = Latest::push();
        let known = known()?;
        let mut versions = AllVersions::from_number(&self.table, &snapshot, patrol)?;
        let mut patrolled = Patrolled { reached: from, astray: Vec::new(), overdue: Vec::new() };
        for step in 0.. {
            let Some(row) = versions.next().filter(|row| row.seq < from) else { break };
            let (seq, key) = (row.seq, row.key_hash);
            if step >= PATROL {
                patrolled.reached = seq;
                break;
            }
            let (is_astray, topic) =
                (is_covered(&row) && !known.stands_for(seq, key), row.topic.bytes().to_vec());
            let due = row.available_at.filter(|due| row.place == Place::Waiting && *due < self.now);
            if (is_astray || due.is_some()) && versions.may_live() {
                patrolled.astray.extend(is_astray.then_some((seq, key)));
                patrolled.overdue.extend(due.map(|due| (topic, due.0)));
            }
        }
        Ok(patrolled)
    }
}
