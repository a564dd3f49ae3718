//! `outbox.topic`: what operators have set per topic.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan::Scan;
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::row::{Fields, Read, TableShape};
use crate::pg::rows::table::{Against, Outcome, Table, Wait};
use crate::pg::value::datum::Text;
use std::collections::HashMap;

/// What an operator has set for a topic; None means: as the setting of that name.
#[derive(Clone, Copy, Default)]
pub struct TopicRow {
    pub paused: bool,
    pub max_attempts: Option<i32>,
    pub backoff_seconds: Option<i32>,
    pub backoff_max_seconds: Option<i32>,
    pub lease_seconds: Option<i32>,
    pub batch_size: Option<i32>,
    /// False if None.
    pub block_on_dead: Option<bool>,
}

impl TopicRow {
    /// True if a dead message keeps the younger ones of its key from being delivered.
    pub fn blocks_when_dead(&self) -> bool {
        self.block_on_dead.unwrap_or(false)
    }
}

pub enum Topics {}

impl TableShape for Topics {
    const TABLE: Object = Object::Topic;
    type Row<'a> = TopicRow;
}

impl Read for Topics {
    fn read(fields: &Fields<'_>) -> TopicRow {
        TopicRow {
            paused: fields.get(1),
            max_attempts: fields.get_opt(2),
            backoff_seconds: fields.get_opt(3),
            backoff_max_seconds: fields.get_opt(4),
            lease_seconds: fields.get_opt(5),
            batch_size: fields.get_opt(6),
            block_on_dead: fields.get_opt(8),
        }
    }
}

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

    /// Keeps the rules of `topic`, which an operator has set, as they are until the transaction ends. False if another
    /// has changed them, or, without waiting, is changing them.
    pub fn hold(&mut self, topic: Text<'_>, wait: Wait) -> Result<bool, Error> {
        if self.held.as_deref() == Some(topic.bytes()) {
            return Ok(true);
        }
        let mut scan = Scan::open(self.table, Object::TopicPkey, self.snapshot, 1)?;
        scan.start([Key::equal(1, &topic)]);
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
        scan.start([Key::equal(1, topic)]);
        Ok(scan.next().map(|found| found.row).unwrap_or_default())
    }
}
