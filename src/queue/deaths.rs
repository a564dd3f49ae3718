//! Deaths that a claim records: of messages that have no attempt left.

use crate::error::Error;
use crate::pg::read::fetch::ById;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{RowId, Table, Wait};
use crate::pg::value::datum::Time;
use crate::queue::key_release::{self, Ended, Tried};
use crate::tables::delivery::{Deliveries, Delivery};
use crate::tables::topic::TopicRules;
use std::collections::HashSet;

/// Deaths that are recorded though no lease needs it.
const AT_MOST: usize = 100;
/// Of so many that were met: others may be recording some.
const MET_AT_MOST: usize = 1000;

/// The deaths that one claim meets.
pub struct Deaths<'s> {
    deliveries: &'s Table<Deliveries>,
    snapshot: &'s Latest,
    now: Time,
    /// Messages that have no attempt left, and that nothing waits for.
    met: Vec<RowId>,
    /// Keys of which leases went back with a death that was recorded.
    sent_back: HashSet<Vec<u8>>,
    ended: Ended<'s>,
}

impl<'s> Deaths<'s> {
    pub fn new(deliveries: &'s Table<Deliveries>, snapshot: &'s Latest, now: Time) -> Self {
        let ended = Ended::new(deliveries);
        Deaths { deliveries, snapshot, now, met: Vec::new(), sent_back: HashSet::new(), ended }
    }

    /// A message has no attempt left. No lease needs that recorded.
    pub fn meet(&mut self, id: RowId) {
        if self.met.len() < MET_AT_MOST {
            self.met.push(id);
        }
    }

    /// Records that message `row` is `dead`.
    pub fn record(
        &mut self,
        id: RowId,
        row: &Delivery<'_>,
        dead: &Delivery<'_>,
        rules: &mut TopicRules<'_>,
    ) -> Tried<()> {
        let done =
            key_release::bury(self.deliveries, self.snapshot, id, row, dead, rules, &mut self.sent_back)?;
        if done.is_ok()
            && let Some(keyed) = row.keyed()
            && !rules.of(row.topic)?.blocks_when_dead()
        {
            self.ended.add(keyed, row.seq)?;
        }
        Ok(done)
    }

    /// Records that no attempt is left for a message.
    pub fn exhaust(&mut self, id: RowId, row: &Delivery<'_>, rules: &mut TopicRules<'_>) -> Tried<()> {
        let mut dead = *row;
        dead.die_exhausted(self.now);
        self.record(id, row, &dead, rules)
    }

    /// The same of a message as the snapshot has it.
    pub fn bury(&mut self, id: RowId, rules: &mut TopicRules<'_>) -> Tried<()> {
        let mut rows = ById::open(self.deliveries, self.snapshot);
        rows.find(id).map_or(Ok(Ok(())), |found| self.exhaust(id, &found.row, rules))
    }

    /// Records those met. False: some are left to a later sweep.
    pub fn bury_the_rest(&mut self, rules: &mut TopicRules<'_>, wrote: &mut bool) -> Result<bool, Error> {
        let (mut buried, mut all) = (0, true);
        for id in std::mem::take(&mut self.met) {
            if buried < AT_MOST && self.bury(id, rules)?.is_ok() {
                buried += 1;
                *wrote = true;
            } else {
                all = false;
            }
        }
        Ok(all)
    }

    /// What the dead stood before is due.
    pub fn finish(self) -> Result<(), Error> {
        self.ended.unblock(Wait::No)
    }
}
