//! Rules that need no server: no pgrx here. A crate of its own, so that they can be tested where they live.

pub mod argument;
pub mod backoff;
pub mod counters;
pub mod due_mark;
pub mod floor;
pub mod formats;
pub mod jsonb_text;
pub mod key_hash;
pub mod low_water;
pub mod notify;
pub mod receipt;
pub mod slots;
pub mod token;
pub mod wake;
