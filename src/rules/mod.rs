//! Rules that need no server: no pgrx here.

pub mod low_water;
