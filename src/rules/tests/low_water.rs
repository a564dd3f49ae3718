//! The low-water mark against writers, raises and readers that take turns step by step: whatever they do, every
//! delivery that a reader's snapshot has and that is not over is at the mark or above, or a survivor stands for it.

use outbox_rules::low_water::{LowWater, Raise, Survivor, Walked};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const WRITERS: usize = 3;
const RAISERS: usize = 2;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Open,
    Committed,
    Aborted,
}

/// One version of a delivery: covered by the mark, or dead.
#[derive(Clone, Copy, Debug)]
struct Version {
    key: Option<i64>,
    covered: bool,
    by: usize,
    ended_by: Option<usize>,
}

/// What a writer is about to do, one step each.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Idle,
    /// Has a number that it has not published.
    Numbered(i64),
    /// Has published it.
    Entering(i64),
    /// Has read the limit.
    Noted(i64),
    /// Has written the row.
    Written,
}

#[derive(Clone, Debug)]
struct Writer {
    transaction: usize,
    /// The lowest number of the transaction, as floors see it: None once it is older than their patience.
    low: Option<i64>,
    entering: Option<i64>,
    step: Step,
    key: Option<i64>,
}

/// A raise between its steps.
#[derive(Debug)]
enum Raising {
    No,
    Begun(Raise, Vec<Survivor>),
    /// Has read what is entering, and has a snapshot.
    Walking {
        raise: Raise,
        turns: Vec<Survivor>,
        entering: i64,
        snapshot: BTreeSet<usize>,
        at: i64,
        walked: Walked,
        stopped: bool,
    },
}

struct Model {
    now: i64,
    low_water: LowWater,
    next_number: i64,
    rows: BTreeMap<i64, Vec<Version>>,
    transactions: Vec<State>,
    writers: Vec<Writer>,
    raisings: Vec<Raising>,
    /// A reader between its snapshot and its look at the mark.
    reader: Option<BTreeSet<usize>>,
}

impl Model {
    fn new() -> Model {
        let mut model = Model {
            now: 1_000_000_000,
            low_water: LowWater::UNKNOWN,
            next_number: 1,
            rows: BTreeMap::new(),
            transactions: Vec::new(),
            writers: Vec::new(),
            raisings: (0..RAISERS).map(|_| Raising::No).collect(),
            reader: None,
        };
        for _ in 0..WRITERS {
            let transaction = model.begin();
            model.writers.push(Writer {
                transaction,
                low: None,
                entering: None,
                step: Step::Idle,
                key: None,
            });
        }
        model
    }

    fn begin(&mut self) -> usize {
        self.transactions.push(State::Open);
        self.transactions.len() - 1
    }

    fn snapshot(&self) -> BTreeSet<usize> {
        (0..self.transactions.len()).filter(|t| self.transactions[*t] == State::Committed).collect()
    }

    fn sees(version: &Version, snapshot: &BTreeSet<usize>) -> bool {
        snapshot.contains(&version.by) && version.ended_by.is_none_or(|by| !snapshot.contains(&by))
    }

    fn may_live(&self, version: &Version, snapshot: &BTreeSet<usize>) -> bool {
        Model::sees(version, snapshot)
            || !snapshot.contains(&version.by) && self.transactions[version.by] != State::Aborted
    }

    fn writer(&mut self, me: usize, choice: u8) {
        let writer = self.writers[me].clone();
        match writer.step {
            Step::Idle | Step::Written if choice % 8 < 4 => {
                let key = (choice & 16 != 0).then_some(i64::from(choice % 3) + 1);
                let dead = self.a_dead_one(choice);
                let number = match dead.filter(|_| choice % 8 == 3) {
                    Some(number) => number,
                    None => {
                        // A call of append: published to floors before it is taken.
                        let number = self.next_number;
                        self.next_number += 1 + i64::from(choice % 3);
                        let low = if choice & 64 != 0 { None } else { writer.low.or(Some(number)) };
                        self.writers[me].low = low;
                        number
                    }
                };
                let key = self.rows.get(&number).map_or(key, |versions| versions[0].key);
                (self.writers[me].step, self.writers[me].key) = (Step::Numbered(number), key);
            }
            Step::Idle | Step::Written if choice % 8 < 6 => self.end_one(me, choice),
            Step::Idle | Step::Written => {
                self.transactions[writer.transaction] =
                    if choice % 8 == 7 { State::Committed } else { State::Aborted };
                let transaction = self.begin();
                self.writers[me] =
                    Writer { transaction, low: None, entering: None, step: Step::Idle, key: None };
            }
            Step::Numbered(number) => {
                self.writers[me].entering = Some(number);
                self.writers[me].step = Step::Entering(number);
            }
            Step::Entering(number) => {
                if number < self.low_water.limit() {
                    self.low_water.note(number, writer.key);
                }
                self.writers[me].step = Step::Noted(number);
            }
            Step::Noted(number) => {
                let versions = self.rows.entry(number).or_default();
                // A revival replaces the dead version; if somebody else was faster, nothing happens.
                let mut free = versions.is_empty();
                for version in versions.iter_mut() {
                    let ended = version.ended_by.is_some_and(|by| self.transactions[by] != State::Aborted);
                    if !version.covered && !ended && self.transactions[version.by] != State::Aborted {
                        version.ended_by = Some(writer.transaction);
                        free = true;
                    }
                }
                if free {
                    let new =
                        Version { key: writer.key, covered: true, by: writer.transaction, ended_by: None };
                    versions.push(new);
                }
                self.writers[me].step = Step::Written;
                // Withdrawn with the last step, or a little later.
                self.writers[me].entering = None;
            }
        }
    }

    fn a_dead_one(&self, choice: u8) -> Option<i64> {
        let dead = |versions: &Vec<Version>| {
            versions.iter().any(|version| {
                !version.covered
                    && self.transactions[version.by] == State::Committed
                    && version.ended_by.is_none_or(|by| self.transactions[by] == State::Aborted)
            })
        };
        let all: Vec<i64> =
            self.rows.iter().filter(|(_, versions)| dead(versions)).map(|(number, _)| *number).collect();
        (!all.is_empty()).then(|| all[usize::from(choice / 8) % all.len()])
    }

    /// Removes a delivery, or makes it dead.
    fn end_one(&mut self, me: usize, choice: u8) {
        let transaction = self.writers[me].transaction;
        let transactions = &self.transactions;
        let lives = |version: &Version| {
            version.covered
                && (transactions[version.by] == State::Committed || version.by == transaction)
                && version.ended_by.is_none_or(|by| transactions[by] == State::Aborted)
        };
        let all: Vec<i64> = self
            .rows
            .iter()
            .filter(|(_, versions)| versions.iter().any(lives))
            .map(|(number, _)| *number)
            .collect();
        if all.is_empty() {
            return;
        }
        let number = all[usize::from(choice / 8) % all.len()];
        let Some(versions) = self.rows.get_mut(&number) else { return };
        let key = versions[0].key;
        for version in versions.iter_mut().filter(|version| lives(version)) {
            version.ended_by = Some(transaction);
        }
        if choice & 1 == 0 {
            versions.push(Version { key, covered: false, by: transaction, ended_by: None });
        }
    }

    fn raise(&mut self, me: usize, choice: u8) {
        let raising = std::mem::replace(&mut self.raisings[me], Raising::No);
        self.raisings[me] = match raising {
            Raising::No => {
                self.now += 700_000;
                let lowest = self.writers.iter().filter_map(|writer| writer.low).min().unwrap_or(i64::MAX);
                match self.low_water.begin(self.now, self.next_number - 1, lowest) {
                    Some(raise) => Raising::Begun(raise, self.low_water.next_turns(4)),
                    None => Raising::No,
                }
            }
            Raising::Begun(raise, turns) => {
                let entering = self.writers.iter().filter_map(|writer| writer.entering).min();
                let (entering, snapshot) = (entering.unwrap_or(i64::MAX), self.snapshot());
                let (at, walked) = (raise.from, Walked::default());
                Raising::Walking { raise, turns, entering, snapshot, at, walked, stopped: false }
            }
            Raising::Walking { raise, turns, entering, snapshot, at, mut walked, stopped } => {
                let next =
                    self.rows.range(at..).next().filter(|(number, _)| **number < raise.to.min(entering));
                let next = next.filter(|_| !stopped && !choice.is_multiple_of(16));
                if let Some((number, versions)) = next {
                    let (number, mut stopped) = (*number, false);
                    for version in versions.clone() {
                        if version.covered && self.may_live(&version, &snapshot) {
                            stopped |= !walked.meet(&raise, number, version.key, true);
                        }
                    }
                    let at = if stopped { number } else { number + 1 };
                    Raising::Walking { raise, turns, entering, snapshot, at, walked, stopped }
                } else {
                    let again = self.look_again(&raise, &turns, entering, &snapshot);
                    self.low_water.finish(&raise, at, &walked, 0, &again, 10);
                    Raising::No
                }
            }
        }
    }

    fn look_again(
        &self,
        raise: &Raise,
        turns: &[Survivor],
        entering: i64,
        snapshot: &BTreeSet<usize>,
    ) -> Vec<(Survivor, Option<Survivor>)> {
        if entering < raise.from {
            return Vec::new();
        }
        let lives = |number: &i64, versions: &Vec<Version>, survivor: &Survivor| {
            let is_one = if survivor.key == 0 {
                *number == survivor.number
            } else {
                versions[0].key == Some(survivor.key) && (survivor.number..raise.from).contains(number)
            };
            is_one && versions.iter().any(|version| version.covered && self.may_live(version, snapshot))
        };
        turns
            .iter()
            .map(|survivor| {
                let first = self.rows.iter().find(|(number, versions)| lives(number, versions, survivor));
                (*survivor, first.map(|(number, _)| survivor.moved_to(*number)))
            })
            .collect()
    }

    fn read(&mut self) -> Result<(), TestCaseError> {
        let Some(snapshot) = self.reader.take() else {
            self.reader = Some(self.snapshot());
            return Ok(());
        };
        let mark = self.low_water.mark();
        for (number, versions) in self.rows.range(..mark) {
            for version in versions.iter().filter(|version| version.covered) {
                let stands = self.low_water.survivors().iter().any(|survivor| match version.key {
                    Some(key) => survivor.key == key && survivor.number <= *number,
                    None => survivor.key == 0 && survivor.number == *number,
                });
                // What has ended since the snapshot may be below the mark.
                let is_over = version.ended_by.is_some_and(|by| self.transactions[by] == State::Committed);
                prop_assert!(
                    stands || is_over || !Model::sees(version, &snapshot),
                    "{number} {version:?} is below {mark} and no survivor"
                );
            }
        }
        Ok(())
    }
}

fn run(events: &[(u8, u8)]) -> Result<Model, TestCaseError> {
    let mut model = Model::new();
    for (who, choice) in events {
        match who % 12 {
            0..=5 => model.writer(usize::from(who % 3), *choice),
            6..=9 => model.raise(usize::from(who % 2), *choice),
            _ => model.read()?,
        }
    }
    Ok(model)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_below_the_mark_but_survivors(
        events in prop::collection::vec((any::<u8>(), any::<u8>()), 0..400)
    ) {
        run(&events)?;
    }
}
