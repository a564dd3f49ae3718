//! Work that may be taken back without the rest of the transaction: a subtransaction of its own.

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::CaughtError;
use std::panic::AssertUnwindSafe;

/// Taken back with its row locks when it is dropped, also after an error, unless it is kept.
pub struct Savepoint {
    context: pg_sys::MemoryContext,
    owner: pg_sys::ResourceOwner,
    kept: bool,
}

impl Savepoint {
    pub fn begin() -> Savepoint {
        // SAFETY: in a transaction, as every call. What is opened meanwhile is closed by its guard, whose owner stays
        // the caller's: so a guard may outlive this.
        unsafe {
            let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            let savepoint = Savepoint { context, owner, kept: false };
            savepoint.go_on();
            savepoint
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

impl Drop for Savepoint {
    fn drop(&mut self) {
        // SAFETY: begun in `begin`; nothing that was begun later is open.
        unsafe {
            match self.kept {
                true => pg_sys::ReleaseCurrentSubTransaction(),
                false => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
            }
        }
        self.go_on();
    }
}

/// Does `work`, or takes it back and returns the database error that ended it. An error that says nothing about the
/// work, a cancel or a serialization failure, passes.
pub fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, Box<CaughtError>> {
    // SAFETY: as PL/pgSQL does it; memory context and resource owner are those of before in either case.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let done = pgrx::PgTryBuilder::new(AssertUnwindSafe(|| Ok(work())))
            .catch_others(|error| Err(Box::new(error)))
            .execute();
        pg_sys::MemoryContextSwitchTo(context);
        match done {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        match done {
            Err(error) if is_of_the_session(&error) => error.rethrow(),
            done => done,
        }
    }
}

fn is_of_the_session(error: &CaughtError) -> bool {
    let (CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)) = error else { return true };
    let class = |code: Code| code as i32 & 0xfff;
    [Code::ERRCODE_T_R_SERIALIZATION_FAILURE, Code::ERRCODE_QUERY_CANCELED]
        .into_iter()
        .any(|code| class(code) == class(report.sql_error_code()))
}
