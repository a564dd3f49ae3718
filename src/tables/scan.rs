//! Deliveries and rights in the order of an index.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan::Scan;
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::Table;
use crate::pg::value::datum::{Text, Time};
use crate::tables::access::Rights;
use crate::tables::delivery::Deliveries;

impl<'t> Scan<'t, Rights> {
    /// All of them.
    pub fn rights(table: &'t Table<Rights>, snapshot: &'t Latest) -> Result<Self, Error> {
        let mut scan = Scan::open(table, Object::AccessNumber, snapshot, 0)?;
        scan.start([]);
        Ok(scan)
    }
}

impl<'t> Scan<'t, Deliveries> {
    /// Deliveries of `topic` that are ready or leased, or all deliveries, in index order from number `start` on.
    pub fn above_mark(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'_>>,
        start: i64,
    ) -> Result<Self, Error> {
        let from = |column| Key::at_least(column, &start);
        match topic {
            Some(topic) => {
                let mut scan = Scan::open(table, Object::DeliveryReady, snapshot, 2)?;
                scan.start([Key::equal(1, &topic), from(2)]);
                Ok(scan)
            }
            None => {
                let mut scan = Scan::open(table, Object::DeliveryPkey, snapshot, 1)?;
                scan.start([from(1)]);
                Ok(scan)
            }
        }
    }

    /// Dead deliveries of `topic` in arrival order.
    pub fn dead(table: &'t Table<Deliveries>, snapshot: &'t Latest, topic: Text<'_>) -> Result<Self, Error> {
        let mut scan = Scan::open(table, Object::DeliveryDead, snapshot, 1)?;
        scan.start([Key::equal(1, &topic)]);
        Ok(scan)
    }

    /// Parked deliveries of `topic` in arrival order.
    pub fn parked(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Text<'_>,
    ) -> Result<Self, Error> {
        let mut scan = Scan::open(table, Object::DeliveryParked, snapshot, 1)?;
        scan.start([Key::equal(1, &topic)]);
        Ok(scan)
    }

    /// Waiting deliveries of `topic`, or of any, that became due from `start` to `now`, the longest due first.
    pub fn due(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'_>>,
        start: Time,
        now: Time,
    ) -> Result<Self, Error> {
        let from = |column| Key::at_least(column, &start);
        let to = |column| Key::at_most(column, &now);
        match topic {
            Some(topic) => {
                let mut scan = Scan::open(table, Object::DeliveryWaitingTopic, snapshot, 3)?;
                scan.start([Key::equal(1, &topic), from(2), to(2)]);
                Ok(scan)
            }
            None => {
                let mut scan = Scan::open(table, Object::DeliveryWaiting, snapshot, 2)?;
                scan.start([from(1), to(1)]);
                Ok(scan)
            }
        }
    }
}

/// When the next message of `topic`, or of any, is due after `now`.
pub fn next_due(
    table: &Table<Deliveries>,
    snapshot: &Latest,
    topic: Option<Text<'_>>,
    now: Time,
) -> Result<Option<Time>, Error> {
    let mut scan = Scan::due(table, snapshot, topic, now.plus_micros(1), Time(i64::MAX))?;
    Ok(scan.next().and_then(|found| found.row.available_at))
}
