//! All versions of deliveries that an index leads to, and whether one may still come to count.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::datum::{Text, Time};
use crate::pg::scan::{Key, Scan};
use crate::pg::snapshot::Latest;
use crate::pg::table::Table;
use crate::tables::row::{Deliveries, Delivery};
use pgrx::pg_sys;

/// Versions in index order, also of rows that are gone and of transactions that are open or rolled back.
pub struct AllVersions<'t> {
    scan: Scan<'t, Deliveries>,
    table: &'t Table<Deliveries>,
    snapshot: &'t Latest,
}

impl<'t> AllVersions<'t> {
    fn open(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        index: Object,
        keys: usize,
    ) -> Result<Self, Error> {
        // SAFETY: this snapshot is one of the server's constants.
        let scan = unsafe { Scan::open_with(table, index, &raw mut pg_sys::SnapshotAnyData, keys)? };
        Ok(AllVersions { scan, table, snapshot })
    }

    /// Of deliveries from number `from` on.
    pub fn from_number(table: &'t Table<Deliveries>, snapshot: &'t Latest, from: i64) -> Result<Self, Error> {
        let mut versions = AllVersions::open(table, snapshot, Object::DeliveryPkey, 1)?;
        versions.scan.start([Key::new(1, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT8GE, &from)]);
        Ok(versions)
    }

    /// Of the delivery with that number.
    pub fn of_number(table: &'t Table<Deliveries>, snapshot: &'t Latest, number: i64) -> Result<Self, Error> {
        let mut versions = AllVersions::open(table, snapshot, Object::DeliveryPkey, 1)?;
        versions.scan.start([Key::new(1, pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ, &number)]);
        Ok(versions)
    }

    /// Of deliveries that wait for a time from `from` on, in that order; of `topic`, or of all.
    pub fn waiting(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'_>>,
        from: Time,
    ) -> Result<Self, Error> {
        let since =
            |column| Key::new(column, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_TIMESTAMPTZ_GE, &from);
        Ok(match topic {
            Some(topic) => {
                let mut versions = AllVersions::open(table, snapshot, Object::DeliveryWaitingTopic, 2)?;
                versions.scan.start([Key::text(1, &topic), since(2)]);
                versions
            }
            None => {
                let mut versions = AllVersions::open(table, snapshot, Object::DeliveryWaiting, 1)?;
                versions.scan.start([since(1)]);
                versions
            }
        })
    }

    /// Of deliveries of a key, by its hash, from number `from` on.
    pub fn of_key(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        index: Object,
        hash: i64,
        from: i64,
    ) -> Result<Self, Error> {
        let mut versions = AllVersions::open(table, snapshot, index, 2)?;
        versions.scan.start([
            Key::new(1, pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ, &hash),
            Key::new(2, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT8GE, &from),
        ]);
        Ok(versions)
    }

    pub fn next(&mut self) -> Option<Delivery<'_>> {
        self.scan.next().map(|found| found.row)
    }

    /// True if one of them may live and is `wanted`.
    pub fn any(&mut self, wanted: impl Fn(&Delivery<'_>) -> bool) -> bool {
        while let Some(row) = self.next() {
            if wanted(&row) && self.may_live() {
                return true;
            }
        }
        false
    }

    /// False if the version last read is over for good: its transaction was rolled back, or one that was over when the
    /// snapshot was taken has replaced or removed it.
    pub fn may_live(&self) -> bool {
        let slot = self.scan.slot();
        // SAFETY: the slot holds a version of this table's row, pinned; its header is read under the pin, and what
        // changes there meanwhile belongs to transactions that were not over at the snapshot.
        unsafe {
            if pg_sys::table_tuple_satisfies_snapshot(self.table.relation(), slot, self.snapshot.as_ptr()) {
                return true;
            }
            let mut copied = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut copied);
            let header = (*tuple).t_data;
            let infomask = u32::from((*header).t_infomask);
            let xmin = (*header).t_choice.t_heap.t_xmin;
            if infomask & pg_sys::HEAP_XMIN_FROZEN != pg_sys::HEAP_XMIN_FROZEN {
                if pg_sys::TransactionIdIsCurrentTransactionId(xmin) {
                    return true;
                }
                if pg_sys::XidInMVCCSnapshot(xmin, self.snapshot.as_ptr()) {
                    return !pg_sys::TransactionIdDidAbort(xmin);
                }
            }
            let xmax = if infomask & pg_sys::HEAP_XMAX_IS_MULTI != 0 {
                pg_sys::HeapTupleGetUpdateXid(header)
            } else {
                (*header).t_choice.t_heap.t_xmax
            };
            pg_sys::TransactionIdIsCurrentTransactionId(xmax)
        }
    }
}
