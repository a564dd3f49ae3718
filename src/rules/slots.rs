//! A slot table of limited size, with eviction: which slot a key has. Pure; `shmem/memory.rs` keeps the floors of
//! topics in such a table.
//!
//! A key has one of the [`WINDOW`] slots from its own on. Where all are taken, one that no session has used for a while
//! is given away; else the key goes without. So what is gone makes room, and more keys in use than there are slots do
//! not push each other out.

/// Slots where a key may be.
pub const WINDOW: usize = 16;
/// A slot that was not used for so long may be given away, in microseconds.
pub const UNUSED: i64 = 60_000_000;

/// Hash values, so large that no two keys have the same ones.
pub type Key = (u64, u64);

/// Who has a slot.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Occupant {
    pub key: Key,
    pub used_at: i64,
}

impl Occupant {
    /// No key is like this one.
    pub const NOBODY: Occupant = Occupant { key: (0, 0), used_at: i64::MIN };
}

/// Where a key may be, the best slot first.
pub fn window(key: Key, slots: usize) -> impl Iterator<Item = usize> {
    (0..WINDOW.min(slots)).map(move |step| (key.0 as usize).wrapping_add(step) % slots)
}

/// The key's slot.
pub fn find(key: Key, slots: usize, occupant: impl Fn(usize) -> Occupant) -> Option<usize> {
    window(key, slots).find(|slot| occupant(*slot).key == key)
}

/// A slot that the key, which has none, may have at `now`.
pub fn vacant(key: Key, slots: usize, occupant: impl Fn(usize) -> Occupant, now: i64) -> Option<usize> {
    let oldest = window(key, slots).min_by_key(|slot| occupant(*slot).used_at)?;
    // A use that is ahead comes of a clock that was set back since.
    (now.abs_diff(occupant(oldest).used_at) > UNUSED.unsigned_abs()).then_some(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    struct Table(Vec<Occupant>);

    impl Table {
        fn new(slots: usize) -> Table {
            Table(vec![Occupant::NOBODY; slots])
        }

        fn find(&self, key: Key) -> Option<usize> {
            find(key, self.0.len(), |slot| self.0[slot])
        }

        /// As a user of the table does it.
        fn used(&mut self, key: Key, now: i64) -> Option<usize> {
            let known = self.find(key);
            let slot = known.or_else(|| vacant(key, self.0.len(), |slot| self.0[slot], now))?;
            self.0[slot] = Occupant { key, used_at: now };
            Some(slot)
        }
    }

    fn key(n: u64) -> Key {
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, n)
    }

    #[test]
    fn a_key_keeps_its_place_while_it_is_used() {
        let mut table = Table::new(64);
        let slot = table.used(key(0), NOW);
        for n in 1..1_000 {
            let now = NOW + n * UNUSED / 2;
            assert_eq!(table.used(key(0), now), slot);
            table.used(key(n as u64), now);
        }
        assert_eq!(table.find(key(0)), slot);
    }

    #[test]
    fn no_two_keys_share_a_place() {
        let mut table = Table::new(128);
        let kept: Vec<Key> = (0..200).map(key).filter(|key| table.used(*key, NOW).is_some()).collect();
        assert!(kept.len() > 100, "only {} of 128 slots are used", kept.len());
        for key in kept {
            assert!(table.find(key).is_some_and(|slot| table.0[slot].key == key));
        }
    }

    #[test]
    fn a_full_table_makes_room_for_new_keys_only_once_the_old_ones_are_not_used() {
        let mut table = Table::new(WINDOW);
        for n in 0..WINDOW as u64 {
            assert!(table.used(key(n), NOW).is_some());
        }
        assert_eq!(table.used(key(100), NOW + UNUSED), None);
        let in_use = table.used(key(3), NOW + UNUSED);
        for n in 100..99 + WINDOW as u64 {
            assert!(table.used(key(n), NOW + UNUSED + 1).is_some());
        }
        assert_eq!(table.used(key(200), NOW + UNUSED + 1), None);
        assert_eq!(table.find(key(3)), in_use);
    }

    #[test]
    fn a_place_that_was_used_before_the_clock_was_set_back_is_given_away() {
        let mut table = Table::new(1);
        assert!(table.used(key(1), NOW).is_some());
        assert_eq!(table.used(key(2), NOW - UNUSED), None);
        assert!(table.used(key(2), NOW - UNUSED - 1).is_some());
    }
}
