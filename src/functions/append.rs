//! Producer side: `append` and `append_batch` write envelope and delivery in the caller's transaction.
//!
//! In Rust because a batch goes in page by page (heap_multi_insert) and a payload is stored as the server passed it:
//! neither is within reach of PL/pgSQL.

use crate::error::Error;
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::server;
use crate::pg::value::datum::{Json, Text, Time, letters, parse_uuid};
use crate::pg::value::jsonb::{Object, Value};
use crate::rules::argument::{self, Fault};
use crate::settings;
use crate::shmem::{self, pending};
use crate::tables::access::{self, Right};
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::envelope::{Envelope, Envelopes};
use crate::tables::number;
use uuid::Uuid;

/// The header that holds the trace, as W3C Trace Context names it.
const TRACEPARENT: &str = "traceparent";

/// A message as the caller gave it.
#[derive(Default)]
pub struct Draft<'a> {
    pub kind: Option<Text<'a>>,
    pub payload: Option<Json<'a>>,
    pub id: Option<Uuid>,
    pub available_at: Option<Time>,
    pub key: Option<Text<'a>>,
    pub headers: Option<Json<'a>>,
}

/// A draft that passed its checks.
struct Message<'a> {
    kind: Text<'a>,
    payload: Json<'a>,
    draft: Draft<'a>,
}

/// Appends one message and returns its id; an id that is already stored is returned and nothing is written.
pub fn append(topic: Option<Text<'_>>, message: Draft<'_>) -> Result<Uuid, Error> {
    let topic = argument::required("topic", topic)?;
    argument::name("topic", topic.letters())?;
    access::topics(Right::Producer)?.check(topic)?;
    let mut ids = store(topic, &[checked(message, session_headers())?])?;
    Ok(ids.swap_remove(0))
}

/// Appends the elements of a JSON array, all or none, and returns their ids in input order.
pub fn append_batch(topic: Option<Text<'_>>, messages: Option<Json<'_>>) -> Result<Vec<Uuid>, Error> {
    let topic = argument::required("topic", topic)?;
    let messages = argument::required("messages", messages)?;
    argument::name("topic", topic.letters())?;
    access::topics(Right::Producer)?.check(topic)?;
    let elements = messages.elements().ok_or(Fault::NotAnArray("messages"))?;
    argument::array("messages", 1, elements.len())?;
    let session = session_headers();
    let mut batch = Vec::with_capacity(elements.len());
    for (place, element) in elements.enumerate() {
        let in_element = |error| Error::Element(place + 1, Box::new(error));
        batch.push(member::draft(&element).and_then(|draft| checked(draft, session)).map_err(in_element)?);
    }
    store(topic, &batch)
}

/// The headers that messages have which come without: the session's trace.
fn session_headers() -> Option<Json<'static>> {
    settings::traceparent().map(|traceparent| {
        let mut headers = Object::new();
        headers.put_text(TRACEPARENT, traceparent.to_bytes());
        headers.finish()
    })
}

fn checked<'a>(draft: Draft<'a>, session: Option<Json<'a>>) -> Result<Message<'a>, Error> {
    let limit = settings::max_payload_bytes();
    let kind = argument::required("type", draft.kind)?;
    let payload = argument::required("payload", draft.payload)?;
    argument::name("type", kind.letters())?;
    if let Some(key) = draft.key {
        argument::name("key", key.letters())?;
    }
    if draft.id.is_some_and(|id| id.is_nil()) {
        return Err(Fault::NilUuid("id").into());
    }
    if draft.available_at.is_some_and(|time| !time.is_finite()) {
        return Err(Fault::NotFinite("available_at").into());
    }
    let size = payload.size(limit);
    argument::size("payload", size, limit)?;
    let size_of_headers = draft.headers.map_or(0, |headers| headers.size(limit));
    argument::size("headers", size_of_headers, limit)?;
    argument::size("payload with headers", size + size_of_headers, argument::MESSAGE_BYTES)?;
    if draft.headers.is_some_and(|headers| !headers.is_object()) {
        return Err(Fault::NotAnObject("headers").into());
    }
    let headers = match (draft.headers, session) {
        (Some(headers), Some(session)) if headers.member(TRACEPARENT).is_none() => {
            Some(headers.completed_by(session))
        }
        (given, session) => given.or(session),
    };
    let draft = Draft { headers, ..draft };
    Ok(Message { kind, payload, draft })
}

/// Numbers the messages in input order and writes those that are not stored yet.
fn store(topic: Text<'_>, messages: &[Message<'_>]) -> Result<Vec<Uuid>, Error> {
    let any_given = messages.iter().any(|message| message.draft.id.is_some());
    let envelopes: Table<Envelopes> =
        if any_given { Table::open_for_new()? } else { Table::open(Access::Write)? };
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let mut ids = Vec::with_capacity(messages.len());
    let (mut fresh, mut given) = (Vec::with_capacity(messages.len()), Vec::new());
    let now = server::clock();
    let mut last_block = None;
    for block in messages.chunks(number::BLOCK) {
        pending::about_to_number()?;
        let first = number::next_block()?;
        pending::numbered(first);
        last_block = Some(first);
        for (seq, message) in (first..).zip(block) {
            let Message { kind, payload, ref draft } = *message;
            let id = draft.id.unwrap_or_else(Uuid::now_v7);
            ids.push(id);
            let list = if draft.id.is_some() { &mut given } else { &mut fresh };
            list.push(Envelope {
                seq,
                id,
                occurred_at: now,
                available_at: draft.available_at,
                topic,
                kind,
                key: draft.key,
                payload,
                headers: draft.headers,
            });
        }
    }
    // An id of the caller's may be stored already, or be on its way in another transaction. Those are tried one by
    // one, in the order of their ids, so that two batches that share some cannot wait for each other in a circle.
    given.sort_by_key(|envelope| envelope.id);
    envelopes.insert_all(&fresh);
    for envelope in given {
        if envelopes.insert_new(&envelope) {
            fresh.push(envelope);
        }
    }
    let new: Vec<Delivery<'_>> = fresh
        .iter()
        .map(|envelope| Delivery::new(envelope.seq, topic, envelope.key, envelope.available_at, now))
        .collect();
    let entering = new.iter().filter(|new| new.place == Place::Ready || new.key.is_some());
    let _entering = shmem::low_water::enter(entering.map(|new| (new.seq, new.key_hash)))?;
    let first_due = new.iter().filter_map(|delivery| delivery.available_at).min();
    let _waiting = first_due.map(|due| shmem::low_water::enter_due(topic, due)).transpose()?;
    deliveries.insert_all(&new);
    last_block.into_iter().for_each(number::stored);
    if new.iter().any(|delivery| delivery.place == Place::Ready) {
        pending::will_arrive(topic)?;
    }
    if let Some(due) = first_due {
        pending::will_be_due(topic, due)?;
    }
    Ok(ids)
}

/// One element of `append_batch`'s array.
mod member {
    use super::*;

    const KNOWN: &str = "type, payload, id, available_at, key and headers";

    pub fn draft<'a>(element: &Value<'a>) -> Result<Draft<'a>, Error> {
        if element.is_null() {
            return Err(Fault::Null("the element").into());
        }
        let members = element.members().ok_or(Fault::NotAnObject("the element"))?;
        let mut draft = Draft::default();
        for (name, value) in members {
            let given = !value.is_null();
            match name {
                b"payload" => draft.payload = Some(value.into_json()),
                b"type" if given => draft.kind = Some(text("type", &value)?),
                b"id" if given => draft.id = Some(uuid(&value)?),
                b"available_at" if given => draft.available_at = Some(time(&value)?),
                b"key" if given => draft.key = Some(text("key", &value)?),
                b"headers" if given => draft.headers = Some(value.into_json()),
                b"type" | b"id" | b"available_at" | b"key" | b"headers" => {}
                unknown => return Err(Fault::unknown_key(letters(unknown), KNOWN).into()),
            }
        }
        Ok(draft)
    }

    fn text(name: &'static str, value: &Value<'_>) -> Result<Text<'static>, Fault> {
        value.text().map(Text::new).ok_or(Fault::NotText(name))
    }

    fn time(value: &Value<'_>) -> Result<Time, Fault> {
        argument::iso_time("available_at", value.text().unwrap_or_default()).map(Time)
    }

    fn uuid(value: &Value<'_>) -> Result<Uuid, Error> {
        let text = value.text().ok_or(Fault::NotText("id"))?;
        // Core's errors repeat the text, and only ASCII survives on its way through a Rust string.
        if text.is_ascii() { Ok(parse_uuid(text)) } else { Err(Error::MalformedUuid) }
    }
}
