//! One open table: insert, insert many, insert unless there, update, delete.
//!
//! The table stays locked until the transaction ends, as after any SELECT (AccessShareLock), INSERT or UPDATE
//! (RowExclusiveLock), but for [`Table::release`].
//!
//! Nobody has a lock on any of the tables without one on the first. So DROP EXTENSION, the ALTER TABLEs of
//! an update or a TRUNCATE that names the tables in this order waits there, and not in a circle with a transaction that
//! uses several.

use crate::error::Error;
use crate::pg::catalog::{self, Catalog};
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::indexes::IndexMaintenance;
use crate::pg::rows::row::{FieldsMut, RowKind, TableShape, Unique, Write};
use crate::pg::rows::shape;
pub use crate::pg::rows::usage::Access;
pub use crate::pg::rows::usage::Against;
pub use crate::pg::rows::usage::Outcome;
pub use crate::pg::rows::usage::RowId;
pub use crate::pg::rows::usage::Wait;
pub use crate::pg::rows::usage::Xid;
use crate::pg::version::{self, IndexUpdate};
use pgrx::pg_sys;
use std::cell::{Cell, OnceCell, RefCell};
use std::marker::PhantomData;

/// Rows that one call of `heap_multi_insert` takes: enough to fill many pages, few enough to hold in memory.
const ROWS_AT_ONCE: usize = 1_000;

pub struct Table<R> {
    pub relation: pg_sys::Relation,
    /// Rows are written as the executor writes them, see `executor.rs`.
    changed: bool,
    /// Whether core has been asked if rows may be updated, and deleted: not if the table is published without a key.
    pub asked: [Cell<bool>; 2],
    pub catalog: Catalog,
    access: Access,
    /// The index that [`Table::insert_new`] asks.
    pub arbiter: Option<pg_sys::Oid>,
    /// What to unlock when it is closed.
    lock: u32,
    /// What is allocated for it lasts as long as it does, for any caller.
    context: pg_sys::MemoryContext,
    pub slot: *mut pg_sys::TupleTableSlot,
    /// Values and null flags of the row being formed, as many as the table has columns.
    fields: RefCell<(Vec<pg_sys::Datum>, Vec<bool>)>,
    /// By kind, and one for tables without.
    pub maintenance: [OnceCell<IndexMaintenance>; RowKind::COUNT + 1],
    rows: PhantomData<R>,
}

impl<R: TableShape> Table<R> {
    /// Opens the table and locks it as SELECT or INSERT would.
    ///
    /// # Errors
    /// [`Error::Version`], see [`catalog::oid`], and if the extension was dropped just now; [`Error::Shape`].
    pub fn open(access: Access) -> Result<Self, Error> {
        let (relation, changed, catalog) = loop {
            let catalog = catalog::catalog()?;
            let (oid, first) = (catalog.oid(R::TABLE), catalog.first());
            // SAFETY: locks and opens a relation. With the lock comes what has changed during the wait.
            unsafe {
                if oid != first {
                    pg_sys::LockRelationOid(first, pg_sys::AccessShareLock as i32);
                }
                let relation = pg_sys::try_table_open(oid, access.lock() as i32);
                let changed = match relation.is_null() {
                    true => Err(Error::Version(None)),
                    false => shape::is_changed(R::TABLE, relation, &catalog),
                };
                if catalog.is_current() {
                    break (relation, changed?, catalog);
                }
                if !relation.is_null() {
                    pg_sys::table_close(relation, pg_sys::NoLock as i32);
                }
            }
        };
        // SAFETY: the relation is open; the slot is freed on drop, or by the abort.
        let (slot, width) = unsafe {
            let shape = (*relation).rd_att;
            let slot = pg_sys::MakeSingleTupleTableSlot(shape, &raw const pg_sys::TTSOpsHeapTuple);
            (slot, (*shape).natts as usize)
        };
        Ok(Table {
            relation,
            changed,
            asked: [const { Cell::new(false) }; 2],
            catalog,
            access,
            arbiter: None,
            lock: pg_sys::NoLock,
            // SAFETY: reads where the caller allocates.
            context: unsafe { pg_sys::CurrentMemoryContext },
            slot,
            fields: RefCell::new((vec![pg_sys::Datum::null(); width], vec![true; width])),
            maintenance: [const { OnceCell::new() }; RowKind::COUNT + 1],
            rows: PhantomData,
        })
    }

    /// Closes the table as if it had not been opened: a lock that only this call took is released. For tables that were
    /// only read from.
    pub fn release(mut self) {
        self.lock = self.access.lock();
    }

    /// True if it has no rows, and had none since it was last emptied. What a snapshot sees has had its page before.
    pub fn has_no_pages(&self) -> bool {
        // SAFETY: the relation is open.
        unsafe {
            pg_sys::RelationGetNumberOfBlocksInFork(self.relation, pg_sys::ForkNumber::MAIN_FORKNUM) == 0
        }
    }

    pub fn owner(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.relation).rd_rel).relowner }
    }

    pub fn relation(&self) -> pg_sys::Relation {
        self.relation
    }

    /// Where the row is that was last stored or updated.
    pub fn last(&self) -> RowId {
        // SAFETY: storing and updating leave the row's place in the slot.
        RowId(unsafe { (*self.slot).tts_tid })
    }

    /// Does something that allocates what the table keeps.
    pub fn allocating<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the context is that in which the table was opened; an error leaves it to the abort.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo(self.context);
            let done = work();
            pg_sys::MemoryContextSwitchTo(context);
            done
        }
    }
}

impl<R: Write> Table<R> {
    fn maintenance(&self, kind: Option<RowKind>) -> &IndexMaintenance {
        self.maintenance[kind.map_or(RowKind::COUNT, |kind| kind.0.into())].get_or_init(|| {
            self.allocating(|| {
                IndexMaintenance::open(self.relation, &self.catalog, R::PARTIAL, kind, self.arbiter)
            })
        })
    }

    /// Stores a row and enters it into every index.
    pub fn insert(&self, row: &R::Row<'_>) {
        if self.changed {
            return self.insert_as_executor(std::slice::from_ref(row));
        }
        // SAFETY: the slot has this table's shape; options and bulk state are the defaults.
        unsafe {
            self.fill(self.slot, row);
            pg_sys::table_tuple_insert(
                self.relation,
                self.slot,
                pg_sys::GetCurrentCommandId(true),
                0,
                std::ptr::null_mut(),
            );
            self.maintenance(R::kind(row)).enter(self.slot, &IndexUpdate::All, false);
        }
    }

    /// Stores many rows, page by page instead of row by row.
    pub fn insert_all(&self, rows: &[R::Row<'_>]) {
        if self.changed {
            return self.insert_as_executor(rows);
        }
        if let [row] = rows {
            return self.insert(row);
        }
        for rows in rows.chunks(ROWS_AT_ONCE) {
            // SAFETY: every slot has this table's shape, is filled from a row that lives on, and is dropped here.
            unsafe {
                let mut slots: Vec<*mut pg_sys::TupleTableSlot> = rows
                    .iter()
                    .map(|row| {
                        let slot = pg_sys::MakeSingleTupleTableSlot(
                            (*self.relation).rd_att,
                            &raw const pg_sys::TTSOpsHeapTuple,
                        );
                        self.fill(slot, row);
                        slot
                    })
                    .collect();
                let bulk = pg_sys::GetBulkInsertState();
                pg_sys::table_multi_insert(
                    self.relation,
                    slots.as_mut_ptr(),
                    slots.len() as i32,
                    pg_sys::GetCurrentCommandId(true),
                    0,
                    bulk,
                );
                pg_sys::FreeBulkInsertState(bulk);
                for (slot, row) in slots.into_iter().zip(rows) {
                    self.maintenance(R::kind(row)).enter(slot, &IndexUpdate::All, false);
                    pg_sys::ExecDropSingleTupleTableSlot(slot);
                }
            }
        }
    }

    /// Replaces a row found by a scan. With `Wait::No` a row that another transaction is changing is left alone.
    pub fn update(&self, row: RowId, new: &R::Row<'_>, snapshot: &Latest, wait: Wait) -> Outcome {
        self.ask(pg_sys::CmdType::CMD_UPDATE);
        let outcome = self.try_update(row, new, snapshot, wait);
        match outcome {
            // Without waiting, the server calls a row lost that only this transaction has locked. Locked, it is ours.
            Outcome::Lost(xid)
                if wait == Wait::No
                    && is_own(xid)
                    && self.lock(row, Against::Everybody, snapshot, Wait::No) == Outcome::Done =>
            {
                self.try_update(row, new, snapshot, Wait::Yes)
            }
            outcome => outcome,
        }
    }

    fn try_update(&self, row: RowId, new: &R::Row<'_>, snapshot: &Latest, wait: Wait) -> Outcome {
        if self.changed {
            return self.update_as_executor(row, new, snapshot, wait);
        }
        let mut tid = row.0;
        // SAFETY: the row was found by a scan of this table; the slot has its shape.
        unsafe {
            self.fill(self.slot, new);
            let (result, failure, indexes) = version::table_tuple_update(
                self.relation,
                &mut tid,
                self.slot,
                pg_sys::GetCurrentCommandId(true),
                snapshot.as_ptr(),
                wait == Wait::Yes,
            );
            if result == pg_sys::TM_Result::TM_Ok && !matches!(indexes, IndexUpdate::None) {
                self.maintenance(R::kind(new)).enter(self.slot, &indexes, true);
            }
            outcome(result, &failure)
        }
    }

    /// Deletes a row.
    pub fn delete(&self, row: RowId, snapshot: &Latest, wait: Wait) -> Outcome {
        self.ask(pg_sys::CmdType::CMD_DELETE);
        if self.changed {
            return self.delete_as_executor(row, snapshot, wait);
        }
        let mut tid = row.0;
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the row was found by a scan of this table; index entries of a deleted row are left to vacuum.
        let result = unsafe {
            pg_sys::table_tuple_delete(
                self.relation,
                &mut tid,
                pg_sys::GetCurrentCommandId(true),
                snapshot.as_ptr(),
                std::ptr::null_mut(),
                wait == Wait::Yes,
                &mut failure,
                false,
            )
        };
        outcome(result, &failure)
    }

    /// Puts a row into a slot, as a tuple that is formed once: from a virtual slot everything would be copied twice.
    ///
    /// # Safety
    /// `slot` has this table's shape and is for heap tuples.
    pub unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot, row: &R::Row<'_>) {
        let mut fields = self.fields.borrow_mut();
        let (values, nulls) = &mut *fields;
        R::write(row, &mut FieldsMut { values, nulls, place: 0 });
        // SAFETY: R writes the table's columns in order, others are null; the slot frees the tuple.
        unsafe {
            let shape = (*self.relation).rd_att;
            let form = || pg_sys::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            let tuple = self.allocating(form);
            pg_sys::ExecStoreHeapTuple(tuple, slot, true);
        }
    }
}

impl<R: Unique> Table<R> {
    /// Opens the table for [`Table::insert_new`] too.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn open_for_new() -> Result<Self, Error> {
        let mut table = Table::open(Access::Write)?;
        table.arbiter = Some(table.catalog.oid(R::ARBITER));
        Ok(table)
    }

    /// Stores a row unless the arbiter index already has it. Waits for another transaction that is storing the same
    /// row: committed means false, rolled back means it is stored here. The table was opened for it.
    pub fn insert_new(&self, row: &R::Row<'_>) -> bool {
        if self.changed {
            return self.insert_new_as_executor(row);
        }
        let maintenance = self.maintenance(R::kind(row));
        // SAFETY: the slot has this table's shape, and the indexes are open with the arbiter.
        unsafe {
            self.fill(self.slot, row);
            let (stored, _) = maintenance.store_if_new(self.relation, self.slot);
            maintenance.forget_row();
            stored
        }
    }
}

/// True if `xid` is of this transaction.
pub fn is_own(xid: pg_sys::TransactionId) -> bool {
    // SAFETY: compares it with numbers of this session.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(xid) }
}

pub fn outcome(result: pg_sys::TM_Result::Type, failure: &pg_sys::TM_FailureData) -> Outcome {
    if result == pg_sys::TM_Result::TM_Ok { Outcome::Done } else { Outcome::Lost(failure.xmax) }
}

impl<R> Drop for Table<R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: everything was opened by us and is used by nobody else.
        unsafe {
            let (oid, first) = ((*self.relation).rd_id, self.catalog.first());
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::table_close(self.relation, self.lock as i32);
            if self.lock != pg_sys::NoLock && oid != first {
                pg_sys::UnlockRelationOid(first, pg_sys::AccessShareLock as i32);
            }
        }
    }
}
