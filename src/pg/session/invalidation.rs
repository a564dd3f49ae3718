//! Being told of changes in the system catalogs, and telling.

use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;

/// One that is told: of a relation (InvalidOid: of all), and of entries of some catalog caches.
struct Listener {
    relation: fn(pg_sys::Oid),
    cache: fn(),
    caches: &'static [u32],
}

thread_local! { static LISTENERS: RefCell<Vec<Listener>> = const { RefCell::new(Vec::new()) } }

/// From now on this session calls `relation` for every change of a relation, and `cache` for every change of one of the
/// caches. They may be called at any time, and do no more than remember it. A second time changes nothing.
pub fn listen(relation: fn(pg_sys::Oid), cache: fn(), caches: &'static [u32]) {
    LISTENERS.with_borrow_mut(|listeners| {
        if listeners.iter().any(|known| std::ptr::fn_addr_eq(known.cache, cache)) {
            return;
        }
        let is_first = listeners.is_empty();
        let added: Vec<u32> = caches
            .iter()
            .copied()
            .filter(|cache| !listeners.iter().any(|known| known.caches.contains(cache)))
            .collect();
        listeners.push(Listener { relation, cache, caches });
        let none = pg_sys::Datum::from(0);
        // SAFETY: the callbacks are plain functions that live as long as the session.
        unsafe {
            if is_first {
                pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), none);
            }
            for cache in added {
                pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(cache_changed), none);
            }
        }
    });
}

/// Tells every session of a relation that exists, once this transaction is committed.
pub fn announce(relation: pg_sys::Oid) {
    // SAFETY: the relation exists.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) }
}

#[pg_guard]
extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    LISTENERS.with(|listeners| {
        if let Ok(listeners) = listeners.try_borrow() {
            listeners.iter().for_each(|listener| (listener.relation)(relation));
        }
    });
}

#[pg_guard]
extern "C-unwind" fn cache_changed(_arg: pg_sys::Datum, cache: i32, _hash: u32) {
    LISTENERS.with(|listeners| {
        if let Ok(listeners) = listeners.try_borrow() {
            listeners
                .iter()
                .filter(|listener| listener.caches.contains(&cache.cast_unsigned()))
                .for_each(|listener| (listener.cache)());
        }
    });
}
