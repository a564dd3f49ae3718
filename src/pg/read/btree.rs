//! Counting the entries of a B-tree by reading its pages one after the other, a few nanoseconds an entry.
//!
//! A scan would take ten times as long: it compares every entry. Here two comparisons tell where a whole page belongs.
//! The layout is that of version 4, of every B-tree that PostgreSQL 14 to 18 have made; a tree that is being changed
//! meanwhile is counted almost right.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::read::scan::Entry;
use pgrx::pg_sys;
use std::collections::HashMap;

/// Pages that are read; of more, every second, third … one.
const PAGES: u32 = 1 << 14;

/// Entries of one text from one number or time to another, both included.
#[derive(Clone, Copy)]
pub struct Span {
    pub from: i64,
    pub to: i64,
    pub entries: i64,
}

/// Counts the entries in each text's spans, which do not overlap. `index` is one by a text and a number or time, or by
/// two texts for spans without bounds.
pub fn count(index: Object, spans: &mut HashMap<Vec<u8>, Vec<Span>>) -> Result<(), Error> {
    let index = catalog::oid(index)?;
    // SAFETY: the index is open from here to there; each page is pinned and share-locked while it is looked at.
    unsafe {
        let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
        let strategy = pg_sys::GetAccessStrategy(pg_sys::BufferAccessStrategyType::BAS_BULKREAD);
        let pages = pg_sys::RelationGetNumberOfBlocksInFork(index, pg_sys::ForkNumber::MAIN_FORKNUM);
        let step = pages.div_ceil(PAGES).max(1);
        // The first page is the tree's own.
        for page in (1..pages).step_by(step as usize) {
            crate::pg::session::server::check_for_interrupts();
            let (fork, mode) = (pg_sys::ForkNumber::MAIN_FORKNUM, pg_sys::ReadBufferMode::RBM_NORMAL);
            let buffer = pg_sys::ReadBufferExtended(index, fork, page, mode, strategy);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let leaf = Leaf::of(pg_sys::BufferGetPage(buffer).cast(), (*index).rd_att);
            if let Some(leaf) = leaf {
                leaf.add_to(spans);
            }
            pg_sys::UnlockReleaseBuffer(buffer);
        }
        pg_sys::FreeAccessStrategy(strategy);
        pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
        for span in spans.values_mut().flatten() {
            span.entries *= i64::from(step);
        }
    }
    Ok(())
}

/// At the end of a page of a B-tree.
#[repr(C)]
struct Special {
    previous: u32,
    next: u32,
    level: u32,
    flags: u16,
    cycle: u16,
}

const DELETED: u16 = 1 << 2;
const META: u16 = 1 << 3;
const HALF_DEAD: u16 = 1 << 4;
/// In an entry's `t_info`: its row id is no row id.
const NO_ROW_ID: u16 = 0x2000;
/// Then, in that row id's offset: it is a list of rows with the same key, and how many.
const LIST: u16 = 0x2000;
const LIST_LENGTH: u16 = 0x0FFF;

/// A leaf with at least one entry.
struct Leaf {
    page: *mut pg_sys::PageHeaderData,
    shape: pg_sys::TupleDesc,
    first: usize,
    last: usize,
}

impl Leaf {
    /// # Safety
    /// `page` is a page of a B-tree as [`Entry::of`] needs it, locked against changes while the result is used.
    unsafe fn of(page: *mut pg_sys::PageHeaderData, shape: pg_sys::TupleDesc) -> Option<Leaf> {
        // SAFETY: an initialised page has a special area; the entries lie between header and `pd_lower`.
        unsafe {
            if (*page).pd_upper == 0 {
                return None;
            }
            let special = &*page.cast::<u8>().add((*page).pd_special.into()).cast::<Special>();
            if special.level != 0 || special.flags & (DELETED | META | HALF_DEAD) != 0 {
                return None;
            }
            let header = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);
            let items = (usize::from((*page).pd_lower) - header) / size_of::<pg_sys::ItemIdData>();
            // But on the last page, the first item is the upper bound.
            let first = usize::from(special.next != 0);
            (items > first).then_some(Leaf { page, shape, first, last: items - 1 })
        }
    }

    fn add_to(&self, spans: &mut HashMap<Vec<u8>, Vec<Span>>) {
        let (first, last) = (self.entry(self.first), self.entry(self.last));
        if first.text.bytes() != last.text.bytes() {
            for item in self.first..=self.last {
                let Entry { text, at } = self.entry(item);
                for span in spans.get_mut(text.bytes()).into_iter().flatten() {
                    if (span.from..=span.to).contains(&at) {
                        span.entries += self.rows(item);
                    }
                }
            }
            return;
        }
        for span in spans.get_mut(first.text.bytes()).into_iter().flatten() {
            if last.at < span.from || span.to < first.at {
                continue;
            }
            let within = span.from <= first.at && last.at <= span.to;
            span.entries += (self.first..=self.last)
                .filter(|item| within || (span.from..=span.to).contains(&self.entry(*item).at))
                .map(|item| self.rows(item))
                .sum::<i64>();
        }
    }

    fn item(&self, item: usize) -> (pg_sys::IndexTuple, bool) {
        // SAFETY: `item` is one of the page's, and points into the page.
        unsafe {
            let id = *(&raw const (*self.page).pd_linp).cast::<pg_sys::ItemIdData>().add(item);
            (self.page.cast::<u8>().add(id.lp_off() as usize).cast(), id.lp_flags() == pg_sys::LP_DEAD)
        }
    }

    fn entry(&self, item: usize) -> Entry<'_> {
        // SAFETY: entries of leaves have all columns of the index; they stay while the page is locked.
        unsafe { Entry::of(self.item(item).0, self.shape) }
    }

    /// How many rows an entry stands for: none if all of them are known to be gone.
    fn rows(&self, item: usize) -> i64 {
        let (entry, dead) = self.item(item);
        if dead {
            return 0;
        }
        // SAFETY: the entry starts with its row id and size.
        unsafe {
            let offset = (*entry).t_tid.ip_posid;
            let list = (*entry).t_info & NO_ROW_ID != 0 && offset & LIST != 0;
            if list { i64::from(offset & LIST_LENGTH) } else { 1 }
        }
    }
}
