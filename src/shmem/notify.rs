//! Telling those who LISTEN, see `rules/notify.rs`: the side of a transaction, and that of the notifier.

use crate::pg::session::{background, callback, server};
use crate::pg::value::datum::Time;
use crate::pg::version;
use crate::rules::notify::Notifications;
use crate::shmem::memory::Shared;
use pgrx::guc::GucSetting;
use std::ffi::{CStr, CString};

/// The setting `outbox.notify`.
pub static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(false);

const NOTIFIER: &str = "outbox notifier";
/// The channel.
const CHANNEL: &CStr = c"outbox";

/// Sees to it that a process will announce what this transaction is about to commit. If there is no process to be had,
/// nobody will.
pub fn ask_for_notifier() {
    if let Some(shared) = Shared::attached().filter(|_| ENABLED.get()) {
        let now = server::clock().0;
        if shared.locked(|contents| contents.notifications.ask(server::database_number(), now)) {
            background::run_beside(NOTIFIER, "outbox_notifier_main", server::database_number());
        }
    }
}

/// Something can be claimed in `topic`.
pub fn add(shared: Shared, topic: &[u8]) {
    wake(shared.locked(|contents| contents.notifications.add(server::database_number(), topic)));
}

/// At `time` something is due.
pub fn expect(shared: Shared, time: i64) {
    wake(shared.locked(|contents| contents.notifications.expect(server::database_number(), time)));
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
        if !shared.locked(|contents| contents.notifications.begin(server::database_number(), me, now)) {
            return None;
        }
        callback::at_exit(notifier_ends);
        Some(Notifier(shared))
    }

    /// What there is to tell.
    pub fn take(&self) -> Notifications {
        self.0.locked(|contents| contents.notifications.take(server::database_number()))
    }

    /// Ends, unless something has come meanwhile.
    pub fn end_if_idle(&self) -> bool {
        self.0.locked(|contents| {
            contents.notifications.end_if_idle(server::database_number(), version::session_number())
        })
    }

    /// Once committed, listeners are told that there may be something in `topic`, or in any if it is empty.
    pub fn notify(&self, topic: &[u8]) {
        if let Ok(payload) = CString::new(topic) {
            server::notify(CHANNEL, &payload);
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

fn notifier_ends() {
    if let Some(shared) = Shared::attached() {
        shared.locked(|contents| {
            contents.notifications.end(server::database_number(), version::session_number())
        });
    }
}
