//! `fail` and `abandon`: not delivered, to be tried again or dead.

use crate::error::Error;
use crate::pg::value::datum::{Text, Time};
use crate::queue::answer::{Answer, settle};
use crate::rules::argument::{self, Fault};
use crate::tables::delivery::Place;
use uuid::Uuid;

/// Longest error text that is kept, in bytes.
const ERROR_BYTES: i32 = 8192;

/// The message's new state, or None if the lease is not current.
pub fn fail(
    token: Option<Uuid>,
    error: Option<Text<'_>>,
    retry_at: Option<Time>,
) -> Result<Option<&'static str>, Error> {
    let token = argument::required("token", token)?;
    if retry_at.is_some_and(|time| !time.is_finite()) {
        return Err(Fault::NotFinite("retry_at").into());
    }
    let answer = Answer::Fail { error: error.map(|text| text.cut(ERROR_BYTES)), retry_at };
    Ok(settle(token, answer)?.map(|settled| match settled.place {
        Place::Dead => "dead",
        Place::Ready | Place::Waiting | Place::Parked => "waiting",
    }))
}

/// Dead now, if the lease is current.
pub fn abandon(token: Option<Uuid>, error: Option<Text<'_>>) -> Result<bool, Error> {
    let token = argument::required("token", token)?;
    let error = error.map(|text| text.cut(ERROR_BYTES));
    Ok(settle(token, Answer::Abandon { error })?.is_some())
}
