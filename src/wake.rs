//! Waiting for work inside the server.

use crate::store::server;
use std::time::Duration;

/// How long a waiting claim sleeps between two looks.
const SLICE: Duration = Duration::from_millis(20);

/// Sleeps for a slice, or returns false at once if `deadline` has passed. A cancel or shutdown ends the call.
pub fn wait(deadline: crate::store::value::Time) -> bool {
    let left = deadline.0.saturating_sub(server::clock().0);
    if left <= 0 {
        return false;
    }
    server::sleep(SLICE.min(Duration::from_micros(left.unsigned_abs())));
    true
}
