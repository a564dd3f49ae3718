//! Walking over what an index has of one topic, dead entries included.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan::{RowOfEntry, Scan};
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::Table;
use crate::pg::value::datum::{Text, Time};
use crate::tables::delivery::Deliveries;
use std::ops::ControlFlow;

/// The indexes by topic, and by what else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Ready and leased deliveries, by number.
    Ready,
    /// Waiting ones, by the time they are due.
    Waiting,
    /// Parked ones, by number.
    Parked,
    /// Dead ones, by number.
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// How far a walk may go: rows, and entries without a row, at least one of each.
#[derive(Clone, Copy)]
pub struct Limit {
    pub rows: usize,
    pub remains: usize,
}

/// What a walk met.
pub struct Walked {
    /// Entries whose row is there, or was not long ago.
    pub entries: usize,
    /// Where it stopped before the end: a number or time.
    pub left_at: Option<i64>,
}

/// The deliveries of one index.
pub struct Range<'t> {
    scan: Scan<'t, Deliveries>,
    index: Index,
    table: &'t Table<Deliveries>,
    snapshot: &'t Latest,
}

impl<'t> Range<'t> {
    pub fn open(table: &'t Table<Deliveries>, snapshot: &'t Latest, index: Index) -> Result<Self, Error> {
        Ok(Range {
            scan: Scan::open_for_entries(table, index.object(), snapshot, 3)?,
            index,
            table,
            snapshot,
        })
    }

    /// The topics that have an entry.
    pub fn topics(&self) -> Result<Vec<Text<'static>>, Error> {
        let mut scan = Scan::open_for_entries(self.table, self.index.object(), self.snapshot, 1)?;
        let mut topics: Vec<Text<'static>> = Vec::new();
        let nothing = Text::new(b"");
        loop {
            crate::pg::session::server::check_for_interrupts();
            let last = topics.last().unwrap_or(&nothing);
            scan.start([Key::above(1, last)]);
            if !scan.step() {
                return Ok(topics);
            }
            topics.push(scan.entry().text.copied());
        }
    }

    /// Walks over the entries of `topic` from `first` to `last`, or the other way, shows each row that is there to
    /// `visit`, and stops when that says so, or at the limits.
    pub fn walk(
        &mut self,
        topic: Text<'_>,
        (first, last): (i64, i64),
        direction: Direction,
        limit: Limit,
        mut visit: impl FnMut(RowOfEntry<'_, 't, Deliveries>) -> ControlFlow<()>,
    ) -> Walked {
        self.start(topic, first, last, direction);
        let mut walked = Walked { entries: 0, left_at: None };
        let Limit { mut rows, mut remains } = limit;
        while self.scan.step() {
            crate::pg::session::server::check_for_interrupts();
            let go_on = match self.scan.row_of_entry() {
                Some(row) => {
                    rows -= 1;
                    visit(row)
                }
                None => {
                    remains -= 1;
                    ControlFlow::Continue(())
                }
            };
            walked.entries += usize::from(!self.scan.entry_is_over());
            if rows == 0 || remains == 0 || go_on.is_break() {
                walked.left_at = Some(self.scan.entry().at);
                break;
            }
        }
        walked
    }

    fn start(&mut self, topic: Text<'_>, first: i64, last: i64, direction: Direction) {
        let (from, to) = match self.index {
            Index::Ready | Index::Parked | Index::Dead => (Key::at_least(2, &first), Key::at_most(2, &last)),
            Index::Waiting => (Key::at_least(2, &Time(first)), Key::at_most(2, &Time(last))),
        };
        let keys = [Key::equal(1, &topic), from, to];
        match direction {
            Direction::Forward => self.scan.start(keys),
            Direction::Backward => self.scan.start_backward(keys),
        }
    }
}

impl Index {
    pub fn object(self) -> Object {
        match self {
            Index::Ready => Object::DeliveryReady,
            Index::Waiting => Object::DeliveryWaitingTopic,
            Index::Parked => Object::DeliveryParked,
            Index::Dead => Object::DeliveryDead,
        }
    }
}
