//! The only unsafe code: direct access to an extension's tables, behind safe, named types.
//!
//! It knows no message: the extension tells it of its tables (`catalog.rs`, `rows/row.rs`).
//!
//! Why not SPI: two statements through kept SPI plans reach 80-100 thousand rows a second and core, the access methods
//! called directly 155-245 thousand; storing 100 rows is 1.7 times as fast.
//!
//! Rules that every file here keeps:
//! - Direct access bypasses privileges: EXECUTE on the SQL function is the gate, and [`server::may_write`] refuses
//!   read-only transactions and standbys before anything is touched.
//! - All indexes of a table are maintained, ours or not.
//! - A PostgreSQL error unwinds as a Rust panic. Guards then do nothing: the transaction's abort frees what the
//!   server holds (locks, pins, snapshots, memory contexts). On the ordinary path they free it themselves.
#![allow(unsafe_code)]

pub mod calls;
pub mod catalog;
pub mod read;
pub mod rows;
pub mod sequence;
pub mod session;
pub mod value;
pub mod version;
