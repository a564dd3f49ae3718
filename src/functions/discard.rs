//! `discard`: the mirror of `redrive`, death for messages that are to be delivered.

use crate::error::Error;
use crate::pg::read::scan::Scan;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Outcome, Table, Wait};
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::queue::key_release::Ended;
use crate::queue::revive::GoingBack;
use crate::queue::selection::Selection;
use crate::rules::argument::Fault;
use crate::settings;
use crate::shmem::in_order::InOrder;
use crate::shmem::pending;
use crate::tables::delivery::{Deliveries, Delivery, State};
use crate::tables::envelope::Envelopes;
use crate::tables::find::Lookup;
use crate::tables::topic::{TopicRow, TopicRules, Topics};

/// Why a discarded message died.
const DISCARDED: &[u8] = b"discarded";

/// Ready and waiting messages of a topic die, or those of one type or appended before a time, oldest first; returns how
/// many did, or with `dry_run` would.
pub fn discard(
    topic: Option<Text<'_>>,
    kind: Option<Text<'_>>,
    before: Option<Time>,
    max_messages: Option<i32>,
    dry_run: Option<bool>,
) -> Result<i64, Error> {
    let Selection { topic, kind, limit, dry_run } = Selection::checked(topic, kind, max_messages, dry_run)?;
    if before.is_some_and(|time| !time.is_finite()) {
        return Err(Fault::NotFinite("before").into());
    }
    let deliveries = Table::<Deliveries>::open(Access::Write)?;
    let topics = Table::<Topics>::open(Access::Read)?;
    let envelopes = Table::<Envelopes>::open(Access::Read)?;
    let snapshot = Latest::push();
    let mut pending = Pending::of(topic, &deliveries, &topics, &snapshot)?;
    let mut bodies = Lookup::open(&envelopes, &snapshot)?;
    let mut going_back = GoingBack::new(&deliveries);
    let mut ended = Ended::new(&deliveries);
    let mut discarded = 0;
    while discarded < limit {
        let Some(seq) = pending.next() else { break };
        if (kind.is_some() || before.is_some())
            && bodies.find(seq).is_none_or(|body| {
                kind.is_some_and(|kind| body.row.kind.bytes() != kind.bytes())
                    || before.is_some_and(|before| body.row.occurred_at >= before)
            })
        {
            continue;
        }
        if !dry_run {
            going_back.lock_before(seq)?;
        }
        if dry_run || bury(seq, &deliveries, &topics, &mut going_back, &mut ended)? {
            discarded += 1;
        }
    }
    going_back.finish()?;
    ended.unblock(Wait::Yes)?;
    Ok(discarded)
}

/// True if a message may be discarded: nobody owns it, and it is not dead.
fn is_pending(row: &Delivery<'_>, topic: &TopicRow) -> bool {
    matches!(row.state(server::clock(), settings::max_attempts(topic)), State::Ready | State::Waiting)
}

/// Discards message `seq`, as it is once nobody else is changing it.
fn bury(
    seq: i64,
    deliveries: &Table<Deliveries>,
    topics: &Table<Topics>,
    going_back: &mut GoingBack<'_>,
    ended: &mut Ended<'_>,
) -> Result<bool, Error> {
    loop {
        server::check_for_interrupts();
        let snapshot = Latest::push();
        let mut scan = Lookup::open(deliveries, &snapshot)?;
        let Some(found) = scan.find(seq) else { return Ok(false) };
        let mut rules = TopicRules::new(topics, &snapshot);
        let topic = rules.of(found.row.topic)?;
        if !is_pending(&found.row, &topic) {
            return Ok(false);
        }
        let mut row = found.row;
        row.die(server::clock(), Some(Text::new(DISCARDED)));
        let blocks = row.key.is_some() && topic.blocks_when_dead();
        if blocks && !rules.hold(row.topic, Wait::Yes)? {
            continue;
        }
        if deliveries.update(found.id, &row, &snapshot, Wait::Yes) == Outcome::Done {
            pending::touched(seq)?;
            match row.keyed() {
                Some(keyed) if blocks => going_back.send_back_after(keyed, seq)?,
                Some(keyed) => ended.add(keyed, seq)?,
                None => {}
            }
            return Ok(true);
        }
    }
}

/// The messages of a topic that may be discarded at one moment, in arrival order: at three places, merged.
struct Pending<'s> {
    ready: InOrder<'s>,
    parked: Scan<'s, Deliveries>,
    waiting: std::vec::IntoIter<i64>,
    /// The next of each, once looked for; the inner None is the end.
    ahead: [Option<Option<i64>>; 3],
    rules: TopicRow,
}

impl<'s> Pending<'s> {
    fn of(
        topic: Text<'s>,
        deliveries: &'s Table<Deliveries>,
        topics: &Table<Topics>,
        snapshot: &'s Latest,
    ) -> Result<Self, Error> {
        // Their index has them by time: eight bytes each.
        let mut waiting = Vec::new();
        let mut scan = Scan::due(deliveries, snapshot, Some(topic), Time(i64::MIN), Time(i64::MAX))?;
        while let Some(found) = scan.next() {
            server::check_for_interrupts();
            waiting.push(found.row.seq);
        }
        waiting.sort_unstable();
        Ok(Pending {
            ready: InOrder::from(deliveries, snapshot, Some(topic), 0)?,
            parked: Scan::parked(deliveries, snapshot, topic)?,
            waiting: waiting.into_iter(),
            ahead: [None; 3],
            rules: TopicRules::new(topics, snapshot).of(topic)?,
        })
    }
}

impl Iterator for Pending<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let ready = *self.ahead[0].get_or_insert_with(|| {
            while let Some(found) = self.ready.next() {
                server::check_for_interrupts();
                if is_pending(&found.row, &self.rules) {
                    return Some(found.row.seq);
                }
            }
            None
        });
        let parked = *self.ahead[1].get_or_insert_with(|| self.parked.next().map(|found| found.row.seq));
        let waiting = *self.ahead[2].get_or_insert_with(|| self.waiting.next());
        let next = [ready, parked, waiting].into_iter().flatten().min();
        for ahead in self.ahead.iter_mut().filter(|ahead| next.is_some() && **ahead == Some(next)) {
            *ahead = None;
        }
        next
    }
}
