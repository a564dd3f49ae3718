//! The server around a call: may it write, what time is it, wait a little, be interrupted.

use crate::error::Error;
use crate::pg::value::datum::Time;
use crate::rules::floor::Cost;
use crate::rules::formats;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::pg_sys;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Refuses a read-only transaction and a standby, and parallel workers.
///
/// # Errors
/// [`Error::ReadOnly`].
pub fn may_write(function: &'static CStr) -> Result<(), Error> {
    // SAFETY: reads session state; the name is a C string.
    unsafe {
        let standby = pg_sys::RecoveryInProgress();
        if standby || pg_sys::XactReadOnly {
            return Err(Error::ReadOnly(function, standby && !pg_sys::XactReadOnly));
        }
        pg_sys::PreventCommandIfParallelMode(function.as_ptr());
    }
    Ok(())
}

/// The server's clock at this moment, as `clock_timestamp()`.
pub fn clock() -> Time {
    // SAFETY: reads the clock.
    Time(unsafe { pg_sys::GetCurrentTimestamp() })
}

/// The innermost part of the transaction that a savepoint has begun; what begins later has a higher number.
pub fn savepoint_number() -> u32 {
    // SAFETY: reads a number of this session.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// True if transaction `xid` has an earlier number.
pub fn precedes(xid: pg_sys::TransactionId, other: u32) -> bool {
    // SAFETY: compares two numbers.
    unsafe { pg_sys::TransactionIdPrecedes(xid, other.into()) }
}

/// The number that the next transaction will have.
pub fn next_transaction() -> u32 {
    // SAFETY: reads a counter of the server.
    u32::from(unsafe { pg_sys::ReadNextTransactionId() })
}

/// The OID of this session's database.
pub fn database_number() -> u32 {
    // SAFETY: reads a number that is fixed for the session.
    u32::from(unsafe { pg_sys::MyDatabaseId })
}

/// When the transaction began.
pub fn transaction_start() -> Time {
    // SAFETY: reads a number of this session.
    Time(unsafe { pg_sys::GetCurrentTransactionStartTimestamp() })
}

/// Measures what some work costs.
#[derive(Clone, Copy)]
pub struct Meter {
    pages: i64,
    began: Time,
}

impl Meter {
    pub fn start() -> Meter {
        Meter { pages: pages_touched(), began: clock() }
    }

    /// Since the start.
    pub fn read(&self) -> Cost {
        Cost { pages: pages_touched() - self.pages, micros: clock().0 - self.began.0 }
    }
}

/// Pages of tables and indexes that this session has touched.
fn pages_touched() -> i64 {
    // SAFETY: reads counters of this session.
    unsafe {
        let usage = &raw const pg_sys::pgBufferUsage;
        (*usage).shared_blks_hit + (*usage).shared_blks_read
    }
}

/// Ends a session whose client is gone. What it would be given, nobody would get.
pub fn check_client() {
    // SAFETY: the server's own question, and its own answer; where there is no client, nothing is asked.
    unsafe {
        if !pg_sys::MyProcPort.is_null() && !crate::pg::version::client_is_there() {
            pg_sys::ClientConnectionLost = 1;
            pg_sys::InterruptPending = 1;
        }
    }
    check_for_interrupts();
}

/// Lets a pending cancel or shutdown end the call.
pub fn check_for_interrupts() {
    pg_sys::check_for_interrupts!();
}

/// Waits until another transaction is over. A deadlock with it is detected.
pub fn wait_for(xid: pg_sys::TransactionId) {
    // SAFETY: as a row's update waits, and interrupted as that is.
    unsafe {
        pg_sys::XactLockTableWait(
            xid,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            pg_sys::XLTW_Oper::XLTW_None,
        )
    }
}

/// Sleeps for at most `time`; a cancel, a shutdown or any other event for this session ends it early.
pub fn sleep(time: Duration) {
    sleep_showing(time, pg_sys::PG_WAIT_EXTENSION);
}

/// The same, for something of the extension's: pg_stat_activity shows it.
pub fn sleep_for_messages(time: Duration) {
    sleep_showing(time, crate::pg::version::wait_event());
}

fn sleep_showing(time: Duration, event: u32) {
    // SAFETY: waits on this process's own latch; the postmaster's death ends the process.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            time.as_micros().div_ceil(1000).max(1) as std::ffi::c_long,
            event,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts();
}

/// NOTIFY, once the transaction is committed.
pub fn notify(channel: &CStr, text: &CStr) {
    // Not among pgrx's bindings.
    unsafe extern "C-unwind" {
        fn Async_Notify(channel: *const std::ffi::c_char, text: *const std::ffi::c_char);
    }
    // SAFETY: the signature is that of PostgreSQL 14 to 18, which copies both; errors are caught at the boundary.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| Async_Notify(channel.as_ptr(), text.as_ptr()));
    }
}

/// Wakes another session from its sleep.
pub fn wake(session: usize) {
    // SAFETY: the place of a process outlives it; the process that has it now may be woken for nothing.
    unsafe { pg_sys::SetLatch(&raw mut (*(*pg_sys::ProcGlobal).allProcs.add(session)).procLatch) }
}

/// Hears what has happened to tables and functions.
pub fn accept_invalidations() {
    // SAFETY: in a transaction, as whenever a table is locked.
    unsafe { pg_sys::AcceptInvalidationMessages() }
}

/// Makes a misspelt setting of the extension an error in sessions that have loaded the library.
pub fn reserve_settings_prefix() {
    crate::pg::version::reserve_settings_prefix(crate::pg::catalog::extension().name);
}

/// Defines a setting that is a traceparent, or empty.
pub fn define_traceparent(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Option<CString>>,
) {
    // SAFETY: the hook does not panic.
    unsafe {
        let (context, flags) = (GucContext::Userset, GucFlags::empty());
        GucRegistry::define_string_guc_with_hooks(
            name,
            short,
            long,
            setting,
            context,
            flags,
            Some(check_traceparent),
            None,
            None,
        );
    }
}

/// # Safety
/// Called by the server with the text that is to be set, or null.
unsafe extern "C-unwind" fn check_traceparent(
    text: *mut *mut std::ffi::c_char,
    _extra: *mut *mut std::ffi::c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: the server passes a C string, or null.
    unsafe {
        let text = if (*text).is_null() { c"" } else { CStr::from_ptr(*text) };
        let fits = text.is_empty() || formats::is_traceparent(text.to_bytes());
        if !fits {
            let detail = c"A traceparent looks like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.";
            pg_sys::GUC_check_errdetail_string = detail.as_ptr().cast_mut();
        }
        fits
    }
}

/// True if the library was loaded when the server started.
pub fn was_preloaded() -> bool {
    PRELOADED.load(Ordering::Relaxed)
}

static PRELOADED: AtomicBool = AtomicBool::new(false);

/// The name of this database.
pub fn database() -> String {
    // SAFETY: the name is a C string, and is never null for the database that this session is connected to.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

/// True while the postmaster loads `shared_preload_libraries`, outside pg_upgrade.
pub fn preloading() -> bool {
    // SAFETY: reads two flags of this process.
    let preloading =
        unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade };
    // The processes that it makes inherit this.
    PRELOADED.store(preloading, Ordering::Relaxed);
    preloading
}
