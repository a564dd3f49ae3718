//! The executor's range table and row triggers.

use pgrx::pg_sys;
use std::ptr::null_mut;

/// Gives the state a range table of one relation, of which the columns `updated` are updated.
///
/// # Safety
/// The relation is open, and the state new.
pub unsafe fn init_range_table(
    estate: *mut pg_sys::EState,
    relation: pg_sys::Relation,
    updated: *mut pg_sys::Bitmapset,
) {
    // SAFETY: a node of its type, zero but for what is set; all of it is allocated where the caller says.
    unsafe {
        let entry = pg_sys::palloc0(size_of::<pg_sys::RangeTblEntry>()).cast::<pg_sys::RangeTblEntry>();
        (*entry).type_ = pg_sys::NodeTag::T_RangeTblEntry;
        (*entry).rtekind = pg_sys::RTEKind::RTE_RELATION;
        (*entry).relid = (*relation).rd_id;
        (*entry).relkind = (*(*relation).rd_rel).relkind;
        (*entry).rellockmode = pg_sys::RowExclusiveLock as i32;
        let entries = pg_sys::lappend(null_mut(), entry.cast());
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        {
            (*entry).updatedCols = updated;
            pg_sys::ExecInitRangeTable(estate, entries);
        }
        #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
        {
            let mut permissions = null_mut();
            (*pg_sys::addRTEPermissionInfo(&mut permissions, entry)).updatedCols = updated;
            #[cfg(not(feature = "pg18"))]
            pg_sys::ExecInitRangeTable(estate, entries, permissions);
            #[cfg(feature = "pg18")]
            pg_sys::ExecInitRangeTable(estate, entries, permissions, pg_sys::bms_make_singleton(1));
        }
    }
}

/// False if a trigger suppresses the update.
///
/// # Safety
/// As `ExecBRUpdateTriggers`; this transaction has locked the row, so that `epq` is not asked.
pub unsafe fn before_update(
    estate: *mut pg_sys::EState,
    epq: &mut pg_sys::EPQState,
    info: *mut pg_sys::ResultRelInfo,
    tid: pg_sys::ItemPointer,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    let (mut _result, mut _failure) = (pg_sys::TM_Result::TM_Ok, pg_sys::TM_FailureData::default());
    // SAFETY: passed on to the caller; the out parameters are locals.
    unsafe {
        #[cfg(feature = "pg14")]
        return pg_sys::ExecBRUpdateTriggers(estate, epq, info, tid, null_mut(), slot);
        #[cfg(feature = "pg15")]
        return pg_sys::ExecBRUpdateTriggers(estate, epq, info, tid, null_mut(), slot, &mut _failure);
        #[cfg(any(feature = "pg16", feature = "pg17"))]
        return pg_sys::ExecBRUpdateTriggers(
            estate,
            epq,
            info,
            tid,
            null_mut(),
            slot,
            &mut _result,
            &mut _failure,
        );
        #[cfg(feature = "pg18")]
        return pg_sys::ExecBRUpdateTriggers(
            estate,
            epq,
            info,
            tid,
            null_mut(),
            slot,
            &mut _result,
            &mut _failure,
            false,
        );
    }
}

/// False if a trigger suppresses the delete.
///
/// # Safety
/// As [`before_update`].
pub unsafe fn before_delete(
    estate: *mut pg_sys::EState,
    epq: &mut pg_sys::EPQState,
    info: *mut pg_sys::ResultRelInfo,
    tid: pg_sys::ItemPointer,
) -> bool {
    let (mut _result, mut _failure) = (pg_sys::TM_Result::TM_Ok, pg_sys::TM_FailureData::default());
    // SAFETY: passed on to the caller; the out parameters are locals.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        return pg_sys::ExecBRDeleteTriggers(estate, epq, info, tid, null_mut(), null_mut());
        #[cfg(any(feature = "pg16", feature = "pg17"))]
        return pg_sys::ExecBRDeleteTriggers(
            estate,
            epq,
            info,
            tid,
            null_mut(),
            null_mut(),
            &mut _result,
            &mut _failure,
        );
        #[cfg(feature = "pg18")]
        return pg_sys::ExecBRDeleteTriggers(
            estate,
            epq,
            info,
            tid,
            null_mut(),
            null_mut(),
            &mut _result,
            &mut _failure,
            false,
        );
    }
}

/// Queues the triggers of an update.
///
/// # Safety
/// As `ExecARUpdateTriggers`.
pub unsafe fn after_update(
    estate: *mut pg_sys::EState,
    info: *mut pg_sys::ResultRelInfo,
    tid: pg_sys::ItemPointer,
    slot: *mut pg_sys::TupleTableSlot,
    again: *mut pg_sys::List,
    capture: *mut pg_sys::TransitionCaptureState,
) {
    let none = null_mut();
    // SAFETY: passed on to the caller.
    unsafe {
        #[cfg(feature = "pg14")]
        pg_sys::ExecARUpdateTriggers(estate, info, tid, none, slot, again, capture);
        #[cfg(not(feature = "pg14"))]
        pg_sys::ExecARUpdateTriggers(
            estate,
            info,
            null_mut(),
            null_mut(),
            tid,
            none,
            slot,
            again,
            capture,
            false,
        );
    }
}

/// Queues the triggers of a delete.
///
/// # Safety
/// As `ExecARDeleteTriggers`.
pub unsafe fn after_delete(
    estate: *mut pg_sys::EState,
    info: *mut pg_sys::ResultRelInfo,
    tid: pg_sys::ItemPointer,
    capture: *mut pg_sys::TransitionCaptureState,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        #[cfg(feature = "pg14")]
        pg_sys::ExecARDeleteTriggers(estate, info, tid, null_mut(), capture);
        #[cfg(not(feature = "pg14"))]
        pg_sys::ExecARDeleteTriggers(estate, info, tid, null_mut(), capture, false);
    }
}
