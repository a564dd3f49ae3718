//! Rows written one by one as the executor writes them: with triggers, constraints and foreign keys.
//!
//! For tables that were given such things, see `shape.rs`. To triggers each call here is a statement of its own. A row
//! is locked first and without waiting if asked, so that the rest of its update or delete neither waits nor fails. A
//! trigger may see everything, but change only what nothing depends on ([`Write::FREE`]), and suppress nothing.

use crate::error::{Difference, Error};
use crate::pg::catalog;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::indexes::IndexMaintenance;
use crate::pg::rows::row::{RowKind, Unique, Write};
use crate::pg::rows::table::{Outcome, RowId, Table, Wait};
use crate::pg::version::{self, IndexUpdate};
use pgrx::pg_sys::{self, CmdType, varlena};
use std::ffi::CStr;
use std::ptr::null_mut;

/// A statement, from the triggers before it to those after it.
struct Statement<'t, R> {
    table: &'t Table<R>,
    maintenance: &'t IndexMaintenance,
    command: CmdType::Type,
    /// What triggers see of all its rows.
    capture: *mut pg_sys::TransitionCaptureState,
    /// To be current again.
    context: pg_sys::MemoryContext,
}

impl<R: Write> Table<R> {
    /// For rows of any kind, with triggers.
    fn maintenance_for_triggers(&self) -> &IndexMaintenance {
        self.maintenance[RowKind::COUNT].get_or_init(|| {
            self.allocating(|| IndexMaintenance::open_for_triggers(self.relation, R::UPDATED, self.arbiter))
        })
    }

    /// Ends with core's error if rows of the table cannot be updated, or deleted, because it is published.
    pub fn ask(&self, command: pg_sys::CmdType::Type) {
        if !self.asked[usize::from(command == pg_sys::CmdType::CMD_DELETE)].replace(true) {
            // SAFETY: the relation is open.
            unsafe { pg_sys::CheckCmdReplicaIdentity(self.relation, command) }
        }
    }
}

impl<R: Write> Table<R> {
    pub fn insert_as_executor(&self, rows: &[R::Row<'_>]) {
        // SAFETY: the slot has this table's shape.
        unsafe {
            let statement = Statement::begin(self, CmdType::CMD_INSERT, null_mut());
            for row in rows {
                self.fill(self.slot, row);
                statement.before_insert();
                let command = pg_sys::GetCurrentCommandId(true);
                pg_sys::table_tuple_insert(self.relation, self.slot, command, 0, null_mut());
                let again = statement.maintenance.enter_for_triggers(self.slot, &IndexUpdate::All, false);
                statement.after_insert(again);
            }
            statement.end();
        }
    }

    pub fn update_as_executor(&self, row: RowId, new: &R::Row<'_>, snapshot: &Latest, wait: Wait) -> Outcome {
        let maintenance = self.maintenance_for_triggers();
        // SAFETY: the row was found by a scan of this table, and is ours once locked; the slot has its shape.
        unsafe {
            let mode = pg_sys::ExecUpdateLockMode(maintenance.estate, maintenance.info);
            if let lost @ Outcome::Lost(_) = self.lock_for(row, mode, snapshot, wait) {
                return lost;
            }
            let statement = Statement::begin(self, CmdType::CMD_UPDATE, snapshot.as_ptr());
            let mut tid = row.0;
            self.fill(self.slot, new);
            statement.before_update(&mut tid);
            let command = (*maintenance.estate).es_output_cid;
            let (result, _, indexes) = version::table_tuple_update(
                self.relation,
                &mut tid,
                self.slot,
                command,
                snapshot.as_ptr(),
                true,
            );
            self.must_be_ours(result);
            let mut again = null_mut();
            if !matches!(indexes, IndexUpdate::None) {
                again = maintenance.enter_for_triggers(self.slot, &indexes, true);
            }
            let (estate, info) = (maintenance.estate, maintenance.info);
            version::after_update(estate, info, &mut tid, self.slot, again, statement.capture);
            statement.end();
        }
        Outcome::Done
    }

    pub fn delete_as_executor(&self, row: RowId, snapshot: &Latest, wait: Wait) -> Outcome {
        // SAFETY: the row was found by a scan of this table, and is ours once locked.
        unsafe {
            let mode = pg_sys::LockTupleMode::LockTupleExclusive;
            if let lost @ Outcome::Lost(_) = self.lock_for(row, mode, snapshot, wait) {
                return lost;
            }
            let statement = Statement::begin(self, CmdType::CMD_DELETE, snapshot.as_ptr());
            let mut tid = row.0;
            statement.before_delete(&mut tid);
            let (estate, info) = (statement.maintenance.estate, statement.maintenance.info);
            let mut failure = pg_sys::TM_FailureData::default();
            let result = pg_sys::table_tuple_delete(
                self.relation,
                &mut tid,
                (*estate).es_output_cid,
                snapshot.as_ptr(),
                null_mut(),
                true,
                &mut failure,
                false,
            );
            self.must_be_ours(result);
            version::after_delete(estate, info, &mut tid, statement.capture);
            statement.end();
        }
        Outcome::Done
    }

    /// A row that was locked can be lost to nobody but a trigger.
    fn must_be_ours(&self, result: pg_sys::TM_Result::Type) {
        if result != pg_sys::TM_Result::TM_Ok {
            self.refuse("A trigger has changed the row that it was called for.".into());
        }
    }

    /// Ends the statement: a trigger has done what none may.
    fn refuse(&self, what: String) -> ! {
        // SAFETY: the relation is open, and has the columns.
        let (name, free) = unsafe {
            let shape = (*self.relation).rd_att;
            let column = |place: &usize| name(&(*version::attribute(shape, *place as i32)).attname);
            let free: Vec<String> = R::FREE.iter().map(column).collect();
            (name(&(*(*self.relation).rd_rel).relname), free)
        };
        let cure = if free.is_empty() {
            "Triggers of this table may change nothing and suppress nothing.".into()
        } else {
            format!("Triggers of this table may change {} only, and suppress nothing.", free.join(", "))
        };
        Error::Shape(Difference { object: format!("{}.{name}", catalog::schema()), what, cure }).raise()
    }
}

impl<R: Unique> Table<R> {
    pub fn insert_new_as_executor(&self, row: &R::Row<'_>) -> bool {
        // SAFETY: the slot has this table's shape, and the indexes are open with the arbiter.
        unsafe {
            let statement = Statement::begin(self, CmdType::CMD_INSERT, null_mut());
            self.fill(self.slot, row);
            statement.before_insert();
            let (stored, again) = statement.maintenance.store_if_new(self.relation, self.slot);
            if stored {
                statement.after_insert(again);
            }
            statement.end();
            stored
        }
    }
}

impl<'t, R: Write> Statement<'t, R> {
    /// # Safety
    /// The snapshot, null for inserts, outlives the statement. The caller ends it.
    unsafe fn begin(table: &'t Table<R>, command: CmdType::Type, snapshot: pg_sys::Snapshot) -> Self {
        let maintenance = table.maintenance_for_triggers();
        let (estate, info) = (maintenance.estate, maintenance.info);
        // SAFETY: state and relation are open. What triggers prepare must last as long as the state.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*estate).es_query_cxt);
            (*estate).es_output_cid = pg_sys::GetCurrentCommandId(true);
            (*estate).es_snapshot = snapshot;
            pg_sys::AfterTriggerBeginQuery();
            let oid = (*table.relation).rd_id;
            let capture = pg_sys::MakeTransitionCaptureState((*info).ri_TrigDesc, oid, command);
            match command {
                CmdType::CMD_INSERT => pg_sys::ExecBSInsertTriggers(estate, info),
                CmdType::CMD_UPDATE => pg_sys::ExecBSUpdateTriggers(estate, info),
                _ => pg_sys::ExecBSDeleteTriggers(estate, info),
            }
            Statement { table, maintenance, command, capture, context }
        }
    }

    /// # Safety
    /// The table's slot holds the row.
    unsafe fn before_insert(&self) {
        let (estate, info) = (self.maintenance.estate, self.maintenance.info);
        // SAFETY: passed on to the caller.
        unsafe {
            if self.has(|triggers| triggers.trig_insert_before_row) {
                self.guarded(|slot| pg_sys::ExecBRInsertTriggers(estate, info, slot));
            }
            self.check_constraints();
        }
    }

    /// # Safety
    /// The table's slot holds the new row, and this transaction has locked the old one, at `tid`.
    unsafe fn before_update(&self, tid: &mut pg_sys::ItemPointerData) {
        let (estate, info) = (self.maintenance.estate, self.maintenance.info);
        let mut epq = pg_sys::EPQState::default();
        // SAFETY: passed on to the caller.
        unsafe {
            if self.has(|triggers| triggers.trig_update_before_row) {
                self.guarded(|slot| version::before_update(estate, &mut epq, info, tid, slot));
            }
            self.check_constraints();
        }
    }

    /// # Safety
    /// This transaction has locked the row at `tid`.
    unsafe fn before_delete(&self, tid: &mut pg_sys::ItemPointerData) {
        let (estate, info) = (self.maintenance.estate, self.maintenance.info);
        let mut epq = pg_sys::EPQState::default();
        // SAFETY: passed on to the caller.
        unsafe {
            if self.has(|triggers| triggers.trig_delete_before_row)
                && !version::before_delete(estate, &mut epq, info, tid)
            {
                self.table.refuse("A trigger has suppressed a row.".into());
            }
        }
    }

    /// # Safety
    /// The table's slot holds the row that was stored, `again` what its indexes have answered.
    unsafe fn after_insert(&self, again: *mut pg_sys::List) {
        // SAFETY: passed on to the caller; nothing of the row is used any more.
        unsafe {
            let (estate, info) = (self.maintenance.estate, self.maintenance.info);
            pg_sys::ExecARInsertTriggers(estate, info, self.table.slot, again, self.capture);
            self.maintenance.forget_row();
        }
    }

    /// # Safety
    /// All rows are written.
    unsafe fn end(self) {
        let (estate, info) = (self.maintenance.estate, self.maintenance.info);
        // SAFETY: passed on to the caller.
        unsafe {
            match self.command {
                CmdType::CMD_INSERT => pg_sys::ExecASInsertTriggers(estate, info, self.capture),
                CmdType::CMD_UPDATE => pg_sys::ExecASUpdateTriggers(estate, info, self.capture),
                _ => pg_sys::ExecASDeleteTriggers(estate, info, self.capture),
            }
            pg_sys::AfterTriggerEndQuery(estate);
            pg_sys::MemoryContextSwitchTo(self.context);
            self.maintenance.forget_row();
        }
    }

    fn has(&self, kind: impl Fn(&pg_sys::TriggerDesc) -> bool) -> bool {
        // SAFETY: null, or a description as long-lived as the state.
        unsafe { (*self.maintenance.info).ri_TrigDesc.as_ref() }.is_some_and(kind)
    }

    /// Calls triggers on the row in the table's slot, and sees to it that they leave it whole.
    ///
    /// # Safety
    /// The slot holds a row.
    unsafe fn guarded(&self, triggers: impl FnOnce(*mut pg_sys::TupleTableSlot) -> bool) {
        let slot = self.table.slot;
        // SAFETY: the copy is freed here; the slot holds a row of the same shape afterwards.
        unsafe {
            let before = pg_sys::ExecCopySlotHeapTuple(slot);
            if !triggers(slot) {
                self.table.refuse("A trigger has suppressed a row.".into());
            }
            pg_sys::slot_getallattrs(slot);
            let shape = (*slot).tts_tupleDescriptor;
            for place in (0..(*shape).natts as usize).filter(|place| !R::FREE.contains(place)) {
                let mut was_null = false;
                let was = pg_sys::heap_getattr(before, place as i32 + 1, shape, &mut was_null);
                let (is, is_null) = (*(*slot).tts_values.add(place), *(*slot).tts_isnull.add(place));
                let column = version::attribute(shape, place as i32);
                if was_null != is_null || (!is_null && !is_same(was, is, &*column)) {
                    let name = name(&(*column).attname);
                    self.table.refuse(format!("A trigger has changed column \"{name}\"."));
                }
            }
            pg_sys::heap_freetuple(before);
        }
    }

    /// # Safety
    /// The table's slot holds the row.
    unsafe fn check_constraints(&self) {
        let (estate, info, slot) = (self.maintenance.estate, self.maintenance.info, self.table.slot);
        // SAFETY: passed on to the caller; every table has a NOT NULL at least.
        unsafe {
            pg_sys::ExecConstraints(info, slot, estate);
            if (*(*self.table.relation).rd_rel).relispartition {
                pg_sys::ExecPartitionCheck(info, slot, estate, true);
            }
        }
    }
}

/// # Safety
/// Both are values of the column.
unsafe fn is_same(one: pg_sys::Datum, other: pg_sys::Datum, column: &pg_sys::FormData_pg_attribute) -> bool {
    if column.attbyval {
        return one.value() == other.value();
    }
    // SAFETY: a value of the column has the column's length, or one in its header, which is not compared.
    let bytes = |datum: pg_sys::Datum| unsafe {
        if let Ok(length) = usize::try_from(column.attlen) {
            return std::slice::from_raw_parts(datum.cast_mut_ptr::<u8>(), length);
        }
        let value: *mut varlena = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        std::slice::from_raw_parts(pgrx::vardata_any(value).cast::<u8>(), pgrx::varsize_any_exhdr(value))
    };
    bytes(one) == bytes(other)
}

fn name(name: &pg_sys::NameData) -> String {
    // SAFETY: names in the catalog end with a zero.
    unsafe { CStr::from_ptr(name.data.as_ptr()) }.to_string_lossy().into_owned()
}
