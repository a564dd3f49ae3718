//! Consumer side: `consume_once` makes a repeated delivery harmless.

use crate::error::Error;
use crate::pg::rows::table::Table;
use crate::pg::session::server;
use crate::pg::value::datum::Text;
use crate::rules::argument::{self, Fault};
use crate::tables::access::{self, Right};
use crate::tables::processed::{Marker, Markers};
use uuid::Uuid;

/// True once per committed (consumer, message). Waits for a transaction that is storing the same marker.
pub fn consume_once(consumer: Option<Text<'_>>, message_id: Option<Uuid>) -> Result<bool, Error> {
    let consumer = argument::required("consumer", consumer)?;
    let message_id = argument::required("message_id", message_id)?;
    argument::name("consumer", consumer.letters())?;
    if message_id.is_nil() {
        return Err(Fault::NilUuid("message_id").into());
    }
    access::topics(Right::Worker)?.check_any()?;
    let markers = Table::<Markers>::open_for_new()?;
    Ok(markers.insert_new(&Marker { consumer, message_id, processed_at: server::clock() }))
}
