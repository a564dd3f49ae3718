//! What operators set for one topic: `pause`, `resume`, `set_topic`.
//!
//! Claims and answers read `outbox.topic` afresh, so whatever is committed here counts from the next call on. Claims
//! on any topic pass a paused one's messages and remember that there is nothing to be had (see `rules/floor.rs`): what makes
//! messages claimable again takes that back.

use crate::error::Error;
use crate::pg::datum::{Json, Text, Time, letters};
use crate::pg::jsonb::Value;
use crate::pg::table::{Access, Table};
use crate::queue::key_release;
use crate::rules::argument::{self, Fault};
use crate::settings::range;
use crate::shmem::pending;
use crate::tables::row::Topics;
use pgrx::datum::DatumWithOid;
use pgrx::spi::Spi;
use std::ops::RangeInclusive;

const PAUSE: &str = include_str!("../queries/pause.sql");
const RESUME: &str = include_str!("../queries/resume.sql");
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

/// Claims skip the topic from now on; leases that are out can be answered. True if it was not paused before.
pub fn pause(topic: Option<Text<'_>>) -> Result<bool, Error> {
    let topic = checked(topic)?;
    changed(PAUSE, &[topic.into()])
}

/// Its messages can be claimed again. True if it was paused.
pub fn resume(topic: Option<Text<'_>>) -> Result<bool, Error> {
    let topic = checked(topic)?;
    let resumed = changed(RESUME, &[topic.into()])?;
    if resumed {
        look_again(topic)?;
    }
    Ok(resumed)
}

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

fn checked(topic: Option<Text<'_>>) -> Result<Text<'_>, Error> {
    let topic = argument::required("topic", topic)?;
    argument::name("topic", topic.letters())?;
    Ok(topic)
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

/// Runs a statement that returns a row for a change.
fn changed(statement: &str, arguments: &[DatumWithOid<'_>]) -> Result<bool, Error> {
    let _locked = Table::<Topics>::open(Access::Write)?;
    // A database error unwinds with its own SQLSTATE; what else pgrx can answer here cannot happen.
    Ok(Spi::connect_mut(|client| {
        client.update(statement, None, arguments).is_ok_and(|rows| !rows.is_empty())
    }))
}

/// Any message of the topic, waiting or not, may have become claimable.
fn look_again(topic: Text<'_>) -> Result<(), Error> {
    pending::will_be_ready(topic, 0)?;
    pending::will_be_due(topic, Time(0))
}
