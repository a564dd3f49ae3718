//! Where the extension's objects are: OIDs looked up once per session, forgotten whenever the catalog changes.
//!
//! The look-up also checks that the library fits the installed version. `ALTER EXTENSION outbox UPDATE` replaces
//! functions, so a change of any function makes the next call look again; so does a change of one of the relations.

use crate::error::Error;
use pgrx::{pg_guard, pg_sys};
use std::cell::Cell;
use std::ffi::CStr;

/// The relations that the store opens: tables, indexes, the sequence and the row type of `claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Object {
    Envelope,
    EnvelopePkey,
    EnvelopeId,
    Delivery,
    DeliveryPkey,
    DeliveryReady,
    DeliveryWaiting,
    DeliveryWaitingTopic,
    DeliveryDead,
    DeliveryParked,
    DeliveryKeyReady,
    DeliveryKeyLater,
    DeliveryKeyDead,
    Receipt,
    ReceiptPkey,
    Processed,
    ProcessedPkey,
    Topic,
    TopicPkey,
    Access,
    AccessNumber,
    Arrival,
    Claimed,
}

/// Names in the order of [`Object`].
const NAMES: [&CStr; 23] = [
    c"envelope",
    c"envelope_pkey",
    c"envelope_id_key",
    c"delivery",
    c"delivery_pkey",
    c"delivery_ready",
    c"delivery_waiting",
    c"delivery_waiting_topic",
    c"delivery_dead",
    c"delivery_parked",
    c"delivery_key_ready",
    c"delivery_key_later",
    c"delivery_key_dead",
    c"receipt",
    c"receipt_pkey",
    c"processed",
    c"processed_pkey",
    c"topic",
    c"topic_pkey",
    c"access",
    c"access_number",
    c"arrival",
    c"claimed",
];

impl Object {
    pub fn name(self) -> &'static CStr {
        NAMES[self as usize]
    }
}

/// What is there if the extension is. Indexes are missed when their table is opened, see `shape.rs`.
const REQUIRED: [Object; 8] = [
    Object::Envelope,
    Object::Delivery,
    Object::Receipt,
    Object::Processed,
    Object::Topic,
    Object::Access,
    Object::Arrival,
    Object::Claimed,
];

/// The OIDs of all objects.
#[derive(Clone, Copy)]
pub struct Catalog {
    oids: [pg_sys::Oid; NAMES.len()],
    /// When they were looked up, counted in changes.
    epoch: u64,
}

impl Catalog {
    pub fn oid(&self, object: Object) -> pg_sys::Oid {
        self.oids[object as usize]
    }

    /// The change that it was looked up after.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// True if nothing has changed since the look-up, as far as this session has heard. It hears of everything when it
    /// locks a table.
    pub fn is_current(&self) -> bool {
        EPOCH.get() == self.epoch
    }
}

thread_local! {
    static KNOWN: Cell<Option<Catalog>> = const { Cell::new(None) };
    static LISTENING: Cell<bool> = const { Cell::new(false) };
    static CHANGED: Cell<bool> = const { Cell::new(false) };
    static EPOCH: Cell<u64> = const { Cell::new(1) };
}

fn forget() {
    KNOWN.set(None);
    EPOCH.set(EPOCH.get() + 1);
}

/// The OID of one of the extension's objects.
///
/// # Errors
/// [`Error::Version`] if the installed extension is of another version than the library, or damaged.
pub fn oid(object: Object) -> Result<pg_sys::Oid, Error> {
    Ok(catalog()?.oid(object))
}

/// The OIDs of all of them.
///
/// # Errors
/// As [`oid`].
pub fn catalog() -> Result<Catalog, Error> {
    KNOWN.get().filter(Catalog::is_current).map_or_else(look_up, Ok)
}

fn look_up() -> Result<Catalog, Error> {
    if !LISTENING.replace(true) {
        // SAFETY: the callbacks are plain functions that live as long as the session.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
            // Functions; and roles, because a table's owner may be bound by row security.
            for cache in [pg_sys::SysCacheIdentifier::PROCOID, pg_sys::SysCacheIdentifier::AUTHOID] {
                pg_sys::CacheRegisterSyscacheCallback(
                    cache as i32,
                    Some(something_changed),
                    pg_sys::Datum::from(0),
                );
            }
        }
    }
    let epoch = EPOCH.get();
    let installed = installed_version();
    if installed.as_deref() != Some(env!("CARGO_PKG_VERSION")) {
        return Err(Error::Version(installed));
    }
    let mut oids = [pg_sys::InvalidOid; NAMES.len()];
    // SAFETY: look-ups by name in the system catalogs; a missing name answers InvalidOid.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"outbox".as_ptr(), true);
        for (oid, name) in oids.iter_mut().zip(NAMES) {
            *oid = pg_sys::get_relname_relid(name.as_ptr(), schema);
        }
    }
    if REQUIRED.iter().any(|object| oids[*object as usize] == pg_sys::InvalidOid) {
        return Err(Error::Version(None));
    }
    crate::tables::number::distrust();
    let known = Catalog { oids, epoch };
    KNOWN.set(Some(known));
    Ok(known)
}

/// The version of the extension in this database, or None if it is not installed.
pub fn installed_version() -> Option<String> {
    // SAFETY: a systable scan over pg_extension by its name index; the tuple is used before the scan ends.
    unsafe {
        let relation = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as i32);
        let mut key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &mut key,
            pg_sys::Anum_pg_extension_extname as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::F_NAMEEQ.into(),
            pg_sys::Datum::from(c"outbox".as_ptr()),
        );
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::ExtensionNameIndexId.into(),
            true,
            std::ptr::null_mut(),
            1,
            &mut key,
        );
        let tuple = pg_sys::systable_getnext(scan);
        let mut version = None;
        if !tuple.is_null() {
            let mut null = false;
            let value = pg_sys::heap_getattr(
                tuple,
                pg_sys::Anum_pg_extension_extversion as i32,
                (*relation).rd_att,
                &mut null,
            );
            if !null {
                let text = pg_sys::text_to_cstring(value.cast_mut_ptr());
                version = Some(CStr::from_ptr(text).to_string_lossy().into_owned());
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        version
    }
}

#[pg_guard]
extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    let known = KNOWN.get();
    let ours = relation == pg_sys::InvalidOid || known.is_some_and(|known| known.oids.contains(&relation));
    if ours {
        CHANGED.set(true);
    }
    if ours || known.is_none() {
        forget(); // perhaps during a look-up
    }
}

/// The file of the deliveries: another one after the table was rewritten or truncated. 0 if there is none.
pub fn file_of_deliveries() -> Result<u32, Error> {
    let oid = oid(Object::Delivery)?;
    let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
    // SAFETY: the tuple is used before it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(oid));
        if tuple.is_null() {
            return Ok(0);
        }
        let file = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relfilenode;
        pg_sys::ReleaseSysCache(tuple);
        Ok(u32::from(file))
    }
}

/// True once after one of the relations was altered, truncated or vacuumed.
pub fn take_changed() -> bool {
    CHANGED.replace(false)
}

#[pg_guard]
extern "C-unwind" fn something_changed(_arg: pg_sys::Datum, _cache: i32, _hash: u32) {
    forget();
}
