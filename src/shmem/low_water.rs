//! The low-water mark of this installation, see `rules/low_water.rs`: raised by sessions that claim, noted by those
//! that write, read by all look-ups of deliveries by number or key. Without shared memory it is at the beginning.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::read::snapshot::Latest;
use crate::pg::rows::table::{RowId, Table};
use crate::pg::session::server;
use crate::pg::value::datum::{Text, Time};
use crate::rules::floor::IDLE;
use crate::rules::low_water::{LowWater, Survivor};
use crate::shmem::memory::{MARK_UNUSED, MarkHead, Shared};
use crate::shmem::{installations, pending};
use crate::tables::delivery::{Deliveries, Delivery, Place};
use crate::tables::find::Lookup;
use crate::tables::key::{KeyMessages, Part};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{Ordering::SeqCst, fence};

/// A delivery's number and the hash of its key.
pub type Numbered = (i64, Option<i64>);

/// What is known of the mark at one moment.
#[derive(Default)]
pub struct Known {
    installation: u64,
    index: usize,
    version: u64,
    /// Below it everything is over, but for the survivors.
    pub mark: i64,
    survivors: Vec<Survivor>,
    /// The lowest number of a survivor of a key.
    keys: HashMap<i64, i64>,
}

thread_local! {
    static KNOWN: RefCell<Rc<Known>> = RefCell::new(Rc::new(Known::default()));
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// What is known now. To be called once the snapshot is taken through which the rows are looked at.
pub fn known() -> Result<Rc<Known>, Error> {
    let installation = installations::current()?;
    let Some((shared, index, head)) = head(installation) else { return Ok(Rc::default()) };
    let known = KNOWN.with_borrow(Rc::clone);
    let version = head.version.load(SeqCst);
    if (known.installation, known.index, known.version) == (installation, index, version) {
        return Ok(known);
    }
    let fresh = shared.locked(|contents| {
        let low_water = &contents.marks_below[index];
        (head.version.load(SeqCst), low_water.mark(), low_water.survivors().to_vec())
    });
    if head.installation.load(SeqCst) != installation {
        return Ok(Rc::default());
    }
    let (version, mark, survivors) = fresh;
    let mut keys = HashMap::new();
    for survivor in survivors.iter().filter(|survivor| survivor.key != 0) {
        let lowest = keys.entry(survivor.key).or_insert(survivor.number);
        *lowest = survivor.number.min(*lowest);
    }
    let known = Rc::new(Known { installation, index, version, mark, survivors, keys });
    KNOWN.set(Rc::clone(&known));
    Ok(known)
}

impl Known {
    /// The lowest number at which there may be a delivery of a key that is not over.
    pub fn since(&self, key_hash: i64) -> i64 {
        match self.keys.get(&key_hash) {
            Some(number) => self.mark.min(*number),
            None if key_hash == 0 => 0,
            None => self.mark,
        }
    }

    /// No delivery with a key that is not over, and none that is ready or leased, has a lower number.
    pub fn first(&self) -> i64 {
        self.survivors.iter().map(|survivor| survivor.number).min().unwrap_or(self.mark).min(self.mark)
    }

    /// Ready or leased survivors from number `start` on, in arrival order; of one topic, or of all.
    pub fn ready_survivors(
        &self,
        table: &Table<Deliveries>,
        snapshot: &Latest,
        topic: Option<Text<'_>>,
        start: i64,
    ) -> Result<Vec<(i64, RowId)>, Error> {
        let mut found = Vec::new();
        if start >= self.mark || self.survivors.is_empty() {
            return Ok(found);
        }
        let mut wanted = |id: RowId, row: &Delivery<'_>| {
            let is_of_topic = topic.is_none_or(|topic| topic.bytes() == row.topic.bytes());
            if row.place == Place::Ready && is_of_topic && start <= row.seq && row.seq < self.mark {
                found.push((row.seq, id));
            }
        };
        let mut rows = Lookup::open(table, snapshot)?;
        for survivor in self.survivors.iter().filter(|survivor| survivor.key == 0) {
            if let Some(known) = rows.find(survivor.number) {
                wanted(known.id, &known.row);
            }
        }
        let mut ready = KeyMessages::open(table, Part::Ready, snapshot)?;
        for (key, number) in &self.keys {
            server::check_for_interrupts();
            ready.of_hash(*key, start.max(*number), self.mark, &mut wanted);
        }
        found.sort_by_key(|(seq, _)| *seq);
        found.dedup_by_key(|(seq, _)| *seq);
        Ok(found)
    }
}

/// Where the mark of this installation is, if it has one.
fn head(installation: u64) -> Option<(Shared, usize, &'static MarkHead)> {
    let shared = Shared::attached()?;
    let heads = shared.mark_heads();
    let is_ours = |index: usize| heads[index].installation.load(SeqCst) == installation;
    let index = Some(INDEX.get()).filter(|index| is_ours(*index));
    let index = index.or_else(|| (0..heads.len()).find(|index| is_ours(*index)))?;
    INDEX.set(index);
    Some((shared, index, &heads[index]))
}

/// The same; it is given one if there is room.
pub fn own_head(installation: u64, now: i64) -> Option<(Shared, usize, &'static MarkHead)> {
    if let Some(known) = head(installation) {
        return Some(known);
    }
    let shared = Shared::attached()?;
    let file = catalog::file_of(Object::Delivery).ok()?;
    let heads = shared.mark_heads();
    shared.locked(|contents| {
        let last_used = |index: &usize| heads[*index].next_raise.load(SeqCst);
        let index = (0..heads.len()).min_by_key(last_used)?;
        let head = &heads[index];
        let is_free = head.installation.load(SeqCst) == 0;
        if !is_free && now.saturating_sub(last_used(&index)).abs() < MARK_UNUSED {
            return None;
        }
        head.installation.store(0, SeqCst);
        contents.marks_below[index] = LowWater::UNKNOWN;
        publish(head, &contents.marks_below[index]);
        head.file.store(file.into(), SeqCst);
        head.installation.store(installation, SeqCst);
        Some((shared, index, head))
    })
}

/// To be called under the lock, after a change.
pub fn publish(head: &MarkHead, low_water: &LowWater) {
    head.limit.store(low_water.limit(), SeqCst);
    head.next_raise.store(low_water.next_raise(), SeqCst);
    head.version.fetch_add(1, SeqCst);
}

/// Says that a delivery is being written that may have been over, or not there: until it is dropped no raise passes it.
pub struct Entering(());

impl Drop for Entering {
    fn drop(&mut self) {
        if let Some(slot) = Shared::attached().and_then(|shared| shared.own_slot()) {
            slot.entering.store(IDLE, SeqCst);
            slot.entering_due.store(IDLE, SeqCst);
        }
    }
}

/// The session is about to write these deliveries.
pub fn enter(deliveries: impl Iterator<Item = Numbered> + Clone) -> Result<Option<Entering>, Error> {
    let installation = installations::current()?;
    let Some(shared) = Shared::attached() else { return Ok(None) };
    let Some(slot) = shared.own_slot() else { return Ok(None) };
    let Some(lowest) = deliveries.clone().map(|(number, _)| number).min() else { return Ok(None) };
    pending::note(|_| ());
    slot.installation.store(installation, SeqCst);
    slot.entering.store(lowest, SeqCst);
    let entering = Entering(());
    // The raise has its fence between the limit and its look at the slots.
    fence(SeqCst);
    if let Some((shared, index, head)) = head(installation)
        && lowest < head.limit.load(SeqCst)
    {
        shared.locked(|contents| {
            let low_water = &mut contents.marks_below[index];
            let limit = low_water.limit();
            for (number, key) in deliveries.filter(|(number, _)| *number < limit) {
                low_water.note(number, key);
            }
            publish(head, low_water);
        });
    }
    Ok(Some(entering))
}

/// The session is about to make a delivery of `topic` wait until `due`, see `rules/due_mark.rs`.
pub fn enter_due(topic: Text<'_>, due: Time) -> Result<Option<Entering>, Error> {
    let installation = installations::current()?;
    let Some(shared) = Shared::attached() else { return Ok(None) };
    let Some(slot) = shared.own_slot() else { return Ok(None) };
    pending::note(|_| ());
    slot.installation.store(installation, SeqCst);
    slot.entering_due.store(due.0, SeqCst);
    let entering = Entering(());
    fence(SeqCst);
    shared.locked(|contents| {
        for key in
            [installations::key(installation, Some(topic.bytes())), installations::key(installation, None)]
        {
            if let Some(topic) = contents.topic(key) {
                topic.due_mark.note(due.0);
            }
        }
    });
    Ok(Some(entering))
}

/// To be called when one of the tables may have been rewritten or truncated. If the deliveries are in another file now,
/// all that was known of them is forgotten, once for all sessions.
pub fn forget_if_rewritten() -> Result<(), Error> {
    let (installation, file) = (installations::current()?, catalog::file_of(Object::Delivery)?);
    let Some((shared, index, head)) = head(installation) else { return Ok(()) };
    shared.locked(|contents| {
        let known = head.file.swap(file.into(), SeqCst);
        if known != 0 && known != u64::from(file) {
            contents.forget(installation);
            contents.marks_below[index] = LowWater::UNKNOWN;
            publish(head, &contents.marks_below[index]);
        }
    });
    Ok(())
}

/// As [`enter`], for a delivery that is to be ready or leased, and may not have been covered by the mark.
pub fn enter_ready(row: &Delivery<'_>) -> Result<Option<Entering>, Error> {
    if row.place == Place::Ready { Ok(None) } else { enter(std::iter::once((row.seq, row.key_hash))) }
}

impl Known {
    /// True if a survivor stands for such a delivery.
    pub fn stands_for(&self, number: i64, key: Option<i64>) -> bool {
        match key {
            Some(key) => self.keys.get(&key).is_some_and(|lowest| *lowest <= number),
            None => self.survivors.iter().any(|survivor| survivor.key == 0 && survivor.number == number),
        }
    }
}
