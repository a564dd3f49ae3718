//! Processes, sessions and transactions, and what they share.

pub mod background;
pub mod callback;
pub mod invalidation;
pub mod lock;
pub mod lwlock;
pub mod role;
pub mod savepoint;
pub mod server;
pub mod shared_memory;
