#![doc = include_str!("../README.md")]

mod options;
mod worker;

pub use options::{Counts, Hooks, Options};
pub use worker::{drain_once, run_worker};

use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient, Row};
use uuid::Uuid;

/// What a producer appends. `payload` is JSON text and is stored as it is.
#[derive(Clone, Debug, Default)]
pub struct NewMessage {
    pub kind: String,
    pub payload: String,
    /// With an id, an append is idempotent while the message is stored.
    pub id: Option<Uuid>,
    pub key: Option<String>,
    /// ISO 8601 with an offset; `None` is at once.
    pub available_at: Option<String>,
    pub headers: Option<Value>,
}

impl NewMessage {
    pub fn new(kind: impl Into<String>, payload: impl Into<String>) -> Self {
        Self { kind: kind.into(), payload: payload.into(), ..Self::default() }
    }
}

/// One delivery. `payload` is JSON text, so that long numbers arrive as they were stored.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: Uuid,
    pub token: Uuid,
    pub topic: String,
    /// The message's type.
    pub kind: String,
    pub payload: String,
    pub key: Option<String>,
    pub headers: Option<Value>,
    pub attempts: i32,
}

impl Message {
    /// Parent of the delivery's span, as W3C writes it.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers.as_ref()?.get("traceparent")?.as_str()
    }

    /// `None` when the row carries no message.
    fn from_row(row: &Row) -> Result<Option<Self>, Error> {
        let Some(id) = row.try_get("id")? else { return Ok(None) };
        Ok(Some(Self {
            id,
            token: row.try_get("token")?,
            topic: row.try_get("topic")?,
            kind: row.try_get("type")?,
            payload: row.try_get("payload")?,
            key: row.try_get("key")?,
            headers: row.try_get("headers")?,
            attempts: row.try_get("attempts")?,
        }))
    }
}

/// Appends in the caller's transaction: the message exists exactly when that transaction commits.
pub async fn append(client: &impl GenericClient, topic: &str, message: &NewMessage) -> Result<Uuid, Error> {
    let NewMessage { kind, payload, id, key, available_at, headers } = message;
    let sql = "SELECT outbox.append($1, $2, $3::text::jsonb, $4, $5::text::timestamptz, $6, $7)";
    let parameters: [&(dyn ToSql + Sync); 7] = [&topic, kind, payload, id, available_at, key, headers];
    client.query_one(sql, &parameters).await?.try_get(0)
}

/// Appends all or none, in one round trip; the ids are in input order.
pub async fn append_batch(
    client: &impl GenericClient,
    topic: &str,
    messages: &[NewMessage],
) -> Result<Vec<Uuid>, Error> {
    let columns = |of: fn(&NewMessage) -> Option<String>| messages.iter().map(of).collect::<Vec<_>>();
    let kinds = columns(|message| Some(message.kind.clone()));
    let payloads = columns(|message| Some(message.payload.clone()));
    let ids = columns(|message| message.id.map(|id| id.to_string()));
    let keys = columns(|message| message.key.clone());
    let due = columns(|message| message.available_at.clone());
    let headers = columns(|message| message.headers.as_ref().map(Value::to_string));
    let sql = "SELECT outbox.append_batch($1, (
        SELECT coalesce(jsonb_agg(jsonb_build_object('type', type, 'payload', payload::jsonb, 'id', id, 'key', key,
            'available_at', due, 'headers', headers::jsonb) ORDER BY place), '[]')
        FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
            WITH ORDINALITY AS message (type, payload, id, key, due, headers, place)))";
    let rows = client.query(sql, &[&topic, &kinds, &payloads, &ids, &keys, &due, &headers]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// True exactly once per committed (consumer, message): apply the effect in the same transaction.
pub async fn consume_once(client: &impl GenericClient, consumer: &str, message: Uuid) -> Result<bool, Error> {
    client.query_one("SELECT outbox.consume_once($1, $2)", &[&consumer, &message]).await?.try_get(0)
}
