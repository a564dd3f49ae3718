//! The low-water mark, rule by rule.

use outbox_rules::low_water::{LowWater, SURVIVORS, Walked};

/// Raises until nothing changes any more.
fn settle(low_water: &mut LowWater, now: &mut i64, highest: i64, living: &[(i64, Option<i64>)]) {
    for _ in 0..10 {
        *now += 2_000_000;
        let Some(raise) = low_water.begin(*now, highest, i64::MAX) else { continue };
        let again: Vec<_> = low_water
            .next_turns(SURVIVORS)
            .into_iter()
            .map(|survivor| {
                let of_key = |number: i64, key: Option<i64>| {
                    if survivor.key == 0 { number == survivor.number } else { key == Some(survivor.key) }
                };
                let first = living.iter().find(|(number, key)| of_key(*number, *key) && *number < raise.from);
                (survivor, first.map(|(number, _)| survivor.moved_to(*number)))
            })
            .collect();
        let (mut walked, mut reached) = (Walked::default(), raise.to);
        for (number, key) in living.iter().filter(|(number, _)| (raise.from..raise.to).contains(number)) {
            if !walked.meet(&raise, *number, *key, false) {
                reached = *number;
                break;
            }
        }
        low_water.finish(&raise, reached, &walked, 0, &again, 10);
    }
}

#[test]
fn one_old_message_does_not_pin_the_mark() {
    let (mut low_water, mut now) = (LowWater::UNKNOWN, 1_000_000_000);
    settle(&mut low_water, &mut now, 10_000, &[(5, None), (7, Some(9))]);
    assert_eq!(low_water.mark(), 10_001);
    assert_eq!(low_water.survivors().len(), 2);
    settle(&mut low_water, &mut now, 10_000, &[]);
    assert!(low_water.survivors().is_empty());
}

#[test]
fn a_hot_key_is_one_survivor() {
    let (mut low_water, mut now) = (LowWater::UNKNOWN, 1_000_000_000);
    let queue: Vec<_> = (10..50_000).map(|number| (number, Some(1))).collect();
    settle(&mut low_water, &mut now, 60_000, &queue);
    assert_eq!((low_water.mark(), low_water.survivors().len()), (60_001, 1));
    assert_eq!(low_water.survivors()[0].number, 10);
}

#[test]
fn a_full_list_stops_the_mark_and_a_note_lowers_it() {
    let (mut low_water, mut now) = (LowWater::UNKNOWN, 1_000_000_000);
    let many: Vec<_> = (1..=SURVIVORS as i64 + 10).map(|number| (number * 10, None)).collect();
    settle(&mut low_water, &mut now, 1_000_000, &many);
    assert_eq!(low_water.mark(), (SURVIVORS as i64 + 1) * 10);
    low_water.note(3, None);
    assert_eq!(low_water.mark(), 3);
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_raises() {
    let (mut low_water, mut now) = (LowWater::UNKNOWN, 1_000_000_000_000);
    settle(&mut low_water, &mut now, 100, &[]);
    now -= 3_600_000_000;
    settle(&mut low_water, &mut now, 200, &[]);
    assert_eq!(low_water.mark(), 201);
}
