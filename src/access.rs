//! Who may do what: `grant_access` and `revoke_access` turn capabilities into privileges.
//!
//! A capability is a list of routines and views; having it is having the privileges on them, so pg_dump and ALTER
//! EXTENSION UPDATE keep it. Only a capability for single topics needs more, a row in `outbox.access` for each
//! (`store/rights.rs`). As with privileges on tables and on their columns, who has a capability has it for all topics,
//! and losing it is losing it for all.

use crate::argument::{self, Fault};
use crate::error::Error;
use crate::store::record::{Limit, Limits};
use crate::store::rights::{self, Right, Role};
use crate::store::scan::Scan;
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Table, Wait};
use crate::store::value::{Text, letters};
use pgrx::spi::Spi;
use std::ffi::CStr;

const HOLDS_NOTHING: &str = include_str!("queries/holds_nothing.sql");

struct Capability {
    name: &'static str,
    /// If it can be had for single topics.
    right: Option<Right>,
    /// Whoever may execute the first of them has the capability.
    routines: &'static [&'static CStr],
    views: &'static [&'static str],
}

const PRODUCER: Capability = Capability {
    name: "producer",
    right: Some(Right::Producer),
    routines: &[c"append", c"append_batch"],
    views: &[],
};
const WORKER: Capability = Capability {
    name: "worker",
    right: Some(Right::Worker),
    routines: &[
        c"claim",
        c"wait",
        c"complete",
        c"complete_batch",
        c"fail",
        c"abandon",
        c"extend",
        c"release",
        c"consume_once",
    ],
    views: &[],
};
const OPERATOR: Capability = Capability {
    name: "operator",
    right: None,
    routines: &[
        c"retry_dead",
        c"redrive",
        c"pause",
        c"resume",
        c"set_topic",
        c"purge",
        c"grant_access",
        c"revoke_access",
        c"cloudevent",
        c"read_stats",
        c"read_status",
    ],
    views: &["message", "stats", "status"],
};
const MONITOR: Capability = Capability {
    name: "monitor",
    right: None,
    routines: &[c"read_stats", c"read_status"],
    views: &["stats", "status"],
};
const ALL: [&Capability; 4] = [&PRODUCER, &WORKER, &OPERATOR, &MONITOR];

/// Gives a role a capability. Nothing happens if it has it.
pub fn grant_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), Error> {
    let asked = Asked::read(role_name, capability)?;
    let limits = Table::<Limits>::open(Access::Alone)?;
    let has_it = asked.role.executes(asked.capability.routines[0])?;
    // Without the privilege, rows are left over.
    let rows = if has_it { asked.rows(&limits)? } else { asked.remove_rows(&limits, |_| true)? };
    match asked.topic {
        Some(_) if has_it && rows == 0 => return Ok(()), // for all topics
        Some(topic) => {
            asked.remove_rows(&limits, |row| row.topic.bytes() == topic.bytes())?;
            let capability = Text::new(asked.capability.name.as_bytes());
            limits.insert(&Limit { role: asked.role.oid(), capability, topic });
        }
        None => {
            asked.remove_rows(&limits, |_| true)?;
        }
    }
    let objects = asked.capability.objects();
    let schema = ["USAGE ON SCHEMA outbox".to_string()];
    rights::execute(asked.statements("GRANT", "TO", schema.iter().chain(&objects)));
    rights::changed()
}

/// Takes a capability from a role. Nothing happens if it has not got it.
pub fn revoke_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), Error> {
    let asked = Asked::read(role_name, capability)?;
    let limits = Table::<Limits>::open(Access::Alone)?;
    let of_topic = |row: &Limit<'_>| asked.topic.is_none_or(|topic| row.topic.bytes() == topic.bytes());
    let removed = asked.remove_rows(&limits, of_topic)?;
    rights::changed()?;
    if asked.topic.is_some() && (removed == 0 || asked.rows(&limits)? > 0) {
        return Ok(());
    }
    let is_included = asked.capability.name == MONITOR.name && asked.role.executes(OPERATOR.routines[0])?;
    if is_included {
        return Ok(());
    }
    rights::execute(asked.statements("REVOKE", "FROM", &asked.capability.objects()));
    if asked.holds_nothing() {
        rights::execute(asked.statements("REVOKE", "FROM", &["USAGE ON SCHEMA outbox".into()]));
    }
    Ok(())
}

impl Capability {
    /// What has to be granted.
    fn objects(&self) -> Vec<String> {
        let qualified =
            |names: &[&str]| names.iter().map(|name| format!("outbox.{name}")).collect::<Vec<_>>();
        let routines: Vec<&str> =
            self.routines.iter().map(|name| name.to_str().unwrap_or_default()).collect();
        let mut objects = vec![format!("EXECUTE ON ROUTINE {}", qualified(&routines).join(", "))];
        if !self.views.is_empty() {
            objects.push(format!("SELECT ON {}", qualified(self.views).join(", ")));
        }
        objects
    }
}

/// What a call is about.
struct Asked<'a> {
    role: Role,
    capability: &'static Capability,
    topic: Option<Text<'a>>,
}

impl Asked<'_> {
    fn read(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<Asked<'static>, Error> {
        let role_name = argument::required("role_name", role_name)?;
        let text = argument::required("capability", capability)?.bytes();
        let (name, topic) = match text.iter().position(|byte| *byte == b':') {
            Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
            None => (text, None),
        };
        let capability = ALL
            .into_iter()
            .find(|known| known.name.as_bytes() == name && (topic.is_none() || known.right.is_some()))
            .ok_or_else(|| Fault::UnknownCapability(argument::shown(letters(text))))?;
        let topic = topic.map(Text::new);
        if let Some(topic) = topic {
            argument::name("topic", topic.letters())?;
        }
        let role =
            Role::named(role_name).ok_or_else(|| Error::NoRole(argument::shown(role_name.letters())))?;
        Ok(Asked { role, capability, topic })
    }

    fn statements<'s>(
        &self,
        verb: &str,
        whom: &str,
        objects: impl IntoIterator<Item = &'s String>,
    ) -> Vec<u8> {
        let role = self.role.quoted();
        let mut statements = Vec::new();
        for object in objects {
            statements.extend(format!("{verb} {object} {whom} ").into_bytes());
            statements.extend(&role);
            statements.push(b';');
        }
        statements
    }

    /// How many topics the role has the capability for.
    fn rows(&self, limits: &Table<Limits>) -> Result<usize, Error> {
        let snapshot = Latest::push();
        let mut scan = Scan::limits(limits, &snapshot)?;
        let mut rows = 0;
        while let Some(found) = scan.next() {
            rows += usize::from(self.is_about(&found.row));
        }
        Ok(rows)
    }

    /// Removes those of its rows that `chosen` says, and all of roles that are gone; returns how many of the former.
    fn remove_rows(
        &self,
        limits: &Table<Limits>,
        chosen: impl Fn(&Limit<'_>) -> bool,
    ) -> Result<usize, Error> {
        let snapshot = Latest::push();
        let mut scan = Scan::limits(limits, &snapshot)?;
        let mut removed = 0;
        while let Some(found) = scan.next() {
            let is_chosen = self.is_about(&found.row) && chosen(&found.row);
            if is_chosen || !rights::is_role(found.row.role) {
                limits.delete(found.id, &snapshot, Wait::Yes);
                removed += usize::from(is_chosen);
            }
        }
        Ok(removed)
    }

    fn is_about(&self, row: &Limit<'_>) -> bool {
        row.role == self.role.oid() && row.capability.bytes() == self.capability.name.as_bytes()
    }

    /// True if the role has no privilege on anything of ours any more, but USAGE on the schema.
    fn holds_nothing(&self) -> bool {
        let _latest = Latest::push();
        let answer = Spi::get_one_with_args::<bool>(HOLDS_NOTHING, &[self.role.oid().into()]);
        answer.is_ok_and(|answer| answer == Some(true))
    }
}
