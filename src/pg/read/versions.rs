//! Rows as no snapshot has them: all versions that an index leads to, or those of this moment.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan::Scan;
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::{Dirty, Latest};
use crate::pg::rows::row::Read;
use crate::pg::rows::table::{RowId, Table, Xid};
use pgrx::pg_sys;

/// Versions in index order, also of rows that are gone and of transactions that are open or rolled back.
pub struct AllVersions<'t, R> {
    scan: Scan<'t, R>,
    table: &'t Table<R>,
    snapshot: &'t Latest,
}

impl<'t, R: Read> AllVersions<'t, R> {
    pub fn open(
        table: &'t Table<R>,
        snapshot: &'t Latest,
        index: Object,
        keys: usize,
    ) -> Result<Self, Error> {
        // SAFETY: this snapshot is one of the server's constants.
        let scan = unsafe { Scan::open_with(table, index, &raw mut pg_sys::SnapshotAnyData, keys)? };
        Ok(AllVersions { scan, table, snapshot })
    }

    pub fn start<const N: usize>(&mut self, keys: [Key; N]) {
        self.scan.start(keys);
    }

    pub fn next(&mut self) -> Option<R::Row<'_>> {
        self.scan.next().map(|found| found.row)
    }

    /// True if one of them may live and is `wanted`.
    pub fn any(&mut self, wanted: impl Fn(&R::Row<'_>) -> bool) -> bool {
        loop {
            let is_wanted = match self.next() {
                Some(row) => wanted(&row),
                None => return false,
            };
            if is_wanted && self.may_live() {
                return true;
            }
        }
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

/// Rows as they are at this moment. One that a transaction is changing comes once as it was and once as it will be;
/// one that changes while the scan passes may not come at all.
pub struct DirtyScan<'t, R> {
    pub scan: Scan<'t, R>,
    snapshot: Dirty,
}

/// A version of a row at this moment.
pub struct Version<'s, R: Read> {
    pub id: RowId,
    pub row: R::Row<'s>,
    /// The other open transaction that has written it.
    pub written_by: Option<Xid>,
    /// The other open transaction that has replaced or removed it.
    pub ended_by: Option<Xid>,
}

impl<R: Read> Version<'_, R> {
    /// True if no open transaction has anything to do with it.
    pub fn is_settled(&self) -> bool {
        self.written_by.is_none() && self.ended_by.is_none()
    }
}

impl<'t, R: Read> DirtyScan<'t, R> {
    pub fn open(table: &'t Table<R>, index: Object, keys: usize) -> Result<Self, Error> {
        let snapshot = Dirty::new();
        // SAFETY: the snapshot is dropped after the scan.
        let scan = unsafe { Scan::open_with(table, index, snapshot.as_ptr(), keys)? };
        Ok(DirtyScan { scan, snapshot })
    }

    /// The version that the scan is at.
    pub fn version(&self) -> Version<'_, R> {
        let found = self.scan.found();
        let (written_by, mut ended_by) = self.snapshot.in_progress();
        if written_by.is_some() {
            ended_by = self.scan.ended_by();
        }
        Version { id: found.id, row: found.row, written_by, ended_by }
    }
}
