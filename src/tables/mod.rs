//! The tables: rows, life and look-ups.

pub mod access;
pub mod delivery;
pub mod envelope;
pub mod find;
pub mod key;
pub mod number;
pub mod objects;
pub mod privileges;
pub mod processed;
pub mod range;
pub mod receipt;
pub mod scan;
pub mod topic;
pub mod versions;
