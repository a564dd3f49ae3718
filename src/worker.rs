//! The optional background purge: a launcher, and a short-lived worker per database and visit.
//!
//! The launcher exists only when the library is preloaded. Every `outbox.purge_interval_seconds` it starts, one after
//! the other, a worker for each database; the worker purges in bounded batches, one transaction each, and ends, so no
//! permanent connection blocks DROP DATABASE. An error ends the process that met it: a visit is repeated at the next
//! interval, a launcher is started again by the postmaster. Correctness never depends on any of this.

use crate::purge::{self, Purged};
use crate::settings;
use crate::store::value::Time;
use crate::store::{catalog, process, server, shared};
use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use std::time::Duration;

const LAUNCHER: &str = "outbox launcher";
const PURGE: &str = "outbox purge";
/// Messages per transaction: some hundred milliseconds of work.
const BATCH: i32 = 10_000;
/// How long the postmaster waits before it starts a launcher again that has failed.
const RESTART: Duration = Duration::from_secs(5);
/// Longest sleep of the launcher; a reload or a stop wakes it earlier.
const NAP: Duration = Duration::from_secs(3600);

/// Asks the postmaster for a launcher and for shared memory, if it is loading libraries just now.
pub fn register() {
    if server::preloading() {
        shared::reserve();
        BackgroundWorkerBuilder::new(LAUNCHER)
            .set_library("outbox")
            .set_function("outbox_launcher_main")
            .enable_spi_access()
            .set_restart_time(Some(RESTART))
            .load();
    }
}

process::entry_point!(outbox_launcher_main, launcher);
process::entry_point!(outbox_purge_main, purge_database);

fn launcher(_: pg_sys::Datum) {
    process::start(None);
    let mut last: Option<Time> = None;
    loop {
        process::reload_if_requested();
        let interval = settings::purge_interval_seconds();
        let due = last.map(|last| last.plus_seconds(interval));
        let now = server::clock();
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
    for database in process::databases() {
        if !settings::purges(&database.name) {
            continue;
        }
        process::reload_if_requested();
        if !process::run_and_wait(PURGE, "outbox_purge_main", &database) {
            pgrx::log!(
                "outbox: no free background worker slot for database \"{}\"; trying again in {} s",
                database.name,
                settings::purge_interval_seconds()
            );
        }
    }
}

fn purge_database(database: pg_sys::Datum) {
    process::start(Some(pg_sys::Oid::from(database.value() as u32)));
    if process::transaction(c"looking for the extension", catalog::installed_version).is_none() {
        return;
    }
    loop {
        process::reload_if_requested();
        match process::transaction(c"outbox purge", || purge::purge(Some(BATCH))) {
            Ok(Purged { messages: 0, markers: 0 }) => return,
            Ok(_) if process::database_is_wanted() => return,
            Ok(_) => {}
            Err(error) => return ErrorReport::from(error).report(pgrx::PgLogLevel::WARNING),
        }
    }
}
