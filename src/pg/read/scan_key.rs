//! Conditions of an index scan.

use crate::pg::value::datum::{Column, Text, Time};
use pgrx::pg_sys;
use uuid::Uuid;

/// A column whose values are compared: the functions of the operators.
pub trait Ordered<'a>: Column<'a> {
    const BELOW: u32;
    const AT_MOST: u32;
    const EQUAL: u32;
    const AT_LEAST: u32;
    const ABOVE: u32;
}

macro_rules! ordered {
    ($type:ty: $below:ident, $at_most:ident, $equal:ident, $at_least:ident, $above:ident) => {
        impl<'a> Ordered<'a> for $type {
            const BELOW: u32 = pg_sys::$below;
            const AT_MOST: u32 = pg_sys::$at_most;
            const EQUAL: u32 = pg_sys::$equal;
            const AT_LEAST: u32 = pg_sys::$at_least;
            const ABOVE: u32 = pg_sys::$above;
        }
    };
}
ordered!(i64: F_INT8LT, F_INT8LE, F_INT8EQ, F_INT8GE, F_INT8GT);
ordered!(Time: F_TIMESTAMPTZ_LT, F_TIMESTAMPTZ_LE, F_TIMESTAMPTZ_EQ, F_TIMESTAMPTZ_GE, F_TIMESTAMPTZ_GT);
ordered!(Text<'a>: F_TEXT_LT, F_TEXT_LE, F_TEXTEQ, F_TEXT_GE, F_TEXT_GT);
ordered!(Uuid: F_UUID_LT, F_UUID_LE, F_UUID_EQ, F_UUID_GE, F_UUID_GT);

/// A condition on a column of the index, counted from 1. What its value points to must live as long as the scan uses
/// it.
pub struct Key {
    column: i16,
    strategy: u32,
    operator: u32,
    value: pg_sys::Datum,
}

impl Key {
    pub fn below<'a, T: Ordered<'a>>(column: i16, value: &T) -> Key {
        Key { column, strategy: pg_sys::BTLessStrategyNumber, operator: T::BELOW, value: value.datum() }
    }

    pub fn at_most<'a, T: Ordered<'a>>(column: i16, value: &T) -> Key {
        Key {
            column,
            strategy: pg_sys::BTLessEqualStrategyNumber,
            operator: T::AT_MOST,
            value: value.datum(),
        }
    }

    pub fn equal<'a, T: Ordered<'a>>(column: i16, value: &T) -> Key {
        Key { column, strategy: pg_sys::BTEqualStrategyNumber, operator: T::EQUAL, value: value.datum() }
    }

    pub fn at_least<'a, T: Ordered<'a>>(column: i16, value: &T) -> Key {
        Key {
            column,
            strategy: pg_sys::BTGreaterEqualStrategyNumber,
            operator: T::AT_LEAST,
            value: value.datum(),
        }
    }

    pub fn above<'a, T: Ordered<'a>>(column: i16, value: &T) -> Key {
        Key { column, strategy: pg_sys::BTGreaterStrategyNumber, operator: T::ABOVE, value: value.datum() }
    }

    pub fn into_data(self) -> pg_sys::ScanKeyData {
        let mut data = pg_sys::ScanKeyData::default();
        // SAFETY: fills the entry in; text columns have collation "C", which ScanKeyInit assumes.
        unsafe {
            pg_sys::ScanKeyInit(
                &mut data,
                self.column,
                self.strategy as u16,
                self.operator.into(),
                self.value,
            );
        }
        data
    }
}
