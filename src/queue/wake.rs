//! Waiting for work inside the server.

use crate::error::Error;
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::shmem;
use crate::shmem::wake::Waiting;

/// What a look came to.
pub enum Found {
    /// So many messages, and took them. `all`: all there were; `more`: it has left some for others.
    Taken { count: usize, all: bool, more: bool },
    /// Something, and took nothing.
    Something,
    /// Nothing, and it knows of nothing that the clock brings before `next`.
    Nothing { next: Time },
}

/// Looks for what is claimable in `topic`, or in any, until a look finds something or `deadline` has passed. Sleeps in
/// between; or before, where many look and find little. A cancel or shutdown ends the call.
pub fn look_until(
    mut deadline: Time,
    topic: Option<Text<'_>>,
    mut look: impl FnMut() -> Result<Found, Error>,
) -> Result<(), Error> {
    let mut last = server::clock();
    let waits = last < deadline;
    let mut waiting = if waits { Waiting::pause(topic, deadline)? } else { None };
    if waiting.is_some() {
        server::check_client();
    }
    let found = loop {
        let found = look()?;
        let Found::Nothing { next } = found else { break found };
        let now = server::clock();
        // A clock that was set back makes nobody wait longer.
        deadline = deadline.plus_micros((now.0 - last.0).min(0));
        last = now;
        if now >= deadline {
            break found;
        }
        match &waiting {
            // Then it looks again: only now does nobody miss us.
            None => waiting = Some(Waiting::begin(topic)?),
            Some(waiting) => waiting.sleep(next, deadline)?,
        }
        server::check_client();
    };
    if let Found::Taken { count, all: true, .. } = found {
        shmem::wake::emptied(topic, count)?;
    }
    if let Some(waiting) = waiting {
        waiting.end();
    }
    match found {
        Found::Taken { more: true, .. } => shmem::wake::pass_on(topic),
        _ => Ok(()),
    }
}
