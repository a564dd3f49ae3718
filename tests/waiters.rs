//! Sleepers against a model: producers, workers and a clock, interleaved step by step; workers roll back and die at any
//! step. Whenever nobody has anything left to do, no message is there that a sleeper could have, and the next one that
//! the clock brings has somebody who keeps the clock for it.
#![allow(dead_code, clippy::expect_used)]

#[path = "../src/places.rs"]
mod places;
#[path = "../src/waiters.rs"]
mod waiters;

use places::Key;
use proptest::prelude::*;
use waiters::{APART, Bucket, Call, LATE, Left, NEVER, REST, Sleep, Waiter, Waiters};

/// So many messages come thick and fast when they are taken at once.
const MANY: usize = (REST / APART) as usize;
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
            if !urgent && waiters::bucket(key(wanted), &self.buckets).absorbs(key(wanted), now) {
                return;
            }
            match self.lists().call(key(wanted), now, urgent) {
                Call::Wake(called) => return self.set_latch(Some(called)),
                Call::Absorbed => return,
                Call::Nobody => {}
            }
        }
    }

    fn leave(&mut self, me: usize, in_vain: bool) {
        let now = self.clock;
        match self.lists().leave(me, now, in_vain) {
            Left::Nothing => {}
            Left::Keeper(heir) => self.set_latch(Some(heir)),
            Left::CallAnother(wanted) => {
                let topic = (0..=ANY).find(|topic| key(*topic) == wanted).expect("a key");
                self.call(topic, false);
            }
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
                    if waits == 2 {
                        self.lists().enter(me, key(topic));
                        Step::Looking(topic)
                    } else if self.lists().arrive(me, key(topic), clock) {
                        Step::Looking(topic)
                    } else {
                        self.latches[me] = true; // as below
                        Step::Asleep(topic)
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
                        let keeper = self.lists().expect(key, due);
                        self.set_latch(keeper);
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
                        self.leave(me, false); // its time is up
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
            self.leave(me, false);
            if more {
                self.call(topic, true);
            } else {
                waiters::bucket(key(topic), &self.buckets).emptied(
                    key(topic),
                    taken.len() * MANY / 2,
                    self.clock,
                );
            }
            return Step::Holding(taken);
        }
        let next = seen.iter().map(|message| self.messages[*message].due);
        let next = next.filter(|due| *due > self.clock).min().unwrap_or(NEVER);
        let keeper = self.lists().sleep(me, next);
        self.set_latch(keeper);
        self.latches[me] = true; // whatever set it meanwhile: it checks before it sleeps
        Step::Asleep(topic)
    }

    fn die(&mut self, me: usize) {
        match self.steps[me].clone() {
            Step::Looking(_) | Step::Seen(..) => self.leave(me, true),
            Step::Asleep(_) => self.leave(me, true),
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

    fn alarm(&self, me: usize) -> i64 {
        let mut waiters = self.waiters;
        Waiters { buckets: &self.buckets, waiters: &mut waiters }.looks_at(me)
    }

    fn settle(&mut self) {
        let mut rounds = 0;
        while let Some(me) = (0..SESSIONS).find(|me| self.is_runnable(*me)) {
            rounds += 1;
            assert!(rounds < 1_000, "it never rests: {:?}", self.steps);
            self.advance(me, 7);
        }
    }

    fn check(&self) {
        let sleepers = |topic: usize| {
            (0..SESSIONS).filter(move |me| matches!(self.steps[*me], Step::Asleep(wanted) if wanted == topic))
        };
        let alarm = |topic| sleepers(topic).map(|me| self.alarm(me)).min();
        for message in self.messages.iter().filter(|message| message.state == State::Ready) {
            let alarms = [alarm(message.topic), alarm(ANY)];
            // Somebody rests before it looks, whoever else waits; before that, each keeps the clock for its like.
            let looks_soon = alarms.iter().flatten().any(|alarm| *alarm <= self.clock + REST + LATE);
            let is_kept =
                message.due > self.clock && alarms.iter().flatten().all(|alarm| *alarm <= message.due);
            let is_alone = alarms == [None; 2];
            assert!(looks_soon || is_kept || is_alone, "nobody wakes for {message:?}: {:?}", self.steps);
        }
    }
}

impl World {
    /// After the longest rest: no sleeper lies beside a message that it could have.
    fn check_that_nothing_is_left(&self) {
        for message in self.messages.iter().filter(|m| m.state == State::Ready && m.due <= self.clock) {
            let beside = |step: &Step| matches!(step, Step::Asleep(wanted) if *wanted == ANY || *wanted == message.topic);
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
                3 => world.clock += 3 * REST,
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
            world.clock += 2 * REST;
        }
        world.settle();
        world.check_that_nothing_is_left();
    }
}

/// Nobody has looked for so long that nothing is thick and fast.
const LATER: i64 = 1_000_000;

/// All of them wait for one topic, and know of `next`.
fn asleep<'a>(places: &'a mut [Waiter; 50], buckets: &'a [Bucket], next: i64) -> Waiters<'a> {
    let mut lists = Waiters { buckets, waiters: places };
    for me in 0..50 {
        lists.enter(me, key(0));
        assert_eq!(lists.sleep(me, next), None);
    }
    lists
}

#[test]
fn one_message_calls_one_of_many_and_the_longest_waiting_first() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 50];
    let mut lists = asleep(&mut places, &buckets, NEVER);
    // The first one keeps the clock, and comes last.
    for (n, expected) in (1..50).chain([0]).enumerate() {
        let now = LATER * (n as i64 + 1);
        assert_eq!(lists.call(key(0), now, false), Call::Wake(expected));
        assert_eq!(lists.call(key(0), now, false), Call::Absorbed, "it has not looked yet");
        assert_eq!(lists.wake(expected, now), Sleep::Over);
        assert_eq!(lists.leave(expected, LATER, false), Left::Nothing);
    }
    assert_eq!(lists.call(key(0), LATER, false), Call::Nobody);
    assert!(buckets.iter().all(Bucket::is_empty));
}

#[test]
fn one_that_is_held_up_keeps_nobody_else_from_being_called() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 50];
    let mut lists = asleep(&mut places, &buckets, NEVER);
    assert_eq!(lists.call(key(0), LATER, false), Call::Wake(1));
    assert_eq!(lists.call(key(0), LATER + 20_000, false), Call::Wake(2));
    assert_eq!(lists.leave(1, LATER, false), Left::CallAnother(key(0)));
}

/// A claim has taken all there was for `key(0)` at `now`.
fn emptied(buckets: &[Bucket], now: i64) {
    waiters::bucket(key(0), buckets).emptied(key(0), MANY, now);
}

/// Messages come thick and fast: the first rests before it looks for both, the second sleeps.
fn resting<'a>(places: &'a mut [Waiter; 2], buckets: &'a [Bucket]) -> Waiters<'a> {
    let mut lists = Waiters { buckets, waiters: places };
    emptied(buckets, LATER);
    assert!(!lists.arrive(0, key(0), LATER + 100));
    assert!(!lists.arrive(1, key(0), LATER + 200));
    lists
}

#[test]
fn messages_thick_and_fast_wait_for_each_other_unless_somebody_left_them() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 50];
    let mut lists = asleep(&mut places, &buckets, NEVER);
    assert_eq!(lists.call(key(0), LATER, false), Call::Wake(1));
    assert_eq!(lists.wake(1, LATER + 50), Sleep::Over, "the first one does not wait");
    emptied(&buckets, LATER + 60);
    assert_eq!(lists.call(key(0), LATER + 100, false), Call::Wake(0), "the keeper");
    assert_eq!(lists.wake(0, LATER + 150), Sleep::Until(LATER + 60 + REST + LATE));
    assert_eq!(lists.call(key(0), LATER + 200, false), Call::Absorbed);
    assert_eq!(lists.call(key(0), LATER + 210, true), Call::Wake(2));
    assert_eq!(lists.wake(2, LATER + 220), Sleep::Over, "left by another, it was urgent");
    assert_eq!(lists.call(key(0), LATER + 300, false), Call::Absorbed, "the keeper has not looked");
    assert_eq!(lists.wake(0, LATER + 60 + REST + LATE), Sleep::Until(LATER + 220 + REST + LATE));
    assert_eq!(lists.wake(0, LATER + 220 + REST + LATE), Sleep::Over);
}

#[test]
fn a_keeper_that_is_held_up_keeps_nobody_else_from_being_called() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 50];
    let mut lists = asleep(&mut places, &buckets, NEVER);
    let mut times = (LATER..LATER + 30_000).step_by(1_000);
    let is_called = |now| {
        emptied(&buckets, now);
        lists.call(key(0), now, false) == Call::Wake(1)
    };
    assert!(times.any(is_called));
}

#[test]
fn a_blind_keeper_that_goes_has_another_called() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 2];
    let mut lists = resting(&mut places, &buckets);
    assert_eq!(lists.wake(0, LATER + REST), Sleep::Over);
    assert_eq!(lists.leave(0, LATER + REST, false), Left::Nothing);
    let now = LATER + REST + 10;
    assert_eq!(lists.call(key(0), now, false), Call::Absorbed);
    assert_eq!(lists.leave(1, now, false), Left::CallAnother(key(0)), "perhaps one that waits for any");
    assert!(!waiters::bucket(key(0), &buckets).absorbs(key(0), now));
}

#[test]
fn many_messages_in_a_short_time_come_thick_and_fast_whoever_takes_them() {
    let rests = |claims: &[(i64, usize)]| {
        let bucket = Bucket::empty();
        for (now, count) in claims {
            bucket.emptied(key(0), *count, LATER + now);
        }
        bucket.rests_until(key(0), LATER + 2 * REST) > LATER
    };
    assert!(rests(&[(0, MANY)]));
    assert!(!rests(&[(0, MANY - 1)]));
    assert!(rests(&[(0, MANY / 2), (100, MANY / 2), (200, MANY / 2)]));
    assert!(!rests(&[(0, 3), (APART * 3, 3), (APART * 6, 3)]), "just so far apart");
    assert!(!rests(&[(0, 100 * MANY), (REST, MANY - 1)]), "what was once does not count for long");
    assert!(rests(&[(0, 100 * MANY), (REST, MANY)]));
}

#[test]
fn of_those_who_come_soon_after_a_claim_one_rests_and_looks_for_all() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 4];
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    assert!(lists.arrive(0, key(0), LATER), "nobody has looked before");
    emptied(&buckets, LATER + 100);
    assert_eq!(lists.leave(0, LATER, false), Left::Nothing);
    assert!(!lists.arrive(1, key(0), LATER + 200));
    assert!(!lists.arrive(2, key(0), LATER + 300));
    assert_eq!(lists.wake(1, LATER + 300), Sleep::Until(LATER + 100 + REST));
    assert_eq!(lists.call(key(0), LATER + 400, false), Call::Absorbed, "it will be found");
    assert_eq!(
        lists.wake(2, LATER + 300),
        Sleep::Until(LATER + 100 + REST + LATE),
        "nobody else keeps the clock"
    );
    assert!(!lists.arrive(3, key(0), LATER + 350));
    assert_eq!(lists.wake(3, LATER + 400), Sleep::Until(NEVER));
    let later = LATER + 100 + REST;
    assert_eq!(lists.wake(1, later), Sleep::Over);
    assert_eq!(lists.call(key(0), later + 50, false), Call::Absorbed, "one look at a time");
    emptied(&buckets, later + 70);
    assert_eq!(lists.leave(1, later + 70, false), Left::Nothing);
    assert!(!lists.arrive(1, key(0), later + 80));
    assert_eq!(lists.wake(1, later + 80), Sleep::Until(later + 70 + REST), "who comes back looks");
    assert_eq!(lists.wake(2, later + LATE), Sleep::Until(later + 70 + REST + LATE), "others look");
    assert_eq!(lists.call(key(0), later + 90, true), Call::Wake(1));
    assert_eq!(lists.wake(1, later + 100), Sleep::Over, "it need not rest any more");
    assert_eq!(lists.leave(1, later + 110, false), Left::Nothing);
    assert_eq!(lists.wake(2, later + 100 + REST + LATE), Sleep::Over, "nobody looks");
    assert!(lists.arrive(1, key(0), later + 3 * REST), "long after the last look");
}

#[test]
fn who_sleeps_is_called_first_then_who_looks_and_last_who_keeps_the_clock() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 3];
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    for me in [1, 0, 2] {
        lists.enter(me, key(0));
    }
    lists.sleep(1, NEVER);
    lists.sleep(2, NEVER);
    for called in [2, 0, 1] {
        assert_eq!(lists.call(key(0), LATER, false), Call::Wake(called));
        assert_eq!(lists.leave(called, LATER, false), Left::CallAnother(key(0)));
    }
    assert_eq!(lists.call(key(0), LATER, false), Call::Nobody);
}

#[test]
fn whose_keeper_takes_what_it_finds_looks_at_once_or_when_the_looks_cease() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 50];
    let mut lists = asleep(&mut places, &buckets, LATER);
    assert_eq!(lists.wake(0, LATER), Sleep::Over);
    assert_eq!(lists.leave(0, LATER, false), Left::Keeper(49));
    assert_eq!(lists.wake(49, LATER + 10), Sleep::Over, "it knows of nothing");
    emptied(&buckets, LATER + 20);
    assert_eq!(lists.leave(49, LATER + 30, false), Left::Keeper(48));
    assert_eq!(lists.wake(48, LATER + 40), Sleep::Until(LATER + 20 + REST + LATE));
    assert_eq!(lists.expect(key(0), LATER + 50), Some(48), "but of this it knows");
    assert_eq!(lists.wake(48, LATER + 50), Sleep::Over);
}

#[test]
fn nobody_rests_for_long_when_the_clock_is_set_back() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 1];
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    emptied(&buckets, 2 * LATER);
    assert!(!lists.arrive(0, key(0), LATER));
    assert_eq!(lists.wake(0, LATER), Sleep::Until(LATER + REST));
    assert_eq!(lists.wake(0, LATER + REST), Sleep::Over);
}

#[test]
fn who_rests_and_goes_has_another_look() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 2];
    let mut lists = resting(&mut places, &buckets);
    assert_eq!(lists.leave(0, LATER, true), Left::CallAnother(key(0)));
    assert_eq!(lists.call(key(0), LATER + 300, false), Call::Absorbed);
    assert_eq!(lists.wake(1, LATER + 300), Sleep::Until(LATER + REST + LATE));
    assert_eq!(lists.wake(1, LATER + REST + LATE), Sleep::Over);
}

#[test]
fn messages_of_another_topic_are_not_thick_and_fast() {
    let buckets = [const { Bucket::empty() }; 1];
    let mut places = [Waiter::AWAY; 3];
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    for me in 0..2 {
        lists.enter(me, key(me));
        lists.sleep(me, NEVER);
    }
    emptied(&buckets, LATER);
    assert_eq!(lists.call(key(1), LATER, false), Call::Wake(1));
    assert_eq!(lists.wake(1, LATER), Sleep::Over);
    assert!(lists.arrive(2, key(2), LATER));
}

#[test]
fn one_of_many_keeps_the_clock() {
    let buckets = [const { Bucket::empty() }; 4];
    let mut places = [Waiter::AWAY; 50];
    let mut lists = asleep(&mut places, &buckets, 1_000);
    assert_eq!(lists.expect(key(0), 2_000), None, "it wakes earlier");
    assert_eq!(lists.expect(key(0), 500), Some(0));
    assert_eq!((0..50).filter(|me| lists.wake(*me, 600) == Sleep::Over).count(), 1);
    assert_eq!(lists.leave(0, LATER, true), Left::Keeper(49));
    assert_eq!(lists.wake(49, 0), Sleep::Over);
}

#[test]
fn waiting_for_one_topic_is_not_waiting_for_another() {
    let buckets = [const { Bucket::empty() }; 1];
    let mut places = [Waiter::AWAY; 3];
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    for me in 0..3 {
        lists.enter(me, key(me));
        lists.sleep(me, NEVER);
    }
    assert_eq!(lists.call(key(1), LATER, false), Call::Wake(1));
    assert_eq!(lists.call(key(1), LATER, false), Call::Absorbed);
    assert_eq!(lists.expect(key(2), 5), Some(2));
    assert_eq!(lists.leave(1, LATER, false), Left::CallAnother(key(1)));
    assert_eq!([lists.leave(0, LATER, false), lists.leave(2, LATER, false)], [Left::Nothing; 2]);
    assert!(buckets[0].is_empty());
}
