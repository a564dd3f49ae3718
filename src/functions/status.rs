//! `read_status`, for `outbox.status`: health checks, what is wrong and what to do about it.

use crate::error::Error;
use crate::pg::catalog;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::shape;
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::{background, server};
use crate::pg::value::datum::{Text, Time};
use crate::queue::counts::{Tables, TopicCounts};
use crate::queue::key::Keys;
use crate::queue::result::{Caller, Status, StatusRows};
use crate::settings;
use crate::shmem::{counters, memory};
use crate::tables::delivery::Deliveries;
use crate::tables::topic::{TopicRules, Topics};
use pgrx::datum::DatumWithOid;
use pgrx::spi::Spi;

/// Microseconds that a look for parked messages may take.
const LOOK_AT_MOST: i64 = 10_000;
const STATUS: &str = include_str!("../queries/status.sql");

/// A row per check. Where library and installed version do not match, or a table cannot be used, only that is told.
pub fn status<'fcx>(caller: Caller<'fcx>) -> Result<StatusRows<'fcx>, Error> {
    let mut rows = caller.rows::<Status>()?;
    let installed = catalog::installed_version().unwrap_or_default();
    let library = env!("CARGO_PKG_VERSION");
    let fits = catalog::catalog().is_ok();
    let detail = if fits {
        format!("{library}, library and extension")
    } else if installed == library {
        format!(
            "{library}, library and extension, but some of its objects were dropped: restore a backup, or \
             make them again"
        )
    } else {
        format!("library {library}, extension {installed}: run ALTER EXTENSION outbox UPDATE")
    };
    rows.push(Text::new(b"version"), fits, Text::new(detail.as_bytes()));
    if fits {
        let tables = shape::report()?;
        rows.push(Text::new(b"tables"), tables.ok, Text::new(tables.detail.as_bytes()));
        if tables.is_usable {
            further(&mut rows)?;
        }
    }
    Ok(rows)
}

fn further(rows: &mut StatusRows<'_>) -> Result<(), Error> {
    let oldest = oldest_ready()?;
    let purges = counters::purges()?;
    let null = || DatumWithOid::null::<Time>();
    let arguments = [
        server::was_preloaded().into(),
        settings::purge_interval_seconds().into(),
        settings::purges(&server::database()).into(),
        purges.and_then(|purges| purges.last).map_or_else(null, Into::into),
        oldest.map_or_else(null, |(due, _)| due.into()),
        oldest.map_or_else(DatumWithOid::null::<Text>, |(_, topic)| topic.into()),
        memory::is_attached().into(),
        launcher().map_or_else(DatumWithOid::null::<i32>, Into::into),
        purges.map_or_else(null, |purges| purges.known_since.into()),
    ];
    // A database error unwinds as it is; what else pgrx can answer here cannot happen.
    Spi::connect(|client| {
        for row in client.select(STATUS, None, &arguments).into_iter().flatten() {
            if let (Ok(Some(name)), Ok(Some(ok)), Ok(Some(detail))) = (row.get(1), row.get(2), row.get(3)) {
                rows.push(name, ok, detail);
            }
        }
    });
    let orphans = orphans()?;
    let mut detail = b"none without an older one of its key".to_vec();
    if let Some(topic) = &orphans {
        detail = [b"nothing is before one in topic \"", topic.as_slice()].concat();
        detail.extend(b"\": claims on it should find it within seconds");
    }
    rows.push(Text::new(b"parked"), orphans.is_none(), Text::new(&detail));
    Ok(())
}

/// The topic of a message that is parked though nothing is before it, as far as it is found in the time there is.
fn orphans() -> Result<Option<Vec<u8>>, Error> {
    let deliveries = Table::<Deliveries>::open(Access::Read)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut rules = TopicRules::new(&topics, &snapshot);
    let mut found = None;
    Keys::new(&deliveries, &snapshot, server::clock(), false)?.find_orphans(
        i64::MIN,
        LOOK_AT_MOST,
        &mut rules,
        |_, row| {
            found.get_or_insert_with(|| row.topic.bytes().to_vec());
        },
    )?;
    Ok(found)
}

/// The launcher's process.
fn launcher() -> Option<i32> {
    Spi::connect(|client| {
        let processes = client.select("SELECT pid FROM pg_stat_activity", None, &[]).into_iter().flatten();
        let mut pids = processes.filter_map(|row| row.get(1).unwrap_or_default());
        pids.find(|pid| background::is_background_worker(*pid, c"outbox launcher"))
    })
}

/// Since when the oldest ready message is due, and its topic.
fn oldest_ready() -> Result<Option<(Time, Text<'static>)>, Error> {
    let tables = Tables::open()?;
    let snapshot = Latest::push();
    let mut counts = TopicCounts::begin(&tables, &snapshot, server::clock(), settings::max_attempts)?;
    let mut oldest = None;
    for topic in counts.topics()? {
        server::check_for_interrupts();
        if let Some(due) = counts.oldest(topic)?
            && oldest.is_none_or(|(other, _)| due < other)
        {
            oldest = Some((due, topic));
        }
    }
    Ok(oldest)
}
