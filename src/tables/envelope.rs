//! `outbox.envelope`.

use crate::pg::catalog::Object;
use crate::pg::rows::row::{Fields, FieldsMut, Read, TableShape, Unique, Write};
use crate::pg::value::datum::{Json, Text, Time};
use uuid::Uuid;

/// The half of a message that never changes.
pub struct Envelope<'a> {
    pub seq: i64,
    pub id: Uuid,
    pub occurred_at: Time,
    /// As the producer asked; None means at once.
    pub available_at: Option<Time>,
    pub topic: Text<'a>,
    pub kind: Text<'a>,
    pub key: Option<Text<'a>>,
    pub payload: Json<'a>,
    pub headers: Option<Json<'a>>,
}

pub enum Envelopes {}

impl TableShape for Envelopes {
    const TABLE: Object = Object::Envelope;
    type Row<'a> = Envelope<'a>;
}

impl Read for Envelopes {
    fn read<'a>(fields: &Fields<'a>) -> Envelope<'a> {
        Envelope {
            seq: fields.get(0),
            id: fields.get(1),
            occurred_at: fields.get(2),
            available_at: fields.get_opt(3),
            topic: fields.get(4),
            kind: fields.get(5),
            key: fields.get_opt(6),
            payload: fields.get(7),
            headers: fields.get_opt(8),
        }
    }
}

impl Write for Envelopes {
    const FREE: &'static [usize] = &[5, 7, 8];

    fn write(row: &Envelope<'_>, fields: &mut FieldsMut<'_>) {
        fields
            .put(&row.seq)
            .put(&row.id)
            .put(&row.occurred_at)
            .put_opt(&row.available_at)
            .put(&row.topic)
            .put(&row.kind)
            .put_opt(&row.key)
            .put(&row.payload)
            .put_opt(&row.headers);
    }
}

impl Unique for Envelopes {
    const ARBITER: Object = Object::EnvelopeId;
}
