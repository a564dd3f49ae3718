//! `outbox.delivery`: its rows, and every change of state.
//!
//! ready -lease-> leased -complete-> (deleted, receipt)
//! leased -release-> ready · leased -fail-> waiting -due, lease-> leased · leased -die-> dead -revive-> ready
//! ready, waiting -park-> parked -take_turn-> waiting, and due · parked -lease-> leased

use crate::pg::catalog::Object;
use crate::pg::rows::row::{Fields, FieldsMut, Partial, Read, RowKind, TableShape, Write};
use crate::pg::value::datum::{Letter, Text, Time};
use crate::rules::key_hash;

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

/// The kind of deliveries: which partial indexes they are in.
const fn kind(place: Place, keyed: bool) -> RowKind {
    RowKind(place as u8 * 2 + keyed as u8)
}

/// An index of all deliveries at a place, or of those with a key.
const fn partial(index: Object, places: &[Place], keyed_only: bool) -> Partial {
    let (mut kinds, mut at) = (0, 0);
    while at < places.len() {
        kinds |= kind(places[at], true).bit();
        if !keyed_only {
            kinds |= kind(places[at], false).bit();
        }
        at += 1;
    }
    Partial { index, kinds }
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

impl TableShape for Deliveries {
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

    fn kind(row: &Delivery<'_>) -> Option<RowKind> {
        Some(kind(row.place, row.key.is_some()))
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

/// Why a message died that nobody answered for; `outbox.message` shows the same words before it is recorded.
const LEASE_EXPIRED: &[u8] = b"lease expired";
/// Why a message died whose limit was lowered below its attempts.
const NO_ATTEMPTS_LEFT: &[u8] = b"no attempts left";

/// What a message that is not delivered can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Ready,
    Leased,
    Waiting,
    Dead,
}

impl<'a> Delivery<'a> {
    /// A delivery as append makes it: ready, or waiting if `available_at` is still to come at `now`.
    pub fn new(
        seq: i64,
        topic: Text<'a>,
        key: Option<Text<'a>>,
        available_at: Option<Time>,
        now: Time,
    ) -> Self {
        let waiting = available_at.is_some_and(|due| due > now);
        Delivery {
            seq,
            lease: None,
            leased_until: None,
            available_at: available_at.filter(|_| waiting),
            ended_at: None,
            attempts: 0,
            lease_owner: None,
            last_error: None,
            place: if waiting { Place::Waiting } else { Place::Ready },
            topic,
            key,
            key_hash: key.map(|key| key_hash::of(topic.bytes(), key.bytes())),
        }
    }

    /// The message's state at `now`, as `outbox.message` shows it.
    pub fn state(&self, now: Time, max_attempts: i16) -> State {
        match self.place {
            Place::Dead => State::Dead,
            _ if self.is_leased(now) => State::Leased,
            _ if self.has_expired_for_good(now, max_attempts) => State::Dead,
            Place::Waiting if self.available_at.is_some_and(|due| due > now) => State::Waiting,
            Place::Waiting | Place::Ready | Place::Parked => State::Ready,
        }
    }

    /// True while a worker owns the message.
    pub fn is_leased(&self, now: Time) -> bool {
        self.leased_until.is_some_and(|end| end > now)
    }

    /// True if `lease` is the current one, run out or not.
    pub fn holds(&self, lease: i64) -> bool {
        self.place == Place::Ready && self.lease == Some(lease)
    }

    /// True if its last allowed lease ran out unanswered: dead, though nobody has recorded it.
    pub fn has_expired_for_good(&self, now: Time, max_attempts: i16) -> bool {
        self.place == Place::Ready
            && self.attempts >= max_attempts
            && self.leased_until.is_some_and(|end| end <= now)
    }

    pub fn lease(&mut self, nonce: i64, owner: Text<'a>, until: Time) {
        self.place = Place::Ready;
        self.attempts += 1;
        self.lease = Some(nonce);
        self.lease_owner = Some(owner);
        self.leased_until = Some(until);
    }

    /// Gives the lease back, its attempt uncounted.
    pub fn release(&mut self) {
        self.attempts -= 1;
        self.drop_lease();
    }

    pub fn wait_until(&mut self, due: Time, error: Option<Text<'a>>) {
        self.drop_lease();
        self.place = Place::Waiting;
        self.available_at = Some(due);
        self.last_error = error;
    }

    /// Out of the way of claims, behind an older message of its key.
    pub fn park(&mut self) {
        self.place = Place::Parked;
    }

    /// What stood before it is over: a claim finds it among the due ones.
    pub fn take_turn(&mut self, now: Time) {
        self.place = Place::Waiting;
        self.available_at = Some(now);
    }

    /// Given up. Who had it last stays on record.
    pub fn die(&mut self, at: Time, error: Option<Text<'a>>) {
        self.place = Place::Dead;
        self.ended_at = Some(at);
        self.lease = None;
        self.leased_until = None;
        self.last_error = error;
    }

    /// Dies because no attempt is left: of its last lease, or because the limit was lowered.
    pub fn die_exhausted(&mut self, now: Time) {
        match self.leased_until {
            Some(end) => self.die(end, Some(Text::new(LEASE_EXPIRED))),
            None => self.die(now, self.last_error.or_else(|| Some(Text::new(NO_ATTEMPTS_LEFT)))),
        }
    }

    /// Another life, at its old place in line. The last error stays until the next one.
    pub fn revive(&mut self) {
        self.drop_lease();
        self.place = Place::Ready;
        self.attempts = 0;
        self.ended_at = None;
        self.available_at = None;
    }

    fn drop_lease(&mut self) {
        self.lease = None;
        self.leased_until = None;
        self.lease_owner = None;
    }
}
