//! Rows as Rust values: what a table tells of itself.

use crate::pg::catalog::Object;
use crate::pg::value::datum::Column;
use pgrx::pg_sys;
use std::marker::PhantomData;

/// Rows that are in the same partial indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKind(pub u8);

impl RowKind {
    /// How many a table may have.
    pub const COUNT: usize = 8;

    pub const fn bit(self) -> u8 {
        1 << self.0
    }
}

/// A partial index, and the kinds whose rows it holds, a bit each.
pub struct Partial {
    pub index: Object,
    pub kinds: u8,
}

/// A table and the shape of its rows.
pub trait TableShape {
    const TABLE: Object;
    type Row<'a>;
}

/// A table that is read by index.
pub trait Read: TableShape {
    fn read<'a>(fields: &Fields<'a>) -> Self::Row<'a>;
}

/// A table that is written.
pub trait Write: TableShape {
    /// The columns, from 0, that a trigger may change: nothing that is decided here depends on them.
    const FREE: &'static [usize] = &[];
    /// Rows are updated, in all columns but the first.
    const UPDATED: bool = false;
    /// The partial indexes, and which rows they hold.
    const PARTIAL: &'static [Partial] = &[];
    /// What decides which of them a row is in.
    fn kind(_: &Self::Row<'_>) -> Option<RowKind> {
        None
    }
    fn write(row: &Self::Row<'_>, fields: &mut FieldsMut<'_>);
}

/// A table with an index that decides whether a row is already there.
pub trait Unique: Write {
    const ARBITER: Object;
}

/// The columns of a row in a scan, read by position.
pub struct Fields<'a> {
    pub values: *const pg_sys::Datum,
    pub nulls: *const bool,
    pub row: PhantomData<&'a ()>,
}

impl<'a> Fields<'a> {
    /// A column that the table declares NOT NULL.
    pub fn get<T: Column<'a>>(&self, place: usize) -> T {
        // SAFETY: the slot holds all columns of the table; this one has T's type and is never null.
        unsafe { T::from_datum(*self.values.add(place)) }
    }

    pub fn get_opt<T: Column<'a>>(&self, place: usize) -> Option<T> {
        // SAFETY: the slot holds all columns of the table, this one of T's type.
        unsafe { (!*self.nulls.add(place)).then(|| T::from_datum(*self.values.add(place))) }
    }
}

/// The columns of a row about to be stored, written in order.
pub struct FieldsMut<'a> {
    pub values: &'a mut [pg_sys::Datum],
    pub nulls: &'a mut [bool],
    pub place: usize,
}

impl FieldsMut<'_> {
    pub fn put<'a, T: Column<'a>>(&mut self, value: &T) -> &mut Self {
        self.put_datum(Some(value.datum()))
    }

    pub fn put_opt<'a, T: Column<'a>>(&mut self, value: &Option<T>) -> &mut Self {
        self.put_datum(value.as_ref().map(Column::datum))
    }

    fn put_datum(&mut self, datum: Option<pg_sys::Datum>) -> &mut Self {
        self.nulls[self.place] = datum.is_none();
        self.values[self.place] = datum.unwrap_or(pg_sys::Datum::from(0));
        self.place += 1;
        self
    }
}
