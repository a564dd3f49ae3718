//! `outbox.access`, rights: who may do what. A right is a row of `outbox.access`: role, capability, topic or `*`. It
//! counts while that role exists and has EXECUTE (`privileges.rs`); superusers and the owner need none.
//!
//! Which topics a user may append to or work on is remembered per session, until a role, a membership, a function's
//! privileges or the table change. So where nobody is limited it costs a comparison.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::read::scan::Scan;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::row::{Fields, Read, TableShape};
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::{invalidation, role};
use crate::pg::value::datum::{Text, letters};
use crate::rules::argument;
use crate::tables::envelope::Envelopes;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// What a role may do.
#[derive(Clone, Copy)]
pub struct RightRow<'a> {
    /// None if there was no such role.
    pub role: Option<pg_sys::Oid>,
    pub capability: Text<'a>,
    pub topic: Text<'a>,
}

pub enum Rights {}

impl TableShape for Rights {
    const TABLE: Object = Object::Access;
    type Row<'a> = RightRow<'a>;
}

impl Read for Rights {
    fn read<'a>(fields: &Fields<'a>) -> RightRow<'a> {
        RightRow { role: fields.get_opt(3), capability: fields.get(1), topic: fields.get(2) }
    }
}

/// The topic of a right to all.
pub const ALL_TOPICS: &[u8] = b"*";

/// A right that can be limited to topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    Producer,
    Worker,
}

/// The topics that one right extends to; None means all.
#[derive(Clone)]
pub struct Topics(Option<Rc<HashSet<Vec<u8>>>>, Right);

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

    /// # Errors
    /// [`Error::Denied`] if it extends to no topic.
    pub fn check_any(&self) -> Result<(), Error> {
        if self.0.as_ref().is_some_and(|topics| topics.is_empty()) { self.check_all() } else { Ok(()) }
    }
}

/// What the current user's right extends to.
pub fn topics(right: Right) -> Result<Topics, Error> {
    let user = role::current_user();
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
    let rights = Table::<Rights>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut topics = Right::ALL.map(|right| Topics(Some(Rc::default()), right));
    // A superuser acts for every role.
    if role::acts_for(user, rights.owner()) {
        topics = Right::ALL.map(|right| Topics(None, right));
    }
    let mut scan = Scan::rights(&rights, &snapshot)?;
    while let Some(found) = scan.next() {
        let row = found.row;
        let of_right = |topics: &&mut Topics| topics.1.name().as_bytes() == row.capability.bytes();
        let Some(Topics(known, _)) = topics.iter_mut().find(of_right) else { continue };
        if !row.role.is_some_and(|role| role::acts_for(user, role)) {
            continue;
        }
        if row.topic.bytes() == ALL_TOPICS {
            *known = None;
        } else if let Some(set) = known.as_mut().and_then(Rc::get_mut) {
            set.insert(row.topic.bytes().to_vec());
        }
    }
    drop(scan);
    drop(snapshot);
    rights.release();
    Ok(topics)
}

/// Until the transaction has ended, this background process is the tables' owner: what the owner has put on them,
/// triggers or indexes over functions, must not run as superuser.
pub fn act_as_owner() -> Result<(), Error> {
    let table = Table::<Envelopes>::open(Access::Read)?;
    role::become_restricted(table.owner());
    Ok(())
}

/// Has every session look again, once this transaction is committed.
pub fn tell() -> Result<(), Error> {
    let table = catalog::oid(Object::Access)?;
    invalidation::announce(table);
    Ok(())
}

fn listen() {
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, PROCOID};
    invalidation::listen(relation_changed, catalog_changed, &[AUTHMEMROLEMEM, AUTHOID, PROCOID]);
}

fn relation_changed(relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || relation == TABLE.get() {
        catalog_changed();
    }
}

fn catalog_changed() {
    GENERATION.set(GENERATION.get() + 1);
}
