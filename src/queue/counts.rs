//! How many messages of a topic are in which state, at a price that depends neither on how many there are nor on how
//! many there were before.
//!
//! The messages lie in ranges of indexes. Each is walked from where claims start (`rules/floor.rs`), a *stretch* of
//! rows ahead and a stretch of entries back: what is there is counted exactly, and most topics fit in. What lies ahead
//! of the stretch no claim has reached yet: its index entries are counted without looking at the rows, and a few
//! samples say how many of them have one in that state. What lies behind the stretch is over, but for leases that are
//! older than so many messages. Those are left out, until one of them has run out and nobody has claimed since: then it
//! is walked over.

use crate::error::Error;
use crate::pg::read::btree::{self, Span};
use crate::pg::read::fetch::ById;
use crate::pg::read::scan::RowOfEntry;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{Access, Table};
use crate::pg::value::datum::{Text, Time};
use crate::shmem;
use crate::shmem::floor::Passed;
use crate::shmem::low_water::Known;
use crate::tables::delivery::{Deliveries, Delivery, Place, State};
use crate::tables::envelope::Envelopes;
use crate::tables::find::Lookup;
use crate::tables::range::{Direction, Index, Limit, Range};
use crate::tables::topic::{TopicRow, TopicRules, Topics};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::rc::Rc;

/// Entries that all topics' stretches have together, in one direction: five to ten milliseconds.
const STRETCHES: usize = 10_000;
/// Bounds of a topic's share.
const STRETCH: (usize, usize) = (20, 10_000);
/// Entries without a row that are walked over in all topics together, when it must be: some hundred milliseconds. That
/// many are there only while a session holds a snapshot.
const REMAINS: usize = 1_000_000;
const LEAST_REMAINS: usize = 10_000;
const SAMPLES: i64 = 4;
const SAMPLE: Limit = Limit { rows: 8, remains: 8 };
const ONE: Limit = Limit { rows: 1, remains: 1 };
const BEGINNING: i64 = i64::MIN;
const END: i64 = i64::MAX;

/// What a topic has that is not delivered.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    pub ready: i64,
    pub leased: i64,
    pub waiting: i64,
    pub dead: i64,
    /// When the oldest ready message was due.
    pub oldest: Option<Time>,
}

/// The tables it takes.
pub struct Tables {
    deliveries: Table<Deliveries>,
    envelopes: Table<Envelopes>,
    topics: Table<Topics>,
}

impl Tables {
    pub fn open() -> Result<Self, Error> {
        Ok(Tables {
            deliveries: Table::open(Access::Read)?,
            envelopes: Table::open(Access::Read)?,
            topics: Table::open(Access::Read)?,
        })
    }
}

/// Looks at the topics of one moment.
pub struct TopicCounts<'t> {
    ready: Range<'t>,
    waiting: Range<'t>,
    parked: Range<'t>,
    dead: Range<'t>,
    bodies: Lookup<'t, Envelopes>,
    rules: TopicRules<'t>,
    max_attempts: fn(&TopicRow) -> i16,
    now: Time,
    stretch: usize,
    remains: usize,
    low_water: Rc<Known>,
    /// Ready or leased, below the low-water mark.
    survivors: Vec<Delivery<'static>>,
}

impl<'t> TopicCounts<'t> {
    /// `max_attempts` is the rule for a topic.
    pub fn begin(
        tables: &'t Tables,
        snapshot: &'t Latest,
        now: Time,
        max_attempts: fn(&TopicRow) -> i16,
    ) -> Result<Self, Error> {
        let low_water = shmem::low_water::known()?;
        let (mut rows, mut survivors) = (ById::open(&tables.deliveries, snapshot), Vec::new());
        for (_, id) in low_water.ready_survivors(&tables.deliveries, snapshot, None, 0)? {
            survivors.extend(rows.find(id).map(|found| found.row.counted()));
        }
        Ok(TopicCounts {
            ready: Range::open(&tables.deliveries, snapshot, Index::Ready)?,
            waiting: Range::open(&tables.deliveries, snapshot, Index::Waiting)?,
            parked: Range::open(&tables.deliveries, snapshot, Index::Parked)?,
            dead: Range::open(&tables.deliveries, snapshot, Index::Dead)?,
            bodies: Lookup::open(&tables.envelopes, snapshot)?,
            rules: TopicRules::new(&tables.topics, snapshot),
            max_attempts,
            now,
            stretch: STRETCH.1,
            remains: REMAINS,
            low_water,
            survivors,
        })
    }

    /// The topics that have messages which are not delivered, or had some not long ago; in bytewise order.
    pub fn topics(&mut self) -> Result<Vec<Text<'static>>, Error> {
        let mut topics = self.ready.topics()?;
        topics.extend(self.waiting.topics()?);
        topics.extend(self.parked.topics()?);
        topics.extend(self.dead.topics()?);
        topics.sort_by_key(|topic| topic.bytes());
        topics.dedup_by_key(|topic| topic.bytes());
        let count = topics.len().max(1);
        self.stretch = (STRETCHES / count).clamp(STRETCH.0, STRETCH.1);
        self.remains = (REMAINS / count).max(LEAST_REMAINS);
        Ok(topics)
    }

    /// What they have.
    pub fn by_state(&mut self) -> Result<Vec<(Text<'static>, StateCounts)>, Error> {
        let (mut by_state, mut ahead) = (Vec::new(), Vec::new());
        for topic in self.topics()? {
            crate::pg::session::server::check_for_interrupts();
            let position = by_state.len();
            let mut seen = self.near(topic, |rest| ahead.push(Ahead { position, rest }))?;
            seen.states.oldest = self.oldest_of(&seen);
            by_state.push((topic, seen.states));
        }
        for index in [Index::Ready, Index::Waiting, Index::Parked, Index::Dead] {
            let mut spans: HashMap<Vec<u8>, Vec<Span>> = HashMap::new();
            for Ahead { position, rest } in ahead.iter().filter(|ahead| ahead.rest.index == index) {
                let topic = by_state[*position].0.bytes().to_vec();
                let span = Span { from: rest.from, to: rest.to, entries: 0 };
                spans.entry(topic).or_default().push(span);
            }
            if spans.is_empty() {
                continue;
            }
            btree::count(index.object(), &mut spans)?;
            for Ahead { position, rest } in ahead.iter().filter(|ahead| ahead.rest.index == index) {
                let (topic, states) = &mut by_state[*position];
                let counted = spans[topic.bytes()].iter().find(|span| span.from == rest.from);
                let entries = counted.map_or(0, |span| span.entries) - rest.walked;
                if entries > 0 {
                    *states.of(rest.state) += self.of_state(*topic, rest, entries)?;
                }
            }
        }
        Ok(by_state)
    }

    /// Walks over what is near, and says what has to be counted further on.
    fn near(&mut self, topic: Text<'_>, mut further: impl FnMut(Rest)) -> Result<Seen, Error> {
        let rules = self.rules.of(topic)?;
        let passed = shmem::floor::passed(topic, !rules.paused)?;
        let mut seen = Seen::new(self.now, (self.max_attempts)(&rules));
        let now = self.now.0;
        let (ahead, behind) = self.limits(&passed);
        self.count_survivors(topic, &mut seen);
        let (mark, first) = (self.low_water.mark, self.low_water.first());
        let due_mark = passed.due_mark;
        for (index, begin, from, to, state) in [
            (Index::Ready, mark, passed.number.max(mark), END, State::Ready),
            (Index::Waiting, due_mark, passed.due.max(due_mark), now, State::Ready),
            (Index::Waiting, END, now.saturating_add(1), END, State::Waiting),
            (Index::Parked, END, first, END, State::Ready),
            (Index::Dead, END, BEGINNING, END, State::Dead),
        ] {
            let mut visit = |row: RowOfEntry<'_, '_, Deliveries>| {
                seen.count(&row.read());
                ControlFlow::Continue(())
            };
            let range = self.range(index);
            if begin < from {
                range.walk(topic, (begin, from - 1), Direction::Backward, behind, &mut visit);
            }
            let walked = range.walk(topic, (from, to), Direction::Forward, ahead, visit);
            if let Some(left_at) = walked.left_at {
                further(Rest { index, from, walked: walked.entries as i64, left_at, to, state });
            }
        }
        Ok(seen)
    }

    fn count_survivors(&self, topic: Text<'_>, seen: &mut Seen) {
        for survivor in self.survivors.iter().filter(|survivor| survivor.topic.bytes() == topic.bytes()) {
            seen.count(survivor);
        }
    }

    /// How far to walk ahead and back.
    fn limits(&self, passed: &Passed) -> (Limit, Limit) {
        let (stretch, far) = (self.stretch, self.remains);
        let has_run_out = passed.expiry <= self.now.0;
        let behind = Limit { rows: far, remains: if has_run_out { far } else { stretch } };
        (Limit { rows: stretch, remains: far }, behind)
    }

    /// How many of a rest's `entries` are of a message in the state that it is about, by samples.
    fn of_state(&mut self, topic: Text<'_>, rest: &Rest, entries: i64) -> Result<i64, Error> {
        let max_attempts = (self.max_attempts)(&self.rules.of(topic)?);
        let (now, index, to) = (self.now, rest.index, rest.to);
        let range = self.range(index);
        let (mut sampled, mut rows) = (0, 0);
        let mut sample = |range: &mut Range<'_>, from: i64, direction: Direction| {
            let visit = |row: RowOfEntry<'_, '_, Deliveries>| {
                let row = row.read();
                rows += i64::from(row.state(now, max_attempts) == rest.state);
                ControlFlow::Continue(())
            };
            sampled += range.walk(topic, (from, to), direction, SAMPLE, visit).entries;
        };
        let from = rest.left_at;
        let end = range.walk(topic, (from, to), Direction::Backward, ONE, |_| ControlFlow::Continue(()));
        let reach = end.left_at.map_or(0, |end| end - from);
        for part in 1..=SAMPLES {
            sample(range, from + reach / (SAMPLES + 1) * part, Direction::Forward);
        }
        if sampled == 0 {
            return Ok(0);
        }
        Ok((entries as f64 * rows as f64 / sampled as f64).round() as i64)
    }

    fn range(&mut self, index: Index) -> &mut Range<'t> {
        match index {
            Index::Ready => &mut self.ready,
            Index::Waiting => &mut self.waiting,
            Index::Parked => &mut self.parked,
            Index::Dead => &mut self.dead,
        }
    }

    /// When the oldest ready message was due, unless the topic is paused.
    pub fn oldest(&mut self, topic: Text<'_>) -> Result<Option<Time>, Error> {
        let rules = self.rules.of(topic)?;
        if rules.paused {
            return Ok(None);
        }
        let passed = shmem::floor::passed(topic, true)?;
        let (ahead, behind) = self.limits(&passed);
        let mut seen = Seen::new(self.now, (self.max_attempts)(&rules));
        self.count_survivors(topic, &mut seen);
        let (mark, first, due_mark) = (self.low_water.mark, self.low_water.first(), passed.due_mark);
        for (index, begin, from, to) in [
            (Index::Ready, mark, passed.number.max(mark), END),
            (Index::Parked, END, first, END),
            (Index::Waiting, due_mark, passed.due.max(due_mark), self.now.0),
        ] {
            let before = seen.states.ready;
            let range = self.range(index);
            if begin < from {
                range.walk(topic, (begin, from - 1), Direction::Backward, behind, |row| {
                    seen.count(&row.read());
                    ControlFlow::Continue(())
                });
            }
            if seen.states.ready > before {
                continue; // older than all ahead
            }
            range.walk(topic, (from, to), Direction::Forward, ahead, |row| {
                seen.count(&row.read());
                if seen.states.ready > before { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        Ok(self.oldest_of(&seen))
    }

    fn oldest_of(&mut self, seen: &Seen) -> Option<Time> {
        let first = seen
            .first
            .and_then(|(seq, due)| due.or_else(|| self.bodies.find(seq).map(|body| body.row.occurred_at)));
        first.into_iter().chain(seen.longest_due).min()
    }
}

/// Where a walk has stopped before the end of what it should count.
struct Rest {
    index: Index,
    from: i64,
    to: i64,
    /// Entries that it has met, and at what number or time it was then.
    walked: i64,
    left_at: i64,
    /// Which messages they are.
    state: State,
}

/// The rest of a topic, and where the topic is.
struct Ahead {
    position: usize,
    rest: Rest,
}

impl StateCounts {
    fn of(&mut self, state: State) -> &mut i64 {
        match state {
            State::Ready => &mut self.ready,
            State::Leased => &mut self.leased,
            State::Waiting => &mut self.waiting,
            State::Dead => &mut self.dead,
        }
    }
}

/// What a look has met so far.
struct Seen {
    now: Time,
    max_attempts: i16,
    states: StateCounts,
    /// The first ready message in arrival order, and when it was due if it had to wait.
    first: Option<(i64, Option<Time>)>,
    /// Of waiting messages that are due.
    longest_due: Option<Time>,
}

impl Seen {
    fn new(now: Time, max_attempts: i16) -> Seen {
        Seen { now, max_attempts, states: StateCounts::default(), first: None, longest_due: None }
    }

    fn count(&mut self, row: &Delivery<'_>) {
        let state = row.state(self.now, self.max_attempts);
        *self.states.of(state) += 1;
        if state != State::Ready {
            return;
        }
        match (row.place, row.available_at) {
            (Place::Waiting, Some(due)) => {
                self.longest_due = Some(self.longest_due.map_or(due, |other| other.min(due)));
            }
            (Place::Ready | Place::Parked, due) if self.first.is_none_or(|(seq, _)| row.seq < seq) => {
                self.first = Some((row.seq, due));
            }
            _ => {}
        }
    }
}
