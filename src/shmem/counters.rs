//! What has been answered per topic since the server started: statistics, kept in shared memory, not in rows that
//! everybody would update. They start at zero with the server, and are not replicated.
//!
//! A topic that was counted keeps its slot; one that finds none within its window is not counted.

use crate::error::Error;
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::rules::counters::{self, Counted, Totals};
use crate::shmem::installations;
use crate::shmem::memory::{Shared, TOPICS, Topic};
use std::collections::BTreeMap;

/// Slots that are read at a time, under the lock: some ten microseconds.
const STRETCH: usize = 256;

/// Of all topics of this installation that were counted.
pub fn all() -> Result<BTreeMap<Vec<u8>, Totals>, Error> {
    let installation = installations::current()?;
    let Some(shared) = Shared::attached() else { return Ok(BTreeMap::new()) };
    let mut found: Vec<Counted> = Vec::new();
    for first in (0..TOPICS).step_by(STRETCH) {
        found.reserve(STRETCH);
        shared.locked(|contents| {
            let stretch = contents.totals.iter().skip(first).take(STRETCH);
            found.extend(stretch.filter(|counted| counted.installation == installation));
        });
    }
    Ok(found.iter().map(|counted| (counted.name().to_vec(), counted.totals)).collect())
}

/// Of one topic; None if it is not counted.
pub fn of(topic: Text<'_>) -> Result<Option<Totals>, Error> {
    let key = installations::wanted(Some(topic))?;
    Ok(Shared::attached().and_then(|shared| shared.locked(|contents| counters::of(contents.totals, key))))
}

/// When purges of this installation last found nothing left to do.
#[derive(Clone, Copy)]
pub struct Purges {
    pub last: Option<Time>,
    /// What was before is not known: the server started, or this installation was first heard of.
    pub known_since: Time,
}

/// A purge has found nothing left to do.
pub fn purged() -> Result<(), Error> {
    of_all_topics(|topic, now| topic.purged_at = now)?;
    Ok(())
}

/// None if there is no room to remember any.
pub fn purges() -> Result<Option<Purges>, Error> {
    of_all_topics(|topic, _| Purges {
        last: (topic.purged_at != 0).then_some(Time(topic.purged_at)),
        known_since: Time(topic.known_since),
    })
}

fn of_all_topics<T>(what: impl FnOnce(&mut Topic, i64) -> T) -> Result<Option<T>, Error> {
    let (installation, now) = (installations::current()?, server::clock().0);
    let key = installations::key(installation, None);
    Ok(Shared::attached().and_then(|shared| {
        shared.locked(|contents| contents.topic_in_use(key, installation, now).map(|topic| what(topic, now)))
    }))
}
