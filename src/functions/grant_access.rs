//! `grant_access` and `revoke_access`; `apply_access` and `forget_access` for rows written by hand, see
//! `tables/privileges.rs`.

use crate::error::Error;
use crate::pg::session::role;
use crate::pg::value::datum::{Text, letters};
use crate::rules::argument::{self, Fault};
use crate::tables::access::{self, Right};
use crate::tables::privileges;

const GRANT: &str = include_str!("../queries/grant_access.sql");
const REVOKE: &str = include_str!("../queries/revoke_access.sql");

/// Gives a role a capability. Nothing happens if it has it.
pub fn grant_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), Error> {
    let asked = Asked::read(role_name, capability)?;
    if !role::is_name(asked.role.bytes()) {
        return Err(asked.no_role());
    }
    asked.change(GRANT).map(drop)
}

/// Takes a capability from a role. Nothing happens if it has not got it. A role that is gone may have left rows.
pub fn revoke_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), Error> {
    let asked = Asked::read(role_name, capability)?;
    match asked.change(REVOKE)? {
        0 if !role::is_name(asked.role.bytes()) => Err(asked.no_role()),
        _ => Ok(()),
    }
}

/// What a call is about.
struct Asked<'a> {
    role: Text<'a>,
    capability: Text<'a>,
    topic: Text<'a>,
}

impl<'a> Asked<'a> {
    fn read(role_name: Option<Text<'a>>, capability: Option<Text<'a>>) -> Result<Asked<'a>, Error> {
        let role = argument::required("role_name", role_name)?;
        let text = argument::required("capability", capability)?.bytes();
        let (name, topic) = match text.iter().position(|byte| *byte == b':') {
            Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
            None => (text, None),
        };
        let is_limitable = Right::ALL.iter().any(|right| right.name().as_bytes() == name);
        if !is_limitable && (topic.is_some() || ![&b"operator"[..], b"monitor"].contains(&name)) {
            return Err(Fault::UnknownCapability(argument::shown(letters(text))).into());
        }
        let topic = Text::new(topic.unwrap_or(access::ALL_TOPICS));
        argument::name("topic", topic.letters())?;
        Ok(Asked { role, capability: Text::new(name), topic })
    }

    fn change(&self, statement: &str) -> Result<usize, Error> {
        privileges::change(statement, &[self.role.into(), self.capability.into(), self.topic.into()])
    }

    fn no_role(&self) -> Error {
        Error::NoRole(argument::shown(self.role.letters()))
    }
}
