//! `outbox.receipt`.

use crate::pg::catalog::Object;
use crate::pg::rows::row::{FieldsMut, TableShape, Write};
use crate::pg::value::datum::{Numbers, Text, Time};

/// What is left of deliveries that were completed together, see `rules/receipt.rs`.
pub struct Receipt<'a> {
    pub first: i64,
    pub last: i64,
    pub delivered_at: Time,
    pub attempts: i16,
    pub lease_owner: Option<Text<'a>>,
    /// None means all numbers from `first` to `last`.
    pub seqs: Option<Numbers<'a>>,
}

pub enum Receipts {}

impl TableShape for Receipts {
    const TABLE: Object = Object::Receipt;
    type Row<'a> = Receipt<'a>;
}

impl Write for Receipts {
    fn write(row: &Receipt<'_>, fields: &mut FieldsMut<'_>) {
        fields
            .put(&row.first)
            .put(&row.last)
            .put(&row.delivered_at)
            .put(&row.attempts)
            .put_opt(&row.lease_owner)
            .put_opt(&row.seqs);
    }
}
