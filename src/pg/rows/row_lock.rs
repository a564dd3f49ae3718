//! Locking rows, and who has locked them.

use crate::pg::read::snapshot::Latest;
use crate::pg::rows::row::TableShape;
use crate::pg::rows::table::{Against, Outcome, RowId, Table, Wait, Xid, is_own, outcome};
use pgrx::pg_sys;

impl<R: TableShape> Table<R> {
    /// Locks a row found by a scan, as it is, until the transaction ends.
    pub fn lock(&self, row: RowId, against: Against, snapshot: &Latest, wait: Wait) -> Outcome {
        let mode = match against {
            Against::Change => pg_sys::LockTupleMode::LockTupleShare,
            Against::Everybody => pg_sys::LockTupleMode::LockTupleExclusive,
        };
        self.lock_for(row, mode, snapshot, wait)
    }

    pub fn lock_for(
        &self,
        row: RowId,
        mode: pg_sys::LockTupleMode::Type,
        snapshot: &Latest,
        wait: Wait,
    ) -> Outcome {
        let mut tid = row.0;
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the row was found by a scan of this table; the slot is of its kind and dropped here.
        let result = unsafe {
            let slot = pg_sys::table_slot_create(self.relation, std::ptr::null_mut());
            let result = pg_sys::table_tuple_lock(
                self.relation,
                &mut tid,
                snapshot.as_ptr(),
                slot,
                pg_sys::GetCurrentCommandId(true),
                mode,
                match wait {
                    Wait::No => pg_sys::LockWaitPolicy::LockWaitSkip,
                    Wait::Yes => pg_sys::LockWaitPolicy::LockWaitBlock,
                },
                0,
                &mut failure,
            );
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            result
        };
        outcome(result, &failure)
    }

    /// The other open transaction that is changing the row or has locked it.
    pub fn held_by(&self, row: RowId) -> Option<Xid> {
        let mut tid = row.0;
        let mut dirty = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..pg_sys::SnapshotData::default()
        };
        // SAFETY: the row was found by a scan of this table; a dirty look at it says who is changing it. The slot holds
        // it, pinned, and is of a heap's kind; its header is read under the buffer's lock.
        unsafe {
            let slot = pg_sys::table_slot_create(self.relation, std::ptr::null_mut());
            let there = pg_sys::table_tuple_fetch_row_version(self.relation, &mut tid, &mut dirty, slot);
            let ended_by = if there && dirty.xmax == pg_sys::InvalidTransactionId {
                let slot: *mut pg_sys::BufferHeapTupleTableSlot = slot.cast();
                let header = (*(*slot).base.tuple).t_data;
                pg_sys::LockBuffer((*slot).buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                let (flags, by) = (u32::from((*header).t_infomask), (*header).t_choice.t_heap.t_xmax);
                pg_sys::LockBuffer((*slot).buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
                let is_locked = match flags & pg_sys::HEAP_XMAX_INVALID != 0 {
                    true => false,
                    false if flags & pg_sys::HEAP_XMAX_IS_MULTI != 0 => {
                        pg_sys::MultiXactIdIsRunning(by.into_inner().into(), true)
                    }
                    false => pg_sys::TransactionIdIsInProgress(by) && !is_own(by),
                };
                is_locked.then_some(by)
            } else {
                Some(dirty.xmax)
            };
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            ended_by
        }
    }
}
