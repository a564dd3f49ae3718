//! What the server calls when a transaction, a part of one, or the session ends.

use pgrx::{pg_guard, pg_sys};
use std::ffi::c_void;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is about to be committed, and may still fail.
    Commits,
    Committed,
    RolledBack,
    /// It ends in another session.
    Prepared,
}

/// Calls `tell` at the ends of this session's transactions, and `tell_part` with the number of each part that was
/// rolled back, see [`crate::pg::session::server::savepoint_number`]. But for [`End::Commits`] an error there would be
/// a PANIC.
pub fn at_ends(tell: fn(End), tell_part: fn(u32)) {
    // SAFETY: the callbacks are plain functions that live as long as the session, and so are the arguments.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_ends), tell as *mut c_void);
        pg_sys::RegisterSubXactCallback(Some(savepoint_ends), tell_part as *mut c_void);
    }
}

/// Calls `tell` when this process ends, however it does.
pub fn at_exit(tell: fn()) {
    // SAFETY: the callback is a plain function, and so is the argument.
    unsafe { pg_sys::before_shmem_exit(Some(process_ends), pg_sys::Datum::from(tell as *mut c_void)) }
}

#[pg_guard]
extern "C-unwind" fn transaction_ends(event: pg_sys::XactEvent::Type, tell: *mut c_void) {
    let end = match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => End::Commits,
        pg_sys::XactEvent::XACT_EVENT_COMMIT => End::Committed,
        pg_sys::XactEvent::XACT_EVENT_ABORT => End::RolledBack,
        pg_sys::XactEvent::XACT_EVENT_PREPARE => End::Prepared,
        _ => return,
    };
    // SAFETY: registered with a function of this type.
    let tell: fn(End) = unsafe { std::mem::transmute(tell) };
    tell(end);
}

#[pg_guard]
extern "C-unwind" fn savepoint_ends(
    event: pg_sys::SubXactEvent::Type,
    part: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    tell: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: registered with a function of this type.
        let tell: fn(u32) = unsafe { std::mem::transmute(tell) };
        tell(part);
    }
}

#[pg_guard]
extern "C-unwind" fn process_ends(_code: i32, tell: pg_sys::Datum) {
    // SAFETY: registered with a function of this type.
    let tell: fn() = unsafe { std::mem::transmute(tell.cast_mut_ptr::<c_void>()) };
    tell();
}
