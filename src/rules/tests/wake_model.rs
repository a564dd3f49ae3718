//! Sleepers against a model: producers, workers and a clock, interleaved step by step; workers roll back and die at any
//! step. Whenever nobody has anything left to do, no message is there that a sleeper could have but after a pause, and
//! the next one that the clock brings has somebody who sleeps until then at most.
#![allow(clippy::expect_used)]

use outbox_rules::slots::Key;
use outbox_rules::wake::{self, APART, Bucket, Call, Left, NEVER, PAUSE, Sleep, Waiter, Waiters};
use proptest::prelude::*;

/// So many messages taken at once are followed by a pause.
const MANY: usize = (PAUSE / APART) as usize;
const SESSIONS: usize = 6;
const TOPICS: usize = 2;
const ANY: usize = TOPICS;

fn key(topic: usize) -> Key {
    // Two of the three share a bucket.
    (topic as u64 + 1, topic as u64 % 2)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Open(usize),
    /// Committed, and nobody was told yet: the producer is about to.
    Visible(usize),
    Ready,
    Claimed(usize),
    /// Given back, and nobody was told yet.
    GivenBack(usize),
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    topic: usize,
    due: i64,
    state: State,
}

#[derive(Clone, PartialEq, Debug)]
enum Step {
    Idle,
    Appended(usize),
    Told(usize),
    Looking(usize),
    Seen(usize, Vec<usize>),
    Asleep(usize),
    Holding(Vec<usize>),
    GivingBack(Vec<usize>),
}

struct World {
    clock: i64,
    buckets: [Bucket; 2],
    waiters: [Waiter; SESSIONS],
    messages: Vec<Message>,
    steps: Vec<Step>,
    latches: [bool; SESSIONS],
    batch: usize,
}

impl World {
    fn new(batch: usize) -> World {
        World {
            clock: 0,
            buckets: [const { Bucket::empty() }; 2],
            waiters: [Waiter::AWAY; SESSIONS],
            messages: Vec::new(),
            steps: vec![Step::Idle; SESSIONS],
            latches: [false; SESSIONS],
            batch,
        }
    }

    fn lists(&mut self) -> Waiters<'_> {
        Waiters { buckets: &self.buckets, waiters: &mut self.waiters }
    }

    fn set_latch(&mut self, whom: Option<usize>) {
        if let Some(whom) = whom {
            self.latches[whom] = true;
        }
    }

    fn call(&mut self, topic: usize, urgent: bool) {
        let now = self.clock;
        for wanted in [topic, ANY] {
            if !urgent && wake::bucket(key(wanted), &self.buckets).is_called(key(wanted)) {
                return;
            }
            match self.lists().call(key(wanted), now, urgent) {
                Call::Wake(called) => return self.set_latch(Some(called)),
                Call::Coalesced => return,
                Call::Nobody => {}
            }
        }
    }

    fn leave(&mut self, me: usize, topic: usize, in_vain: bool) {
        let now = self.clock;
        match self.lists().leave(me, now, in_vain) {
            Left::Nothing => {}
            Left::Wake(heir) => self.set_latch(Some(heir)),
            Left::Call => self.call(topic, false),
        }
    }

    fn is_visible(&self, message: &Message) -> bool {
        matches!(message.state, State::Visible(_) | State::Ready | State::Claimed(_) | State::GivenBack(_))
    }

    fn matching(&self, topic: usize) -> impl Iterator<Item = usize> {
        (0..self.messages.len()).filter(move |message| topic == ANY || self.messages[*message].topic == topic)
    }

    fn advance(&mut self, me: usize, choice: u8) {
        let step = std::mem::replace(&mut self.steps[me], Step::Idle);
        self.steps[me] = match step {
            Step::Idle => match choice % 4 {
                0 | 1 => {
                    let due = if choice & 16 == 0 { 0 } else { self.clock + 300 * i64::from(choice % 32) };
                    let topic = usize::from(choice / 32) % TOPICS;
                    self.messages.push(Message { topic, due, state: State::Open(me) });
                    Step::Appended(self.messages.len() - 1)
                }
                waits => {
                    let topic = usize::from(choice / 4) % (TOPICS + 1);
                    let clock = self.clock;
                    match wake::bucket(key(topic), &self.buckets).pause(key(topic), clock) {
                        Some(end) if waits == 3 => {
                            self.lists().pause(me, key(topic), end, clock);
                            self.latches[me] = true; // as below
                            Step::Asleep(topic)
                        }
                        _ => {
                            self.lists().enter(me, key(topic));
                            Step::Looking(topic)
                        }
                    }
                }
            },
            Step::Appended(message) => {
                if choice.is_multiple_of(5) {
                    self.messages[message].state = State::Gone;
                    Step::Idle
                } else {
                    self.messages[message].state = State::Visible(me);
                    Step::Told(message)
                }
            }
            Step::Told(message) => {
                let Message { topic, due, .. } = self.messages[message];
                if due <= self.clock {
                    self.call(topic, false);
                } else {
                    for key in [key(topic), key(ANY)] {
                        let leader = self.lists().expect(key, due);
                        self.set_latch(leader);
                    }
                }
                if self.messages[message].state == State::Visible(me) {
                    self.messages[message].state = State::Ready;
                }
                Step::Idle
            }
            Step::Looking(topic) => {
                let seen = self
                    .matching(topic)
                    .filter(|message| self.is_visible(&self.messages[*message]))
                    .collect();
                Step::Seen(topic, seen)
            }
            Step::Seen(topic, seen) => self.claim(me, topic, seen),
            Step::Asleep(topic) => {
                let clock = self.clock;
                self.latches[me] = false;
                match self.lists().wake(me, clock) {
                    Sleep::Over => Step::Looking(topic),
                    Sleep::Until(_) if choice.is_multiple_of(11) => {
                        self.leave(me, topic, false); // its time is up
                        Step::Idle
                    }
                    Sleep::Until(_) => Step::Asleep(topic),
                }
            }
            Step::Holding(messages) => {
                let rolled_back = choice.is_multiple_of(3);
                for message in &messages {
                    self.messages[*message].state =
                        if rolled_back { State::GivenBack(me) } else { State::Gone };
                }
                if rolled_back { Step::GivingBack(messages) } else { Step::Idle }
            }
            Step::GivingBack(messages) => {
                for message in messages {
                    self.call(self.messages[message].topic, false);
                    if self.messages[message].state == State::GivenBack(me) {
                        self.messages[message].state = State::Ready;
                    }
                }
                Step::Idle
            }
        };
    }

    fn claim(&mut self, me: usize, topic: usize, seen: Vec<usize>) -> Step {
        let due = |world: &World, message: usize| world.messages[message].due <= world.clock;
        let free = |state: State| matches!(state, State::Ready | State::Visible(_) | State::GivenBack(_));
        let mut taken = Vec::new();
        let mut more = false;
        for message in &seen {
            if !due(self, *message) || !free(self.messages[*message].state) {
                continue;
            }
            if taken.len() == self.batch {
                more = true;
                break;
            }
            self.messages[*message].state = State::Claimed(me);
            taken.push(*message);
        }
        if !taken.is_empty() {
            if !more {
                let bucket = wake::bucket(key(topic), &self.buckets);
                bucket.emptied(key(topic), taken.len() * MANY / 2, self.clock);
            }
            self.leave(me, topic, false);
            if more {
                self.call(topic, true);
            }
            return Step::Holding(taken);
        }
        let next = seen.iter().map(|message| self.messages[*message].due);
        let next = next.filter(|due| *due > self.clock).min().unwrap_or(NEVER);
        let clock = self.clock;
        let leader = self.lists().sleep(me, next, clock);
        self.set_latch(leader);
        self.latches[me] = true; // whatever set it meanwhile: it checks before it sleeps
        Step::Asleep(topic)
    }

    fn die(&mut self, me: usize) {
        match self.steps[me].clone() {
            Step::Looking(topic) | Step::Seen(topic, _) | Step::Asleep(topic) => self.leave(me, topic, true),
            // Its rollback and commit callbacks run first.
            _ => return,
        }
        self.steps[me] = Step::Idle;
    }

    fn is_runnable(&self, me: usize) -> bool {
        match self.steps[me] {
            Step::Idle => false,
            Step::Asleep(_) => self.latches[me] || self.alarm(me) <= self.clock,
            _ => true,
        }
    }

    /// When it wakes by itself.
    fn alarm(&self, me: usize) -> i64 {
        let mut waiters = self.waiters;
        Waiters { buckets: &self.buckets, waiters: &mut waiters }.looks_at(me, self.clock)
    }

    fn settle(&mut self) {
        let mut rounds = 0;
        while let Some(me) = (0..SESSIONS).find(|me| self.is_runnable(*me)) {
            rounds += 1;
            assert!(rounds < 1_000, "it never rests: {:?}", self.steps);
            self.advance(me, 7);
        }
    }

    /// A sleeper that could have a message that is there wakes after a pause; each leader when the next one is due.
    fn check(&self) {
        let alarm = |topic: usize| {
            let sleepers = (0..SESSIONS).filter(|me| self.steps[*me] == Step::Asleep(topic));
            sleepers.map(|me| self.alarm(me)).min()
        };
        for message in self.messages.iter().filter(|message| message.state == State::Ready) {
            let alarms = [alarm(message.topic), alarm(ANY)];
            let mut alarms = alarms.iter().flatten().peekable();
            let is_alone = alarms.peek().is_none();
            let is_served = if message.due <= self.clock {
                alarms.any(|alarm| *alarm <= self.clock + PAUSE)
            } else {
                alarms.all(|alarm| *alarm <= message.due.max(self.clock + PAUSE))
            };
            assert!(is_alone || is_served, "nobody wakes for {message:?}: {:?}", self.steps);
        }
    }
}

impl World {
    /// After the longest pause: no sleeper lies beside a message that it could have.
    fn check_that_nothing_is_left(&self) {
        for message in self.messages.iter().filter(|m| m.state == State::Ready && m.due <= self.clock) {
            let beside =
                |step: &Step| matches!(step, Step::Asleep(topic) if *topic == ANY || *topic == message.topic);
            assert!(!self.steps.iter().any(beside), "{message:?} beside a sleeper: {:?}", self.steps);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]
    #[test]
    fn nobody_sleeps_beside_a_message(
        batch in 1..3_usize,
        moves in prop::collection::vec((0..SESSIONS, any::<u8>(), 0..40_u8), 1..200)
    ) {
        let mut world = World::new(batch);
        for (session, choice, chance) in moves {
            match chance {
                0 => world.die(session),
                1 => world.clock += 10,
                3 => world.clock += 3 * PAUSE,
                2 => {
                    world.settle();
                    world.check();
                }
                _ => world.advance(session, choice),
            }
        }
        for _ in 0..5 {
            world.settle();
            world.check();
            world.clock += 2 * PAUSE;
        }
        world.settle();
        world.check_that_nothing_is_left();
    }
}
