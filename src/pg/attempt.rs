//! A part of a transaction that is taken back unless it is kept, and its row locks with it: a subtransaction.

use crate::shmem::pending;
use pgrx::pg_sys;

pub struct Attempt {
    context: pg_sys::MemoryContext,
    owner: pg_sys::ResourceOwner,
    touched: Option<i64>,
    kept: bool,
}

impl Attempt {
    pub fn begin() -> Attempt {
        // SAFETY: in a transaction, as every call. What is opened meanwhile is closed by its guard, whose owner stays the
        // caller's: so a guard may outlive this.
        unsafe {
            let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            let attempt = Attempt { context, owner, touched: pending::lowest_touched(), kept: false };
            attempt.go_on();
            attempt
        }
    }

    pub fn keep(mut self) {
        self.kept = true;
    }

    fn go_on(&self) {
        // SAFETY: both are of the surrounding transaction, which lives on.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.context);
            pg_sys::CurrentResourceOwner = self.owner;
        }
    }
}

/// Also after an error: whoever catches it knows nothing of this part.
impl Drop for Attempt {
    fn drop(&mut self) {
        // SAFETY: begun in `begin`; nothing that was begun later is open.
        unsafe {
            if self.kept {
                pg_sys::ReleaseCurrentSubTransaction();
            } else {
                let touched = self.touched;
                pending::take_back(touched, || pg_sys::RollbackAndReleaseCurrentSubTransaction());
            }
        }
        self.go_on();
    }
}
