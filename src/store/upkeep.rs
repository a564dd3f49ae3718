//! Keeping a table's indexes, whatever indexes it has, ours or not.
//!
//! Of our partial indexes we know ourselves whether a row belongs into them. Those it does not belong into
//! are not even opened, and the predicate of the others is not evaluated: together a sixth of an append.

use super::catalog::{Catalog, Object};
use super::record::{Place, Shelf};
use super::version::{self, IndexUpdate};
use pgrx::pg_sys;
use std::cell::Cell;

/// Whether rows of a shelf are in an index.
type Holds = fn(Shelf) -> bool;

/// Our partial indexes, and which rows they hold.
const PARTIAL: [(Object, Holds); 8] = [
    (Object::DeliveryReady, |shelf| shelf.place == Place::Ready),
    (Object::DeliveryWaiting, |shelf| shelf.place == Place::Waiting),
    (Object::DeliveryWaitingTopic, |shelf| shelf.place == Place::Waiting),
    (Object::DeliveryDead, |shelf| shelf.place == Place::Dead),
    (Object::DeliveryParked, |shelf| shelf.place == Place::Parked),
    (Object::DeliveryKeyReady, |shelf| shelf.keyed && shelf.place == Place::Ready),
    (Object::DeliveryKeyLater, |shelf| shelf.keyed && matches!(shelf.place, Place::Waiting | Place::Parked)),
    (Object::DeliveryKeyDead, |shelf| shelf.keyed && shelf.place == Place::Dead),
];

/// The indexes that rows of one shelf go into, open, and the executor's state for entering rows.
pub(super) struct Upkeep {
    estate: *mut pg_sys::EState,
    /// False if the state is the session's.
    owns_estate: bool,
    info: *mut pg_sys::ResultRelInfo,
}

/// The session's executor state: making one and freeing it costs an append a twentieth. What a row's entries allocate in
/// it is freed row by row, but expressions prepared in it would stay; so indexes that have any get a state of their own.
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

impl Upkeep {
    /// Opens the indexes of `relation` for rows of `shelf`; `arbiter` is for speculative insertion.
    pub fn open(
        relation: pg_sys::Relation,
        catalog: &Catalog,
        shelf: Option<Shelf>,
        arbiter: Option<pg_sys::Oid>,
    ) -> Self {
        let known = PARTIAL.map(|(index, holds)| (catalog.oid(index), shelf.is_some_and(holds)));
        // SAFETY: executor state and open indexes are released on drop, or by the abort; the arrays are as long as
        // the list, and the entries before `ri_NumIndices` are filled.
        unsafe {
            let mut owns_estate = false;
            let info = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, relation, 0, std::ptr::null_mut(), 0);
            let list = pg_sys::RelationGetIndexList(relation);
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
                owns_estate |=
                    !(*index_info).ii_Expressions.is_null() || !(*index_info).ii_Predicate.is_null();
                if Some(oid) == arbiter {
                    pg_sys::BuildSpeculativeIndexInfo(index, index_info);
                }
                let place = (*info).ri_NumIndices as usize;
                *(*info).ri_IndexRelationDescs.add(place) = index;
                *(*info).ri_IndexRelationInfo.add(place) = index_info;
                (*info).ri_NumIndices += 1;
            }
            let estate = if owns_estate { pg_sys::CreateExecutorState() } else { session_estate() };
            Upkeep { estate, owns_estate, info }
        }
    }

    /// Enters a row into the indexes.
    ///
    /// # Safety
    /// `slot` holds a row just stored in, or updated to, the table.
    pub unsafe fn enter(&self, slot: *mut pg_sys::TupleTableSlot, update: &IndexUpdate, updating: bool) {
        // SAFETY: passed on to the caller.
        unsafe {
            let none = std::ptr::null_mut();
            version::insert_index_tuples(self.info, slot, self.estate, update, updating, none);
            self.forget_row();
        }
    }

    /// Enters a row that was stored speculatively. True if another one was faster.
    ///
    /// # Safety
    /// As [`Upkeep::enter`], and the indexes are open for speculative insertion.
    pub unsafe fn enter_speculatively(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        arbiters: *mut pg_sys::List,
    ) -> bool {
        // SAFETY: passed on to the caller.
        unsafe {
            let all = IndexUpdate::All;
            let conflict = version::insert_index_tuples(self.info, slot, self.estate, &all, false, arbiters);
            self.forget_row();
            conflict
        }
    }

    /// True if the arbiter indexes have no row like the one in `slot`. Waits for transactions in progress.
    ///
    /// # Safety
    /// `slot` holds a row of the table, and the indexes are open for speculative insertion.
    pub unsafe fn is_new(&self, slot: *mut pg_sys::TupleTableSlot, arbiters: *mut pg_sys::List) -> bool {
        // SAFETY: passed on to the caller.
        unsafe {
            let new = version::check_index_constraints(self.info, slot, self.estate, arbiters);
            self.forget_row();
            new
        }
    }

    /// # Safety
    /// Nothing that was allocated for the last row's index entries is used any more.
    unsafe fn forget_row(&self) {
        // SAFETY: the context belongs to our executor state and exists once an index was entered.
        unsafe {
            let context = (*self.estate).es_per_tuple_exprcontext;
            if !context.is_null() {
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            }
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: everything was opened by us and is used by nobody else.
            unsafe {
                pg_sys::ExecCloseIndices(self.info);
                if self.owns_estate {
                    pg_sys::FreeExecutorState(self.estate);
                }
            }
        }
    }
}
