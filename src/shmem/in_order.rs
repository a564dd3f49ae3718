//! Deliveries in arrival order, from the low-water mark on.

use crate::error::Error;
use crate::pg::read::fetch::ById;
use crate::pg::read::scan::{Found, Scan};
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{RowId, Table};
use crate::pg::value::datum::Text;
use crate::shmem::low_water::{self, Known};
use crate::tables::delivery::Deliveries;
use std::rc::Rc;

/// Deliveries that are ready or leased, in arrival order: the survivors below the low-water mark, then the index. Of
/// all topics it brings others too.
pub struct InOrder<'t> {
    table: &'t Table<Deliveries>,
    snapshot: &'t Latest,
    topic: Option<Text<'t>>,
    start: i64,
    known: Rc<Known>,
    survivors: std::vec::IntoIter<(i64, RowId)>,
    by_id: ById<'t, Deliveries>,
    above: Scan<'t, Deliveries>,
}

impl<'t> InOrder<'t> {
    /// Those of `topic`, or of all, from number `start` on.
    pub fn from(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'t>>,
        start: i64,
    ) -> Result<Self, Error> {
        let mut scan = InOrder::open(table, snapshot, topic, start)?;
        scan.begin()?;
        Ok(scan)
    }

    /// The same; nothing is looked up before [`InOrder::begin`], so that what it costs can be told from opening.
    pub fn open(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'t>>,
        start: i64,
    ) -> Result<Self, Error> {
        let known = low_water::known()?;
        let above = Scan::above_mark(table, snapshot, topic, start.max(known.mark))?;
        let (survivors, by_id) = (Vec::new().into_iter(), ById::open(table, snapshot));
        Ok(InOrder { table, snapshot, topic, start, known, survivors, by_id, above })
    }

    pub fn begin(&mut self) -> Result<(), Error> {
        let survivors = self.known.ready_survivors(self.table, self.snapshot, self.topic, self.start)?;
        self.survivors = survivors.into_iter();
        Ok(())
    }

    pub fn next(&mut self) -> Option<Found<'_, Deliveries>> {
        match self.survivors.next() {
            Some((_, id)) => self.by_id.find(id), // the same snapshot has found it before
            None => self.above.next(),
        }
    }
}
