//! What operators set for one topic.
//!
//! Claims and answers read `outbox.topic` afresh, so a change that is committed here counts from the next call on.
//! Claims on any topic pass a paused one's messages and remember that there is nothing to be had (see
//! `rules/floor.rs`): what makes messages claimable again takes that back.

use crate::error::Error;
use crate::pg::rows::table::{Access, Table};
use crate::pg::value::datum::{Text, Time};
use crate::rules::argument;
use crate::shmem::pending;
use crate::tables::topic::Topics;
use pgrx::datum::DatumWithOid;
use pgrx::spi::Spi;

/// The topic that a caller has named.
pub fn checked(topic: Option<Text<'_>>) -> Result<Text<'_>, Error> {
    let topic = argument::required("topic", topic)?;
    argument::name("topic", topic.letters())?;
    Ok(topic)
}

/// Runs a statement that returns a row for a change.
pub fn changed(statement: &str, arguments: &[DatumWithOid<'_>]) -> Result<bool, Error> {
    let _locked = Table::<Topics>::open(Access::Write)?;
    // A database error unwinds with its own SQLSTATE; what else pgrx can answer here cannot happen.
    Ok(Spi::connect_mut(|client| {
        client.update(statement, None, arguments).is_ok_and(|rows| !rows.is_empty())
    }))
}

/// Any message of the topic, waiting or not, may have become claimable.
pub fn look_again(topic: Text<'_>) -> Result<(), Error> {
    pending::will_be_ready(topic, 0)?;
    pending::will_be_due(topic, Time(0))
}
