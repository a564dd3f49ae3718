//! The only unsafe code: direct access to the extension's tables, behind safe, named types.
//!
//! Why not SPI: a claim and a complete through kept SPI plans reach 80-100 thousand messages a second and core, the
//! access methods called directly 155-245 thousand; an append of 100 messages is 1.7 times as fast.
//!
//! Rules that every file here keeps:
//! - Direct access bypasses privileges: EXECUTE on the SQL function is the gate, and [`server::may_write`] refuses
//!   read-only transactions and standbys before anything is touched.
//! - Whatever indexes a table has are maintained, ours or not.
//! - A PostgreSQL error unwinds as a Rust panic. Guards then do nothing: the transaction's abort frees what the
//!   server holds (locks, pins, snapshots, memory contexts). On the ordinary path they free it themselves.
#![allow(unsafe_code)]

pub mod arrival;
pub mod attempt;
pub mod cache;
pub mod catalog;
pub mod commit;
pub mod encoding;
mod executor;
mod installation;
pub mod json;
mod leaves;
pub mod lifecycle;
pub mod listeners;
mod lock;
pub mod looks;
pub mod lookup;
pub mod low_water;
pub mod of_key;
pub mod passing;
pub mod privileges;
pub mod procedure;
pub mod process;
mod range;
pub mod record;
pub mod rights;
pub mod rows;
pub mod rules;
pub mod savepoint;
pub mod scan;
pub mod server;
pub mod shape;
pub mod snapshot;
pub mod survey;
pub mod table;
pub mod totals;
pub mod transaction;
mod upkeep;
mod usage;
pub mod value;
mod version;
mod versions;
pub mod waiting;
