//! Keeping all indexes of a table, ours or not.
//!
//! Of the extension's own partial indexes it is known whether a row belongs into them. Those it does not belong into
//! are not even opened, and the predicate of the others is not evaluated: together a sixth of an append.

use crate::pg::catalog::Catalog;
use crate::pg::rows::row::{Partial, RowKind};
use crate::pg::version::{self, IndexUpdate};
use pgrx::pg_sys;
use std::cell::Cell;

/// The indexes that rows of one kind go into, open, and the executor's state for entering rows.
pub struct IndexMaintenance {
    pub estate: *mut pg_sys::EState,
    /// False if the state is the session's.
    owns_estate: bool,
    pub info: *mut pg_sys::ResultRelInfo,
    /// The unique indexes that decide whether a row is new.
    arbiters: *mut pg_sys::List,
}

/// The session's executor state: making one and freeing it costs an append a twentieth. What a row's entries allocate
/// in it is freed row by row, but expressions prepared in it would stay; so indexes that have any get a state of their
/// own.
fn session_estate() -> *mut pg_sys::EState {
    thread_local! { static ESTATE: Cell<*mut pg_sys::EState> = const { Cell::new(std::ptr::null_mut()) } }
    if ESTATE.get().is_null() {
        // SAFETY: the top memory context lives as long as the session.
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            ESTATE.set(pg_sys::CreateExecutorState());
            pg_sys::MemoryContextSwitchTo(context);
        }
    }
    ESTATE.get()
}

impl IndexMaintenance {
    /// Opens the indexes of `relation` for rows of `kind`; `arbiter` is for speculative insertion.
    pub fn open(
        relation: pg_sys::Relation,
        catalog: &Catalog,
        partial: &[Partial],
        kind: Option<RowKind>,
        arbiter: Option<pg_sys::Oid>,
    ) -> Self {
        let holds = |index: &Partial| kind.is_some_and(|kind| index.kinds & kind.bit() != 0);
        let known: Vec<_> = partial.iter().map(|index| (catalog.oid(index.index), holds(index))).collect();
        // SAFETY: executor state and open indexes are released on drop, or by the abort.
        unsafe {
            let info = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, relation, 0, std::ptr::null_mut(), 0);
            let owns_estate = open_indexes(info, &known);
            let estate = if owns_estate { pg_sys::CreateExecutorState() } else { session_estate() };
            IndexMaintenance { estate, owns_estate, info, arbiters: arbiters(info, arbiter) }
        }
    }

    /// Opens all indexes for rows of any kind, and prepares for triggers and constraints.
    /// An update names all columns but the first.
    pub fn open_for_triggers(
        relation: pg_sys::Relation,
        is_updated: bool,
        arbiter: Option<pg_sys::Oid>,
    ) -> Self {
        // SAFETY: as in `open`; what the executor needs is allocated in its state's memory.
        unsafe {
            let estate = pg_sys::CreateExecutorState();
            let context = pg_sys::MemoryContextSwitchTo((*estate).es_query_cxt);
            let column = |number: i32| number - pg_sys::FirstLowInvalidHeapAttributeNumber;
            let last = column((*(*relation).rd_att).natts);
            let mut updated = std::ptr::null_mut();
            if is_updated {
                updated = pg_sys::bms_add_range(updated, column(2), last);
            }
            version::init_range_table(estate, relation, updated);
            let info = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, relation, 1, std::ptr::null_mut(), 0);
            open_indexes(info, &[]);
            (*estate).es_opened_result_relations =
                pg_sys::lappend((*estate).es_opened_result_relations, info.cast());
            let arbiters = arbiters(info, arbiter);
            pg_sys::MemoryContextSwitchTo(context);
            IndexMaintenance { estate, owns_estate: true, info, arbiters }
        }
    }

    /// Enters a row into the indexes.
    ///
    /// # Safety
    /// `slot` holds a row just stored in, or updated to, the table.
    pub unsafe fn enter(&self, slot: *mut pg_sys::TupleTableSlot, update: &IndexUpdate, updating: bool) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.enter_for_triggers(slot, update, updating);
            self.forget_row();
        }
    }

    /// As [`IndexMaintenance::enter`]; returns the indexes that a trigger must look at again.
    ///
    /// # Safety
    /// As [`IndexMaintenance::enter`]; the caller forgets the row.
    pub unsafe fn enter_for_triggers(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        update: &IndexUpdate,
        updating: bool,
    ) -> *mut pg_sys::List {
        let none = std::ptr::null_mut();
        // SAFETY: passed on to the caller.
        unsafe { version::insert_index_tuples(self.info, slot, self.estate, update, updating, none).1 }
    }

    /// Stores a row unless the arbiter indexes have one like it: the protocol of speculative insertion. Returns whether
    /// it is stored, and the indexes that a trigger must look at again.
    ///
    /// # Safety
    /// `slot` holds a row for the table; the indexes were opened with an arbiter; the caller forgets the row.
    pub unsafe fn store_if_new(
        &self,
        relation: pg_sys::Relation,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> (bool, *mut pg_sys::List) {
        // SAFETY: check, insert with a token, enter the indexes, confirm or take back, release the token.
        unsafe {
            loop {
                crate::pg::session::server::check_for_interrupts();
                if !version::check_index_constraints(self.info, slot, self.estate, self.arbiters) {
                    return (false, std::ptr::null_mut());
                }
                let xid = pg_sys::GetCurrentTransactionId();
                let token = pg_sys::SpeculativeInsertionLockAcquire(xid);
                let command = pg_sys::GetCurrentCommandId(true);
                let none = std::ptr::null_mut();
                pg_sys::table_tuple_insert_speculative(relation, slot, command, 0, none, token);
                let all = IndexUpdate::All;
                let (conflict, again) =
                    version::insert_index_tuples(self.info, slot, self.estate, &all, false, self.arbiters);
                pg_sys::table_tuple_complete_speculative(relation, slot, token, !conflict);
                pg_sys::SpeculativeInsertionLockRelease(xid);
                if !conflict {
                    return (true, again);
                }
            }
        }
    }

    /// # Safety
    /// Nothing that was allocated for the last row's index entries is used any more.
    pub unsafe fn forget_row(&self) {
        // SAFETY: the context belongs to our executor state and exists once an index was entered.
        unsafe {
            let context = (*self.estate).es_per_tuple_exprcontext;
            if !context.is_null() {
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            }
        }
    }
}

impl Drop for IndexMaintenance {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: everything was opened by us and is used by nobody else.
            unsafe {
                if (*self.estate).es_opened_result_relations.is_null() {
                    pg_sys::ExecCloseIndices(self.info);
                } else {
                    // What triggers have looked at, and those of cascades too.
                    pg_sys::ExecResetTupleTable((*self.estate).es_tupleTable, false);
                    pg_sys::ExecCloseResultRelations(self.estate);
                }
                if self.owns_estate {
                    pg_sys::FreeExecutorState(self.estate);
                }
            }
        }
    }
}

/// Opens the indexes of a table, but for those known to hold no such rows. True if some have expressions or predicates
/// to be evaluated.
///
/// # Safety
/// `info` is new, and its relation is open.
unsafe fn open_indexes(info: *mut pg_sys::ResultRelInfo, known: &[(pg_sys::Oid, bool)]) -> bool {
    // SAFETY: the arrays are as long as the list, and the entries before `ri_NumIndices` are filled.
    unsafe {
        let mut has_expressions = false;
        let list = pg_sys::RelationGetIndexList((*info).ri_RelationDesc);
        let length = if list.is_null() { 0 } else { (*list).length as usize };
        let room = length.max(1) * size_of::<*mut std::ffi::c_void>();
        (*info).ri_IndexRelationDescs = pg_sys::palloc(room).cast();
        (*info).ri_IndexRelationInfo = pg_sys::palloc(room).cast();
        for cell in 0..length {
            let oid = (*(*list).elements.add(cell)).oid_value;
            let belongs = known.iter().find(|(index, _)| *index == oid).map(|(_, belongs)| *belongs);
            if belongs == Some(false) {
                continue;
            }
            let index = pg_sys::index_open(oid, pg_sys::RowExclusiveLock as i32);
            let index_info = pg_sys::BuildIndexInfo(index);
            if belongs == Some(true) {
                (*index_info).ii_Predicate = std::ptr::null_mut();
            }
            has_expressions |=
                !(*index_info).ii_Expressions.is_null() || !(*index_info).ii_Predicate.is_null();
            let place = (*info).ri_NumIndices as usize;
            *(*info).ri_IndexRelationDescs.add(place) = index;
            *(*info).ri_IndexRelationInfo.add(place) = index_info;
            (*info).ri_NumIndices += 1;
        }
        has_expressions
    }
}

/// Prepares `arbiter`, and each other index that is unique on the same columns, for speculative insertion: one that a
/// REINDEX CONCURRENTLY is building, or has left behind, decides too.
///
/// # Safety
/// The indexes of `info` are open.
unsafe fn arbiters(info: *mut pg_sys::ResultRelInfo, arbiter: Option<pg_sys::Oid>) -> *mut pg_sys::List {
    let mut list = std::ptr::null_mut();
    let Some(arbiter) = arbiter else { return list };
    // SAFETY: the arrays have `ri_NumIndices` entries, an index at most 32 columns.
    unsafe {
        let all = || {
            (0..(*info).ri_NumIndices as usize).map(|place| {
                (*(*info).ri_IndexRelationDescs.add(place), *(*info).ri_IndexRelationInfo.add(place))
            })
        };
        let columns = |info: *mut pg_sys::IndexInfo| {
            let info = &*info;
            let mut columns = info.ii_IndexAttrNumbers[..info.ii_NumIndexKeyAttrs as usize].to_vec();
            columns.sort_unstable();
            columns
        };
        let of_arbiter = all().find(|(index, _)| (**index).rd_id == arbiter).map(|(_, info)| columns(info));
        for (index, info) in all() {
            let decides = (*info).ii_Unique
                && (*info).ii_ReadyForInserts
                && (*(*index).rd_index).indimmediate
                && (*info).ii_Predicate.is_null()
                && (*info).ii_Expressions.is_null()
                && Some(columns(info)) == of_arbiter;
            if decides {
                pg_sys::BuildSpeculativeIndexInfo(index, info);
                list = pg_sys::lappend_oid(list, (*index).rd_id);
            }
        }
    }
    list
}
