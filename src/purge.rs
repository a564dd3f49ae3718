//! Clean-up: deletes what is over and past its retention, and records the deaths that nobody has met.

use crate::argument;
use crate::error::Error;
use crate::keys::{self, Ended};
use crate::settings;
use crate::store::lookup::first_appended_since;
use crate::store::of_key::Keyed;
use crate::store::record::{Deliveries, Topics};
use crate::store::rights;
use crate::store::rules::TopicRules;
use crate::store::scan::InOrder;
use crate::store::server::{self, Meter};
use crate::store::snapshot::Latest;
use crate::store::table::{Access, Table, Wait};
use crate::store::value::Text;
use crate::store::{looks, totals};
use pgrx::datum::DatumWithOid;
use pgrx::spi::Spi;

const DELIVERED: &str = include_str!("queries/purge_delivered.sql");
const SHORTEST_RETENTION: &str = include_str!("queries/shortest_retention.sql");
const DEAD: &str = include_str!("queries/purge_dead.sql");
const MARKERS: &str = include_str!("queries/purge_processed.sql");

const SECONDS_OF_A_DAY: i32 = 86_400;

/// What one call has deleted.
pub struct Purged {
    pub messages: i64,
    pub markers: i64,
}

/// Deletes at most `max_messages` delivered or dead messages past their retention, and as many consumers' markers.
/// Rows that somebody has locked are left for the next call.
pub fn purge(max_messages: Option<i32>) -> Result<Purged, Error> {
    let limit = argument::required("max_messages", max_messages)?;
    argument::positive("max_messages", limit)?;
    record_deaths(limit)?;
    let (days, limit) = (settings::retention_days(), i64::from(limit));
    let delivered = purge_delivered(days, limit)?;
    let dead = purge_dead(days, limit - delivered)?;
    let markers = delete(MARKERS, &[settings::processed_retention_days().into(), limit.into()]);
    if delivered + dead + markers == 0 {
        rights::follow_roles()?;
        totals::purged(server::clock())?;
    }
    Ok(Purged { messages: delivered + dead, markers })
}

/// In the order of the messages, as far as they are old enough: so no index by time is needed.
fn purge_delivered(days: i32, limit: i64) -> Result<i64, Error> {
    let shortest: Option<i32> =
        Spi::get_one_with_args(SHORTEST_RETENTION, &[days.into()]).unwrap_or_default();
    let shortest = shortest.unwrap_or(days);
    let cutoff = server::clock().plus_seconds(-SECONDS_OF_A_DAY.saturating_mul(shortest));
    let young = first_appended_since(cutoff, &Latest::push())?;
    Ok(delete(DELIVERED, &[days.into(), limit.into(), shortest.into(), young.into()]))
}

/// Where the dead block their key, the next message of the key has its turn.
fn purge_dead(days: i32, limit: i64) -> Result<i64, Error> {
    // All in SPI's memory, which ends with the connection.
    Spi::connect_mut(|client| {
        let deliveries = Table::<Deliveries>::open(Access::Write)?;
        let mut ended = Ended::new(&deliveries);
        let mut deleted = 0;
        for row in client.update(DEAD, None, &[days.into(), limit.into()]).into_iter().flatten() {
            deleted += 1;
            let (seq, topic, key) = (row.get(1), row.get::<Text<'_>>(2), row.get::<Text<'_>>(3));
            if let (Ok(Some(seq)), Ok(Some(topic)), Ok(Some(key))) = (seq, topic, key) {
                ended.add(Keyed::new(topic, key), seq)?;
            }
        }
        ended.unblock(Wait::Yes)?;
        Ok(deleted)
    })
}

fn delete(statement: &str, arguments: &[DatumWithOid<'_>]) -> i64 {
    // A database error unwinds with its own SQLSTATE; what else pgrx can answer here cannot happen.
    Spi::connect_mut(|client| client.update(statement, None, arguments).map_or(0, |rows| rows.len() as i64))
}

/// Moves deliveries whose last lease ran out to the dead. With a backlog of a million that takes 0.2 seconds, so in a
/// series of calls not every one does it.
fn record_deaths(limit: i32) -> Result<(), Error> {
    let now = server::clock();
    if !looks::may_look_for_deaths(now)? {
        return Ok(());
    }
    let meter = Meter::start();
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut rules = TopicRules::new(&topics, &snapshot);
    let mut scan = InOrder::from(&deliveries, &snapshot, None, 0)?;
    let mut deaths = 0;
    let mut ended = Ended::new(&deliveries);
    while deaths < limit {
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
        deaths += 1;
        let Some(younger) = keys::bury(&deliveries, &snapshot, found.id, &row, &mut rules, now)? else {
            continue;
        };
        keys::park_locked(&deliveries, &snapshot, younger)?;
        if let Some(keyed) = row.keyed().filter(|_| !topic.blocks_when_dead()) {
            ended.add(keyed, row.seq)?;
        }
    }
    ended.unblock(Wait::No)?;
    looks::looked_for_deaths(meter.read())
}
