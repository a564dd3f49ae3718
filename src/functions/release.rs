//! `release`: a lease given back.

use crate::error::Error;
use crate::queue::answer::{Answer, settle};
use crate::rules::argument;
use uuid::Uuid;

/// Ready again at once, its attempt uncounted, if the lease is current.
pub fn release(token: Option<Uuid>) -> Result<bool, Error> {
    let token = argument::required("token", token)?;
    Ok(settle(token, Answer::Release)?.is_some())
}
