//! Waiting for work inside the server.

use crate::error::Error;
use crate::store::server;
use crate::store::value::{Text, Time};
use crate::store::waiting::{self, Waiting};

/// How long, in microseconds, what no session can announce may stay unnoticed: COMMIT PREPARED, a row changed by hand.
/// One session of those that wait for the same looks that often.
const RECHECK: i64 = 1_000_000;

/// What a look came to.
pub enum Found {
    /// Something. `more`: it has left something for others.
    Something { more: bool },
    /// Nothing, and it knows of nothing that the clock brings before `next`.
    Nothing { next: Time },
}

/// Looks for what is claimable in `topic`, or in any, until a look finds something or `deadline` has passed. Sleeps in
/// between. A cancel or shutdown ends the call.
pub fn look_until(
    deadline: Time,
    topic: Option<Text<'_>>,
    mut look: impl FnMut() -> Result<Found, Error>,
) -> Result<(), Error> {
    let mut waiting: Option<Waiting<'_>> = None;
    let more = loop {
        match look()? {
            Found::Something { more } => break more,
            Found::Nothing { next } => {
                let now = server::clock();
                if now >= deadline {
                    break false;
                }
                match &waiting {
                    // Then it looks again: only now does nobody miss us.
                    None => waiting = Some(Waiting::begin(topic)?),
                    Some(waiting) => waiting.sleep(next.min(now.plus_micros(RECHECK)), deadline)?,
                }
            }
        }
    };
    if let Some(waiting) = waiting {
        waiting.end();
    }
    if more { waiting::pass_on(topic) } else { Ok(()) }
}
