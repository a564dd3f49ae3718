//! The only unsafe code: direct access to an extension's tables, behind safe, named types.
//!
//! It knows no message: the extension tells it of its tables (`catalog.rs`, `row.rs`).
//!
//! Why not SPI: two statements through kept SPI plans reach 80-100 thousand rows a second and core, the access methods
//! called directly 155-245 thousand; storing 100 rows is 1.7 times as fast.
//!
//! Rules that every file here keeps:
//! - Direct access bypasses privileges: EXECUTE on the SQL function is the gate, and [`server::may_write`] refuses
//!   read-only transactions and standbys before anything is touched.
//! - Whatever indexes a table has are maintained, ours or not.
//! - A PostgreSQL error unwinds as a Rust panic. Guards then do nothing: the transaction's abort frees what the
//!   server holds (locks, pins, snapshots, memory contexts). On the ordinary path they free it themselves.
#![allow(unsafe_code)]

pub mod background;
pub mod btree;
pub mod call;
pub mod callback;
pub mod catalog;
pub mod datum;
pub mod encoding;
pub mod error_report;
pub mod executor;
pub mod fetch;
pub mod index_end;
pub mod indexes;
pub mod invalidation;
pub mod jsonb;
pub mod lock;
pub mod lwlock;
pub mod result_set;
pub mod role;
pub mod row;
pub mod row_lock;
pub mod savepoint;
pub mod scan;
pub mod scan_key;
pub mod sequence;
pub mod server;
pub mod shape;
pub mod shared_memory;
pub mod snapshot;
pub mod spi;
pub mod table;
pub mod usage;
pub mod version;
pub mod versions;
