//! What differs between PostgreSQL 14 and 18: the only file with a version in it.

use pgrx::pg_sys;
use std::ffi::CStr;

/// Opens an index scan.
///
/// # Safety
/// As `index_beginscan`: open relations, a snapshot that outlives the scan.
pub unsafe fn index_beginscan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: passed on to the caller.
    unsafe {
        #[cfg(feature = "pg18")]
        return pg_sys::index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0);
        #[cfg(not(feature = "pg18"))]
        return pg_sys::index_beginscan(table, index, snapshot, keys, 0);
    }
}

/// What an update asks of the indexes.
pub enum IndexUpdate {
    None,
    All,
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    Summarizing,
}

/// Updates the row at `tid` with the contents of `slot`.
///
/// # Safety
/// As `table_tuple_update`.
pub unsafe fn table_tuple_update(
    relation: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: pg_sys::Snapshot,
    wait: bool,
) -> (pg_sys::TM_Result::Type, pg_sys::TM_FailureData, IndexUpdate) {
    let mut failure = pg_sys::TM_FailureData::default();
    let mut lock = 0;
    #[cfg(any(feature = "pg14", feature = "pg15"))]
    let mut indexes = false;
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    let mut indexes = 0;
    // SAFETY: passed on to the caller; the out parameters are locals.
    let result = unsafe {
        pg_sys::table_tuple_update(
            relation,
            tid,
            slot,
            pg_sys::GetCurrentCommandId(true),
            snapshot,
            std::ptr::null_mut(),
            wait,
            &mut failure,
            &mut lock,
            &mut indexes,
        )
    };
    #[cfg(any(feature = "pg14", feature = "pg15"))]
    let update = if indexes { IndexUpdate::All } else { IndexUpdate::None };
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    let update = match indexes {
        pg_sys::TU_UpdateIndexes::TU_None => IndexUpdate::None,
        pg_sys::TU_UpdateIndexes::TU_Summarizing => IndexUpdate::Summarizing,
        _ => IndexUpdate::All,
    };
    (result, failure, update)
}

/// Enters the row in `slot` into the table's indexes. True if a speculative insertion met a conflict.
///
/// # Safety
/// As `ExecInsertIndexTuples`; `arbiters` is null or a list of index OIDs opened as speculative.
pub unsafe fn insert_index_tuples(
    info: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    estate: *mut pg_sys::EState,
    update: &IndexUpdate,
    updating: bool,
    arbiters: *mut pg_sys::List,
) -> bool {
    let mut conflict = false;
    let speculative = !arbiters.is_null();
    let out: *mut bool = if speculative { &mut conflict } else { std::ptr::null_mut() };
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    let only_summarizing = matches!(update, IndexUpdate::Summarizing);
    #[cfg(any(feature = "pg14", feature = "pg15"))]
    let IndexUpdate::All = update else { return false };
    // SAFETY: passed on to the caller; `out` is null or a local.
    unsafe {
        #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
        pg_sys::ExecInsertIndexTuples(
            info,
            slot,
            estate,
            updating,
            speculative,
            out,
            arbiters,
            only_summarizing,
        );
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        pg_sys::ExecInsertIndexTuples(info, slot, estate, updating, speculative, out, arbiters);
    }
    conflict
}

/// False if a committed row conflicts with the one in `slot`; waits for transactions in progress.
///
/// # Safety
/// As `ExecCheckIndexConstraints`.
pub unsafe fn check_index_constraints(
    info: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    estate: *mut pg_sys::EState,
    arbiters: *mut pg_sys::List,
) -> bool {
    let mut conflict = pg_sys::ItemPointerData::default();
    // SAFETY: passed on to the caller; the invalid tuple id says that the row is not stored yet.
    unsafe {
        #[cfg(feature = "pg18")]
        {
            let mut none = pg_sys::ItemPointerData::default();
            pg_sys::ItemPointerSetInvalid(&mut none);
            pg_sys::ExecCheckIndexConstraints(info, slot, estate, &mut conflict, &mut none, arbiters)
        }
        #[cfg(not(feature = "pg18"))]
        pg_sys::ExecCheckIndexConstraints(info, slot, estate, &mut conflict, arbiters)
    }
}

/// Reserves the prefix of our settings.
pub fn reserve_settings_prefix(prefix: &'static CStr) {
    // SAFETY: the prefix is a static C string.
    unsafe {
        #[cfg(feature = "pg14")]
        pg_sys::EmitWarningsOnPlaceholders(prefix.as_ptr());
        #[cfg(not(feature = "pg14"))]
        pg_sys::MarkGUCPrefixReserved(prefix.as_ptr());
    }
}

/// This session's number, from 0, among [`sessions`].
pub fn session_number() -> usize {
    // SAFETY: reads a number that is fixed for the session.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
        return (pg_sys::MyBackendId - 1) as usize;
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return pg_sys::MyProcNumber as usize;
    }
}

/// The most sessions that the server can have.
pub fn sessions() -> usize {
    // SAFETY: reads a number that is fixed for the server.
    unsafe { pg_sys::MaxBackends as usize }
}

/// Installs a signal handler.
///
/// # Safety
/// `handler` is async-signal-safe.
pub unsafe fn on_signal(signal: i32, handler: unsafe extern "C-unwind" fn(i32)) {
    // SAFETY: passed on to the caller.
    unsafe {
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal, Some(handler));
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(signal, Some(handler));
    }
}
