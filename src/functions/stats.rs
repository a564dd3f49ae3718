//! `read_stats`, for `outbox.stats`: what each topic has in stock, and what has become of its messages.

use crate::error::Error;
use crate::pg::datum::Text;
use crate::pg::server;
use crate::pg::snapshot::Latest;
use crate::queue::counts::{Stock, Survey, Tables};
use crate::queue::result::{Caller, Stats, StatsRows};
use crate::settings;
use crate::shmem::counters;

/// A row for every topic that has messages in stock or whose answers were counted, in bytewise order.
pub fn stats<'fcx>(caller: Caller<'fcx>) -> Result<StatsRows<'fcx>, Error> {
    let mut rows = caller.rows::<Stats>()?;
    let mut unmet = counters::all()?;
    let now = server::clock();
    let tables = Tables::open()?;
    let snapshot = Latest::push();
    let mut survey = Survey::begin(&tables, &snapshot, now, settings::max_attempts)?;
    let mut lines = Vec::new();
    for (topic, stock) in survey.stocks()? {
        let counted = unmet.remove(topic.bytes());
        if counted.is_some() || stock != Stock::default() {
            lines.push((
                topic,
                stock,
                counted.map_or_else(|| counters::of(topic), |totals| Ok(Some(totals)))?,
            ));
        }
    }
    let drained = unmet.into_iter();
    lines.extend(drained.map(|(topic, counted)| (Text::new(&topic), Stock::default(), Some(counted))));
    lines.sort_by_key(|(topic, ..)| topic.bytes());
    for (topic, stock, totals) in lines {
        rows.push(topic, &stock, stock.oldest.map(|due| due.seconds_until(now)), totals);
    }
    Ok(rows)
}
