//! The floor, rule by rule: clocks that were set back.

use outbox_rules::floor::{self, Cost, Entry, Pace, Seen, Slot};

const NOW: i64 = 1_000_000_000_000;
const DAY: i64 = 86_400_000_000;
const EXPENSIVE: Cost = Cost { pages: 1_000, micros: 100_000 };

#[test]
fn a_clock_that_was_set_back_keeps_no_sweep_waiting() {
    let mut entry = Entry::UNKNOWN;
    let look = entry.look(NOW, 100, i64::MAX);
    entry.walked(EXPENSIVE);
    entry.keep(&look, &Seen { reach: None, expiry: i64::MAX });
    assert!(!entry.look(NOW + 1, 100, i64::MAX).sweep);
    assert!(entry.look(NOW - DAY, 100, i64::MAX).sweep);
    assert!(!entry.look(NOW - DAY + 1, 100, i64::MAX).sweep);
}

#[test]
fn nor_a_look_for_deaths() {
    let mut pace = Pace::UNKNOWN;
    assert!(pace.begin(NOW));
    pace.took(EXPENSIVE);
    assert!(!pace.begin(NOW + 1));
    assert!(pace.begin(NOW - DAY));
    assert!(!pace.begin(NOW - DAY + 1));
}

#[test]
fn a_transaction_from_before_holds_no_floor_and_says_so_at_its_end() {
    let slot = Slot { low: 7, since: NOW };
    assert_eq!(floor::lowest([slot].into_iter(), NOW - DAY), i64::MAX);
    assert!(floor::may_be_passed(NOW, NOW - DAY));
    // One that began after the clock was read is no such.
    assert_eq!(floor::lowest([slot].into_iter(), NOW - 1_000), 7);
    assert!(!floor::may_be_passed(NOW, NOW - 1_000));
}
