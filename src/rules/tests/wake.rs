//! Who is woken, who keeps the clock and who pauses, rule by rule.
#![allow(clippy::expect_used)]

use outbox_rules::slots::Key;
use outbox_rules::wake::{self, APART, Bucket, Call, Left, NEVER, PAUSE, RECHECK, Sleep, Waiter, Waiters};

/// So many messages taken at once are followed by a pause.
const MANY: usize = (PAUSE / APART) as usize;

fn key(topic: u64) -> Key {
    (topic + 1, topic)
}

const NOW: i64 = 1_000_000_000;
const TOPIC: Key = (1, 0);

fn buckets() -> [Bucket; 4] {
    [const { Bucket::empty() }; 4]
}

/// All of them wait for one topic, and know of `next`.
fn asleep<'a, const N: usize>(places: &'a mut [Waiter; N], buckets: &'a [Bucket], next: i64) -> Waiters<'a> {
    let mut lists = Waiters { buckets, waiters: places };
    for me in 0..N {
        lists.enter(me, TOPIC);
        assert_eq!(lists.sleep(me, next, NOW), None);
    }
    lists
}

/// A claim has taken so many messages that looks pause.
fn busy(buckets: &[Bucket]) -> i64 {
    let bucket = wake::bucket(TOPIC, buckets);
    bucket.emptied(TOPIC, MANY, NOW);
    bucket.pause(TOPIC, NOW).expect("a pause")
}

#[test]
fn one_message_calls_one_of_many_the_last_that_came_and_the_leader_after_all_others() {
    let (buckets, mut places) = (buckets(), [Waiter::AWAY; 50]);
    let mut lists = asleep(&mut places, &buckets, NEVER);
    for expected in (0..50).rev() {
        assert_eq!(lists.call(TOPIC, NOW, false), Call::Wake(expected));
        assert!(wake::bucket(TOPIC, &buckets).is_called(TOPIC));
        assert_eq!(lists.call(TOPIC, NOW, true), Call::Coalesced, "it has not looked yet");
        assert_eq!(lists.wake(expected, NOW), Sleep::Over);
        assert!(!wake::bucket(TOPIC, &buckets).is_called(TOPIC));
        assert_eq!(lists.leave(expected, NOW, false), Left::Nothing);
    }
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Nobody);
    assert!(buckets.iter().all(Bucket::is_empty));
}

#[test]
fn who_sleeps_is_called_first_then_who_looks_and_last_who_leads() {
    let (buckets, mut places) = (buckets(), [Waiter::AWAY; 3]);
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    (0..3).for_each(|me| lists.enter(me, TOPIC));
    lists.sleep(0, NEVER, NOW);
    lists.sleep(1, NEVER, NOW);
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Wake(1));
    assert_eq!(lists.leave(1, NOW, true), Left::Call);
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Coalesced, "it looks once more");
    assert_eq!(lists.sleep(2, NEVER, NOW), None);
    assert_eq!(lists.wake(2, NOW), Sleep::Over);
    assert_eq!(lists.leave(2, NOW, false), Left::Nothing);
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Wake(0));
}

#[test]
fn one_of_many_keeps_the_clock() {
    let (buckets, mut places) = (buckets(), [Waiter::AWAY; 50]);
    let mut lists = asleep(&mut places, &buckets, NOW + 1_000);
    assert_eq!(lists.expect(TOPIC, NOW + 2_000), None, "it wakes earlier");
    assert_eq!(lists.expect(TOPIC, NOW + 500), Some(0));
    assert_eq!(lists.wake(0, NOW + 499), Sleep::Until(NOW + 500));
    assert_eq!(lists.leave(0, NOW + 499, true), Left::Wake(1), "by the same alarm");
    assert_eq!(lists.wake(1, NOW + 499), Sleep::Until(NOW + 500));
    assert_eq!((1..50).filter(|me| lists.wake(*me, NOW + 500) == Sleep::Over).count(), 1);
    assert_eq!(lists.leave(1, NOW + 510, false), Left::Wake(2), "nobody knows what comes next");
    assert_eq!(lists.wake(2, NOW + 520), Sleep::Over);
    assert_eq!(lists.sleep(2, NEVER, NOW + 530), None);
    assert_eq!(lists.wake(2, NOW + 540), Sleep::Until(NOW + 530 + RECHECK));
    assert_eq!(lists.wake(3, NOW + 540), Sleep::Until(NEVER));
    assert_eq!(lists.leave(3, NOW + 550, false), Left::Nothing);
}

#[test]
fn a_pause_follows_many_messages_in_a_short_time_whoever_takes_them() {
    let ends = |claims: &[(i64, usize)], asked: i64| {
        let bucket = Bucket::empty();
        for (at, count) in claims {
            bucket.emptied(TOPIC, *count, NOW + at);
        }
        bucket.pause(TOPIC, NOW + asked).map(|end| end - NOW)
    };
    assert_eq!(ends(&[(0, MANY)], 0), Some(PAUSE));
    assert_eq!(ends(&[(0, MANY)], PAUSE), None);
    assert_eq!(ends(&[(0, MANY - 1)], 0), None);
    assert_eq!(ends(&[(0, MANY / 2), (APART, MANY / 2 + 1)], APART), Some(APART + PAUSE));
    assert_eq!(ends(&[(0, 3), (APART * 3, 3), (APART * 6, 3)], APART * 6), None, "just so far apart");
    assert_eq!(
        ends(&[(0, 100 * MANY), (PAUSE, MANY - 1)], PAUSE),
        None,
        "what was once does not count for long"
    );
}

#[test]
fn messages_during_a_pause_wait_for_each_other_unless_somebody_left_them() {
    let (buckets, mut places) = (buckets(), [Waiter::AWAY; 3]);
    let mut lists = asleep(&mut places, &buckets, NEVER);
    let end = busy(&buckets);
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Wake(2));
    assert_eq!(lists.wake(2, NOW), Sleep::Until(end));
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Coalesced);
    assert_eq!(lists.leave(2, NOW, true), Left::Call);
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Wake(1));
    assert_eq!(lists.call(TOPIC, NOW, true), Call::Wake(1), "others have looked, and left it");
    assert_eq!(lists.wake(1, NOW), Sleep::Over);
    assert_eq!(lists.sleep(1, NEVER, NOW), None);
    assert_eq!(lists.call(TOPIC, end, false), Call::Wake(1));
    assert_eq!(lists.wake(1, end), Sleep::Over);
}

#[test]
fn of_those_who_come_during_a_pause_one_looks_for_all_at_its_end() {
    let (buckets, mut places) = (buckets(), [Waiter::AWAY; 3]);
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    let end = busy(&buckets);
    (0..3).for_each(|me| lists.pause(me, TOPIC, end, NOW));
    assert_eq!(lists.call(TOPIC, NOW, false), Call::Coalesced);
    assert_eq!(lists.wake(0, NOW), Sleep::Until(end));
    assert_eq!((0..3).filter(|me| lists.wake(*me, end) == Sleep::Over).count(), 1);
    let bucket = wake::bucket(TOPIC, &buckets);
    bucket.emptied(TOPIC, MANY, end);
    assert_eq!(lists.leave(0, end, false), Left::Wake(1), "nobody knows what comes next");
    assert_eq!(lists.wake(1, end), Sleep::Until(end + PAUSE));
    assert_eq!(lists.wake(1, end + PAUSE), Sleep::Over);
}

#[test]
fn nobody_sleeps_for_long_when_the_clock_is_set_back() {
    let (buckets, mut places) = (buckets(), [Waiter::AWAY; 2]);
    let end = busy(&buckets);
    let back = NOW - 3_600_000_000;
    assert_eq!(wake::bucket(TOPIC, &buckets).pause(TOPIC, back), None);
    let mut lists = asleep(&mut places, &buckets, NEVER);
    assert_eq!(lists.wake(0, back), Sleep::Over);
    assert_eq!(lists.leave(1, back, false), Left::Nothing);
    lists.pause(1, TOPIC, end, NOW);
    assert_eq!(lists.wake(1, back), Sleep::Over);
}

#[test]
fn waiting_for_one_topic_is_not_waiting_for_another() {
    let (buckets, mut places) = ([const { Bucket::empty() }; 1], [Waiter::AWAY; 3]);
    let mut lists = Waiters { buckets: &buckets, waiters: &mut places };
    for me in 0..3 {
        lists.enter(me, key(me as u64));
        lists.sleep(me, NEVER, NOW);
    }
    buckets[0].emptied(key(0), MANY, NOW);
    assert_eq!(lists.call(key(1), NOW, false), Call::Wake(1));
    assert_eq!(lists.wake(1, NOW), Sleep::Over, "no pause for this one");
    assert_eq!(lists.expect(key(2), NOW + 5), Some(2));
    assert_eq!(lists.call(key(0), NOW, false), Call::Wake(0));
    assert_eq!(lists.leave(1, NOW, true), Left::Call);
    assert_eq!([lists.leave(0, NOW, false), lists.leave(2, NOW, false)], [Left::Call, Left::Nothing]);
    assert!(buckets[0].is_empty());
}
