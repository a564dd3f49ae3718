//! `outbox`: the transactional outbox as a PostgreSQL extension.
//!
//! The life of a message:
//!
//! 1. A producer's transaction calls `append`: an envelope (what the message is) and a delivery (what is still to be
//!    done) are written with the business rows. If the transaction rolls back, there never was a message.
//! 2. It commits: the message is ready. With `available_at` in the future it waits first.
//! 3. A worker calls `claim`: the oldest ready messages are leased to it, each with a token, until `leased_until`.
//! 4. The worker delivers and answers. Only the current token counts; a stale one changes nothing:
//!    `complete` deletes the delivery and leaves a receipt: delivered.
//!    `fail` makes it wait for its next attempt, or dead after the last one; `abandon` makes it dead at once.
//!    `release` gives it back uncounted; `extend` keeps it longer.
//! 5. No answer by `leased_until`: it is ready again, or dead if that was the last attempt.
//! 6. `retry_dead` and `redrive` give dead messages another life; `discard` ends lives.
//!    `consume_once` makes a second delivery harmless.
//! 7. `purge`, by hand or by the background worker, deletes what is over and past its retention.
//!
//! Messages of one key follow each other: `queue/key.rs` says how.
//!
//! Who may use whom: lib -> api, worker -> functions -> queue -> settings -> shmem -> tables -> pg -> error -> rules.

mod api;
mod error;
mod functions;
mod pg;
mod queue;
mod settings;
mod shmem;
mod tables;
mod worker;

use outbox_rules as rules;
use pgrx::prelude::*;

pgrx::pg_module_magic!(name, version);

extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
extension_sql_file!("../sql/tables.sql", name = "tables", requires = ["schema"]);
extension_sql_file!("../sql/functions.sql", name = "functions", requires = ["tables"]);
extension_sql_file!("../sql/views.sql", name = "views", requires = ["functions"]);
extension_sql_file!("../sql/privileges.sql", name = "privileges", requires = ["views"], finalize);

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::calls::error_report::without_backtraces();
    pg::catalog::register(&tables::objects::EXTENSION);
    settings::register();
    tables::privileges::register(functions::CAPABILITIES);
    worker::register();
    shmem::commit::register();
}
