//! Values as the server holds them.

pub mod datum;
pub mod encoding;
pub mod jsonb;
