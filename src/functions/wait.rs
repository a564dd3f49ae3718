//! `wait`: sleeps until a claim would find something.

use crate::error::Error;
use crate::pg::calls::call::Call;
use crate::pg::session::server;
use crate::pg::value::datum::Text;
use crate::queue::look::{Request, checked, look};
use crate::queue::wake;

/// Waits up to `wait_seconds` until a claim would find something. Leases nothing, and holds no snapshot if `call` need
/// not.
pub fn wait(topic: Option<Text<'_>>, wait_seconds: Option<i32>, call: Call<'_>) -> Result<(), Error> {
    let (owner, one) = (Some(Text::new(b"nobody")), Some(1));
    // A value that is stored out of line can be read only as long as there is a snapshot.
    let topic = topic.map(Text::copied);
    let claim = checked(Request { owner, topic, batch_size: one, lease_seconds: one, wait_seconds })?;
    call.let_go_of_snapshot();
    let deadline = server::clock().plus_seconds(claim.wait_seconds);
    wake::look_until(deadline, claim.topic, || look(&claim, None))
}
