//! The due mark of a topic, or of all: no delivery waits for a time before it. Pure; `shmem/floor.rs` keeps it.
//!
//! It is to the index of waiting deliveries what the low-water mark is to numbers, see `rules/low_water.rs`, and kept
//! right in the same way: a session that makes a delivery wait publishes the time as entering, then notes it here; a
//! raise sets its target, then reads what is entering, then takes its snapshot. There are no survivors: a delivery that
//! is due and not leased holds it, and a time noted below the target lowers it. Times noted are those of now, so that
//! costs little.

/// A raise keeps so far behind the clock, in microseconds: calls that take no longer hold it up never.
const BEHIND: i64 = 2_000_000;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DueMark {
    mark: i64,
    /// Where the raise in progress may end.
    target: i64,
    raises: u64,
    /// Times noted below the target.
    notes: u64,
}

/// A raise in progress.
#[derive(Clone, Copy, Debug)]
pub struct Raise {
    pub from: i64,
    pub to: i64,
    number: u64,
    notes: u64,
}

impl DueMark {
    pub const UNKNOWN: DueMark = DueMark { mark: i64::MIN, target: i64::MIN, raises: 0, notes: 0 };

    pub fn mark(&self) -> i64 {
        self.mark
    }

    /// Of some of the deliveries that this one is of.
    pub fn of_part(&self) -> DueMark {
        DueMark { mark: self.mark, ..DueMark::UNKNOWN }
    }

    /// A delivery is about to wait until `time`.
    pub fn note(&mut self, time: i64) {
        if time < self.mark.max(self.target) {
            self.notes += 1;
            self.mark = self.mark.min(time);
        }
    }

    pub fn begin(&mut self, now: i64) -> Raise {
        self.raises += 1;
        self.target = self.mark.max(now.saturating_sub(BEHIND));
        Raise { from: self.mark, to: self.target, number: self.raises, notes: self.notes }
    }

    /// Ends a raise that has found nothing before `reached`.
    pub fn finish(&mut self, raise: &Raise, reached: i64) {
        if (raise.number, raise.notes) == (self.raises, self.notes) {
            self.mark = self.mark.max(reached.min(raise.to));
        }
        if raise.number == self.raises {
            self.target = self.mark;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    #[test]
    fn a_raise_ends_where_something_waits() {
        let mut mark = DueMark::UNKNOWN;
        let raise = mark.begin(NOW);
        mark.finish(&raise, NOW - 5_000_000);
        assert_eq!(mark.mark(), NOW - 5_000_000);
        let raise = mark.begin(NOW);
        mark.finish(&raise, i64::MAX);
        assert_eq!(mark.mark(), NOW - BEHIND);
    }

    #[test]
    fn what_is_noted_during_a_raise_voids_it() {
        let mut mark = DueMark::UNKNOWN;
        let raise = mark.begin(NOW);
        mark.note(NOW - 3_000_000);
        mark.finish(&raise, i64::MAX);
        assert_eq!(mark.mark(), i64::MIN);
        let raise = mark.begin(NOW);
        mark.note(NOW); // not below the target
        mark.finish(&raise, i64::MAX);
        assert_eq!(mark.mark(), NOW - BEHIND);
        mark.note(NOW - 9_000_000);
        assert_eq!(mark.mark(), NOW - 9_000_000);
    }

    #[test]
    fn a_part_begins_where_the_whole_is_and_not_where_its_raise_may_end() {
        let mut mark = DueMark::UNKNOWN;
        let raise = mark.begin(NOW);
        mark.finish(&raise, NOW - 5_000_000);
        mark.begin(NOW);
        let mut part = mark.of_part();
        assert_eq!(part.mark(), NOW - 5_000_000);
        part.note(NOW - 4_000_000);
        assert_eq!(part.mark(), NOW - 5_000_000);
        part.note(NOW - 6_000_000);
        assert_eq!(part.mark(), NOW - 6_000_000);
    }

    #[test]
    fn of_two_raises_the_later_counts() {
        let mut mark = DueMark::UNKNOWN;
        let first = mark.begin(NOW);
        let second = mark.begin(NOW + 1_000_000);
        mark.finish(&first, i64::MAX);
        assert_eq!(mark.mark(), i64::MIN);
        mark.finish(&second, i64::MAX);
        assert_eq!(mark.mark(), NOW - 1_000_000);
    }
}
