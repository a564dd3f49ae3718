//! Telling those who LISTEN, see `rules/notify.rs`: the side of a transaction that has news, and that of the notifier.

use crate::pg::datum::Time;
use crate::pg::{background, server, version};
use crate::rules::notify::News;
use crate::shmem::memory::Shared;
use pgrx::guc::GucSetting;
use pgrx::{pg_guard, pg_sys};
use std::ffi::{CStr, CString};

/// The setting `outbox.notify`.
pub static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(false);

const NOTIFIER: &str = "outbox notifier";
/// The channel.
const CHANNEL: &CStr = c"outbox";

fn database() -> u32 {
    // SAFETY: reads a number that is fixed for the session.
    u32::from(unsafe { pg_sys::MyDatabaseId })
}

/// Sees to it that somebody will tell what this transaction is about to commit. If there is no process to be had, nobody
/// will.
pub fn ask_for_notifier() {
    if let Some(shared) = Shared::attached().filter(|_| ENABLED.get()) {
        let now = server::clock().0;
        if shared.locked(|contents| contents.board.ask(database(), now)) {
            background::run_beside(NOTIFIER, "outbox_notifier_main", pg_sys::Datum::from(database()));
        }
    }
}

/// Something can be claimed in `topic`.
pub fn mark(shared: Shared, topic: &[u8]) {
    wake(shared.locked(|contents| contents.board.mark(database(), topic)));
}

/// At `time` something is due.
pub fn expect(shared: Shared, time: i64) {
    wake(shared.locked(|contents| contents.board.expect(database(), time)));
}

fn wake(session: Option<usize>) {
    if let Some(session) = session {
        server::wake(session);
    }
}

/// The session that tells the listeners of its database, until it ends.
pub struct Notifier(Shared);

impl Notifier {
    /// None if there is another one. To be called in a transaction.
    pub fn begin() -> Option<Notifier> {
        let shared = Shared::attached()?;
        let (me, now) = (version::session_number(), server::clock().0);
        if !shared.locked(|contents| contents.board.begin(database(), me, now)) {
            return None;
        }
        // SAFETY: the callback is a plain function; however the process ends, it is called.
        unsafe { pg_sys::before_shmem_exit(Some(notifier_ends), pg_sys::Datum::from(0)) }
        Some(Notifier(shared))
    }

    /// What there is to tell.
    pub fn take(&self) -> News {
        self.0.locked(|contents| contents.board.take(database()))
    }

    /// Ends, unless something has come meanwhile.
    pub fn end_if_idle(&self) -> bool {
        self.0.locked(|contents| contents.board.end_if_idle(database(), version::session_number()))
    }

    /// Once committed, whoever listens is told that there may be something in `topic`, or in any if it is empty.
    pub fn notify(&self, topic: &[u8]) {
        // Not among pgrx's bindings.
        unsafe extern "C-unwind" {
            fn Async_Notify(channel: *const std::ffi::c_char, payload: *const std::ffi::c_char);
        }
        let Ok(payload) = CString::new(topic) else { return };
        // SAFETY: the signature is that of PostgreSQL 14 to 18, which copies both; errors are caught at the boundary.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| Async_Notify(CHANNEL.as_ptr(), payload.as_ptr()));
        }
    }

    /// After the commit: wakes those who listen.
    pub fn deliver(&self) {
        version::tell_listeners();
    }

    /// Sleeps until there is something to tell, or `until`.
    pub fn sleep(&self, until: Time) {
        server::sleep(server::clock().until(until));
    }
}

#[pg_guard]
extern "C-unwind" fn notifier_ends(_code: i32, _arg: pg_sys::Datum) {
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| contents.board.end(database(), version::session_number()));
    }
}
