//! The server's lightweight locks.

use pgrx::pg_sys;
use std::panic::UnwindSafe;

/// Does some work under a lock, alone.
///
/// # Safety
/// The lock is initialised, and the work raises no error.
pub unsafe fn locked<T>(lock: *mut pg_sys::LWLock, work: impl FnOnce() -> T) -> T {
    // SAFETY: by the contract above, the lock is released.
    unsafe {
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let result = work();
        pg_sys::LWLockRelease(lock);
        result
    }
}

/// The same for work that may raise an error, which is forgotten: None.
///
/// # Safety
/// The lock is initialised, and an error leaves nothing that only the transaction's abort would release.
pub unsafe fn tried<T>(
    lock: *mut pg_sys::LWLock,
    work: impl FnOnce() -> Option<T> + UnwindSafe,
) -> Option<T> {
    let forgiving = || {
        pgrx::PgTryBuilder::new(work)
            .catch_others(|_| {
                // SAFETY: raising the error has let interrupts in; who releases a lock expects them held.
                unsafe { pg_sys::InterruptHoldoffCount += 1 };
                None
            })
            .execute()
    };
    // SAFETY: by the contract above; the error is caught.
    unsafe { locked(lock, forgiving) }
}
