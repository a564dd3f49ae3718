//! A stored message as others exchange events: CloudEvents 1.0, in its JSON format.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::session::server;
use crate::pg::value::datum::Json;
use crate::pg::value::jsonb::{Object, Value};
use crate::rules::argument::{self, Fault};
use crate::rules::formats;
use crate::tables::envelope::Envelope;
use crate::tables::find;
use uuid::Uuid;

/// The event, or None if no message with this id is stored.
pub fn cloudevent(id: Option<Uuid>) -> Result<Option<Json<'static>>, Error> {
    let id = argument::required("id", id)?;
    if id.is_nil() {
        return Err(Fault::NilUuid("id").into());
    }
    find::envelope_of(id, &Latest::push(), |message| event(&message))
}

fn event(message: &Envelope<'_>) -> Json<'static> {
    let (id, source) = (message.id.hyphenated().to_string(), source(message.topic.bytes()));
    let time = formats::rfc3339(message.occurred_at.0);
    let header = |name| text_of(message.headers?, name);
    let mut event = Object::new();
    event.put_text("specversion", b"1.0");
    event.put_text("id", id.as_bytes());
    event.put_text("source", source.as_bytes());
    event.put_text("type", message.kind.bytes());
    event.put_text("time", time.as_bytes());
    if let Some(key) = message.key {
        event.put_text("subject", key.bytes());
    }
    event.put_text("datacontenttype", header("content-type").unwrap_or(b"application/json"));
    for extension in ["traceparent", "tracestate"] {
        if let Some(value) = header(extension) {
            event.put_text(extension, value);
        }
    }
    event.put("data", message.payload);
    event.finish()
}

/// Together with an id it is unique: a path of database and topic.
fn source(topic: &[u8]) -> String {
    let database = server::database();
    format!("/{}/{}", formats::path_segment(database.as_bytes()), formats::path_segment(topic))
}

fn text_of<'a>(headers: Json<'a>, name: &str) -> Option<&'a [u8]> {
    headers.member(name).and_then(|value: Value<'a>| value.text()).filter(|text| !text.is_empty())
}
