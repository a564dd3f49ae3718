//! The rows of the tables as Rust values, columns in the order of `sql/tables.sql`.

use crate::pg::catalog::Object;
use crate::pg::datum::{Json, Letter, Numbers, Text, Time};
use crate::pg::row::{Fields, FieldsMut, Partial, Read, Record, Shelf, Unique, Write};
use pgrx::pg_sys;
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

impl Record for Envelopes {
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

/// Where a delivery is in its life; the one column that a claim must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ready or leased.
    Ready,
    /// Not before `available_at`.
    Waiting,
    /// Behind an older message of its key, see `queue/key.rs`.
    Parked,
    Dead,
}

impl Letter for Place {
    fn letter(self) -> u8 {
        match self {
            Place::Ready => b'r',
            Place::Waiting => b'w',
            Place::Parked => b'k',
            Place::Dead => b'x',
        }
    }

    fn of(letter: u8) -> Self {
        match letter {
            b'r' => Place::Ready,
            b'w' => Place::Waiting,
            b'k' => Place::Parked,
            _ => Place::Dead,
        }
    }
}

/// The shelf of deliveries: which partial indexes they are in.
const fn shelf(place: Place, keyed: bool) -> Shelf {
    Shelf(place as u8 * 2 + keyed as u8)
}

/// An index of all deliveries at a place, or of those with a key.
const fn partial(index: Object, places: &[Place], keyed_only: bool) -> Partial {
    let (mut shelves, mut at) = (0, 0);
    while at < places.len() {
        shelves |= shelf(places[at], true).bit();
        if !keyed_only {
            shelves |= shelf(places[at], false).bit();
        }
        at += 1;
    }
    Partial { index, shelves }
}

/// The half of a message that changes, until it is delivered.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    pub seq: i64,
    /// The nonce of the current lease.
    pub lease: Option<i64>,
    pub leased_until: Option<Time>,
    /// Set while waiting, and kept afterwards.
    pub available_at: Option<Time>,
    /// When it died.
    pub ended_at: Option<Time>,
    pub attempts: i16,
    pub lease_owner: Option<Text<'a>>,
    pub last_error: Option<Text<'a>>,
    pub place: Place,
    pub topic: Text<'a>,
    pub key: Option<Text<'a>>,
    /// Set if `key` is, see `tables/key.rs`.
    pub key_hash: Option<i64>,
}

impl Delivery<'_> {
    /// What counts are made of, free of the scan it was read from.
    pub fn counted(&self) -> Delivery<'static> {
        let topic = self.topic.copied();
        Delivery { topic, key: None, lease_owner: None, last_error: None, ..*self }
    }
}

pub enum Deliveries {}

impl Record for Deliveries {
    const TABLE: Object = Object::Delivery;
    type Row<'a> = Delivery<'a>;
}

impl Read for Deliveries {
    fn read<'a>(fields: &Fields<'a>) -> Delivery<'a> {
        Delivery {
            seq: fields.get(0),
            lease: fields.get_opt(1),
            leased_until: fields.get_opt(2),
            available_at: fields.get_opt(3),
            ended_at: fields.get_opt(4),
            attempts: fields.get(5),
            lease_owner: fields.get_opt(6),
            last_error: fields.get_opt(7),
            place: fields.get(8),
            topic: fields.get(9),
            key: fields.get_opt(10),
            key_hash: fields.get_opt(11),
        }
    }
}

impl Write for Deliveries {
    const FREE: &'static [usize] = &[7];

    const UPDATED: bool = true;
    const PARTIAL: &'static [Partial] = &[
        partial(Object::DeliveryReady, &[Place::Ready], false),
        partial(Object::DeliveryWaiting, &[Place::Waiting], false),
        partial(Object::DeliveryWaitingTopic, &[Place::Waiting], false),
        partial(Object::DeliveryDead, &[Place::Dead], false),
        partial(Object::DeliveryParked, &[Place::Parked], false),
        partial(Object::DeliveryKeyReady, &[Place::Ready], true),
        partial(Object::DeliveryKeyLater, &[Place::Waiting, Place::Parked], true),
        partial(Object::DeliveryKeyDead, &[Place::Dead], true),
    ];

    fn shelf(row: &Delivery<'_>) -> Option<Shelf> {
        Some(shelf(row.place, row.key.is_some()))
    }

    fn write(row: &Delivery<'_>, fields: &mut FieldsMut<'_>) {
        fields
            .put(&row.seq)
            .put_opt(&row.lease)
            .put_opt(&row.leased_until)
            .put_opt(&row.available_at)
            .put_opt(&row.ended_at)
            .put(&row.attempts)
            .put_opt(&row.lease_owner)
            .put_opt(&row.last_error)
            .put(&row.place)
            .put(&row.topic)
            .put_opt(&row.key)
            .put_opt(&row.key_hash);
    }
}

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

impl Record for Receipts {
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

/// A consumer's marker: it has applied the effect of a message.
pub struct Marker<'a> {
    pub consumer: Text<'a>,
    pub message_id: Uuid,
    pub processed_at: Time,
}

pub enum Markers {}

impl Record for Markers {
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

/// What an operator has set for a topic; None means: as the setting of that name.
#[derive(Clone, Copy, Default)]
pub struct TopicRow {
    pub paused: bool,
    pub max_attempts: Option<i32>,
    pub backoff_seconds: Option<i32>,
    pub backoff_max_seconds: Option<i32>,
    pub lease_seconds: Option<i32>,
    pub batch_size: Option<i32>,
    /// False if None.
    pub block_on_dead: Option<bool>,
}

impl TopicRow {
    /// True if a dead message keeps the younger ones of its key from being delivered.
    pub fn blocks_when_dead(&self) -> bool {
        self.block_on_dead.unwrap_or(false)
    }
}

pub enum Topics {}

impl Record for Topics {
    const TABLE: Object = Object::Topic;
    type Row<'a> = TopicRow;
}

impl Read for Topics {
    fn read(fields: &Fields<'_>) -> TopicRow {
        TopicRow {
            paused: fields.get(1),
            max_attempts: fields.get_opt(2),
            backoff_seconds: fields.get_opt(3),
            backoff_max_seconds: fields.get_opt(4),
            lease_seconds: fields.get_opt(5),
            batch_size: fields.get_opt(6),
            block_on_dead: fields.get_opt(8),
        }
    }
}

/// What a role may do, see `tables/access.rs`.
#[derive(Clone, Copy)]
pub struct RightRow<'a> {
    /// None if there was no such role.
    pub role: Option<pg_sys::Oid>,
    pub capability: Text<'a>,
    pub topic: Text<'a>,
}

pub enum Rights {}

impl Record for Rights {
    const TABLE: Object = Object::Access;
    type Row<'a> = RightRow<'a>;
}

impl Read for Rights {
    fn read<'a>(fields: &Fields<'a>) -> RightRow<'a> {
        RightRow { role: fields.get_opt(3), capability: fields.get(1), topic: fields.get(2) }
    }
}
