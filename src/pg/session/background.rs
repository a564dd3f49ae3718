//! What a background process of ours is to the server: its connection, signals, transactions, and the databases.

use crate::pg::catalog::schema;
use crate::pg::version;
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Declares `$symbol`, by which the server finds the main function `$main` of a background process.
macro_rules! entry_point {
    ($symbol:ident, $main:path) => {
        // SAFETY: the name is prefixed with the extension's; nothing else in the process has it.
        #[allow(unsafe_code)]
        #[pgrx::pg_guard]
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $symbol(argument: pgrx::pg_sys::Datum) {
            $main(argument)
        }
    };
}
pub(crate) use entry_point;

/// A database that accepts connections.
pub struct Database {
    pub oid: pg_sys::Oid,
    pub name: String,
}

/// Installs the signal handlers and connects: to one database, or to none (shared catalogs only).
pub fn start(database: Option<pg_sys::Oid>) {
    // SAFETY: called first thing in a background worker's main function.
    unsafe {
        version::on_signal(pg_sys::SIGHUP as i32, reload_requested);
        version::on_signal(pg_sys::SIGTERM as i32, stop_requested);
        pg_sys::BackgroundWorkerUnblockSignals();
        match database {
            Some(oid) => pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, pg_sys::InvalidOid, 0),
            None => pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0),
        }
    }
    // Defaults of a database or role do not matter: the worker's transactions are ordinary ones.
    set(c"default_transaction_isolation", c"read committed");
    set(c"default_transaction_read_only", c"off");
    set(c"default_transaction_deferrable", c"off");
    set(c"synchronous_commit", c"local");
    set(c"search_path", c"pg_catalog, pg_temp");
    set(c"statement_timeout", c"0");
    // A table that is locked for longer is left for the next visit, so that one database does not hold up the others.
    set(c"lock_timeout", c"5s");
    set(c"idle_in_transaction_session_timeout", c"0");
}

fn set(name: &'static CStr, value: &'static CStr) {
    // SAFETY: known settings and valid values.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

extern "C-unwind" fn reload_requested(_: i32) {
    // SAFETY: sets a flag and wakes this process, as core's own handler does.
    unsafe {
        (&raw mut pg_sys::ConfigReloadPending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    }
}

/// As a session's own handler: the running statement ends at its next check for interrupts.
extern "C-unwind" fn stop_requested(_: i32) {
    // SAFETY: sets two flags and wakes this process.
    unsafe {
        (&raw mut pg_sys::InterruptPending).write_volatile(1);
        (&raw mut pg_sys::ProcDiePending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    }
}

/// Reads the configuration again if SIGHUP asked for it.
pub fn reload_if_requested() {
    // SAFETY: reads and clears a flag of this process outside any transaction.
    unsafe {
        if (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0 {
            (&raw mut pg_sys::ConfigReloadPending).write_volatile(0);
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Runs `work` in a transaction of its own and reports its statistics, so that autovacuum sees the deletes.
pub fn transaction<T>(activity: &'static CStr, work: impl FnOnce() -> T) -> T {
    // SAFETY: the usual frame of a background worker's transaction; an error in `work` ends the process.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
        let result = work();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        pg_sys::SetUserIdAndSecContext(user, context);
        pg_sys::pgstat_report_stat(true);
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
        result
    }
}

/// The databases that accept connections.
pub fn databases() -> Vec<Database> {
    let mut found = Vec::new();
    transaction(c"listing databases", || {
        // SAFETY: a catalog scan, as core's autovacuum launcher does it.
        unsafe {
            let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
            let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
            loop {
                let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tuple.is_null() {
                    break;
                }
                let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
                // A connection limit of -2 marks a database whose DROP was interrupted.
                if row.datallowconn && row.datconnlimit != -2 {
                    let name = CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy().into_owned();
                    found.push(Database { oid: row.oid, name });
                }
            }
            pg_sys::table_endscan(scan);
            pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        }
    });
    found
}

/// True if that process is a background worker of that kind; pg_stat_activity tells it only to some roles.
pub fn is_background_worker(pid: i32, kind: &CStr) -> bool {
    // SAFETY: reads shared memory; the answer is a C string or null.
    unsafe {
        let found = pg_sys::GetBackgroundWorkerTypeByPid(pid);
        !found.is_null() && CStr::from_ptr(found) == kind
    }
}

/// Runs the library's function `main` in a process of its own, with a database and a number as argument, and waits for
/// its end. False if the server has no free slot for it.
pub fn run_and_wait(name: &str, main: &str, database: &Database, number: u32) -> bool {
    let argument = (u64::from(number) << 32) | u64::from(u32::from(database.oid));
    // SAFETY: what the server allocates for it goes with a context of its own; nothing of that is used afterwards.
    unsafe {
        let visit = pg_sys::AllocSetContextCreateExtended(
            pg_sys::CurrentMemoryContext,
            c"visit".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
        );
        let before = pg_sys::MemoryContextSwitchTo(visit);
        let started = start_and_wait(name, main, pg_sys::Datum::from(argument));
        pg_sys::MemoryContextSwitchTo(before);
        pg_sys::MemoryContextDelete(visit);
        started
    }
}

/// What [`run_and_wait`] has made the argument of.
pub fn database_and_number(argument: pg_sys::Datum) -> (pg_sys::Oid, u32) {
    let argument = argument.value() as u64;
    (pg_sys::Oid::from(argument as u32), (argument >> 32) as u32)
}

fn start_and_wait(name: &str, main: &str, argument: pg_sys::Datum) -> bool {
    // SAFETY: reads this process's id.
    let notify = unsafe { pg_sys::MyProcPid };
    let started = BackgroundWorkerBuilder::new(name)
        .set_library(schema())
        .set_function(main)
        .set_argument(Some(argument))
        .set_notify_pid(notify)
        .enable_spi_access()
        .load_dynamic();
    match started {
        Ok(worker) => {
            // Ends early only with the postmaster, and then so does this process.
            let _ = worker.wait_for_shutdown();
            true
        }
        Err(_) => false,
    }
}

/// Starts the library's function `main` in a process of its own, with `argument`. False if the server has no free slot.
pub fn run_beside(name: &str, main: &str, argument: u32) -> bool {
    BackgroundWorkerBuilder::new(name)
        .set_library(schema())
        .set_function(main)
        .set_argument(Some(pg_sys::Datum::from(argument)))
        .enable_spi_access()
        .load_dynamic()
        .is_ok()
}

/// True if a DROP DATABASE (or RENAME, or a use as template) is waiting for this connection to end.
pub fn database_is_wanted() -> bool {
    // SAFETY: asks for the lock that every connection takes while it starts, without waiting; releases it again.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: 0,
            locktag_field2: u32::from(pg_sys::DatabaseRelationId),
            locktag_field3: u32::from(pg_sys::MyDatabaseId),
            locktag_field4: 0,
            locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
            locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        };
        let mode = pg_sys::RowExclusiveLock as i32;
        let answer = pg_sys::LockAcquire(&tag, mode, true, true);
        if answer == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
            return true;
        }
        pg_sys::LockRelease(&tag, mode, true);
        false
    }
}
