//! SQL functions: how they are called, what they return, and statements of their own.

pub mod call;
pub mod error_report;
pub mod result_set;
pub mod spi;
