//! Where the extension's objects are: OIDs looked up once per session, forgotten whenever the catalog changes.
//!
//! The look-up also checks that the library fits the installed version. `ALTER EXTENSION … UPDATE` replaces
//! functions, so a change of any function makes the next call look again; so does a change of one of the relations.

use crate::error::Error;
use crate::pg::session::invalidation;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::OnceLock;

/// One of the extension's relations: its place in [`Extension::relations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(pub usize);

impl Object {
    pub fn name(self) -> &'static CStr {
        extension().relations[self.0]
    }
}

/// What an extension tells of itself.
pub struct Extension {
    /// Also that of its schema.
    pub name: &'static CStr,
    pub version: &'static str,
    /// Tables, indexes, sequences and row types that are opened: at most [`MOST`].
    pub relations: &'static [&'static CStr],
    /// What is there if the extension is. Indexes are missed when their table is opened, see `rows/shape.rs`.
    pub required: &'static [Object],
    /// The script that makes the tables, and those that must be as it makes them: at most [`MOST`].
    pub script: &'static str,
    pub tables: &'static [Object],
    /// The table that is locked before any other.
    pub first: Object,
    /// Tables that only the executor writes.
    pub indirect: &'static [Object],
    /// What pg_stat_activity shows of a session that waits for something of it, where the server can.
    #[cfg_attr(any(feature = "pg14", feature = "pg15", feature = "pg16"), allow(dead_code))]
    pub wait_event: &'static CStr,
    /// After a look-up: something may have changed.
    pub looked_up: fn(),
}

/// Relations that are known.
pub const MOST: usize = 32;

static EXTENSION: OnceLock<&Extension> = OnceLock::new();
const NONE: Extension = Extension {
    name: c"",
    version: "",
    relations: &[],
    required: &[],
    script: "",
    tables: &[],
    first: Object(0),
    indirect: &[],
    wait_event: c"",
    looked_up: || {},
};

/// Says which extension this is: once, when the library is loaded.
pub fn register(extension: &'static Extension) {
    EXTENSION.get_or_init(|| extension);
}

pub fn extension() -> &'static Extension {
    EXTENSION.get().copied().unwrap_or(&NONE)
}

/// The name of the extension's schema.
pub fn schema() -> &'static str {
    extension().name.to_str().unwrap_or_default()
}

/// The OIDs of all objects.
#[derive(Clone, Copy)]
pub struct Catalog {
    oids: [pg_sys::Oid; MOST],
    /// When they were looked up, counted in changes.
    epoch: u64,
}

impl Catalog {
    pub fn oid(&self, object: Object) -> pg_sys::Oid {
        self.oids[object.0]
    }

    /// The table that is locked before any other.
    pub fn first(&self) -> pg_sys::Oid {
        self.oid(extension().first)
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
    // Functions; and roles, because a table's owner may be bound by row security.
    use pg_sys::SysCacheIdentifier::{AUTHOID, PROCOID};
    invalidation::listen(relation_changed, forget, &[PROCOID, AUTHOID]);
    let epoch = EPOCH.get();
    let installed = installed_version();
    if installed.as_deref() != Some(extension().version) {
        return Err(Error::Version(installed));
    }
    let mut oids = [pg_sys::InvalidOid; MOST];
    // SAFETY: look-ups by name in the system catalogs; a missing name answers InvalidOid.
    unsafe {
        let schema = pg_sys::get_namespace_oid(extension().name.as_ptr(), true);
        for (oid, name) in oids.iter_mut().zip(extension().relations) {
            *oid = pg_sys::get_relname_relid(name.as_ptr(), schema);
        }
    }
    if extension().required.iter().any(|object| oids[object.0] == pg_sys::InvalidOid) {
        return Err(Error::Version(None));
    }
    (extension().looked_up)();
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
            pg_sys::Datum::from(extension().name.as_ptr()),
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

fn relation_changed(relation: pg_sys::Oid) {
    let known = KNOWN.get();
    let ours = relation == pg_sys::InvalidOid || known.is_some_and(|known| known.oids.contains(&relation));
    if ours {
        CHANGED.set(true);
    }
    if ours || known.is_none() {
        forget(); // perhaps during a look-up
    }
}

/// The file of a table: another one after it was rewritten or truncated. 0 if there is none.
pub fn file_of(table: Object) -> Result<u32, Error> {
    let oid = oid(table)?;
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
