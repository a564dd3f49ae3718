//! The tables: rows, life and look-ups.

pub mod access;
pub mod delivery;
pub mod find;
pub mod key;
pub mod number;
pub mod objects;
pub mod privileges;
pub mod range;
pub mod row;
pub mod scan;
pub mod topic;
pub mod versions;
