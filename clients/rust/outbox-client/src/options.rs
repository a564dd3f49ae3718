use crate::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Error;

/// Told what the worker does, for metrics and tracing. Every method does nothing by default.
pub trait Hooks: Send + Sync {
    fn claimed(&self, _messages: usize) {}
    /// What it returns is dropped when the delivery ends: the place for a span.
    fn starting(&self, _message: &Message) -> Option<Box<dyn Send>> {
        None
    }
    fn ended(&self, _message: &Message, _error: Option<&str>, _took: Duration) {}
    fn reconnecting(&self, _error: &Error) {}
}

struct Silent;
impl Hooks for Silent {}

pub struct Options {
    /// Name of this worker, for operators.
    pub owner: String,
    /// `None`: any topic.
    pub topic: Option<String>,
    /// Deliveries at a time, 1 to 500.
    pub concurrency: usize,
    pub lease_seconds: i32,
    /// Longest sleep inside the server.
    pub wait_seconds: i32,
    pub hooks: Arc<dyn Hooks>,
}

impl Options {
    pub fn new(owner: impl Into<String>) -> Self {
        let hooks = Arc::new(Silent);
        Self { owner: owner.into(), topic: None, concurrency: 10, lease_seconds: 60, wait_seconds: 5, hooks }
    }
}

/// What became of the messages. A stale answer changed nothing: the lease was no longer the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub delivered: usize,
    pub failed: usize,
    pub released: usize,
    pub stale: usize,
}
