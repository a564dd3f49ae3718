//! Users and roles.

use pgrx::pg_sys;
use std::ffi::CString;

pub fn current_user() -> pg_sys::Oid {
    // SAFETY: reads a number of this session.
    unsafe { pg_sys::GetUserId() }
}

/// True if `user` has the privileges of `role`, which exists.
pub fn acts_for(user: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: asks about two roles; a superuser acts for every number, whether it is a role's or not.
    user == role || exists(role) && unsafe { pg_sys::has_privs_of_role(user, role) }
}

/// True if there is such a role.
fn exists(role: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::AUTHOID as i32;
    let none = pg_sys::Datum::from(0);
    // SAFETY: a look-up by one key.
    unsafe { pg_sys::SearchSysCacheExists(cache, pg_sys::Datum::from(role), none, none, none) }
}

/// True if there is a role of that name; `public` is none.
pub fn is_name(name: &[u8]) -> bool {
    // SAFETY: a look-up by name; a missing one answers InvalidOid.
    CString::new(name)
        .is_ok_and(|name| unsafe { pg_sys::get_role_oid(name.as_ptr(), true) } != pg_sys::InvalidOid)
}

/// Does something as another user, as a SECURITY DEFINER function does. An error ends the transaction, and with it who
/// the user is.
pub fn acting_as<T>(user: pg_sys::Oid, work: impl FnOnce() -> T) -> T {
    let (mut before, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: changes the user, and back.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut before, &mut context);
        pg_sys::SetUserIdAndSecContext(user, context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
        let answer = work();
        pg_sys::SetUserIdAndSecContext(before, context);
        answer
    }
}

/// The same as the superuser that initdb has made: nobody else may write the catalog.
pub fn acting_as_superuser<T>(work: impl FnOnce() -> T) -> T {
    acting_as(pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID), work)
}

/// Until its transaction has ended, this background process is another user, and what that one has defined is
/// restricted.
pub fn become_restricted(user: pg_sys::Oid) {
    let context = pg_sys::SECURITY_RESTRICTED_OPERATION | pg_sys::SECURITY_LOCAL_USERID_CHANGE;
    // SAFETY: as autovacuum does it; `background::transaction` puts the user back.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context as i32) }
}
