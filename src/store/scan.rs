//! Looking rows up by index, in index order, with a fresh snapshot.

use super::catalog::{self, Object};
use super::record::{Deliveries, Envelopes, Fields, Read, TopicRow, Topics};
use super::snapshot::Latest;
use super::table::{Access, RowId, Table};
use super::value::{Column, Text, Time};
use super::version;
use crate::error::Error;
use pgrx::pg_sys;
use std::collections::HashMap;
use std::marker::PhantomData;
use uuid::Uuid;

/// A condition on a column of the index, counted from 1.
struct Key {
    column: i16,
    strategy: u32,
    operator: pg_sys::Oid,
    value: pg_sys::Datum,
}

impl Key {
    fn new<'a>(column: i16, strategy: u32, operator: u32, value: &impl Column<'a>) -> Key {
        Key { column, strategy, operator: operator.into(), value: value.datum() }
    }

    fn text(column: i16, value: &Text<'_>) -> Key {
        Key::new(column, pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ, value)
    }

    fn number(column: i16, value: &i64) -> Key {
        Key::new(column, pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ, value)
    }
}

/// A scan of one index of `R`'s table.
pub struct Scan<'t, R> {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    table: PhantomData<&'t Table<R>>,
}

/// A row found, until the scan moves on.
pub struct Found<'s, R: Read> {
    pub id: RowId,
    pub row: R::Row<'s>,
}

impl<'t, R: Read> Scan<'t, R> {
    fn open(table: &'t Table<R>, index: Object, snapshot: &'t Latest, keys: usize) -> Result<Self, Error> {
        let index = catalog::oid(index)?;
        // SAFETY: table and snapshot outlive the scan by their lifetimes; the rest is freed on drop or by the abort.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let slot = pg_sys::table_slot_create(table.relation(), std::ptr::null_mut());
            let scan = version::index_beginscan(table.relation(), index, snapshot.as_ptr(), keys as i32);
            Ok(Scan { scan, index, slot, table: PhantomData })
        }
    }

    fn start<const N: usize>(&mut self, keys: [Key; N]) {
        let mut data = [pg_sys::ScanKeyData::default(); N];
        for (data, key) in data.iter_mut().zip(keys) {
            // SAFETY: fills the entry in; text columns have collation "C", which ScanKeyInit assumes.
            unsafe { pg_sys::ScanKeyInit(data, key.column, key.strategy as u16, key.operator, key.value) }
        }
        // SAFETY: the scan was opened for N keys and copies them.
        unsafe { pg_sys::index_rescan(self.scan, data.as_mut_ptr(), N as i32, std::ptr::null_mut(), 0) }
    }

    /// The next row in index order.
    pub fn next(&mut self) -> Option<Found<'_, R>> {
        // SAFETY: the slot holds the row, pinned, until the scan moves on; its columns are R's.
        unsafe {
            if !pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot)
            {
                return None;
            }
            pg_sys::slot_getallattrs(self.slot);
            let fields =
                Fields { values: (*self.slot).tts_values, nulls: (*self.slot).tts_isnull, row: PhantomData };
            Some(Found { id: RowId((*self.slot).tts_tid), row: R::read(&fields) })
        }
    }
}

impl<'t> Scan<'t, Deliveries> {
    /// Deliveries of `topic` that are ready or leased, or all deliveries, in arrival order from number `start` on.
    pub fn in_order(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'_>>,
        start: i64,
    ) -> Result<Self, Error> {
        let from = |column| Key::new(column, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT8GE, &start);
        match topic {
            Some(topic) => {
                let mut scan = Scan::open(table, Object::DeliveryReady, snapshot, 2)?;
                scan.start([Key::text(1, &topic), from(2)]);
                Ok(scan)
            }
            None => {
                let mut scan = Scan::open(table, Object::DeliveryPkey, snapshot, 1)?;
                scan.start([from(1)]);
                Ok(scan)
            }
        }
    }

    /// Waiting deliveries of `topic`, or of any, that became due from `start` to `now`, the longest due first.
    pub fn due(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'_>>,
        start: Time,
        now: Time,
    ) -> Result<Self, Error> {
        let from =
            |column| Key::new(column, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_TIMESTAMPTZ_GE, &start);
        let to = |column| Key::new(column, pg_sys::BTLessEqualStrategyNumber, pg_sys::F_TIMESTAMPTZ_LE, &now);
        match topic {
            Some(topic) => {
                let mut scan = Scan::open(table, Object::DeliveryWaitingTopic, snapshot, 3)?;
                scan.start([Key::text(1, &topic), from(2), to(2)]);
                Ok(scan)
            }
            None => {
                let mut scan = Scan::open(table, Object::DeliveryWaiting, snapshot, 2)?;
                scan.start([from(1), to(1)]);
                Ok(scan)
            }
        }
    }

    /// For [`Scan::seek`].
    pub fn by_seq(table: &'t Table<Deliveries>, snapshot: &'t Latest) -> Result<Self, Error> {
        Scan::open(table, Object::DeliveryPkey, snapshot, 1)
    }

    /// The delivery numbered `seq`.
    pub fn seek(&mut self, seq: i64) -> Option<Found<'_, Deliveries>> {
        self.start([Key::number(1, &seq)]);
        self.next()
    }
}

impl<'t> Scan<'t, Envelopes> {
    /// For [`Scan::seek`].
    pub fn by_seq(table: &'t Table<Envelopes>, snapshot: &'t Latest) -> Result<Self, Error> {
        Scan::open(table, Object::EnvelopePkey, snapshot, 1)
    }

    /// The envelope numbered `seq`.
    pub fn seek(&mut self, seq: i64) -> Option<Found<'_, Envelopes>> {
        self.start([Key::number(1, &seq)]);
        self.next()
    }
}

/// The number of the message `id`, if it is stored.
pub fn seq_of(id: Uuid, snapshot: &Latest) -> Result<Option<i64>, Error> {
    let table = Table::<Envelopes>::open(Access::Read)?;
    let mut scan = Scan::open(&table, Object::EnvelopeId, snapshot, 1)?;
    scan.start([Key::new(1, pg_sys::BTEqualStrategyNumber, pg_sys::F_UUID_EQ, &id)]);
    let seq = scan.next().map(|found| found.row.seq);
    Ok(seq)
}

/// What operators have set per topic, looked up once a call and topic.
pub struct TopicRules<'t> {
    table: &'t Table<Topics>,
    snapshot: &'t Latest,
    known: HashMap<Vec<u8>, TopicRow>,
}

impl<'t> TopicRules<'t> {
    pub fn new(table: &'t Table<Topics>, snapshot: &'t Latest) -> Self {
        TopicRules { table, snapshot, known: HashMap::new() }
    }

    /// The rules of `topic`; all defaults if nobody has set any.
    pub fn of(&mut self, topic: Text<'_>) -> Result<TopicRow, Error> {
        if let Some(row) = self.known.get(topic.bytes()) {
            return Ok(*row);
        }
        let mut scan = Scan::open(self.table, Object::TopicPkey, self.snapshot, 1)?;
        scan.start([Key::text(1, &topic)]);
        let row = scan.next().map(|found| found.row).unwrap_or_default();
        self.known.insert(topic.bytes().to_vec(), row);
        Ok(row)
    }
}

impl<R> Drop for Scan<'_, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: everything was opened by us and is used by nobody else.
        unsafe {
            pg_sys::index_endscan(self.scan);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::index_close(self.index, pg_sys::AccessShareLock as i32);
        }
    }
}
