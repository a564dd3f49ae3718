//! What a claim does with a message it has met: one verdict for each.

use crate::error::Error;
use crate::pg::table::{RowId, Xid};
use crate::queue::batch::Batch;
use crate::queue::candidates::From;
use crate::queue::key::Turn;
use crate::queue::key_release;
use crate::settings;
use crate::shmem::floor::ScanStart;
use crate::tables::delivery::Delivery;
use crate::tables::key::Keyed;
use crate::tables::topic::TopicRow;

/// A message that a claim has met: nobody has leased it, and it is due.
pub struct Meeting<'m> {
    pub id: RowId,
    pub row: Delivery<'m>,
    pub from: From,
    /// The row without a lease that ends with that of an older message.
    pub given: Delivery<'m>,
    pub topic: TopicRow,
    pub scan_start: &'m ScanStart,
}

impl<'m> Meeting<'m> {
    /// The message's key, if its lease has run out.
    pub fn leased_again(&self) -> Option<Keyed<'m>> {
        self.row.keyed().filter(|_| self.given.lease.is_some())
    }

    fn is_given_back(&self) -> bool {
        matches!(self.from, From::GivenBack)
    }
}

/// What is to be done with it.
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
pub enum Met {
    Leased,
    /// Nothing to be had from it, whatever others do: it stays as it is, is parked, or dies.
    Passed,
    /// Claimable, but not now: it must stay reachable.
    Held,
}

/// Of a message that transaction `xid` keeps from being had.
pub fn held(scan_start: &ScanStart, xid: Xid) -> Met {
    if scan_start.is_held_by(xid) { Met::Held } else { Met::Passed }
}

impl Batch<'_, '_, '_> {
    /// Deals with one message that nobody has leased and that is due.
    pub fn meet(
        &mut self,
        id: RowId,
        row: Delivery<'_>,
        from: From,
        scan_start: &ScanStart,
    ) -> Result<Met, Error> {
        let topic = self.rules.of(row.topic)?;
        let mut given = row;
        if let From::GivenBack = from {
            given.release();
        }
        let met = Meeting { id, row, from, given, topic, scan_start };
        match self.verdict(&met)? {
            Verdict::Take => return self.take(&met),
            Verdict::Leave(_) if met.is_given_back() => {
                key_release::park_locked(self.deliveries, self.snapshot, [(row.seq, id)])?;
            }
            Verdict::Leave(met) => return Ok(met),
            Verdict::Park => return self.park(&met),
            Verdict::Bury => self.deaths.meet(id),
            Verdict::BuryBeforeNext => {
                if let Some(keyed) = row.keyed() {
                    self.keys.doom(row.seq, id, keyed);
                    self.pass(&row)?;
                }
            }
        }
        Ok(Met::Passed)
    }

    fn verdict(&mut self, met: &Meeting<'_>) -> Result<Verdict, Error> {
        let Meeting { row, topic, scan_start, .. } = met;
        if topic.paused {
            return Ok(Verdict::Leave(Met::Passed));
        }
        if self.left() == 0 {
            return Ok(Verdict::Leave(Met::Held));
        }
        // Without an envelope it can be given to nobody, and must not stand before others.
        let dies = met.given.attempts >= settings::max_attempts(topic) || self.bodies.find(row.seq).is_none();
        let Some(keyed) = row.keyed() else {
            return Ok(if dies { Verdict::Bury } else { Verdict::Take });
        };
        let turn = self.keys.turn(row, keyed, topic, scan_start)?;
        Ok(match turn {
            _ if dies && met.is_given_back() => Verdict::Leave(Met::Held), // until its turn
            Turn::Free if !dies => Verdict::Take,
            Turn::Free if topic.blocks_when_dead() => {
                self.lose(met)?;
                Verdict::Bury
            }
            Turn::Free => match self.deliveries.held_by(met.id) {
                None => Verdict::BuryBeforeNext,
                Some(xid) => {
                    self.lose(met)?;
                    Verdict::Leave(held(scan_start, xid))
                }
            },
            _ if dies => Verdict::Bury,
            Turn::Blocked if self.may_write() && !met.is_given_back() => Verdict::Park,
            Turn::Blocked | Turn::Busy { soon: true } => Verdict::Leave(Met::Held),
            Turn::Busy { soon: false } => Verdict::Leave(Met::Passed),
        })
    }
}
