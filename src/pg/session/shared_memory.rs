//! Memory that sessions share: values behind one lock, and values made of atomics, some of both for each session.
//!
//! It has no pointers: a process may have it at another address. Its layout is that of C: a process may have another
//! build of the library.

use crate::pg::session::lwlock;
use crate::pg::version;
use pgrx::pg_sys;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A value with a first state.
pub trait Initial {
    fn initial() -> Self;
}

/// So many values side by side, each made where it is.
#[repr(transparent)]
pub struct Each<T, const N: usize>([T; N]);

impl<T, const N: usize> Deref for Each<T, N> {
    type Target = [T; N];
    fn deref(&self) -> &[T; N] {
        &self.0
    }
}

impl<T, const N: usize> DerefMut for Each<T, N> {
    fn deref_mut(&mut self) -> &mut [T; N] {
        &mut self.0
    }
}

/// Two values, in this order.
#[repr(C)]
pub struct Two<A, B>(pub A, pub B);

/// Four values, in this order.
#[repr(C)]
pub struct Four<A, B, C, D>(pub A, pub B, pub C, pub D);

/// What is made where it is.
pub trait InPlace {
    /// # Safety
    /// `place` is valid for writes, aligned, and used by nobody else.
    unsafe fn make(place: *mut Self);
}

impl<T: Initial> InPlace for T {
    unsafe fn make(place: *mut Self) {
        // SAFETY: passed on to the caller.
        unsafe { place.write(T::initial()) }
    }
}

impl<T: Initial, const N: usize> InPlace for Each<T, N> {
    unsafe fn make(place: *mut Self) {
        // SAFETY: passed on to the caller; the N values lie there one after the other.
        (0..N).for_each(|index| unsafe { place.cast::<T>().add(index).write(T::initial()) });
    }
}

impl<A: InPlace, B: InPlace> InPlace for Two<A, B> {
    unsafe fn make(place: *mut Self) {
        // SAFETY: passed on to the caller; these are its parts.
        unsafe {
            A::make(&raw mut (*place).0);
            B::make(&raw mut (*place).1);
        }
    }
}

impl<A: InPlace, B: InPlace, C: InPlace, D: InPlace> InPlace for Four<A, B, C, D> {
    unsafe fn make(place: *mut Self) {
        // SAFETY: passed on to the caller; these are its parts.
        unsafe {
            A::make(&raw mut (*place).0);
            B::make(&raw mut (*place).1);
            C::make(&raw mut (*place).2);
            D::make(&raw mut (*place).3);
        }
    }
}

/// Followed by what is behind the lock for each session, and by what is not.
#[repr(C)]
struct Block<L, O> {
    lock: pg_sys::LWLock,
    tranche: i32,
    locked: L,
    open: O,
}

/// `L` and a `W` for each session are behind the lock; `O` and an `S` for each session are read and written without.
pub struct Memory<L, O, W, S>(NonNull<Block<L, O>>, PhantomData<(W, S)>);

impl<L, O, W, S> Clone for Memory<L, O, W, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, O, W, S> Copy for Memory<L, O, W, S> {}

impl<L, O, W, S> Memory<L, O, W, S>
where
    L: InPlace + 'static,
    O: InPlace + Sync + 'static,
    W: Initial + 'static,
    S: Initial + Sync + 'static,
{
    const SIZE: usize = {
        assert!(align_of::<W>() <= align_of::<Block<L, O>>() && align_of::<S>() <= align_of::<W>());
        size_of::<Block<L, O>>()
    };

    /// Finds it, or makes it; None if the server has no room.
    pub fn attach(name: &'static CStr, tranche: &'static CStr) -> Option<Self> {
        let size = Self::SIZE + version::sessions() * (size_of::<W>() + size_of::<S>());
        let block: NonNull<Block<L, O>> = version::shared_memory(name, size, Self::fill)?.cast();
        // SAFETY: the tranche was set before anybody could find the block.
        unsafe { pg_sys::LWLockRegisterTranche((*block.as_ptr()).tranche, tranche.as_ptr()) };
        Some(Memory(block, PhantomData))
    }

    /// Does some work with what is behind the lock. It is short, and raises no error.
    pub fn locked<T>(self, work: impl FnOnce(&mut L, &mut [W]) -> T) -> T {
        let block = self.0.as_ptr();
        // SAFETY: all of it lives as long as the server; under the exclusive lock nobody else refers to what is handed
        // out.
        unsafe {
            lwlock::locked(&raw mut (*block).lock, || {
                let sessions = std::slice::from_raw_parts_mut(first_locked(block), version::sessions());
                work(&mut (*block).locked, sessions)
            })
        }
    }

    pub fn open(self) -> &'static O {
        // SAFETY: it lives as long as the server, and is made for many users at once.
        unsafe { &(*self.0.as_ptr()).open }
    }

    /// By session, see [`version::session_number`].
    pub fn open_of_sessions(self) -> &'static [S] {
        // SAFETY: as above; their number never changes.
        unsafe { std::slice::from_raw_parts(first_open::<L, O, W, S>(self.0.as_ptr()), version::sessions()) }
    }

    /// # Safety
    /// `place` points to as many bytes as [`Memory::attach`] asks for, which nobody else uses yet.
    unsafe extern "C-unwind" fn fill(place: *mut c_void) {
        let block = place.cast::<Block<L, O>>();
        // SAFETY: the parts lie there one after the other, as the accessors look for them.
        unsafe {
            L::make(&raw mut (*block).locked);
            O::make(&raw mut (*block).open);
            for session in 0..version::sessions() {
                first_locked::<L, O, W>(block).add(session).write(W::initial());
                first_open::<L, O, W, S>(block).add(session).write(S::initial());
            }
            (*block).tranche = pg_sys::LWLockNewTrancheId();
            pg_sys::LWLockInitialize(&raw mut (*block).lock, (*block).tranche);
        }
    }
}

fn first_locked<L, O, W>(block: *mut Block<L, O>) -> *mut W {
    block.wrapping_add(1).cast()
}

fn first_open<L, O, W, S>(block: *mut Block<L, O>) -> *mut S {
    first_locked::<L, O, W>(block).wrapping_add(version::sessions()).cast()
}
