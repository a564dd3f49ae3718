//! The SQL functions: a file each, of the function's name, or of its neighbour's.

pub mod append;
pub mod claim;
pub mod cloudevent;
pub mod consume_once;
pub mod grant_access;
pub mod purge;
pub mod set_topic;
pub mod stats;
pub mod status;
