//! `outbox.processed`.

use crate::pg::catalog::Object;
use crate::pg::rows::row::{FieldsMut, TableShape, Unique, Write};
use crate::pg::value::datum::{Text, Time};
use uuid::Uuid;

/// A consumer's marker: it has applied the effect of a message.
pub struct Marker<'a> {
    pub consumer: Text<'a>,
    pub message_id: Uuid,
    pub processed_at: Time,
}

pub enum Markers {}

impl TableShape for Markers {
    const TABLE: Object = Object::Processed;
    type Row<'a> = Marker<'a>;
}

impl Write for Markers {
    fn write(row: &Marker<'_>, fields: &mut FieldsMut<'_>) {
        fields.put(&row.consumer).put(&row.message_id).put(&row.processed_at);
    }
}

impl Unique for Markers {
    const ARBITER: Object = Object::ProcessedPkey;
}
