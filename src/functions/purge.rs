//! Clean-up: deletes what is over and past its retention, and records the deaths that nobody has met.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Table, Wait};
use crate::pg::session::savepoint;
use crate::pg::session::server::{self, Meter};
use crate::pg::value::datum::{Text, Time};
use crate::queue::deaths::Deaths;
use crate::queue::key_release::Ended;
use crate::rules::argument;
use crate::shmem::counters;
use crate::shmem::in_order::InOrder;
use crate::tables::delivery::Deliveries;
use crate::tables::envelope::Envelopes;
use crate::tables::find::first_appended_since;
use crate::tables::key::Keyed;
use crate::tables::topic::{TopicRules, Topics};
use crate::tables::{number, privileges};
use crate::{settings, shmem};
use pgrx::datum::{DatumWithOid, FromDatum, IntoDatum};
use pgrx::spi::Spi;
use std::cell::RefCell;

const DELIVERED: &str = include_str!("../queries/purge_delivered.sql");
const HALVES: &str = include_str!("../queries/purge_halves.sql");
const SHORTEST_RETENTION: &str = include_str!("../queries/shortest_retention.sql");
const DEAD: &str = include_str!("../queries/purge_dead.sql");
const MARKERS: &str = include_str!("../queries/purge_processed.sql");
const REFERENCES: &str = include_str!("../queries/references.sql");

const SECONDS_OF_A_DAY: i32 = 86_400;
/// Envelopes that a call looks at for whether they are all that is left of a message, at two places.
const LOOK_AT_MOST: i64 = 1000;

/// What one call has deleted.
pub struct Purged {
    pub messages: i64,
    pub markers: i64,
}

/// Where the last call of the session ended, if it may have left something: so that a series of calls does not walk
/// again and again over what it has deleted, which stays in the indexes while any snapshot is held.
#[derive(Default)]
struct Reached {
    /// No envelope is below, but for those of late commits.
    envelope: i64,
    delivered: Option<i64>,
    dead: Option<(Vec<u8>, i64)>,
    marker: Option<Time>,
}

thread_local! {
    static REACHED: RefCell<Reached> = RefCell::new(Reached::default());
}

/// Deletes at most `max_messages` delivered or dead messages past their retention, and as many consumers' markers.
/// Rows that a session has locked, or a foreign key refers to, are left. One kind that cannot be deleted does not
/// keep the others; the error is raised once there is nothing else to delete.
pub fn purge(max_messages: Option<i32>) -> Result<Purged, Error> {
    let limit = argument::required("max_messages", max_messages)?;
    argument::positive("max_messages", limit)?;
    let (days, most) = (settings::retention_days(), i64::from(limit));
    let mut failure = None;
    let mut part = |work: &mut dyn FnMut() -> Result<i64, Error>| match savepoint::attempt(work) {
        Ok(deleted) => deleted,
        Err(error) => {
            failure.get_or_insert(error);
            Ok(0)
        }
    };
    // Locked before any other table, see `pg/rows/table.rs`.
    let _first = Table::<Envelopes>::open(Access::Read)?;
    let (shortest, lowest, young) = first_young(days)?;
    // While numbers are stored that the sequence has not reached, the database is being restored, or follows another
    // one. Then the other half of a message may be on its way.
    let is_copy = number::is_behind()?;
    part(&mut || record_deaths(limit))?;
    let mut messages = part(&mut || purge_delivered(days, most, shortest, young, is_copy))?;
    if !is_copy {
        messages += part(&mut || purge_halves(days, most - messages, lowest, young))?;
    }
    messages += part(&mut || purge_dead(days, most - messages))?;
    let markers = part(&mut || purge_markers(settings::processed_retention_days(), most))?;
    if messages + markers == 0 {
        if let Some(failure) = failure {
            failure.rethrow();
        }
        REACHED.with_borrow_mut(|reached| reached.envelope = 0);
        privileges::follow_roles()?;
        counters::purged()?;
    }
    Ok(Purged { messages, markers })
}

/// Calls `step` with what is left of `limit` and where to begin, until the limit is reached or nothing is left. It
/// answers how many it has deleted, and where to go on if there may be more.
fn series<P: Clone + PartialEq>(
    limit: i64,
    reached: impl Fn(&mut Reached) -> &mut Option<P>,
    mut step: impl FnMut(i64, Option<P>) -> Result<(i64, Option<P>), Error>,
) -> Result<i64, Error> {
    let mut at = REACHED.with_borrow_mut(|all| reached(all).take());
    // What was left on the way is met from the beginning.
    let mut last_round = at.is_none();
    let mut deleted = 0;
    while deleted < limit {
        server::check_for_interrupts();
        let (count, next) = step(limit - deleted, at.clone())?;
        deleted += count;
        if next.is_none() || (count == 0 && next == at) {
            at = None;
            if last_round {
                break;
            }
            last_round = true;
        } else {
            at = next;
        }
    }
    REACHED.with_borrow_mut(|all| *reached(all) = at);
    Ok(deleted)
}

/// In the order of the messages, as far as they are old enough: so no index by time is needed.
fn purge_delivered(days: i32, limit: i64, shortest: i32, young: i64, is_copy: bool) -> Result<i64, Error> {
    let statement = with_references(DELIVERED, &[("envelope", "m"), ("receipt", "r")]);
    series(
        limit,
        |reached| &mut reached.delivered,
        |limit, at| {
            let at = at.unwrap_or(0);
            let arguments =
                [days.into(), limit.into(), shortest.into(), young.into(), at.into(), is_copy.into()];
            // A receipt of which nothing could be deleted is not met twice.
            let (count, next) = delete(&statement, &arguments);
            Ok((count, next.map(|next: i64| if count == 0 { next + 1 } else { next })))
        },
    )
}

/// Envelopes that no claim can deliver and no receipt covers: what a restore in part or an unlogged table leaves. Those
/// among the oldest, and at another place each time.
fn purge_halves(days: i32, limit: i64, lowest: i64, young: i64) -> Result<i64, Error> {
    let statement = with_references(HALVES, &[("envelope", "m")]);
    let mut deleted = 0;
    for start in [lowest, number::some_number(lowest, young)?] {
        let look_at = LOOK_AT_MOST.min(limit - deleted);
        let arguments = [days.into(), look_at.into(), young.into(), start.into()];
        let (count, more) = delete(&statement, &arguments);
        deleted += count;
        if more != Some(true) {
            break;
        }
    }
    Ok(deleted)
}

/// The shortest retention of any topic, the first number stored, and that of the first message too young.
fn first_young(days: i32) -> Result<(i32, i64, i64), Error> {
    let shortest: Option<i32> =
        Spi::get_one_with_args(SHORTEST_RETENTION, &[days.into()]).unwrap_or_default();
    let shortest = shortest.unwrap_or(days);
    let now = server::clock();
    let cutoff = now.plus_seconds(-SECONDS_OF_A_DAY.saturating_mul(shortest));
    let reached = REACHED.with_borrow(|reached| reached.envelope);
    let (lowest, young) = first_appended_since(cutoff, now, reached, &Latest::push())?;
    REACHED.with_borrow_mut(|reached| reached.envelope = lowest);
    Ok((shortest, lowest, young))
}

/// Where the dead block their key, the next message of the key has its turn.
fn purge_dead(days: i32, limit: i64) -> Result<i64, Error> {
    let statement = with_references(DEAD, &[("envelope", "m"), ("delivery", "d")]);
    series(
        limit,
        |reached| &mut reached.dead,
        |limit, at| {
            // All in SPI's memory, which ends with the connection: the table too.
            Spi::connect_mut(|client| {
                let deliveries = Table::<Deliveries>::open(Access::Write)?;
                let mut ended = Ended::new(&deliveries);
                let (mut met, mut deleted, mut last) = (0, 0, None);
                let (topic, seq) = at.unwrap_or_default();
                let arguments = [days.into(), limit.into(), Text::new(&topic).into(), seq.into()];
                for row in client.update(&statement, None, &arguments).into_iter().flatten() {
                    let (seq, topic, key) = (row.get(1), row.get::<Text<'_>>(2), row.get::<Text<'_>>(3));
                    let (Ok(Some(seq)), Ok(Some(topic)), Ok(key)) = (seq, topic, key) else { continue };
                    met += 1;
                    last = Some((topic.bytes().to_vec(), seq));
                    if row.get(4) == Ok(Some(true)) {
                        deleted += 1;
                        if let Some(key) = key {
                            ended.add(Keyed::new(topic, key), seq)?;
                        }
                    }
                }
                ended.unblock(Wait::No)?;
                Ok((deleted, last.filter(|_| met == limit)))
            })
        },
    )
}

/// By time. Those of a clock that was ahead come last.
fn purge_markers(days: i32, limit: i64) -> Result<i64, Error> {
    let statement = with_references(MARKERS, &[("processed", "m")]);
    let (now, seconds) = (server::clock(), SECONDS_OF_A_DAY.saturating_mul(days));
    let (old, ahead) = (now.plus_seconds(-seconds), now.plus_seconds(seconds));
    let between =
        |from: Time, to: Time, limit: i64| delete(&statement, &[from.into(), to.into(), limit.into()]);
    let deleted = series(
        limit,
        |reached| &mut reached.marker,
        |limit, at| Ok(between(at.unwrap_or(Time(i64::MIN)), old, limit)),
    )?;
    Ok(deleted + between(ahead, Time(i64::MAX), limit - deleted).0)
}

/// The statement with conditions that nothing refers to what it deletes from these tables, by alias.
fn with_references(statement: &str, tables: &[(&str, &str)]) -> String {
    let conditions = tables.iter().map(|(table, alias)| {
        let arguments = [format!("outbox.{table}").into(), (*alias).into()];
        Spi::get_one_with_args::<String>(REFERENCES, &arguments).ok().flatten().unwrap_or_default()
    });
    statement.replace("%REFERENCES%", &conditions.collect::<Vec<_>>().join(" "))
}

/// Runs a statement that answers how many rows it has deleted, and something else.
fn delete<T: FromDatum + IntoDatum>(statement: &str, arguments: &[DatumWithOid<'_>]) -> (i64, Option<T>) {
    // A database error unwinds with its own SQLSTATE; what else pgrx can answer here cannot happen.
    Spi::connect_mut(|client| {
        let row = client.update(statement, None, arguments).map(|rows| rows.first().get_two::<i64, T>());
        let (count, next) = row.and_then(|row| row).unwrap_or_default();
        (count.unwrap_or(0), next)
    })
}

/// Moves deliveries whose last lease ran out to the dead. With a backlog of a million that takes 0.2 seconds, so in a
/// series of calls not every one does it.
fn record_deaths(limit: i32) -> Result<i64, Error> {
    let now = server::clock();
    if !shmem::floor::may_look_for_deaths(now)? {
        return Ok(0);
    }
    let meter = Meter::start();
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut rules = TopicRules::new(&topics, &snapshot);
    let mut scan = InOrder::from(&deliveries, &snapshot, None, 0)?;
    let (mut met, mut deaths) = (0, Deaths::new(&deliveries, &snapshot, now));
    while met < limit {
        server::check_for_interrupts();
        let Some(found) = scan.next() else { break };
        let row = found.row;
        // The cheap half of the question first: the limit is a look-up per topic.
        if !row.has_expired_for_good(now, 1) {
            continue;
        }
        let topic = rules.of(row.topic)?;
        if !row.has_expired_for_good(now, settings::max_attempts(&topic)) {
            continue;
        }
        met += 1;
        // One that another session is changing is left.
        deaths.exhaust(found.id, &row, &mut rules)?.ok();
    }
    deaths.finish()?;
    shmem::floor::looked_for_deaths(meter.read())?;
    Ok(0)
}
