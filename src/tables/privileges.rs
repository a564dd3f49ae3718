//! Privileges follow rights: what a row of `outbox.access` gives is granted once, when the row is written or its role
//! is made, and taken when the row goes. What was revoked by hand takes its row along.
//!
//! What rows have given is written down where core keeps the initial privileges of extensions. A dump carries the
//! difference to these: so it carries rows and no GRANT, which a server without the role would refuse.

use crate::error::Error;
use crate::pg::calls::spi;
use crate::pg::catalog::{self, Object};
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::lock::RelationLock;
use crate::pg::session::role;
use crate::pg::value::datum::Text;
use crate::tables::access::{self, Rights};
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys::{self, Oid};
use pgrx::spi::Spi;
use std::cell::Cell;
use std::ffi::CString;
use std::sync::OnceLock;

/// What each of the three begins with, behind the rows of VALUES.
const COMMON: &str = include_str!("../queries/privileges.sql");
const FORGET: &str = include_str!("../queries/privileges_forget.sql");
const INITIAL: &str = include_str!("../queries/privileges_initial.sql");
const STATEMENTS: &str = include_str!("../queries/privileges_statements.sql");
const WRITE_DOWN: &str = include_str!("../queries/privileges_write_down.sql");
const RENAME: &str = include_str!("../queries/rename_access.sql");

/// Rows of VALUES: a capability and a function that it includes.
static CAPABILITIES: OnceLock<&str> = OnceLock::new();

thread_local! { static FOLLOWING: Cell<bool> = const { Cell::new(false) } }

/// Tells what functions each capability includes.
pub fn register(capabilities: &'static str) {
    CAPABILITIES.get_or_init(|| capabilities);
}

fn query(statement: &str) -> String {
    let capabilities = CAPABILITIES.get().copied().unwrap_or_default();
    format!("WITH included (capability, name) AS (VALUES {capabilities}), {COMMON}{statement}")
}

/// While one is there, triggers on the table do nothing. An error ends it too.
struct Following;

impl Following {
    /// None if one is there.
    fn begin() -> Option<Self> {
        (!FOLLOWING.replace(true)).then(|| Following)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        FOLLOWING.set(false);
    }
}

/// Runs a statement that changes rights, and has privileges follow; returns how many rows it changed.
pub fn change(statement: &str, arguments: &[DatumWithOid<'_>]) -> Result<usize, Error> {
    let Some(_following) = Following::begin() else { return Ok(0) };
    let _alone = Table::<Rights>::open(Access::Alone)?;
    follow();
    let changed = run(statement, arguments);
    follow();
    access::tell()?;
    Ok(changed)
}

/// Makes privileges follow rows that were written by hand or by a restore. Does nothing where library and extension do
/// not match: a session that drops a role must not fail for it.
pub fn follow_rows() -> Result<(), Error> {
    if catalog::catalog().is_ok() { change("SELECT WHERE false", &[]).map(drop) } else { Ok(()) }
}

/// Makes privileges follow roles that were made, renamed or dropped, unless another session is changing rights just
/// now.
pub fn follow_roles() -> Result<(), Error> {
    let table = catalog::oid(Object::Access)?;
    let Some(lock) = RelationLock::try_take(table, pg_sys::ShareRowExclusiveLock) else { return Ok(()) };
    let following = Following::begin();
    if following.is_some() && follow() > 0 {
        return access::tell();
    }
    lock.release();
    Ok(())
}

/// Returns how much there was to do.
fn follow() -> usize {
    let rows = run(&query(FORGET), &[]) + run(RENAME, &[]);
    let (statements, mut written) = (all(&query(STATEMENTS)), 0);
    Spi::connect(|client| {
        for row in client.select(&query(INITIAL), None, &[]).into_iter().flatten() {
            let (class, object, acl) = (row.get::<Oid>(1), row.get::<Oid>(2), row.get::<Text<'_>>(3));
            if let (Ok(Some(class)), Ok(Some(object)), Ok(Some(acl))) = (class, object, acl) {
                written +=
                    role::acting_as_superuser(|| run(WRITE_DOWN, &[class.into(), object.into(), acl.into()]));
            }
        }
    });
    for statement in &statements {
        spi::execute(statement);
    }
    rows + written + statements.len()
}

fn run(statement: &str, arguments: &[DatumWithOid<'_>]) -> usize {
    // A database error unwinds as it is; what else pgrx can answer here cannot happen.
    Spi::connect_mut(|client| client.update(statement, None, arguments).map_or(0, |rows| rows.len()))
}

/// The texts that a query returns.
fn all(query: &str) -> Vec<CString> {
    Spi::connect(|client| {
        let rows = client.select(query, None, &[]).into_iter().flatten();
        let texts = rows.filter_map(|row| row.get::<Text<'_>>(1).ok().flatten());
        texts.filter_map(|text| CString::new(text.bytes()).ok()).collect()
    })
}
