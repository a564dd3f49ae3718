//! Telling those who LISTEN that there is something to claim: one round of the notifier.
//!
//! Outside the transactions that append: a NOTIFY in those would serialise their commits and forbid PREPARE
//! TRANSACTION.

use crate::error::Error;
use crate::pg::read::scan::Scan;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Table};
use crate::pg::session::server;
use crate::pg::value::datum::Time;
use crate::rules::notify::Notifications;
use crate::shmem::notify::Notifier;
use crate::tables::delivery::Deliveries;
use crate::tables::scan::next_due;
use std::collections::BTreeSet;

/// Tells the listeners of what is pending and of what has become due after `since` until `now`. Returns when the
/// next message will be.
pub fn notify(
    notifier: &Notifier,
    notifications: &Notifications,
    since: Time,
    now: Time,
) -> Result<Option<Time>, Error> {
    let deliveries = Table::<Deliveries>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut topics: BTreeSet<Vec<u8>> = notifications.topics().map(<[u8]>::to_vec).collect();
    let mut due = Scan::due(&deliveries, &snapshot, None, since.plus_micros(1), now)?;
    while let Some(found) = due.next() {
        server::check_for_interrupts();
        if !topics.contains(found.row.topic.bytes()) {
            topics.insert(found.row.topic.bytes().to_vec());
        }
    }
    if notifications.missed {
        topics.insert(Vec::new());
    }
    topics.iter().for_each(|topic| notifier.notify(topic));
    next_due(&deliveries, &snapshot, None, now)
}
