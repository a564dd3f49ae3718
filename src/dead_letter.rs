//! Giving a dead message another life.

use crate::argument::{self, Fault};
use crate::error::Error;
use crate::keys;
use crate::settings;
use crate::store::record::{Deliveries, Place, Topics};
use crate::store::scan::{self, Lookup, TopicRules};
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Outcome, Table, Wait};
use crate::store::{server, shared};
use uuid::Uuid;

/// Ready again with no attempts counted, at its old place. True if it was dead, recorded or not.
pub fn retry_dead(id: Option<Uuid>) -> Result<bool, Error> {
    let id = argument::required("id", id)?;
    if id.is_nil() {
        return Err(Fault::NilUuid("id").into());
    }
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let Some(seq) = scan::seq_of(id, &snapshot)? else { return Ok(false) };
        let mut scan = Lookup::open(&deliveries, &snapshot)?;
        let Some(found) = scan.find(seq) else { return Ok(false) };
        let mut row = found.row;
        let mut sends_back = false;
        if row.place != Place::Dead {
            let topic = TopicRules::new(&topics, &snapshot).of(row.topic)?;
            let now = server::clock();
            sends_back = topic.blocks_when_dead();
            if !row.has_expired_for_good(now, settings::max_attempts(&topic)) {
                return Ok(false);
            }
            row.die_exhausted(now);
        }
        row.revive();
        if deliveries.update(found.id, &row, &snapshot, Wait::Yes) == Outcome::Done {
            shared::touched(seq)?;
            shared::will_be_ready(row.topic, seq)?;
            if let Some(key) = row.key.filter(|_| sends_back) {
                keys::send_back(&deliveries, row.topic, key, seq)?;
            }
            return Ok(true);
        }
    }
}
