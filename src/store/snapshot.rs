//! A fresh look at the database: everything committed until now, and the transaction's own earlier commands.
//!
//! Message states are about now, so no function looks through the snapshot of the caller's transaction or
//! statement: a claim under REPEATABLE READ sees what is claimable, and an answer is judged by the current lease.

use pgrx::pg_sys;

/// The latest snapshot, active until dropped.
pub struct Latest(pg_sys::Snapshot);

impl Latest {
    pub fn push() -> Latest {
        // SAFETY: the counter makes the transaction's earlier changes visible; the pushed snapshot is popped on drop,
        // or by the abort of the (sub)transaction.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
            Latest(pg_sys::GetActiveSnapshot())
        }
    }

    /// Valid as long as self lives.
    pub(super) fn as_ptr(&self) -> pg_sys::Snapshot {
        self.0
    }
}

impl Drop for Latest {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: pushed in `push`; guards are dropped in reverse order, so it is on top.
            unsafe { pg_sys::PopActiveSnapshot() }
        }
    }
}
