//! All versions of deliveries that an index leads to.

use crate::error::Error;
use crate::pg::catalog::Object;
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::read::versions::AllVersions;
use crate::pg::rows::table::Table;
use crate::pg::value::datum::{Text, Time};
use crate::tables::delivery::Deliveries;

impl<'t> AllVersions<'t, Deliveries> {
    /// Of deliveries from number `from` on.
    pub fn from_number(table: &'t Table<Deliveries>, snapshot: &'t Latest, from: i64) -> Result<Self, Error> {
        let mut versions = AllVersions::open(table, snapshot, Object::DeliveryPkey, 1)?;
        versions.start([Key::at_least(1, &from)]);
        Ok(versions)
    }

    /// Of the delivery with that number.
    pub fn of_number(table: &'t Table<Deliveries>, snapshot: &'t Latest, number: i64) -> Result<Self, Error> {
        let mut versions = AllVersions::open(table, snapshot, Object::DeliveryPkey, 1)?;
        versions.start([Key::equal(1, &number)]);
        Ok(versions)
    }

    /// Of deliveries that wait for a time from `from` on, in that order; of `topic`, or of all.
    pub fn waiting(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        topic: Option<Text<'_>>,
        from: Time,
    ) -> Result<Self, Error> {
        let since = |column| Key::at_least(column, &from);
        Ok(match topic {
            Some(topic) => {
                let mut versions = AllVersions::open(table, snapshot, Object::DeliveryWaitingTopic, 2)?;
                versions.start([Key::equal(1, &topic), since(2)]);
                versions
            }
            None => {
                let mut versions = AllVersions::open(table, snapshot, Object::DeliveryWaiting, 1)?;
                versions.start([since(1)]);
                versions
            }
        })
    }

    /// Of deliveries of a key, by its hash, from number `from` on.
    pub fn of_key(
        table: &'t Table<Deliveries>,
        snapshot: &'t Latest,
        index: Object,
        hash: i64,
        from: i64,
    ) -> Result<Self, Error> {
        let mut versions = AllVersions::open(table, snapshot, index, 2)?;
        versions.start([Key::equal(1, &hash), Key::at_least(2, &from)]);
        Ok(versions)
    }
}
