//! What differs between PostgreSQL 14 and 18: the only files with a version in them.

mod executor;

#[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
use crate::pg::session::lwlock;
use pgrx::pg_sys;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

pub use executor::{after_delete, after_update, before_delete, before_update, init_range_table};

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

/// A column of `shape`, counted from 0.
///
/// # Safety
/// `shape` is valid and has it.
pub unsafe fn attribute(shape: pg_sys::TupleDesc, place: i32) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: passed on to the caller.
    unsafe {
        #[cfg(feature = "pg18")]
        return pg_sys::TupleDescAttr(shape, place);
        #[cfg(not(feature = "pg18"))]
        return (*shape).attrs.as_ptr().add(place as usize);
    }
}

/// Updates the row at `tid` with the contents of `slot`.
///
/// # Safety
/// As `table_tuple_update`.
pub unsafe fn table_tuple_update(
    relation: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    slot: *mut pg_sys::TupleTableSlot,
    command: pg_sys::CommandId,
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
            command,
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

/// Enters the row in `slot` into the table's indexes. Returns whether a speculative insertion met a conflict, and the
/// indexes that a trigger must look at again.
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
) -> (bool, *mut pg_sys::List) {
    let mut conflict = false;
    let speculative = !arbiters.is_null();
    let out: *mut bool = if speculative { &mut conflict } else { std::ptr::null_mut() };
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    let only_summarizing = matches!(update, IndexUpdate::Summarizing);
    #[cfg(any(feature = "pg14", feature = "pg15"))]
    let IndexUpdate::All = update else { return (false, std::ptr::null_mut()) };
    // SAFETY: passed on to the caller; `out` is null or a local.
    let again = unsafe {
        #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
        let again = pg_sys::ExecInsertIndexTuples(
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
        let again = pg_sys::ExecInsertIndexTuples(info, slot, estate, updating, speculative, out, arbiters);
        again
    };
    (conflict, again)
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

/// This session's number, from 0, among [`sessions`]: its place among the server's processes.
pub fn session_number() -> usize {
    // SAFETY: reads a number that is fixed for the session.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
        return (*pg_sys::MyProc).pgprocno as usize;
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return pg_sys::MyProcNumber as usize;
    }
}

/// What pg_stat_activity shows as wait_event of a session that waits for something of the extension's.
#[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
pub fn wait_event() -> u32 {
    pg_sys::PG_WAIT_EXTENSION
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
pub fn wait_event() -> u32 {
    thread_local! { static EVENT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) } }
    if EVENT.get() == 0 {
        // SAFETY: the name is a C string; sessions that ask for the same name share one event.
        EVENT.set(unsafe {
            pg_sys::WaitEventExtensionNew(crate::pg::catalog::extension().wait_event.as_ptr())
        });
    }
    EVENT.get()
}

/// The most sessions that the server can have.
pub fn sessions() -> usize {
    // SAFETY: reads numbers that are fixed for the server.
    unsafe { pg_sys::MaxBackends as usize }
}

/// Finds the library's `size` bytes of shared memory, or makes them and has them filled in: memory that can be had at
/// any time, so the library need not be preloaded. None if there is no room. To be called in a transaction.
pub fn shared_memory(
    name: &'static CStr,
    size: usize,
    fill: unsafe extern "C-unwind" fn(*mut c_void),
) -> Option<NonNull<c_void>> {
    // SAFETY: `fill` is given `size` bytes that nobody else has seen.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
        return anchored::attach(name, size, fill);
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return registry::attach(name, size, fill);
    }
}

/// A segment that is found by an anchor in the little that a server keeps for late comers.
#[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
mod anchored {
    use super::{CStr, NonNull, c_void, lwlock, pg_sys};

    /// `AddinShmemInitLock` in the server's array of named locks (lwlocknames.txt), a macro that bindings do not see.
    const ADDIN_SHMEM_INIT_LOCK: usize = 21;

    /// # Safety
    /// `fill` initialises `size` bytes.
    pub unsafe fn attach(
        name: &'static CStr,
        size: usize,
        fill: unsafe extern "C-unwind" fn(*mut c_void),
    ) -> Option<NonNull<c_void>> {
        // SAFETY: the protocol for late comers: under the lock, a process that finds no anchor or no segment makes it.
        // The segment is pinned, so it lives as long as the server, and its mapping as long as the session. What an
        // error leaves, the transaction's end frees; raising it has let interrupts in, and who releases a lock expects
        // them held.
        unsafe {
            let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
            let attach = || {
                let mut found = false;
                let handle = size_of::<pg_sys::dsm_handle>();
                let anchor = pg_sys::ShmemInitStruct(name.as_ptr(), handle, &mut found);
                let anchor = NonNull::new(anchor.cast::<pg_sys::dsm_handle>())?.as_ptr();
                if found && *anchor != 0 {
                    let segment = NonNull::new(pg_sys::dsm_attach(*anchor))?.as_ptr();
                    pg_sys::dsm_pin_mapping(segment);
                    return NonNull::new(pg_sys::dsm_segment_address(segment));
                }
                *anchor = 0;
                let flags = pg_sys::DSM_CREATE_NULL_IF_MAXSEGMENTS as i32;
                let segment = NonNull::new(pg_sys::dsm_create(size, flags))?.as_ptr();
                let place = NonNull::new(pg_sys::dsm_segment_address(segment))?;
                fill(place.as_ptr());
                pg_sys::dsm_pin_mapping(segment);
                pg_sys::dsm_pin_segment(segment);
                *anchor = pg_sys::dsm_segment_handle(segment);
                Some(place)
            };
            let forgiving = || {
                pgrx::PgTryBuilder::new(attach)
                    .catch_others(|_| {
                        pg_sys::InterruptHoldoffCount += 1;
                        None
                    })
                    .execute()
            };
            lwlock::locked(lock, forgiving)
        }
    }
}

/// A segment that the server finds by its name.
#[cfg(any(feature = "pg17", feature = "pg18"))]
mod registry {
    use super::{CStr, NonNull, c_void, pg_sys};

    /// # Safety
    /// `fill` initialises `size` bytes.
    pub unsafe fn attach(
        name: &'static CStr,
        size: usize,
        fill: unsafe extern "C-unwind" fn(*mut c_void),
    ) -> Option<NonNull<c_void>> {
        // SAFETY: a subtransaction as PL/pgSQL makes one for a block with an exception handler: its abort releases
        // the locks that an error leaves. The segment outlives it.
        unsafe {
            let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            let place = pgrx::PgTryBuilder::new(|| {
                let mut found = false;
                let place = pg_sys::GetNamedDSMSegment(name.as_ptr(), size, Some(fill), &mut found);
                pg_sys::ReleaseCurrentSubTransaction();
                NonNull::new(place)
            })
            .catch_others(|_| {
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
                None
            })
            .execute();
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
            place
        }
    }
}

/// Wakes the sessions that listen to what this background process has committed; from PostgreSQL 15 on the commit does.
#[cfg(feature = "pg14")]
pub fn tell_listeners() {
    // Not among pgrx's bindings.
    unsafe extern "C-unwind" {
        fn ProcessCompletedNotifies();
    }
    // SAFETY: called outside a transaction; errors are caught at the boundary.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| ProcessCompletedNotifies()) }
}

#[cfg(not(feature = "pg14"))]
pub fn tell_listeners() {}

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

/// True unless the session's client has closed the connection.
pub fn client_is_there() -> bool {
    unsafe extern "C-unwind" {
        fn pq_check_connection() -> bool;
    }
    // SAFETY: asks the socket of a session that has one. It may reset the latch, so a session that waits looks again
    // first.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| pq_check_connection()) }
}
