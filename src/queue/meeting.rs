//! What a claim can do with a message it has met.

use crate::pg::rows::table::{RowId, Xid};
use crate::queue::candidates::From;
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

    pub fn is_given_back(&self) -> bool {
        matches!(self.from, From::GivenBack)
    }
}

/// What is to be done with it.
pub enum Verdict {
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
    /// Not to be had, and no other session changes that: it stays as it is, is parked, or dies.
    Passed,
    /// Claimable, but not now: it must stay reachable.
    Held,
}

/// Of a message that transaction `xid` keeps from being had.
pub fn held(scan_start: &ScanStart, xid: Xid) -> Met {
    if scan_start.is_held_by(xid) { Met::Held } else { Met::Passed }
}
