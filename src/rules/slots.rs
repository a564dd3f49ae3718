//! Which place of a table of limited size a key has. Pure; `shmem/memory.rs` keeps the floors of topics in such a table.
//!
//! A key has one of the [`WINDOW`] places from its own on. Where all are taken, one that nobody has used for a while is
//! given away; else the key goes without. So what is gone makes room, and more keys in use than there are places do
//! not push each other out.

/// Places where a key may be.
pub const WINDOW: usize = 16;
/// A place that was not used for so long may be given away, in microseconds.
pub const UNUSED: i64 = 60_000_000;

/// Hash values, so large that no two keys have the same ones.
pub type Key = (u64, u64);

/// Who has a place.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tenant {
    pub key: Key,
    pub used_at: i64,
}

impl Tenant {
    /// No key is like this one.
    pub const NOBODY: Tenant = Tenant { key: (0, 0), used_at: i64::MIN };
}

/// Where a key may be, the best place first.
pub fn window(key: Key, places: usize) -> impl Iterator<Item = usize> {
    (0..WINDOW.min(places)).map(move |step| (key.0 as usize).wrapping_add(step) % places)
}

/// The key's place.
pub fn find(key: Key, places: usize, tenant: impl Fn(usize) -> Tenant) -> Option<usize> {
    window(key, places).find(|place| tenant(*place).key == key)
}

/// A place that the key, which has none, may have at `now`.
pub fn vacant(key: Key, places: usize, tenant: impl Fn(usize) -> Tenant, now: i64) -> Option<usize> {
    let oldest = window(key, places).min_by_key(|place| tenant(*place).used_at)?;
    // A use that is ahead comes of a clock that was set back since.
    (now.abs_diff(tenant(oldest).used_at) > UNUSED.unsigned_abs()).then_some(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    struct Table(Vec<Tenant>);

    impl Table {
        fn new(places: usize) -> Table {
            Table(vec![Tenant::NOBODY; places])
        }

        fn find(&self, key: Key) -> Option<usize> {
            find(key, self.0.len(), |place| self.0[place])
        }

        /// As a user of the table does it.
        fn used(&mut self, key: Key, now: i64) -> Option<usize> {
            let known = self.find(key);
            let place = known.or_else(|| vacant(key, self.0.len(), |place| self.0[place], now))?;
            self.0[place] = Tenant { key, used_at: now };
            Some(place)
        }
    }

    fn key(n: u64) -> Key {
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, n)
    }

    #[test]
    fn a_key_keeps_its_place_while_it_is_used() {
        let mut table = Table::new(64);
        let place = table.used(key(0), NOW);
        for n in 1..1_000 {
            let now = NOW + n * UNUSED / 2;
            assert_eq!(table.used(key(0), now), place);
            table.used(key(n as u64), now);
        }
        assert_eq!(table.find(key(0)), place);
    }

    #[test]
    fn no_two_keys_share_a_place() {
        let mut table = Table::new(128);
        let placed: Vec<Key> = (0..200).map(key).filter(|key| table.used(*key, NOW).is_some()).collect();
        assert!(placed.len() > 100, "only {} of 128 places are used", placed.len());
        for key in placed {
            assert!(table.find(key).is_some_and(|place| table.0[place].key == key));
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
