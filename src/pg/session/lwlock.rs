//! The server's lightweight locks.

use pgrx::pg_sys;

/// Does some work under a lock, alone.
///
/// # Safety
/// The lock is initialised, and the work raises no error.
pub unsafe fn locked<T>(lock: *mut pg_sys::LWLock, work: impl FnOnce() -> T) -> T {
    // SAFETY: the lock is initialised, and released here, because the work raises no error.
    unsafe {
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let result = work();
        pg_sys::LWLockRelease(lock);
        result
    }
}
