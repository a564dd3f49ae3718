//! Rules that need no server: no pgrx here.

pub mod due_mark;
pub mod low_water;
