//! Database errors that pass through our functions, whole.
//!
//! What pgrx catches it reports again with message, detail, hint and those SQLSTATEs that it knows. So a call leaves a
//! callback on the server's stack of error contexts: it keeps a copy of the error when it is raised, and adds what is
//! missing when it is reported again.

use pgrx::{pg_guard, pg_sys};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// One call, and the last error that was raised in it.
struct Level {
    callback: pg_sys::ErrorContextCallback,
    context: pg_sys::MemoryContext,
    raised: *mut pg_sys::ErrorData,
}

/// Does `work`; database errors that it raises keep all their fields.
pub fn passing<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the level lives in the caller's memory, which outlives the report of an error; it is taken from the stack
    // when the call returns, and code that catches an error puts the stack back to what it was before.
    unsafe {
        let level: *mut Level = pg_sys::palloc(size_of::<Level>()).cast();
        let callback = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(raised_or_reported),
            arg: level.cast(),
        };
        level.write(Level { callback, context: pg_sys::CurrentMemoryContext, raised: null_mut() });
        pg_sys::error_context_stack = &raw mut (*level).callback;
        let answer = work();
        pg_sys::error_context_stack = (*level).callback.previous;
        pg_sys::pfree(level.cast());
        answer
    }
}

// pgrx has no bindings for them.
unsafe extern "C-unwind" {
    fn errcode(code: c_int) -> c_int;
    fn errcontext_msg(format: *const c_char, ...) -> c_int;
    fn errdetail_log(format: *const c_char, ...) -> c_int;
}

#[pg_guard]
extern "C-unwind" fn raised_or_reported(level: *mut c_void) {
    // SAFETY: the server calls it for a message in the making, with the level of a call under way.
    unsafe {
        let level = &mut *level.cast::<Level>();
        let before = pg_sys::MemoryContextSwitchTo(level.context);
        let now = pg_sys::CopyErrorData();
        pg_sys::MemoryContextSwitchTo(before);
        match level.raised.as_ref() {
            Some(raised) if is_of(&*now, raised) => complete(raised),
            _ if (*now).elevel >= pgrx::PgLogLevel::ERROR as c_int => {
                if !level.raised.is_null() {
                    pg_sys::FreeErrorData(level.raised);
                }
                level.raised = now;
                return;
            }
            _ => {}
        }
        pg_sys::FreeErrorData(now);
    }
}

/// True if it is the report of what was raised: the same, with nothing of what pgrx leaves out.
///
/// # Safety
/// Both are copies of errors.
unsafe fn is_of(report: &pg_sys::ErrorData, raised: &pg_sys::ErrorData) -> bool {
    let text = |text: *const c_char| {
        // SAFETY: a text of an error is a C string, or null.
        if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } }
    };
    report.context.is_null()
        && report.lineno == raised.lineno
        && text(report.message) == text(raised.message)
        && text(report.filename) == text(raised.filename)
}

/// Adds to the message in the making.
///
/// # Safety
/// `raised` is a copy of an error, and there is a message in the making.
unsafe fn complete(raised: &pg_sys::ErrorData) {
    let generic = [
        (pg_sys::PG_DIAG_SCHEMA_NAME, raised.schema_name),
        (pg_sys::PG_DIAG_TABLE_NAME, raised.table_name),
        (pg_sys::PG_DIAG_COLUMN_NAME, raised.column_name),
        (pg_sys::PG_DIAG_DATATYPE_NAME, raised.datatype_name),
        (pg_sys::PG_DIAG_CONSTRAINT_NAME, raised.constraint_name),
    ];
    // SAFETY: each text of an error is a C string or null, and the functions copy it.
    unsafe {
        errcode(raised.sqlerrcode);
        for (field, name) in generic {
            if !name.is_null() {
                pg_sys::err_generic_string(field as c_int, name);
            }
        }
        if !raised.internalquery.is_null() {
            pg_sys::internalerrquery(raised.internalquery);
            pg_sys::internalerrposition(raised.internalpos);
        }
        if !raised.detail_log.is_null() {
            errdetail_log(c"%s".as_ptr(), raised.detail_log);
        }
        if !raised.context.is_null() {
            pg_sys::set_errcontext_domain(std::ptr::null());
            errcontext_msg(c"%s".as_ptr(), raised.context);
        }
    }
}

/// Keeps Rust's backtraces out of the DETAIL of errors, which is for users: RUST_BACKTRACE in the server's environment
/// asks for them. The standard library asks the environment once.
pub fn without_backtraces() {
    const NAME: &str = "RUST_LIB_BACKTRACE";
    let before = std::env::var_os(NAME);
    // SAFETY: the server has one thread.
    unsafe {
        std::env::set_var(NAME, "0");
        drop(std::backtrace::Backtrace::capture());
        match before {
            Some(value) => std::env::set_var(NAME, value),
            None => std::env::remove_var(NAME),
        }
    }
}
