//! What a claim makes of a message that it may lease: leased, or failed where its client cannot be shown it.

use crate::error::Error;
use crate::pg::rows::table::{Outcome, RowId, Wait};
use crate::pg::value::datum::{Json, Text};
use crate::pg::value::encoding::ToClient;
use crate::queue::attempt::Attempt;
use crate::queue::batch::{Batch, Purpose, Writes};
use crate::queue::candidates::From;
use crate::queue::key_release::{self, Tried};
use crate::queue::meeting::{Meeting, Met, held};
use crate::rules::counters::Event;
use crate::rules::{backoff, token};
use crate::settings;
use crate::shmem::{self, pending};
use crate::tables::delivery::{Delivery, Place};
use crate::tables::envelope::Envelope;
use crate::tables::key::Keyed;

impl Batch<'_, '_, '_> {
    /// Leases a message, if nobody else is changing it or what must be changed before.
    pub fn take(&mut self, met: &Meeting<'_>) -> Result<Met, Error> {
        let refusal = match &self.purpose {
            Purpose::Find => return self.find(met),
            Purpose::Lease { client: None, .. } => None,
            Purpose::Lease { client: Some(client), .. } => {
                self.bodies.find(met.row.seq).and_then(|body| refusal(client, &body.row))
            }
        };
        match refusal {
            None => self.lease(met),
            Some(reason) => self.refuse(met, &reason),
        }
    }

    /// Counts a message that could be leased.
    fn find(&mut self, met: &Meeting<'_>) -> Result<Met, Error> {
        let mut held_by = self.deliveries.held_by(met.id);
        if let Some(keyed) = met.leased_again().filter(|_| held_by.is_none()) {
            held_by = key_release::younger_held_by(self.deliveries, self.snapshot, keyed, met.row.seq)?;
        }
        if let Some(xid) = held_by {
            self.lose(met)?;
            return Ok(held(met.scan_start, xid));
        }
        self.filled.count += 1;
        Ok(Met::Held)
    }

    fn lease(&mut self, met: &Meeting<'_>) -> Result<Met, Error> {
        let seconds = self.wanted.lease_seconds.unwrap_or_else(|| settings::lease_seconds(&met.topic));
        let until = self.now.plus_seconds(seconds);
        let mut leased = met.given;
        leased.lease(self.nonce, self.wanted.owner, until);
        // Leased again: the younger leases of its key go back with it.
        if let Err(met) = self.write(met, &leased, met.leased_again())? {
            return Ok(met);
        }
        if let (Purpose::Lease { rows, .. }, Some(body)) = (&mut self.purpose, self.bodies.find(met.row.seq))
        {
            rows.push(&body.row, token::encode(met.row.seq, self.nonce), leased.attempts, until);
        }
        pending::leased(met.row.topic, met.row.seq, until)?;
        self.expires(Some(until));
        self.filled.count += 1;
        self.pass(&met.row)?;
        Ok(Met::Leased)
    }

    /// Fails a message that the client cannot be shown: counted, and with the reason as its last error.
    fn refuse(&mut self, met: &Meeting<'_>, reason: &str) -> Result<Met, Error> {
        if let From::GivenBack = met.from {
            self.lose(met)?;
            key_release::park_locked(self.deliveries, self.snapshot, [(met.row.seq, met.id)])?; // until its turn
            return Ok(Met::Passed);
        }
        (self.filled.wrote, self.filled.refused, self.writes) = (true, true, Writes::AtOnce);
        let mut failed = met.given;
        failed.lease(self.nonce, self.wanted.owner, self.now);
        let error = Some(Text::new(reason.as_bytes()));
        let dies = failed.attempts >= settings::max_attempts(&met.topic);
        if dies {
            failed.die(self.now, error);
        } else {
            let (first, longest) =
                (settings::backoff_seconds(&met.topic), settings::backoff_max_seconds(&met.topic));
            failed.wait_until(self.now.plus_micros(backoff::delay(failed.attempts, first, longest)), error);
        }
        if let Err(met) = self.write(met, &failed, met.row.keyed())? {
            return Ok(met);
        }
        pending::answered(met.row.topic, Event::Failed)?;
        pending::touched(met.row.seq)?;
        match failed.available_at {
            Some(due) if !dies => pending::will_be_due(met.row.topic, due)?,
            _ => {}
        }
        match dies && !met.topic.blocks_when_dead() {
            true => self.pass(&met.row)?,
            false => self.lose(met)?,
        }
        Ok(Met::Passed)
    }

    /// Writes `after`, and before it what must come before it: the deaths of older messages of the key, and the end of
    /// the younger leases of key `sends_back`. All of it or nothing.
    fn write(
        &mut self,
        met: &Meeting<'_>,
        after: &Delivery<'_>,
        sends_back: Option<Keyed<'_>>,
    ) -> Result<Result<(), Met>, Error> {
        let doomed = met.row.keyed().map(|keyed| self.keys.take_doomed(keyed)).unwrap_or_default();
        let needs_more = sends_back.is_some() || !doomed.is_empty();
        let attempt = (needs_more && !self.may_write()).then(Attempt::begin);
        self.filled.wrote |= needs_more && attempt.is_none();
        match self.write_in_order(met, after, sends_back, &doomed)? {
            Ok(younger) => {
                if let Some(attempt) = attempt {
                    attempt.keep();
                }
                self.filled.wrote = true;
                self.candidates.give_back(younger);
                Ok(Ok(()))
            }
            Err(xid) => {
                drop(attempt);
                self.expires(doomed.first().map(|_| self.now)); // their deaths are for the next sweep
                self.lose(met)?;
                if let From::GivenBack = met.from {
                    key_release::park_locked(self.deliveries, self.snapshot, [(met.row.seq, met.id)])?;
                }
                Ok(Err(held(met.scan_start, xid)))
            }
        }
    }

    fn write_in_order(
        &mut self,
        met: &Meeting<'_>,
        after: &Delivery<'_>,
        sends_back: Option<Keyed<'_>>,
        doomed: &[(i64, RowId)],
    ) -> Tried<Vec<(i64, RowId)>> {
        for (_, dead) in doomed {
            if let Err(xid) = self.deaths.bury(*dead, &mut self.rules)? {
                return Ok(Err(xid));
            }
        }
        if after.place == Place::Dead {
            let done = self.deaths.record(met.id, &met.row, after, &mut self.rules)?;
            return Ok(done.map(|()| Vec::new()));
        }
        let younger = match sends_back {
            Some(keyed) => key_release::lock_younger(self.deliveries, self.snapshot, keyed, met.row.seq)?,
            None => Ok(Vec::new()),
        };
        let Ok(younger) = younger else { return Ok(younger) };
        let _entering = shmem::low_water::enter_ready(&met.row)?;
        let due = after.available_at.filter(|_| after.lease.is_none());
        let _waiting = due.map(|due| shmem::low_water::enter_due(met.row.topic, due)).transpose()?;
        Ok(match self.deliveries.update(met.id, after, self.snapshot, Wait::No) {
            Outcome::Lost(xid) => Err(xid),
            Outcome::Done => Ok(younger),
        })
    }
}

/// Why a client cannot be shown a message.
fn refusal(client: &ToClient, message: &Envelope<'_>) -> Option<String> {
    let text = |column, text: Option<Text<'_>>| Some((column, client.refuses_text(text?)?));
    let json = |column, json: Option<Json<'_>>| Some((column, client.refuses_json(json?)?));
    let refused = text("topic", Some(message.topic))
        .or_else(|| text("type", Some(message.kind)))
        .or_else(|| text("key", message.key))
        .or_else(|| json("payload", Some(message.payload)))
        .or_else(|| json("headers", message.headers));
    refused.map(|(column, reason)| format!("{column}: {reason}"))
}
