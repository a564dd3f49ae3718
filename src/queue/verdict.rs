//! What a claim does with a message it has met: one verdict for each.

use crate::error::Error;
use crate::pg::rows::table::RowId;
use crate::queue::batch::Batch;
use crate::queue::candidates::From;
use crate::queue::key::Turn;
use crate::queue::key_release;
use crate::queue::meeting::{Meeting, Met, Verdict, held};
use crate::settings;
use crate::shmem::floor::ScanStart;
use crate::tables::delivery::Delivery;

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
