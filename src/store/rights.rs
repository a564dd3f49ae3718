//! Rights that are limited to topics: who may append to, or work on, which.
//!
//! EXECUTE on the functions is what lets a role in. A role that got it for some topics only has a row for each of them in
//! `outbox.access`; whoever acts with that role's rights alone may touch no other topic. One who has EXECUTE by another
//! way, as owner, superuser, member of another role or by a plain GRANT, may touch all.
//!
//! What this comes to for a user is remembered per session, until a role, a membership, a function's privileges or the
//! table change. So where nobody is limited it costs a comparison.

use super::catalog::{self, Object};
use super::record::Limits;
use super::scan::Scan;
use super::snapshot::Latest;
use super::table::{Access, Table};
use super::value::{Text, letters};
use crate::argument;
use crate::error::Error;
use pgrx::{pg_guard, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// A right that can be limited to topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    Producer,
    Worker,
}

/// The topics that one right is limited to; None means no limit.
#[derive(Clone)]
pub struct Topics(Option<Rc<HashSet<Vec<u8>>>>, Right);

/// A role that exists.
pub struct Role(pg_sys::Oid);

/// What has been found out since the last change.
struct Known {
    generation: u64,
    topics: HashMap<(pg_sys::Oid, Right), Topics>,
}

thread_local! {
    /// Counts the changes that may matter.
    static GENERATION: Cell<u64> = const { Cell::new(1) };
    /// A user without limits, while nothing has changed since that generation.
    static FREE: Cell<(pg_sys::Oid, u64)> = const { Cell::new((pg_sys::InvalidOid, 0)) };
    static KNOWN: RefCell<Known> = RefCell::new(Known { generation: 0, topics: HashMap::new() });
    static TABLE: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
}

impl Right {
    pub const ALL: [Right; 2] = [Right::Producer, Right::Worker];

    pub fn name(self) -> &'static str {
        match self {
            Right::Producer => "producer",
            Right::Worker => "worker",
        }
    }

    /// The routine whose privileges tell who has it.
    fn routine(self) -> &'static CStr {
        match self {
            Right::Producer => c"append",
            Right::Worker => c"claim",
        }
    }
}

impl Topics {
    /// # Errors
    /// [`Error::Denied`] if the right does not extend to `topic`.
    pub fn check(&self, topic: Text<'_>) -> Result<(), Error> {
        match &self.0 {
            Some(topics) if !topics.contains(topic.bytes()) => {
                Err(Error::Denied(self.1.name(), Some(argument::shown(letters(topic.bytes())))))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// [`Error::Denied`] if there is any limit.
    pub fn check_all(&self) -> Result<(), Error> {
        if self.0.is_some() { Err(Error::Denied(self.1.name(), None)) } else { Ok(()) }
    }
}

/// What the current user's right is limited to.
pub fn topics(right: Right) -> Result<Topics, Error> {
    // SAFETY: reads a number of this session.
    let user = unsafe { pg_sys::GetUserId() };
    if FREE.get() == (user, GENERATION.get()) {
        return Ok(Topics(None, right));
    }
    listen();
    let generation = GENERATION.get();
    let known = KNOWN.with_borrow_mut(|known| {
        if known.generation != generation {
            *known = Known { generation, topics: HashMap::new() };
        }
        known.topics.get(&(user, right)).cloned()
    });
    if let Some(topics) = known {
        return Ok(topics);
    }
    let found = look_up(user)?;
    if found.iter().all(|topics| topics.0.is_none()) {
        FREE.set((user, generation));
    }
    let topics = found[right as usize].clone();
    KNOWN.with_borrow_mut(|known| {
        // What has changed meanwhile has emptied it, or will.
        if known.generation == generation {
            known.topics.extend(found.into_iter().map(|topics| ((user, topics.1), topics)));
        }
    });
    Ok(topics)
}

fn look_up(user: pg_sys::Oid) -> Result<[Topics; 2], Error> {
    TABLE.set(catalog::oid(Object::Access)?);
    let limits = Table::<Limits>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut scan = Scan::limits(&limits, &snapshot)?;
    let (mut limited, mut topics) = ([HashSet::new(), HashSet::new()], [HashSet::new(), HashSet::new()]);
    while let Some(found) = scan.next() {
        let row = found.row;
        let Some(right) =
            Right::ALL.into_iter().find(|right| right.name().as_bytes() == row.capability.bytes())
        else {
            continue;
        };
        if acts_for(user, row.role) {
            limited[right as usize].insert(row.role);
            topics[right as usize].insert(row.topic.bytes().to_vec());
        }
    }
    drop(scan);
    drop(snapshot);
    limits.release();
    let mut limits = Right::ALL.map(|right| Topics(None, right));
    for ((limit, roles), topics) in limits.iter_mut().zip(limited).zip(topics) {
        // A superuser acts for every role.
        if !roles.is_empty() && !is_unlimited(user, limit.1, &roles)? {
            limit.0 = Some(Rc::new(topics));
        }
    }
    Ok(limits)
}

/// True if the user has the right by another way than through one of the `limited` roles.
fn is_unlimited(user: pg_sys::Oid, right: Right, limited: &HashSet<pg_sys::Oid>) -> Result<bool, Error> {
    // SAFETY: asks about a role.
    if unsafe { pg_sys::superuser_arg(user) } {
        return Ok(true);
    }
    let (owner, grantees) = privileges(right.routine())?;
    let everybody = pg_sys::InvalidOid;
    Ok(acts_for(user, owner)
        || grantees
            .into_iter()
            .any(|role| role == everybody || !limited.contains(&role) && acts_for(user, role)))
}

/// True if `user` has the privileges of `role`.
fn acts_for(user: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: asks about two roles; a superuser acts for every number, whether it is a role's or not.
    user == role || is_role(role) && unsafe { pg_sys::has_privs_of_role(user, role) }
}

/// True if there is such a role.
pub fn is_role(role: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::AUTHOID as i32;
    let none = pg_sys::Datum::from(0);
    // SAFETY: a look-up by one key.
    unsafe { pg_sys::SearchSysCacheExists(cache, pg_sys::Datum::from(role), none, none, none) }
}

impl Role {
    /// The role of that name; `public` is none.
    pub fn named(name: Text<'_>) -> Option<Role> {
        let name = CString::new(name.bytes()).ok()?;
        // SAFETY: a look-up by name; a missing one answers InvalidOid.
        let role = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
        (role != pg_sys::InvalidOid).then_some(Role(role))
    }

    pub fn oid(&self) -> pg_sys::Oid {
        self.0
    }

    /// Its name as SQL needs it.
    pub fn quoted(&self) -> Vec<u8> {
        // SAFETY: the role exists, and its name is a C string, as is the quoted one.
        unsafe {
            let name = pg_sys::GetUserNameFromId(self.0, false);
            CStr::from_ptr(pg_sys::quote_identifier(name)).to_bytes().to_vec()
        }
    }

    /// True if it was itself granted EXECUTE on that routine of ours.
    pub fn executes(&self, routine: &CStr) -> Result<bool, Error> {
        Ok(privileges(routine)?.1.contains(&self.0))
    }
}

/// The owner of one of our routines, and who was granted EXECUTE on it.
fn privileges(routine: &CStr) -> Result<(pg_sys::Oid, Vec<pg_sys::Oid>), Error> {
    // SAFETY: names are C strings; the tuple is used before it is released; an ACL is an array of AclItems, by
    // reference, which lie one after the other.
    unsafe {
        let mut name = std::ptr::null_mut();
        for part in [c"outbox", routine] {
            name = pg_sys::lappend(name, pg_sys::makeString(part.as_ptr().cast_mut()).cast());
        }
        let oid = pg_sys::LookupFuncName(name, -1, std::ptr::null(), true);
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return Err(Error::Version(catalog::installed_version()));
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>()).proowner;
        let mut null = false;
        let acl = pg_sys::SysCacheGetAttr(cache, tuple, pg_sys::Anum_pg_proc_proacl as i16, &mut null);
        // No ACL means the default: everybody.
        let grantees = if null { vec![pg_sys::InvalidOid] } else { executors(acl) };
        pg_sys::ReleaseSysCache(tuple);
        Ok((owner, grantees))
    }
}

const EXECUTE: pg_sys::AclMode = pg_sys::ACL_EXECUTE as pg_sys::AclMode;

/// # Safety
/// `acl` is an aclitem[].
unsafe fn executors(acl: pg_sys::Datum) -> Vec<pg_sys::Oid> {
    // SAFETY: by the contract above; deconstruct_array allocates `count` datums in the current memory context.
    unsafe {
        let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(acl.cast_mut_ptr()).cast();
        let (mut values, mut count) = (std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            pg_sys::ACLITEMOID,
            size_of::<pg_sys::AclItem>() as i32,
            false,
            pg_sys::TYPALIGN_CHAR as std::ffi::c_char,
            &mut values,
            std::ptr::null_mut(),
            &mut count,
        );
        (0..count as usize)
            .map(|place| &*(*values.add(place)).cast_mut_ptr::<pg_sys::AclItem>())
            .filter(|item| item.ai_privs & EXECUTE != 0)
            .map(|item| item.ai_grantee)
            .collect()
    }
}

/// Has every session look again, once this transaction is committed.
pub fn changed() -> Result<(), Error> {
    let table = catalog::oid(Object::Access)?;
    // SAFETY: the relation exists.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
    Ok(())
}

/// Runs statements that return nothing, with the rights of the current user.
pub fn execute(statements: Vec<u8>) {
    let Ok(statements) = CString::new(statements) else { return };
    // SAFETY: errors unwind and take the SPI connection with them.
    unsafe {
        pg_sys::SPI_connect();
        pg_sys::SPI_execute(statements.as_ptr(), false, 0);
        pg_sys::SPI_finish();
    }
}

fn listen() {
    thread_local! { static LISTENING: Cell<bool> = const { Cell::new(false) } }
    if LISTENING.replace(true) {
        return;
    }
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, PROCOID};
    // SAFETY: the callbacks are plain functions that live as long as the session.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
        for cache in [AUTHMEMROLEMEM, AUTHOID, PROCOID] {
            let none = pg_sys::Datum::from(0);
            pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(catalog_changed), none);
        }
    }
}

#[pg_guard]
extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || relation == TABLE.get() {
        GENERATION.set(GENERATION.get() + 1);
    }
}

#[pg_guard]
extern "C-unwind" fn catalog_changed(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    GENERATION.set(GENERATION.get() + 1);
}
