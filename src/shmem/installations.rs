//! One installation of the extension: a database and its table, so that a new CREATE EXTENSION starts from nothing.
//! What sessions share is by installation and topic.

use crate::error::Error;
use crate::pg::catalog::{self, Object};
use crate::pg::session::server;
use crate::pg::value::datum::Text;
use crate::rules::slots::Key;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// That of this session's database.
pub fn current() -> Result<u64, Error> {
    let table = catalog::oid(Object::Delivery)?;
    Ok((u64::from(server::database_number()) << 32) | u64::from(u32::from(table)))
}

/// The keys of a topic, and of any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Of the topic, or the same as `any`.
    pub wanted: Key,
    pub any: Key,
}

pub fn keys(topic: Option<Text<'_>>) -> Result<Keys, Error> {
    Ok(Keys { wanted: wanted(topic)?, any: wanted(None)? })
}

/// The key of a topic, or of any.
pub fn wanted(topic: Option<Text<'_>>) -> Result<Key, Error> {
    Ok(key(current()?, topic.map(Text::bytes)))
}

pub fn key(installation: u64, topic: Option<&[u8]>) -> Key {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, installation, topic).hash(&mut hasher);
        hasher.finish() | 1 // never the unused key
    };
    (half(0), half(1))
}
