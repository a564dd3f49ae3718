//! A fresh look at the database: everything committed until now, and the transaction's own earlier commands.
//!
//! What it shows is about now, at each isolation level of the caller's transaction.

use pgrx::pg_sys;
use std::cell::UnsafeCell;

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
    pub fn as_ptr(&self) -> pg_sys::Snapshot {
        self.0
    }
}

/// Everybody's changes as they are at the moment of reading, committed or not.
pub struct Dirty(Box<UnsafeCell<pg_sys::SnapshotData>>);

impl Dirty {
    pub fn new() -> Dirty {
        let snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
        Dirty(Box::new(UnsafeCell::new(pg_sys::SnapshotData { snapshot_type, ..Default::default() })))
    }

    /// Valid as long as self lives.
    pub fn as_ptr(&self) -> pg_sys::Snapshot {
        self.0.get()
    }

    /// Of the version last read: the other open transactions that have written it, and that have ended it.
    pub fn in_progress(&self) -> (Option<pg_sys::TransactionId>, Option<pg_sys::TransactionId>) {
        // SAFETY: nobody writes the snapshot but a read through it, which is over.
        let (xmin, xmax) = unsafe { ((*self.0.get()).xmin, (*self.0.get()).xmax) };
        let valid = |xid| (xid != pg_sys::InvalidTransactionId).then_some(xid);
        (valid(xmin), valid(xmax))
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

/// Lets go of what the session looks through at the system catalogs; it would hold up vacuum during a sleep.
pub fn release_catalog() {
    // SAFETY: the next look at a catalog takes a new one.
    unsafe { pg_sys::InvalidateCatalogSnapshot() }
}
