//! What happens to a delivery: every change of state, in one place.
//!
//! ready -lease-> leased -complete-> (deleted, receipt)
//! leased -release-> ready · leased -fail-> waiting -due, lease-> leased · leased -die-> dead -revive-> ready
//! ready, waiting -park-> parked -take_turn-> waiting, and due · parked -lease-> leased

use crate::pg::datum::{Text, Time};
use crate::tables::key::key_hash;
use crate::tables::row::{Delivery, Place};

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
            key_hash: key.map(|key| key_hash(topic, key)),
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
