//! How a table is used: what it is opened for, whether to wait for others, and what became of it.

use pgrx::pg_sys;

/// Where a row was found.
#[derive(Clone, Copy)]
pub struct RowId(pub pg_sys::ItemPointerData);

/// A transaction, or none.
pub type Xid = pg_sys::TransactionId;

/// What became of an update or delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// This transaction is changing the row or has changed it since the snapshot.
    Lost(Xid),
}

/// Whether to wait for another transaction that is changing the row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    No,
    Yes,
}

/// What a row is locked against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Against {
    Change,
    /// Changes and other locks: for an update or delete of this transaction.
    Everybody,
}

/// What a table is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Writing while nobody else does.
    Alone,
}

impl Access {
    pub fn lock(self) -> u32 {
        match self {
            Access::Read => pg_sys::AccessShareLock,
            Access::Write => pg_sys::RowExclusiveLock,
            Access::Alone => pg_sys::ShareRowExclusiveLock,
        }
    }
}
