//! `set_topic`: settings overridden for one topic.

use crate::error::Error;
use crate::pg::rows::table::{Access, Table};
use crate::pg::value::datum::{Json, Text, letters};
use crate::pg::value::jsonb::Value;
use crate::queue::key_release;
use crate::queue::topic::{changed, checked, look_again};
use crate::rules::argument::{self, Fault};
use crate::settings::range;
use std::ops::RangeInclusive;

const SET_TOPIC: &str = include_str!("../queries/set_topic.sql");

const NUMBERS: [(&str, RangeInclusive<i32>); 6] = [
    ("max_attempts", range::MAX_ATTEMPTS),
    ("backoff_seconds", range::BACKOFF_SECONDS),
    ("backoff_max_seconds", range::BACKOFF_MAX_SECONDS),
    ("lease_seconds", range::LEASE_SECONDS),
    ("batch_size", range::BATCH_SIZE),
    ("retention_days", range::RETENTION_DAYS),
];
const BLOCK_ON_DEAD: &str = "block_on_dead";
const KNOWN: &str = "max_attempts, backoff_seconds, backoff_max_seconds, lease_seconds, batch_size, \
    retention_days and block_on_dead";

/// Overrides settings for one topic, all given ones or none; a JSON null removes an override.
pub fn set_topic(topic: Option<Text<'_>>, settings: Option<Json<'_>>) -> Result<(), Error> {
    let topic = checked(topic)?;
    let settings = argument::required("settings", settings)?;
    let mut unblocks = false;
    for (name, value) in settings.members().ok_or(Fault::NotAnObject("settings"))? {
        check(name, &value)?;
        unblocks |= name == BLOCK_ON_DEAD.as_bytes() && value.boolean() != Some(true);
    }
    if changed(SET_TOPIC, &[topic.into(), settings.into()])? {
        look_again(topic)?;
        if unblocks {
            key_release::unblock_topic(&Table::open(Access::Write)?, topic)?;
        }
    }
    Ok(())
}

fn check(name: &[u8], value: &Value<'_>) -> Result<(), Fault> {
    if name == BLOCK_ON_DEAD.as_bytes() {
        let given = value.is_null() || value.boolean().is_some();
        return if given { Ok(()) } else { Err(Fault::NotBoolean(BLOCK_ON_DEAD)) };
    }
    let Some((name, range)) = NUMBERS.into_iter().find(|(known, _)| known.as_bytes() == name) else {
        return Err(Fault::unknown_key(letters(name), KNOWN));
    };
    if !value.is_null() {
        argument::whole(name, value.number().unwrap_or_default(), range)?;
    }
    Ok(())
}
