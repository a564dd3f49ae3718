//! A part of a claim that is taken back unless it is kept. Nothing is told of it.

use crate::pg::session::savepoint::Savepoint;
use crate::shmem::pending;

pub struct Attempt {
    savepoint: Option<Savepoint>,
    touched: Option<i64>,
}

impl Attempt {
    pub fn begin() -> Attempt {
        Attempt { touched: pending::lowest_touched(), savepoint: Some(Savepoint::begin()) }
    }

    pub fn keep(mut self) {
        if let Some(savepoint) = self.savepoint.take() {
            savepoint.keep();
        }
    }
}

/// Also after an error: the code that catches it knows nothing of this part.
impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(savepoint) = self.savepoint.take() {
            pending::take_back(self.touched, || drop(savepoint));
        }
    }
}
