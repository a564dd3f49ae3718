//! What operators have set per topic.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::datum::Text;
use crate::pg::scan::{Key, Scan};
use crate::pg::snapshot::Latest;
use crate::pg::table::{Against, Outcome, Table, Wait};
use crate::tables::row::{TopicRow, Topics};
use std::collections::HashMap;

/// The rules of topics, looked up once a call and topic.
pub struct TopicRules<'t> {
    table: &'t Table<Topics>,
    snapshot: &'t Latest,
    known: HashMap<Vec<u8>, TopicRow>,
    /// The one asked for last: most batches are of one topic.
    last: Option<(Vec<u8>, TopicRow)>,
    /// The one held last.
    held: Option<Vec<u8>>,
}

impl<'t> TopicRules<'t> {
    pub fn new(table: &'t Table<Topics>, snapshot: &'t Latest) -> Self {
        TopicRules { table, snapshot, known: HashMap::new(), last: None, held: None }
    }

    /// The rules of `topic`; all defaults if nobody has set any.
    pub fn of(&mut self, topic: Text<'_>) -> Result<TopicRow, Error> {
        let name = topic.bytes();
        if let Some((last, row)) = &self.last
            && last == name
        {
            return Ok(*row);
        }
        let row = match self.known.get(name) {
            Some(row) => *row,
            None => {
                let row = self.look_up(&topic)?;
                self.known.insert(name.to_vec(), row);
                row
            }
        };
        self.last = Some((name.to_vec(), row));
        Ok(row)
    }

    /// Keeps the rules of `topic`, which somebody has set, as they are until the transaction ends. False if somebody has
    /// changed them, or, without waiting, is changing them.
    pub fn hold(&mut self, topic: Text<'_>, wait: Wait) -> Result<bool, Error> {
        if self.held.as_deref() == Some(topic.bytes()) {
            return Ok(true);
        }
        let mut scan = Scan::open(self.table, Object::TopicPkey, self.snapshot, 1)?;
        scan.start([Key::text(1, &topic)]);
        let Some(id) = scan.next().map(|found| found.id) else { return Ok(false) };
        let held = self.table.lock(id, Against::Change, self.snapshot, wait) == Outcome::Done;
        self.held = held.then(|| topic.bytes().to_vec());
        Ok(held)
    }

    fn look_up(&self, topic: &Text<'_>) -> Result<TopicRow, Error> {
        if self.table.has_no_pages() {
            return Ok(TopicRow::default());
        }
        let mut scan = Scan::open(self.table, Object::TopicPkey, self.snapshot, 1)?;
        scan.start([Key::text(1, topic)]);
        Ok(scan.next().map(|found| found.row).unwrap_or_default())
    }
}
