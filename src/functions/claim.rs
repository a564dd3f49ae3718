//! `claim`: leases the oldest ready messages.

use crate::error::Error;
use crate::pg::session::server;
use crate::queue::look::{Request, checked, look};
use crate::queue::result::{Caller, Claimed, ClaimedRows};
use crate::queue::wake;

/// Leases up to a batch of ready messages, oldest first. With nothing to lease, waits up to `wait_seconds`.
pub fn claim<'fcx>(request: Request<'_>, caller: Caller<'fcx>) -> Result<ClaimedRows<'fcx>, Error> {
    let claim = checked(request)?;
    let mut rows = caller.rows::<Claimed>()?;
    let deadline = server::clock().plus_seconds(claim.wait_seconds);
    wake::look_until(deadline, claim.topic, || look(&claim, Some(&mut rows)))?;
    Ok(rows)
}
