//! `read_stats`, for `outbox.stats`: how many messages each topic has by state, and what has become of its messages.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::session::server;
use crate::pg::value::datum::Text;
use crate::queue::counts::{StateCounts, Tables, TopicCounts};
use crate::queue::result::{Caller, Stats, StatsRows};
use crate::settings;
use crate::shmem::counters;

/// A row for every topic that has messages or whose answers were counted, in bytewise order.
pub fn stats<'fcx>(caller: Caller<'fcx>) -> Result<StatsRows<'fcx>, Error> {
    let mut rows = caller.rows::<Stats>()?;
    let mut unmet = counters::all()?;
    let now = server::clock();
    let tables = Tables::open()?;
    let snapshot = Latest::push();
    let mut counts = TopicCounts::begin(&tables, &snapshot, now, settings::max_attempts)?;
    let mut lines = Vec::new();
    for (topic, states) in counts.by_state()? {
        let counted = unmet.remove(topic.bytes());
        if counted.is_some() || states != StateCounts::default() {
            lines.push((
                topic,
                states,
                counted.map_or_else(|| counters::of(topic), |totals| Ok(Some(totals)))?,
            ));
        }
    }
    let drained = unmet.into_iter();
    lines.extend(drained.map(|(topic, counted)| (Text::new(&topic), StateCounts::default(), Some(counted))));
    lines.sort_by_key(|(topic, ..)| topic.bytes());
    for (topic, states, totals) in lines {
        rows.push(topic, &states, states.oldest.map(|due| due.seconds_until(now)), totals);
    }
    Ok(rows)
}
