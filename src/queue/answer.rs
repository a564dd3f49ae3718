//! Worker side, second half: what every answer to a lease does.
//!
//! An answer counts only while its token's lease is the message's current one; else it changes nothing and says so.
//! It waits for a transaction that is changing the row and then judges by what that one left. In Rust because it must
//! judge by the latest state in every isolation level: SQL under REPEATABLE READ would call a new lease stale.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Outcome, Table, Wait};
use crate::pg::session::server;
use crate::pg::value::datum::{Numbers, Text, Time};
use crate::queue::key_release::{self, Ended};
use crate::rules::counters::Event;
use crate::rules::{backoff, receipt, token};
use crate::settings;
use crate::shmem::{self, pending};
use crate::tables::access::{self, Right};
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::envelope::Envelopes;
use crate::tables::find::Lookup;
use crate::tables::receipt::{Receipt, Receipts};
use crate::tables::topic::{TopicRules, Topics};
use uuid::Uuid;

/// An answer to a lease, but for that it is done.
pub enum Answer<'a> {
    Fail { error: Option<Text<'a>>, retry_at: Option<Time> },
    Abandon { error: Option<Text<'a>> },
    Extend { lease_seconds: Option<i32> },
    Release,
}

/// What an accepted answer left.
pub struct Settled {
    pub place: Place,
    pub leased_until: Option<Time>,
}

/// Gives an answer, if the token's lease is current.
pub fn settle(token: Uuid, answer: Answer<'_>) -> Result<Option<Settled>, Error> {
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let Some((seq, lease)) = token::decode(token) else { return Ok(None) };
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let mut scan = Lookup::open(&deliveries, &snapshot)?;
        let Some(found) = scan.find(seq).filter(|found| found.row.holds(lease)) else {
            count_stale(&[seq])?;
            return Ok(None);
        };
        let mut row: Delivery<'_> = found.row;
        access::topics(Right::Worker)?.check(row.topic)?;
        let mut rules = TopicRules::new(&topics, &snapshot);
        let topic = rules.of(row.topic)?;
        let now = server::clock();
        match answer {
            Answer::Fail { error, .. } if row.attempts >= settings::max_attempts(&topic) => {
                row.die(now, error)
            }
            Answer::Fail { error, retry_at } => {
                let (first, longest) =
                    (settings::backoff_seconds(&topic), settings::backoff_max_seconds(&topic));
                let backoff = backoff::delay(row.attempts, first, longest);
                let due = retry_at.unwrap_or_else(|| now.plus_micros(backoff)).max(now);
                row.wait_until(due, error);
            }
            Answer::Abandon { error } => row.die(now, error),
            Answer::Extend { lease_seconds } => {
                let seconds = lease_seconds.unwrap_or_else(|| settings::lease_seconds(&topic));
                row.leased_until = Some(now.plus_seconds(seconds));
            }
            Answer::Release => row.release(),
        }
        let blocks = row.key.is_some() && row.place == Place::Dead && topic.blocks_when_dead();
        if blocks && !rules.hold(row.topic, Wait::Yes)? {
            continue;
        }
        let due = row.available_at.filter(|_| row.place == Place::Waiting);
        let _waiting = due.map(|due| shmem::low_water::enter_due(row.topic, due)).transpose()?;
        if deliveries.update(found.id, &row, &snapshot, Wait::Yes) == Outcome::Done {
            tell(&answer, &row)?;
            if let Some(keyed) = row.keyed() {
                match answer {
                    Answer::Extend { .. } => {}
                    _ if row.place == Place::Dead && !blocks => {
                        let mut ended = Ended::new(&deliveries);
                        ended.add(keyed, seq)?;
                        ended.unblock(Wait::Yes)?;
                    }
                    _ => key_release::send_back(&deliveries, keyed, seq)?,
                }
            }
            return Ok(Some(Settled { place: row.place, leased_until: row.leased_until }));
        }
    }
}

/// What claims must hear of an answer, once it is committed.
fn tell(answer: &Answer<'_>, row: &Delivery<'_>) -> Result<(), Error> {
    pending::touched(row.seq)?;
    if let Answer::Fail { .. } | Answer::Abandon { .. } = answer {
        pending::answered(row.topic, Event::Failed)?;
    }
    match answer {
        Answer::Release => pending::will_be_ready(row.topic, row.seq),
        Answer::Extend { .. } => row.leased_until.map_or(Ok(()), |end| pending::will_expire(row.topic, end)),
        Answer::Fail { .. } if row.place == Place::Waiting => {
            row.available_at.map_or(Ok(()), |due| pending::will_be_due(row.topic, due))
        }
        Answer::Fail { .. } | Answer::Abandon { .. } => Ok(()),
    }
}

/// For the topics of those messages that are still stored.
fn count_stale(seqs: &[i64]) -> Result<(), Error> {
    let envelopes = Table::<Envelopes>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut bodies = Lookup::open(&envelopes, &snapshot)?;
    for seq in seqs {
        if let Some(body) = bodies.find(*seq) {
            pending::answered(body.row.topic, Event::Stale)?;
        }
    }
    Ok(())
}

/// Completes in the order of the messages, so that two calls that share some cannot wait for each other in a circle.
pub fn complete_all(tokens: &[Uuid]) -> Result<Vec<bool>, Error> {
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let mut answers = vec![false; tokens.len()];
    let mut leases: Vec<(i64, i64, usize)> = tokens
        .iter()
        .enumerate()
        .filter_map(|(position, token)| token::decode(*token).map(|(seq, lease)| (seq, lease, position)))
        .collect();
    leases.sort_unstable();
    let mut completed: Vec<Completed> = Vec::with_capacity(leases.len());
    let mut ended = Ended::new(&deliveries);
    let mut stale = Vec::new();
    {
        let snapshot = Latest::push();
        let mut scan = Lookup::open(&deliveries, &snapshot)?;
        let mut last = None;
        for (seq, lease, position) in leases {
            if last.replace((seq, lease)) == Some((seq, lease)) {
                continue;
            }
            server::check_for_interrupts();
            let owner = completed.last().and_then(|earlier| earlier.owner);
            let taken = match take(seq, lease, owner, &deliveries, &snapshot, &mut scan, &mut ended)? {
                Taken::Changed => take_freshly(seq, lease, owner, &deliveries, &mut ended)?,
                taken => taken,
            };
            if let Taken::Completed(message) = taken {
                pending::touched(seq)?;
                answers[position] = true;
                completed.push(message);
            } else {
                stale.push(seq);
            }
        }
    }
    if !stale.is_empty() {
        count_stale(&stale)?;
    }
    ended.unblock(Wait::Yes)?;
    if !completed.is_empty() {
        Table::<Receipts>::open(Access::Write)?.insert_all(&receipts(completed));
    }
    Ok(answers)
}

/// A message whose delivery this call has removed.
struct Completed {
    seq: i64,
    attempts: i16,
    owner: Option<Text<'static>>,
}

impl Completed {
    /// What messages of one receipt have in common.
    fn kind(&self) -> (i16, Option<&'static [u8]>) {
        (self.attempts, self.owner.map(Text::bytes))
    }
}

/// The receipts for messages in ascending order.
fn receipts(mut completed: Vec<Completed>) -> Vec<Receipt<'static>> {
    let delivered_at = server::clock();
    completed.sort_by_key(Completed::kind);
    let mut receipts = Vec::new();
    for alike in completed.chunk_by(|one, next| one.kind() == next.kind()) {
        let seqs: Vec<i64> = alike.iter().map(|message| message.seq).collect();
        receipts.extend(receipt::groups(&seqs).map(|group| Receipt {
            first: group[0],
            last: group[group.len() - 1],
            delivered_at,
            attempts: alike[0].attempts,
            lease_owner: alike[0].owner,
            seqs: (!receipt::is_gapless(group)).then(|| Numbers::new(group)),
        }));
    }
    receipts
}

/// What became of an attempt to remove a delivery.
enum Taken {
    Completed(Completed),
    Stale,
    /// Another session has changed the row since the snapshot.
    Changed,
}

/// Removes the delivery if `lease` is its current one. `owner` is one that is known already, and perhaps the same.
fn take(
    seq: i64,
    lease: i64,
    owner: Option<Text<'static>>,
    deliveries: &Table<Deliveries>,
    snapshot: &Latest,
    scan: &mut Lookup<'_, Deliveries>,
    ended: &mut Ended<'_>,
) -> Result<Taken, Error> {
    let Some(found) = scan.find(seq) else { return Ok(Taken::Stale) };
    if !found.row.holds(lease) {
        return Ok(Taken::Stale);
    }
    access::topics(Right::Worker)?.check(found.row.topic)?;
    if deliveries.delete(found.id, snapshot, Wait::Yes) != Outcome::Done {
        return Ok(Taken::Changed);
    }
    if let Some(keyed) = found.row.keyed() {
        ended.add(keyed, seq)?;
    }
    pending::answered(found.row.topic, Event::Delivered)?;
    let same = owner.map(Text::bytes) == found.row.lease_owner.map(Text::bytes);
    let owner = if same { owner } else { found.row.lease_owner.map(Text::copied) };
    Ok(Taken::Completed(Completed { seq, attempts: found.row.attempts, owner }))
}

/// As [`take`], with a new snapshot until nobody interferes.
fn take_freshly(
    seq: i64,
    lease: i64,
    owner: Option<Text<'static>>,
    deliveries: &Table<Deliveries>,
    ended: &mut Ended<'_>,
) -> Result<Taken, Error> {
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let mut scan = Lookup::open(deliveries, &snapshot)?;
        match take(seq, lease, owner, deliveries, &snapshot, &mut scan, ended)? {
            Taken::Changed => {}
            taken => return Ok(taken),
        }
    }
}
