//! What sessions share, and what they tell each other when a transaction ends.

pub mod commit;
pub mod counters;
pub mod floor;
pub mod in_order;
pub mod installations;
pub mod low_water;
pub mod memory;
pub mod notify;
pub mod pending;
pub mod raise;
pub mod wake;
