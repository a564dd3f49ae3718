//! Finding rows: indexes, scans, snapshots.

pub mod btree;
pub mod fetch;
pub mod index_end;
pub mod scan;
pub mod scan_key;
pub mod snapshot;
pub mod versions;
