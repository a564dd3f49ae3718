//! The floor against a model: sessions that append, claim, release, complete, roll back and prepare, interleaved step
//! by step, with a clock that lets leases run out and patience end. After every step: nothing claimable is below the
//! floor unless something is known that will bring it back; and in the end every message is claimed, none twice.
#![allow(clippy::expect_used)]

use outbox_rules::floor::{self, Cost, Entry, IDLE, Look, NUMBERING, PATIENCE, SWEEP_EVERY, Seen, Slot};
use proptest::prelude::*;

const SESSIONS: usize = 4;
const LEASE: i64 = 1_500_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Ready,
    Leased(i64),
    Done,
}

#[derive(Clone, Debug)]
struct Row {
    seq: i64,
    /// None until its append is committed.
    state: Option<State>,
    version: u32,
    locked_by: Option<usize>,
    /// Nobody has told the floor yet: a callback is still to come, or never will (prepared).
    untold: bool,
}

/// Where a session is in what it does.
#[derive(Clone, Debug)]
enum Step {
    Idle,
    Marked,
    Numbered(i64),
    Appended(Vec<i64>),
    AppendVisible(Vec<i64>),
    ReadHighest(i64),
    ReadLowest(i64, i64),
    Looked(Look),
    Scanning {
        look: Look,
        snapshot: Vec<(i64, u32, State)>,
        at: usize,
        taken: Vec<i64>,
        seen: Seen,
        began: i64,
    },
    ClaimVisible {
        look: Look,
        seen: Seen,
    },
    Giving {
        seq: i64,
        done: bool,
    },
    Given {
        seq: i64,
        done: bool,
    },
}

struct World {
    clock: i64,
    next_seq: i64,
    entry: Entry,
    slots: [Slot; SESSIONS],
    rows: Vec<Row>,
    steps: Vec<Step>,
    began: [i64; SESSIONS],
    prepared: Vec<Vec<i64>>,
    /// A sweep that reset what was known of leases was rolled back: the next one makes up for it.
    forgot: bool,
    leases: Vec<(i64, i64)>,
}

impl World {
    fn new() -> World {
        let mut entry = Entry::UNKNOWN;
        entry.walked(Cost { pages: 1_000, micros: 0 });
        World {
            clock: 10_000_000,
            next_seq: 1,
            entry,
            slots: [Slot { low: IDLE, since: 0 }; SESSIONS],
            rows: Vec::new(),
            steps: vec![Step::Idle; SESSIONS],
            began: [0; SESSIONS],
            prepared: Vec::new(),
            forgot: false,
            leases: Vec::new(),
        }
    }

    fn row(&mut self, seq: i64) -> &mut Row {
        self.rows.iter_mut().find(|row| row.seq == seq).expect("a row")
    }

    fn claimable(&self, row: &Row) -> bool {
        match row.state {
            Some(State::Ready) => true,
            Some(State::Leased(until)) => until <= self.clock,
            _ => false,
        }
    }

    fn is_old(&self, session: usize) -> bool {
        self.clock - self.began[session] > PATIENCE
    }

    fn advance(&mut self, me: usize, choice: u8) {
        let step = std::mem::replace(&mut self.steps[me], Step::Idle);
        self.steps[me] = match step {
            Step::Idle => self.begin(me, choice),
            Step::Marked => {
                let seq = self.next_seq;
                self.next_seq += 1;
                Step::Numbered(seq)
            }
            Step::Numbered(seq) => {
                let slot = &mut self.slots[me];
                slot.low = if slot.low == NUMBERING { seq } else { slot.low };
                let row = Row { seq, state: None, version: 0, locked_by: None, untold: true };
                self.rows.push(row);
                self.rows.sort_by_key(|row| row.seq);
                Step::Appended(vec![seq])
            }
            Step::Appended(seqs) => match choice % 8 {
                0 => Step::Appended(seqs), // idle in transaction
                1 => {
                    self.rows.retain(|row| !seqs.contains(&row.seq));
                    self.slots[me].low = IDLE;
                    Step::Idle
                }
                2 => {
                    self.slots[me].low = IDLE;
                    self.prepared.push(seqs);
                    Step::Idle
                }
                _ => {
                    for seq in &seqs {
                        self.row(*seq).state = Some(State::Ready);
                    }
                    Step::AppendVisible(seqs)
                }
            },
            Step::AppendVisible(seqs) => {
                let passed = floor::may_be_passed(self.slots[me].since, self.clock);
                for seq in &seqs {
                    if passed {
                        self.entry.lower(*seq);
                    }
                    self.row(*seq).untold = false;
                }
                self.slots[me].low = IDLE;
                Step::Idle
            }
            Step::ReadHighest(highest) => {
                Step::ReadLowest(highest, floor::lowest(self.slots.iter().copied(), self.clock))
            }
            Step::ReadLowest(highest, lowest) => {
                let look = self.entry.look(self.clock, highest, lowest);
                if look.sweep {
                    self.forgot = false;
                }
                Step::Looked(look)
            }
            Step::Looked(look) => {
                let visible = |row: &Row| row.state.filter(|state| *state != State::Done);
                let snapshot = self
                    .rows
                    .iter()
                    .filter_map(|row| visible(row).map(|state| (row.seq, row.version, state)))
                    .filter(|(seq, ..)| *seq >= look.start)
                    .collect();
                let seen = Seen { reach: None, expiry: floor::NEVER };
                Step::Scanning { look, snapshot, at: 0, taken: Vec::new(), seen, began: self.clock }
            }
            Step::Scanning { look, snapshot, at, taken, seen, began } => {
                self.scan(me, choice, look, snapshot, at, taken, seen, began)
            }
            Step::ClaimVisible { look, seen } => {
                self.entry.keep(&look, &seen);
                Step::Idle
            }
            Step::Giving { seq, done } => {
                if choice.is_multiple_of(4) {
                    self.row(seq).locked_by = None; // rolled back
                    if floor::may_be_passed(self.began[me], self.clock) {
                        self.entry.lower(seq);
                    }
                    Step::Idle
                } else {
                    let row = self.row(seq);
                    row.locked_by = None;
                    row.version += 1;
                    row.state = Some(if done { State::Done } else { State::Ready });
                    row.untold = true;
                    Step::Given { seq, done }
                }
            }
            Step::Given { seq, done } => {
                if !done {
                    self.entry.lower(seq);
                }
                self.row(seq).untold = false;
                Step::Idle
            }
        };
    }

    fn begin(&mut self, me: usize, choice: u8) -> Step {
        self.began[me] = self.clock;
        match choice % 8 {
            0..=2 => {
                self.slots[me] = Slot { low: NUMBERING, since: self.clock };
                Step::Marked
            }
            3..=5 => Step::ReadHighest(self.next_seq - 1),
            6 => {
                let free =
                    |row: &&Row| matches!(row.state, Some(State::Leased(_))) && row.locked_by.is_none();
                let Some(seq) = self.rows.iter().find(free).map(|row| row.seq) else { return Step::Idle };
                self.row(seq).locked_by = Some(me);
                Step::Giving { seq, done: choice & 8 == 0 }
            }
            _ => {
                // COMMIT PREPARED, by whoever comes along.
                if let Some(seqs) = self.prepared.pop() {
                    for seq in seqs {
                        self.row(seq).state = Some(State::Ready); // untold for ever: the sweep's business
                    }
                }
                Step::Idle
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn scan(
        &mut self,
        me: usize,
        choice: u8,
        look: Look,
        snapshot: Vec<(i64, u32, State)>,
        at: usize,
        mut taken: Vec<i64>,
        mut seen: Seen,
        began: i64,
    ) -> Step {
        let hold =
            |seen: &mut Seen, seq: i64| seen.reach = Some(seen.reach.map_or(seq, |reach| reach.min(seq)));
        let full = taken.len() >= 2;
        if full && at > 0 {
            hold(&mut seen, snapshot[at - 1].0 + 1);
        }
        if full || at >= snapshot.len() {
            if choice.is_multiple_of(5) {
                for seq in &taken {
                    self.row(*seq).locked_by = None;
                }
                if floor::may_be_passed(self.began[me], self.clock) {
                    taken.iter().for_each(|seq| self.entry.lower(*seq));
                }
                self.forgot |= look.sweep;
                return Step::Idle;
            }
            for seq in &taken {
                let until = self.clock.max(began) + LEASE;
                seen.expiry = seen.expiry.min(until);
                self.leases.push((*seq, until));
                let row = self.row(*seq);
                row.locked_by = None;
                row.version += 1;
                row.state = Some(State::Leased(until));
            }
            return Step::ClaimVisible { look, seen };
        }
        let (seq, version, state) = snapshot[at];
        let running = matches!(state, State::Leased(until) if until > began);
        if let (true, State::Leased(until)) = (running, state) {
            seen.expiry = seen.expiry.min(until);
        } else {
            let row = self.rows.iter().find(|row| row.seq == seq).expect("a row");
            match row.locked_by {
                Some(other) if !self.is_old(other) => hold(&mut seen, seq),
                Some(_) => {}
                None if row.version != version => hold(&mut seen, seq),
                None => {
                    let expired =
                        self.leases.iter().all(|(leased, until)| *leased != seq || *until <= self.clock);
                    let was_released = matches!(state, State::Ready);
                    assert!(expired || was_released, "message {seq} leased twice");
                    self.row(seq).locked_by = Some(me);
                    taken.push(seq);
                }
            }
        }
        Step::Scanning { look, snapshot, at: at + 1, taken, seen, began }
    }

    fn check(&self) {
        let sweeping = self.steps.iter().any(|step| match step {
            Step::Looked(look) | Step::Scanning { look, .. } | Step::ClaimVisible { look, .. } => look.sweep,
            _ => false,
        });
        let mut probe = self.entry;
        // What a look would do if nothing but a lease made it sweep.
        let start = probe.look(self.clock, 0, 0).start;
        for row in
            self.rows.iter().filter(|row| self.claimable(row) && !row.untold && row.locked_by.is_none())
        {
            let by_expiry = matches!(row.state, Some(State::Leased(_))) && (sweeping || self.forgot);
            assert!(
                start <= row.seq || by_expiry || start == 0,
                "message {} is out of reach below {start}: {row:?} {:?} {:?}",
                row.seq,
                self.entry,
                self.steps
            );
        }
    }

    fn finish(&mut self) {
        for _ in 0..200 {
            for me in 0..SESSIONS {
                if !matches!(self.steps[me], Step::Idle) {
                    self.advance(me, 3);
                }
            }
        }
        while !self.prepared.is_empty() {
            self.begin(0, 7);
        }
        self.clock += 100 * SWEEP_EVERY;
        // Every claim is at least a sweep apart: two messages each.
        for _ in 0..self.rows.len() + 3 {
            self.clock += 10;
            self.steps[0] = Step::ReadHighest(self.next_seq - 1);
            while !matches!(self.steps[0], Step::Idle) {
                self.advance(0, 3);
            }
        }
        let left: Vec<&Row> = self.rows.iter().filter(|row| self.claimable(row)).collect();
        assert!(left.is_empty(), "never claimed: {left:?}, {:?}", self.entry);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_claimable_is_out_of_reach(
        moves in prop::collection::vec((0..SESSIONS, any::<u8>(), 0..20_u8), 1..300)
    ) {
        let mut world = World::new();
        for (session, choice, pause) in moves {
            if pause == 0 {
                world.clock += 600_000;
            }
            world.clock += 7;
            world.advance(session, choice);
            world.check();
        }
        world.finish();
    }
}
