//! A lock on a relation, apart from using it.

use pgrx::pg_sys;

/// Held until it is released, or the transaction ends.
pub struct RelationLock(pg_sys::Oid, i32);

impl RelationLock {
    pub fn take(relation: pg_sys::Oid, mode: u32) -> RelationLock {
        // SAFETY: waits for the lock; the abort releases it too.
        unsafe { pg_sys::LockRelationOid(relation, mode as i32) };
        RelationLock(relation, mode as i32)
    }

    /// None if another session has one that conflicts.
    pub fn try_take(relation: pg_sys::Oid, mode: u32) -> Option<RelationLock> {
        // SAFETY: as above, without waiting.
        unsafe { pg_sys::ConditionalLockRelationOid(relation, mode as i32) }
            .then_some(RelationLock(relation, mode as i32))
    }

    pub fn release(self) {
        // SAFETY: taken above.
        unsafe { pg_sys::UnlockRelationOid(self.0, self.1) }
    }
}
