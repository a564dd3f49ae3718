//! What runs in processes of its own. Correctness never depends on any of this.
//!
//! The optional background purge: a launcher, and a short-lived worker per database and visit.
//! The launcher exists only when the library is preloaded. Every `outbox.purge_interval_seconds` it starts, one after
//! the other, a worker for each database; the worker purges in bounded batches, one transaction each, and ends, so no
//! permanent connection blocks DROP DATABASE. An error ends the process that met it: a visit is repeated at the next
//! interval, a launcher is started again by the postmaster.
//!
//! The optional notifier, one per database, started by a commit that finds none: it sends the NOTIFYs and ends when
//! there was nothing to tell for a while, or another session wants the database for itself.

use crate::functions::purge::{self, Purged};
use crate::pg::catalog;
use crate::pg::session::{background, server};
use crate::pg::value::datum::Time;
use crate::shmem::notify::Notifier;
use crate::tables::access;
use crate::{queue, settings};
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use std::time::{Duration, Instant};

const LAUNCHER: &str = "outbox launcher";
const PURGE: &str = "outbox purge";
/// Messages per transaction: some hundred milliseconds of work.
const BATCH: i32 = 10_000;
/// How long the postmaster waits before it starts a launcher again that has failed.
const RESTART: Duration = Duration::from_secs(5);
/// A visit to a database has its share of the interval, and at least this long, in seconds: so that the backlog of one
/// keeps no other waiting.
const VISIT: i32 = 10;
/// Longest sleep of the launcher; a reload or a stop wakes it earlier.
const NAP: Duration = Duration::from_secs(3600);

/// Asks the postmaster for a launcher, if it is loading libraries just now.
pub fn register() {
    if server::preloading() {
        BackgroundWorkerBuilder::new(LAUNCHER)
            .set_library("outbox")
            .set_function("outbox_launcher_main")
            .enable_spi_access()
            .set_restart_time(Some(RESTART))
            .load();
    }
}

/// Time between two NOTIFYs for one topic, in microseconds: soon enough to be waited for, and fifty a second cost
/// nothing at any rate of commits.
const DEBOUNCE: i64 = 20_000;
/// How long the notifier stays while there is nothing to tell, in seconds.
const LINGER: i32 = 60;
/// How soon the notifier makes way for a DROP DATABASE, in seconds.
const MAKE_WAY: i32 = 1;

background::entry_point!(outbox_launcher_main, launcher);
background::entry_point!(outbox_purge_main, purge_database);
background::entry_point!(outbox_notifier_main, notify_database);

fn launcher(_: pg_sys::Datum) {
    background::start(None);
    let mut last: Option<Time> = None;
    loop {
        background::reload_if_requested();
        let interval = settings::purge_interval_seconds();
        let now = server::clock();
        // A clock that was set back: the last round was long ago.
        let due = last.filter(|last| *last <= now).map(|last| last.plus_seconds(interval));
        if interval == 0 {
            server::sleep(NAP);
        } else if let Some(due) = due.filter(|due| *due > now) {
            server::sleep(NAP.min(Duration::from_micros((due.0 - now.0).unsigned_abs())));
        } else {
            last = Some(now);
            visit_all();
        }
    }
}

fn visit_all() {
    let mut databases = background::databases();
    databases.retain(|database| settings::purges(&database.name));
    let share =
        settings::purge_interval_seconds() / i32::try_from(databases.len()).unwrap_or(i32::MAX).max(1);
    for database in databases {
        background::reload_if_requested();
        if !background::run_and_wait(PURGE, "outbox_purge_main", &database, share.max(VISIT).unsigned_abs()) {
            pgrx::log!(
                "outbox: no free background worker slot for database \"{}\"; trying again in {} s",
                database.name,
                settings::purge_interval_seconds()
            );
        }
    }
}

fn purge_database(argument: pg_sys::Datum) {
    let (database, share) = background::database_and_number(argument);
    background::start(Some(database));
    let began = Instant::now();
    if background::transaction(c"looking for the extension", catalog::installed_version).is_none() {
        return;
    }
    loop {
        background::reload_if_requested();
        let purge = || access::act_as_owner().and_then(|()| purge::purge(Some(BATCH)));
        match background::transaction(c"outbox purge", purge) {
            Ok(Purged { messages: 0, markers: 0 }) => return,
            Ok(_) if background::database_is_wanted() => return,
            Ok(_) if began.elapsed() >= Duration::from_secs(share.into()) => return,
            Ok(_) => {}
            Err(error) => return ErrorReport::from(error).report(pgrx::PgLogLevel::WARNING),
        }
    }
}

fn notify_database(database: pg_sys::Datum) {
    background::start(Some(pg_sys::Oid::from(database.value() as u32)));
    let begin = || catalog::installed_version().and_then(|_| Notifier::begin());
    let Some(notifier) = background::transaction(c"outbox notifier begins", begin) else { return };
    let (mut told, mut heard) = (Time(i64::MIN), server::clock());
    // What was due before is told first.
    let mut next = Some(told);
    loop {
        background::reload_if_requested();
        if !settings::notify() || background::database_is_wanted() {
            return;
        }
        let notifications = notifier.take();
        let now = server::clock();
        // After a clock was set back, it is told again what becomes due again.
        (told, heard) = (told.min(now), heard.min(now));
        next = next.into_iter().chain(notifications.alarm().map(Time)).min();
        let is_due = next.is_some_and(|next| next <= now);
        if is_due || !notifications.is_empty() {
            let round = || match catalog::installed_version() {
                Some(_) => queue::notify::notify(&notifier, &notifications, told, now).map(Some),
                None => Ok(None),
            };
            match background::transaction(c"outbox notify", round) {
                Ok(Some(next_due)) => next = next_due,
                Ok(None) => return,
                Err(error) => return ErrorReport::from(error).report(pgrx::PgLogLevel::WARNING),
            }
            notifier.deliver();
            (told, heard) = (now, now);
            rest(&notifier, now.plus_micros(DEBOUNCE));
        } else if next.is_none() && heard.plus_seconds(LINGER) <= now && notifier.end_if_idle() {
            return;
        } else {
            notifier.sleep(next.unwrap_or(Time(i64::MAX)).min(now.plus_seconds(MAKE_WAY)));
        }
    }
}

/// Until then, whatever comes.
fn rest(notifier: &Notifier, until: Time) {
    let began = server::clock();
    while (began..until).contains(&server::clock()) {
        notifier.sleep(until);
    }
}
