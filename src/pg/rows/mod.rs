//! Tables that are open, and writing their rows.

pub mod executor;
pub mod indexes;
pub mod row;
pub mod row_lock;
pub mod shape;
pub mod table;
pub mod usage;
