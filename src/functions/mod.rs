//! The SQL functions: a file each, of the function's name or of its neighbour's.

use std::ffi::CStr;

pub mod append;
pub mod claim;
pub mod cloudevent;
pub mod complete;
pub mod consume_once;
pub mod discard;
pub mod extend;
pub mod fail;
pub mod grant_access;
pub mod pause;
pub mod purge;
pub mod redrive;
pub mod release;
pub mod retry_dead;
pub mod set_topic;
pub mod stats;
pub mod status;
pub mod wait;

/// A SQL function.
#[derive(Clone, Copy)]
pub struct Function {
    pub writes: bool,
    /// As it is called in messages.
    pub name: &'static CStr,
}

const fn named(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"outbox",
    }
}

/// A line a function: its name, the capabilities that include it, and whether it `reads` or `writes`.
macro_rules! functions {
    ($($name:ident: $($capability:ident)*, $kind:ident;)*) => {
        /// Each by its name.
        #[allow(non_upper_case_globals)]
        pub mod call {
            use super::{Function, named};
            $(pub const $name: Function = Function {
                writes: matches!(stringify!($kind).as_bytes(), b"writes"),
                name: named(concat!("outbox.", stringify!($name), "()\0")),
            };)*
        }
        /// Rows of VALUES: a capability and a function that it includes.
        pub const CAPABILITIES: &str = concat!(
            "('', '')"
            $($(, ", ('", stringify!($capability), "', '", stringify!($name), "')")*)*
        );
    };
}

functions! {
    append: producer, writes;
    append_batch: producer, writes;
    claim: worker, writes;
    wait: worker, writes;
    complete: worker, writes;
    complete_batch: worker, writes;
    fail: worker, writes;
    abandon: worker, writes;
    extend: worker, writes;
    release: worker, writes;
    consume_once: worker, writes;
    retry_dead: operator, writes;
    redrive: operator, writes;
    discard: operator, writes;
    pause: operator, writes;
    resume: operator, writes;
    set_topic: operator, writes;
    purge: operator, writes;
    grant_access: operator, writes;
    revoke_access: operator, writes;
    cloudevent: operator, reads;
    read_stats: monitor operator, reads;
    read_status: monitor operator, reads;
    apply_access:, reads;
}
