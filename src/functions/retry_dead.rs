//! `retry_dead`: another life for one dead message.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Table};
use crate::queue::revive::{GoingBack, revive};
use crate::rules::argument::{self, Fault};
use crate::tables::delivery::Deliveries;
use crate::tables::find;
use crate::tables::topic::Topics;
use uuid::Uuid;

/// Ready again with no attempts counted, at its old place. True if it was dead.
pub fn retry_dead(id: Option<Uuid>) -> Result<bool, Error> {
    let id = argument::required("id", id)?;
    if id.is_nil() {
        return Err(Fault::NilUuid("id").into());
    }
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let seq = find::seq_of(id, &Latest::push())?;
    let Some(seq) = seq else { return Ok(false) };
    let mut going_back = GoingBack::new(&deliveries);
    let revived = revive(seq, &deliveries, &topics, &mut going_back)?;
    going_back.finish()?;
    Ok(revived)
}
