//! The bottom against a model: sessions that append, end messages, put them back and look, interleaved step by step, and
//! roll back at any. Whenever a look may take it that it meets all that is ready or leased, nothing of that is below its
//! start in its snapshot; and once all is over, the next look leaves a bottom that is exact.
#![allow(dead_code, clippy::expect_used)]

#[path = "../src/bottom.rs"]
mod bottom;
#[path = "../src/floor.rs"]
mod floor;

use bottom::{Bottom, Dive, Slot};
use floor::{IDLE, NUMBERING};
use proptest::prelude::*;

const SESSIONS: usize = 4;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// Ready or leased.
    Ready,
    /// Waiting, parked or dead.
    Aside,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    seq: i64,
    state: State,
    locked: bool,
}

/// Where a session is in what it does.
#[derive(Clone, Debug)]
enum Step {
    Idle,
    Marked,
    Numbered(i64),
    Appended(i64),
    Published(i64),
    Changing(i64, State),
    /// Committed, or rolled back, and not withdrawn yet.
    Over,
    ReadHighest(i64),
    Begun(i64, Dive),
    Bound(Dive),
    Looking(Dive, Vec<i64>),
    Looked(Dive),
    Leaving(Dive),
}

struct World {
    next_seq: i64,
    bottom: Bottom,
    slots: [Slot; SESSIONS],
    rows: Vec<Row>,
    steps: Vec<Step>,
    /// Looks that were allowed to take it that they meet all, without starting at the beginning.
    dives: usize,
}

impl World {
    fn new() -> World {
        let mut bottom = Bottom::UNKNOWN;
        let mut first = Dive::NONE;
        first.keyed = true;
        bottom.keep(&first);
        World {
            next_seq: 1,
            bottom,
            slots: [Slot { low: IDLE, back: IDLE }; SESSIONS],
            rows: Vec::new(),
            steps: vec![Step::Idle; SESSIONS],
            dives: 0,
        }
    }

    fn row(&mut self, seq: i64) -> &mut Row {
        self.rows.iter_mut().find(|row| row.seq == seq).expect("a row")
    }

    /// Some row in this state that nobody is changing.
    fn lock(&mut self, state: State, choice: u8) -> Option<i64> {
        let free: Vec<i64> =
            self.rows.iter().filter(|row| row.state == state && !row.locked).map(|row| row.seq).collect();
        let seq = *free.get(usize::from(choice) % free.len().max(1))?;
        self.row(seq).locked = true;
        Some(seq)
    }

    fn ready(&self) -> impl Iterator<Item = i64> {
        self.rows.iter().filter(|row| row.state == State::Ready).map(|row| row.seq)
    }

    fn begin(&mut self, me: usize, choice: u8) -> Step {
        match choice % 8 {
            0 | 1 => {
                self.slots[me].low = NUMBERING;
                Step::Marked
            }
            2 | 3 => match self.lock(State::Ready, choice / 8) {
                Some(seq) => Step::Changing(seq, if choice & 16 == 0 { State::Gone } else { State::Aside }),
                None => Step::Idle,
            },
            4 => match self.lock(State::Aside, choice / 8) {
                Some(seq) => {
                    self.slots[me].back = seq;
                    Step::Published(seq)
                }
                None => Step::Idle,
            },
            _ => Step::ReadHighest(self.next_seq - 1),
        }
    }

    fn advance(&mut self, me: usize, choice: u8) {
        let step = std::mem::replace(&mut self.steps[me], Step::Idle);
        self.steps[me] = match step {
            Step::Idle => self.begin(me, choice),
            Step::Marked => {
                self.next_seq += 1;
                Step::Numbered(self.next_seq - 1)
            }
            Step::Numbered(seq) => {
                self.slots[me].low = seq;
                Step::Appended(seq)
            }
            Step::Appended(seq) => {
                if !choice.is_multiple_of(5) {
                    self.rows.push(Row { seq, state: State::Ready, locked: false });
                }
                Step::Over
            }
            Step::Published(seq) => {
                self.bottom.disturb(seq);
                Step::Changing(seq, State::Ready)
            }
            Step::Changing(seq, state) => {
                let row = self.row(seq);
                row.locked = false;
                row.state = if choice.is_multiple_of(5) { row.state } else { state };
                Step::Over
            }
            Step::Over => {
                self.slots[me] = Slot { low: IDLE, back: IDLE };
                Step::Idle
            }
            Step::ReadHighest(highest) => {
                Step::Begun(highest, self.bottom.look(0, choice.is_multiple_of(16)))
            }
            Step::Begun(highest, mut dive) => {
                dive.bound = dive.from.map(|_| bottom::lowest(self.slots.iter().copied()).min(highest + 1));
                Step::Bound(dive)
            }
            Step::Bound(dive) => Step::Looking(dive, self.ready().collect()),
            Step::Looking(mut dive, snapshot) => {
                let from = dive.from.expect("a start");
                if from > 0 && self.bottom.is_undisturbed_since(&dive) {
                    self.dives += 1;
                    let below: Vec<&i64> = snapshot.iter().filter(|seq| **seq < from).collect();
                    assert!(below.is_empty(), "{below:?} are below {from}: {:?}", self.steps);
                }
                dive.first = snapshot.into_iter().filter(|seq| *seq >= from).min();
                dive.keyed = true;
                Step::Looked(dive)
            }
            Step::Looked(_) if choice.is_multiple_of(5) => Step::Idle,
            Step::Looked(dive) => Step::Leaving(dive),
            Step::Leaving(dive) => {
                self.bottom.keep(&dive);
                Step::Idle
            }
        };
    }

    fn rest(&mut self, me: usize) {
        while !matches!(self.steps[me], Step::Idle) {
            self.advance(me, 3);
        }
    }

    fn finish(&mut self) {
        (0..SESSIONS).for_each(|me| self.rest(me));
        self.steps[0] = Step::ReadHighest(self.next_seq - 1);
        self.rest(0);
        let left = self.bottom.look(0, false).from;
        assert_eq!(left, Some(self.ready().min().unwrap_or(self.next_seq)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_ready_is_below_the_bottom(moves in prop::collection::vec((0..SESSIONS, any::<u8>()), 1..300)) {
        let mut world = World::new();
        for (session, choice) in moves {
            world.advance(session, choice);
        }
        world.finish();
    }
}

/// Else the property above could hold for want of cases.
#[test]
fn looks_do_start_at_the_bottom() {
    let mut world = World::new();
    for step in 0..4_000_usize {
        world.advance(step / 8 % SESSIONS, (step * 7 % 251) as u8);
    }
    assert!(world.dives > 50, "{} looks", world.dives);
}
