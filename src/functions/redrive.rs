//! `redrive`: another life for the dead messages of a topic.

use crate::error::Error;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Table};
use crate::pg::value::datum::Text;
use crate::queue::revive::{Dead, GoingBack, revive};
use crate::queue::selection::Selection;
use crate::tables::delivery::Deliveries;
use crate::tables::envelope::Envelopes;
use crate::tables::find::Lookup;
use crate::tables::topic::Topics;

/// Revives the dead messages of a topic, or those of one type, oldest first, and returns how many; with `dry_run` how
/// many it would.
pub fn redrive(
    topic: Option<Text<'_>>,
    kind: Option<Text<'_>>,
    max_messages: Option<i32>,
    dry_run: Option<bool>,
) -> Result<i64, Error> {
    let Selection { topic, kind, limit, dry_run } = Selection::checked(topic, kind, max_messages, dry_run)?;
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let envelopes = Table::<Envelopes>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut dead = Dead::of(topic, &deliveries, &topics, &snapshot)?;
    let mut bodies = Lookup::open(&envelopes, &snapshot)?;
    let mut going_back = GoingBack::new(&deliveries);
    let mut revived = 0;
    while revived < limit {
        let Some(seq) = dead.next() else { break };
        if let Some(kind) = kind
            && bodies.find(seq).is_none_or(|body| body.row.kind.bytes() != kind.bytes())
        {
            continue;
        }
        if dry_run {
            revived += 1;
            continue;
        }
        going_back.lock_before(seq)?;
        if revive(seq, &deliveries, &topics, &mut going_back)? {
            revived += 1;
        }
    }
    going_back.finish()?;
    Ok(revived)
}
