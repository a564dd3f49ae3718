//! What the functions share: how messages are claimed, answered, woken for and counted.

pub mod answer;
pub mod attempt;
pub mod batch;
pub mod candidates;
pub mod counts;
pub mod deaths;
pub mod key;
pub mod key_release;
pub mod look;
pub mod meeting;
pub mod notify;
pub mod result;
pub mod revive;
pub mod selection;
pub mod take;
pub mod topic;
pub mod verdict;
pub mod wake;
