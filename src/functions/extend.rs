//! `extend`: a lease that ends later.

use crate::error::Error;
use crate::pg::value::datum::Time;
use crate::queue::answer::{Answer, settle};
use crate::rules::argument;
use uuid::Uuid;

/// The lease's new end, or None if it is not current.
pub fn extend(token: Option<Uuid>, lease_seconds: Option<i32>) -> Result<Option<Time>, Error> {
    let token = argument::required("token", token)?;
    if let Some(seconds) = lease_seconds {
        argument::within("lease_seconds", seconds, argument::LEASE_SECONDS)?;
    }
    Ok(settle(token, Answer::Extend { lease_seconds })?.and_then(|settled| settled.leased_until))
}
