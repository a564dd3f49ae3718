//! Rows in index order, with a fresh snapshot.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::read::scan_key::Key;
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::row::{Fields, Read};
use crate::pg::rows::table::{RowId, Table};
use crate::pg::value::datum::{Column, Text};
use crate::pg::version;
use pgrx::pg_sys;
use std::marker::PhantomData;

/// A scan of one index of `R`'s table.
pub struct Scan<'t, R> {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    direction: pg_sys::ScanDirection::Type,
    table: PhantomData<&'t Table<R>>,
}

/// A row found, until the scan moves on.
pub struct Found<'s, R: Read> {
    pub id: RowId,
    pub row: R::Row<'s>,
}

impl<'t, R: Read> Scan<'t, R> {
    pub fn open(
        table: &'t Table<R>,
        index: Object,
        snapshot: &'t Latest,
        keys: usize,
    ) -> Result<Self, Error> {
        // SAFETY: the snapshot outlives the scan by its lifetime.
        unsafe { Scan::open_with(table, index, snapshot.as_ptr(), keys) }
    }

    /// # Safety
    /// The snapshot outlives the scan.
    pub unsafe fn open_with(
        table: &'t Table<R>,
        index: Object,
        snapshot: pg_sys::Snapshot,
        keys: usize,
    ) -> Result<Self, Error> {
        let index = catalog::oid(index)?;
        // SAFETY: table and snapshot outlive the scan; the rest is freed on drop or by the abort.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let slot = pg_sys::table_slot_create(table.relation(), std::ptr::null_mut());
            let scan = version::index_beginscan(table.relation(), index, snapshot, keys as i32);
            let direction = pg_sys::ScanDirection::ForwardScanDirection;
            Ok(Scan { scan, index, slot, direction, table: PhantomData })
        }
    }

    pub fn start<const N: usize>(&mut self, keys: [Key; N]) {
        self.direction = pg_sys::ScanDirection::ForwardScanDirection;
        let mut data = keys.map(Key::into_data);
        // SAFETY: the scan was opened for N keys and copies them.
        unsafe { pg_sys::index_rescan(self.scan, data.as_mut_ptr(), N as i32, std::ptr::null_mut(), 0) }
    }

    /// As [`Scan::start`], from the end.
    pub fn start_backward<const N: usize>(&mut self, keys: [Key; N]) {
        self.start(keys);
        self.direction = pg_sys::ScanDirection::BackwardScanDirection;
    }

    /// The next row in index order.
    pub fn next(&mut self) -> Option<Found<'_, R>> {
        // SAFETY: the slot holds the row, pinned, until the scan moves on; its columns are R's.
        unsafe {
            if !pg_sys::index_getnext_slot(self.scan, self.direction, self.slot) {
                return None;
            }
            pg_sys::slot_getallattrs(self.slot);
        }
        Some(self.found())
    }

    /// As [`Scan::entry`] needs it.
    pub fn open_for_entries(
        table: &'t Table<R>,
        index: Object,
        snapshot: &'t Latest,
        keys: usize,
    ) -> Result<Self, Error> {
        let scan = Scan::open(table, index, snapshot, keys)?;
        // SAFETY: the scan is open and not started.
        unsafe { (*scan.scan).xs_want_itup = true };
        Ok(scan)
    }

    /// Of a version that an open transaction has written: the transaction that has replaced or removed it, and has not
    /// taken that back. A dirty snapshot does not tell.
    pub fn ended_by(&self) -> Option<pg_sys::TransactionId> {
        // SAFETY: called only after `next` has found a row, which the slot still holds, with its buffer pinned; the
        // slots of a heap are of this kind. Its header is read under the buffer's lock, as the server does.
        unsafe {
            let slot: *mut pg_sys::BufferHeapTupleTableSlot = self.slot.cast();
            let header = (*(*slot).base.tuple).t_data;
            pg_sys::LockBuffer((*slot).buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let flags = u32::from((*header).t_infomask);
            let is_multi = flags & pg_sys::HEAP_XMAX_IS_MULTI != 0;
            let lock_only = flags & pg_sys::HEAP_XMAX_LOCK_ONLY != 0
                || !is_multi && flags & pg_sys::HEAP_LOCK_MASK == pg_sys::HEAP_XMAX_EXCL_LOCK;
            let ended_by = match flags & pg_sys::HEAP_XMAX_INVALID != 0 || lock_only {
                true => pg_sys::InvalidTransactionId,
                false if is_multi => pg_sys::HeapTupleGetUpdateXid(header),
                false => (*header).t_choice.t_heap.t_xmax,
            };
            pg_sys::LockBuffer((*slot).buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            let counts = ended_by != pg_sys::InvalidTransactionId
                && (pg_sys::TransactionIdIsInProgress(ended_by) || pg_sys::TransactionIdDidCommit(ended_by));
            counts.then_some(ended_by)
        }
    }

    /// Pages of the index, but for the one that describes it.
    pub fn index_pages(&self) -> u32 {
        // SAFETY: the index is open.
        unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.index, pg_sys::ForkNumber::MAIN_FORKNUM) }
            .saturating_sub(1)
    }

    /// What holds the row that the scan is at.
    pub fn slot(&self) -> *mut pg_sys::TupleTableSlot {
        self.slot
    }

    /// The row that the scan is at.
    pub fn found(&self) -> Found<'_, R> {
        // SAFETY: called only after `next` has found a row, which the slot still holds.
        unsafe {
            let fields =
                Fields { values: (*self.slot).tts_values, nulls: (*self.slot).tts_isnull, row: PhantomData };
            Found { id: RowId((*self.slot).tts_tid), row: R::read(&fields) }
        }
    }
}

/// An entry of an index by a text and something else; its row may be gone.
pub struct Entry<'s> {
    pub text: Text<'s>,
    /// The number or time it is sorted by next. In an index by two texts it means nothing.
    pub at: i64,
}

impl Entry<'_> {
    /// # Safety
    /// `entry` has at most three columns, a text first, none of them null, and lives as long as the result.
    pub unsafe fn of(entry: pg_sys::IndexTuple, shape: pg_sys::TupleDesc) -> Self {
        let (mut values, mut nulls) = ([pg_sys::Datum::from(0); 3], [false; 3]);
        // SAFETY: an entry has at most three columns, of which the first is a text and the second a number or time.
        unsafe {
            pg_sys::index_deform_tuple(entry, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            Entry { text: Text::from_datum(values[0]), at: i64::from_datum(values[1]) }
        }
    }
}

/// A row that was found, and not read yet.
pub struct RowOfEntry<'s, 't, R>(&'s Scan<'t, R>);

impl<R: Read> RowOfEntry<'_, '_, R> {
    pub fn read(&self) -> R::Row<'_> {
        // SAFETY: the slot holds the row, pinned, until the scan moves on.
        unsafe { pg_sys::slot_getallattrs(self.0.slot) };
        self.0.found().row
    }
}

impl<'t, R: Read> Scan<'t, R> {
    /// Moves to the next entry, whether there is a row to it or not. False at the end.
    pub fn step(&mut self) -> bool {
        // SAFETY: the scan is open and started.
        unsafe { !pg_sys::index_getnext_tid(self.scan, self.direction).is_null() }
    }

    /// The entry that the scan is at, of an index by a text.
    pub fn entry(&self) -> Entry<'_> {
        // SAFETY: asked to, the scan keeps the entry until it moves on.
        unsafe { Entry::of((*self.scan).xs_itup, (*self.scan).xs_itupdesc) }
    }

    /// The same, of an index by a number.
    pub fn entry_number(&self) -> i64 {
        let (mut values, mut nulls) = ([pg_sys::Datum::from(0); 2], [false; 2]);
        // SAFETY: asked to, the scan keeps the entry until it moves on; it has two columns, a number first, none null.
        unsafe {
            pg_sys::index_deform_tuple(
                (*self.scan).xs_itup,
                (*self.scan).xs_itupdesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            i64::from_datum(values[0])
        }
    }

    /// The row of that entry, if the snapshot sees one.
    pub fn row_of_entry(&mut self) -> Option<RowOfEntry<'_, 't, R>> {
        // SAFETY: the scan is at an entry.
        unsafe { pg_sys::index_fetch_heap(self.scan, self.slot) }.then_some(RowOfEntry(self))
    }

    /// True if, as [`Scan::row_of_entry`] has found, nobody can see a row any more.
    pub fn entry_is_over(&self) -> bool {
        // SAFETY: reads a flag of an open scan.
        unsafe { (*self.scan).kill_prior_tuple }
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
