//! Whether a table is as the install script made it, column by column and index by index.
//!
//! What differs decides how the table may be used. Nothing: directly. Only what the executor knows how to honour
//! (triggers, foreign keys, constraints): rows are written as the executor writes them, see `executor.rs`. Anything
//! else: not at all, because rows are read and written by position. The verdict is found once per session and change.

use crate::error::{Difference, Error};
use crate::pg::catalog::{self, Catalog, MOST, Object, extension, schema};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char};

thread_local! {
    /// By table: the epoch of the catalog in which a verdict was found, and the verdict.
    static KNOWN: [Cell<(u64, bool)>; MOST] = const { [const { Cell::new((0, false)) }; MOST] };
}

/// True if rows of the table must be written as the executor writes them. The relation is open and locked.
///
/// # Errors
/// [`Error::Shape`] if it must not be used.
pub fn is_changed(table: Object, relation: pg_sys::Relation, catalog: &Catalog) -> Result<bool, Error> {
    let (epoch, changed) = KNOWN.with(|known| known[table.0].get());
    if epoch == catalog.epoch() {
        return Ok(changed);
    }
    let made = Made::by_script(table);
    if let Some(difference) = made.difference(relation) {
        return Err(Error::Shape(difference));
    }
    let changed = !made.causes(relation).is_empty();
    KNOWN.with(|known| known[table.0].set((catalog.epoch(), changed)));
    Ok(changed)
}

/// What is to be said of all tables.
pub struct Report {
    /// False if one of them must not be used.
    pub is_usable: bool,
    pub ok: bool,
    pub detail: String,
}

/// Compares all tables with what the script makes.
///
/// # Errors
/// As [`catalog::catalog`].
pub fn report() -> Result<Report, Error> {
    loop {
        let catalog = catalog::catalog()?;
        let mut report = Report { is_usable: true, ok: true, detail: String::new() };
        let mut findings = Vec::new();
        for table in extension().tables.iter().copied() {
            let made = Made::by_script(table);
            // SAFETY: locks and opens a relation, if it is still there; it is closed here, or by the abort.
            unsafe {
                let relation = pg_sys::try_table_open(catalog.oid(table), pg_sys::AccessShareLock as i32);
                if relation.is_null() {
                    return Err(Error::Version(None));
                }
                let causes = made.causes(relation);
                if let Some(Difference { object, what, cure }) = made.difference(relation) {
                    (report.is_usable, report.ok) = (false, false);
                    findings.push(format!("{object}: {what} {cure}"));
                } else if let Some(refusal) = refusal(relation) {
                    report.ok = false;
                    findings.push(format!("{}: {refusal}", made.full_name()));
                } else if !causes.is_empty() {
                    findings.push(format!(
                        "{} is written slower for: {}",
                        made.full_name(),
                        causes.join(", ")
                    ));
                }
                pg_sys::table_close(relation, pg_sys::NoLock as i32);
            }
        }
        if catalog.is_current() {
            let plain = findings.is_empty().then(|| "as the extension made them".to_string());
            report.detail = plain.unwrap_or_else(|| findings.join("; "));
            return Ok(report);
        }
    }
}

/// Why rows that are published can be neither updated nor deleted.
///
/// # Safety
/// The relation is open.
unsafe fn refusal(relation: pg_sys::Relation) -> Option<String> {
    pgrx::PgTryBuilder::new(|| {
        // SAFETY: looks at the catalog only; an error leaves nothing behind.
        unsafe {
            pg_sys::CheckCmdReplicaIdentity(relation, pg_sys::CmdType::CMD_UPDATE);
            pg_sys::CheckCmdReplicaIdentity(relation, pg_sys::CmdType::CMD_DELETE);
        }
        None
    })
    .catch_others(|error| match error {
        pg_sys::panic::CaughtError::PostgresError(report) => Some(report.message().to_string()),
        other => other.rethrow(),
    })
    .execute()
}

/// A table as the script makes it.
struct Made {
    table: Object,
    name: &'static str,
    columns: Vec<Column>,
    indexes: Vec<Index>,
}

struct Column {
    name: &'static str,
    kind: pg_sys::Oid,
    is_needed: bool,
    is_generated: bool,
}

struct Index {
    name: &'static str,
    /// A statement that makes it.
    statement: String,
}

impl Made {
    fn by_script(table: Object) -> Made {
        let name = table.name().to_str().unwrap_or_default();
        let mut made = Made { table, name, columns: Vec::new(), indexes: Vec::new() };
        let start = format!("CREATE TABLE {}.{name} (\n", schema());
        let body = extension()
            .script
            .split_once(&start)
            .and_then(|(_, rest)| rest.split_once("\n)"))
            .unwrap_or_default()
            .0;
        for line in body.lines() {
            let line = line.trim().trim_end_matches(',');
            if let Some((name, unique)) =
                line.strip_prefix("CONSTRAINT ").and_then(|rest| rest.split_once(' '))
            {
                let columns = unique.find('(').map_or("", |bracket| &unique[bracket..]);
                let statement = format!("CREATE UNIQUE INDEX {name} ON {} {columns}", made.full_name());
                made.indexes.push(Index { name, statement });
            } else if let Some((name, kind)) = line.split_once(" pg_catalog.") {
                let kind = kind.split(' ').next().map_or(pg_sys::InvalidOid, kind_named);
                made.columns.push(Column {
                    name,
                    kind,
                    is_needed: line.contains("NOT NULL"),
                    is_generated: line.contains("GENERATED"),
                });
            }
        }
        let on = format!(" ON {} (", made.full_name());
        for statement in extension()
            .script
            .split(";\n")
            .filter_map(|part| part.find("CREATE INDEX ").map(|at| &part[at..]))
        {
            if let Some((name, _)) = statement.split_once(&on) {
                let name = &name["CREATE INDEX ".len()..];
                made.indexes.push(Index { name, statement: statement.replace("\n   ", "") });
            }
        }
        made
    }

    fn full_name(&self) -> String {
        format!("{}.{}", schema(), self.name)
    }

    /// The first thing that keeps the table from being used.
    fn difference(&self, relation: pg_sys::Relation) -> Option<Difference> {
        let name = self.full_name();
        let differs = |what: String, cure: String| Some(Difference { object: name.clone(), what, cure });
        // SAFETY: the relation is open; its descriptor has as many attributes as it says.
        unsafe {
            if (*(*relation).rd_rel).relam != pg_sys::HEAP_TABLE_AM_OID {
                let cure = format!("Run ALTER TABLE {name} SET ACCESS METHOD heap.");
                return differs("It uses another access method.".into(), cure);
            }
            if let Some((what, cure)) = self.columns_differ(relation) {
                return differs(what, cure);
            }
            if has_rule(relation) {
                return differs("It has a rule.".into(), format!("Drop its rules: \\d {name} shows them."));
            }
            let class = &*(*relation).rd_rel;
            if class.relrowsecurity
                && class.relforcerowsecurity
                && !pg_sys::has_bypassrls_privilege(class.relowner)
            {
                let cure = format!("Run ALTER TABLE {name} NO FORCE ROW LEVEL SECURITY.");
                return differs("Row security is forced on its owner.".into(), cure);
            }
        }
        let (what, cure) = self.indexes.iter().find_map(Index::differs)?;
        differs(what, cure)
    }

    /// # Safety
    /// The relation is open.
    unsafe fn columns_differ(&self, relation: pg_sys::Relation) -> Option<(String, String)> {
        // SAFETY: the relation is open.
        let columns = unsafe { columns(relation) };
        let alter = |how: String| format!("Run ALTER TABLE {} {how}.", self.full_name());
        let rebuild = || "Dump the data, drop and create the extension, and restore the data.".to_string();
        for (place, made) in self.columns.iter().enumerate() {
            let Some(is) = columns.get(place).filter(|is| !is.attisdropped) else {
                return Some((format!("Column \"{}\" is missing.", made.name), rebuild()));
            };
            let name = text(is.attname.data.as_ptr());
            if name != made.name {
                let cure = alter(format!("RENAME COLUMN \"{name}\" TO {}", made.name));
                return Some((format!("Column \"{}\" has the name \"{name}\".", made.name), cure));
            }
            let is_c = is.attcollation == pg_sys::InvalidOid
                || is.attcollation == pg_sys::C_COLLATION_OID
                || made.kind != pg_sys::TEXTOID;
            if is.atttypid != made.kind || is.atttypmod != -1 || !is_c {
                let what = format!("Column \"{name}\" has another type.");
                return Some((what, alter(format!("ALTER COLUMN {name} TYPE {}", type_words(made.kind)))));
            }
            if is.attidentity != 0 || (is.attgenerated != 0) != made.is_generated {
                return Some((
                    format!("Column \"{name}\" makes its values."),
                    alter(format!("ALTER COLUMN {name} DROP IDENTITY")),
                ));
            }
            if made.is_needed && !is.attnotnull {
                let what = format!("Column \"{name}\" may be null.");
                return Some((what, alter(format!("ALTER COLUMN {name} SET NOT NULL"))));
            }
        }
        let added = columns[self.columns.len()..].iter().find(|column| !column.attisdropped)?;
        let name = text(added.attname.data.as_ptr());
        Some((format!("Column \"{name}\" was added."), alter(format!("DROP COLUMN \"{name}\""))))
    }

    /// What the executor has to honour.
    fn causes(&self, relation: pg_sys::Relation) -> Vec<String> {
        let mut causes = Vec::new();
        if extension().indirect.contains(&self.table) {
            return causes;
        }
        // SAFETY: the relation is open; the arrays of its descriptors are as long as they say.
        unsafe {
            let triggers = (*relation).trigdesc;
            let count = if triggers.is_null() { 0 } else { (*triggers).numtriggers };
            for place in 0..count as usize {
                let trigger = &*(*triggers).triggers.add(place);
                causes.push(match trigger.tgisinternal {
                    true => {
                        format!("constraint \"{}\"", text(pg_sys::get_constraint_name(trigger.tgconstraint)))
                    }
                    false => format!("trigger \"{}\"", text(trigger.tgname)),
                });
            }
            let constraints = (*(*relation).rd_att).constr;
            let count = if constraints.is_null() { 0 } else { (*constraints).num_check };
            for place in 0..usize::from(count) {
                let check = &*(*constraints).check.add(place);
                causes.push(format!("constraint \"{}\"", text(check.ccname)));
            }
            for (made, is) in self.columns.iter().zip(columns(relation)) {
                if is.attnotnull && !made.is_needed {
                    causes.push(format!("NOT NULL of column \"{}\"", made.name));
                }
            }
            if (*(*relation).rd_rel).relispartition {
                causes.push("a partitioned table".into());
            }
        }
        causes.dedup();
        causes
    }
}

impl Index {
    fn differs(&self) -> Option<(String, String)> {
        let name = CString::new(self.name).ok()?;
        // SAFETY: looks it up by name; what is found is opened, locked, and closed.
        let (made, usable) = unsafe {
            let schema = pg_sys::get_namespace_oid(extension().name.as_ptr(), true);
            let oid = pg_sys::get_relname_relid(name.as_ptr(), schema);
            if oid == pg_sys::InvalidOid
                || pg_sys::get_rel_relkind(oid).cast_unsigned() != pg_sys::RELKIND_INDEX
            {
                let what = format!("Index \"{}\" is missing.", self.name);
                return Some((what, format!("Run {}.", self.statement)));
            }
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let row = &*(*index).rd_index;
            let usable = row.indisvalid && row.indisready && row.indimmediate;
            pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
            (text(pg_sys::pg_get_indexdef_string(oid)), usable)
        };
        let made = bare(&made);
        let (head, tail) = self.statement.split_once(" WHERE ").unwrap_or((&self.statement, ""));
        let (head, tail) = (bare(head), bare(tail));
        let middle = made.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail));
        let middle = middle.map(|middle| middle.strip_suffix("WHERE").unwrap_or(middle));
        let same = middle.is_some_and(|middle| {
            middle.is_empty() || middle.starts_with("WITH") || middle.starts_with("TABLESPACE")
        });
        let drop = format!("DROP INDEX {}.{}", schema(), self.name);
        match (same, usable) {
            (true, true) => None,
            (true, false) => {
                let what = format!("Index \"{}\" is not valid or deferrable.", self.name);
                Some((
                    what,
                    format!(
                        "Run REINDEX INDEX {}.{}, or if it is deferrable make it again without.",
                        schema(),
                        self.name
                    ),
                ))
            }
            (false, _) => Some((
                format!("Index \"{}\" is another one.", self.name),
                format!("Run {drop}; {}.", self.statement),
            )),
        }
    }
}

/// A statement without what may be written in several ways.
fn bare(statement: &str) -> String {
    let text = statement
        .replace("OPERATOR(pg_catalog.=)", "=")
        .replace("pg_catalog.", "")
        .replace("USING btree", "");
    text.replace(|letter: char| letter.is_whitespace() || matches!(letter, '(' | ')'), "")
}

/// The type that the script calls `pg_catalog.name`.
fn kind_named(name: &str) -> pg_sys::Oid {
    let element = name.trim_end_matches("[]").trim_matches('"');
    let Ok(text) = CString::new(element) else { return pg_sys::InvalidOid };
    // SAFETY: a look-up by name in the system catalog.
    unsafe {
        let oid = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::TYPENAMENSP as i32,
            pg_sys::Anum_pg_type_oid as i16,
            pg_sys::Datum::from(text.as_ptr()),
            pg_sys::Datum::from(pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE)),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
        );
        if name.ends_with("[]") { pg_sys::get_array_type(oid) } else { oid }
    }
}

fn type_words(kind: pg_sys::Oid) -> String {
    // SAFETY: names a type.
    let name = text(unsafe { pg_sys::format_type_be(kind) });
    if kind == pg_sys::TEXTOID { format!("{name} COLLATE \"C\"") } else { name }
}

/// The columns of a table, dropped ones too.
///
/// # Safety
/// The relation is open.
unsafe fn columns(relation: pg_sys::Relation) -> Vec<pg_sys::FormData_pg_attribute> {
    // SAFETY: an open relation's descriptor has as many attributes as it says.
    unsafe {
        let shape = (*relation).rd_att;
        (0..(*shape).natts).map(|place| *crate::pg::version::attribute(shape, place)).collect()
    }
}

/// True if a rule is in force.
///
/// # Safety
/// The relation is open.
unsafe fn has_rule(relation: pg_sys::Relation) -> bool {
    // SAFETY: the array is as long as it says.
    unsafe {
        let rules = (*relation).rd_rules;
        let count = if rules.is_null() { 0 } else { (*rules).numLocks };
        (0..count as usize).any(|place| (**(*rules).rules.add(place)).enabled.cast_unsigned() != b'D')
    }
}

/// A name of the catalog; empty if it is null.
fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the catalog's names are C strings.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
