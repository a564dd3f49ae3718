//! Single rows by where they are.

use crate::pg::read::scan::Found;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::row::{Fields, Read};
use crate::pg::rows::table::{RowId, Table};
use pgrx::pg_sys;
use std::marker::PhantomData;

/// Rows by where they are.
pub struct ById<'t, R> {
    table: &'t Table<R>,
    snapshot: &'t Latest,
    slot: *mut pg_sys::TupleTableSlot,
}

impl<'t, R: Read> ById<'t, R> {
    pub fn open(table: &'t Table<R>, snapshot: &'t Latest) -> Self {
        // SAFETY: the slot is freed on drop, or by the abort.
        let slot = unsafe { pg_sys::table_slot_create(table.relation(), std::ptr::null_mut()) };
        ById { table, snapshot, slot }
    }

    /// The row at `id`, if the snapshot has it.
    pub fn find(&mut self, id: RowId) -> Option<Found<'_, R>> {
        let mut tid = id.0;
        // SAFETY: `id` is from this table, and what a snapshot has seen there is not removed while it is held; the
        // slot holds the row, pinned, until the next one is asked for.
        unsafe {
            let relation = self.table.relation();
            if !pg_sys::table_tuple_fetch_row_version(relation, &mut tid, self.snapshot.as_ptr(), self.slot) {
                return None;
            }
            pg_sys::slot_getallattrs(self.slot);
            let fields =
                Fields { values: (*self.slot).tts_values, nulls: (*self.slot).tts_isnull, row: PhantomData };
            Some(Found { id, row: R::read(&fields) })
        }
    }
}

impl<R> Drop for ById<'_, R> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: created by us and used by nobody else.
            unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.slot) }
        }
    }
}
