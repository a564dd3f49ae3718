//! The settings, `outbox.*`: private values, typed accessors, and for every default its reason.
//!
//! Where a topic may override a setting, the accessor takes what operators have set for the topic.

use crate::pg::session::server;
use crate::shmem;
use crate::tables::topic::TopicRow;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::{CStr, CString};

/// Large enough that a round trip is small beside the work, small enough that one slow worker holds little back.
static BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(50);
/// Longer than an HTTP call with retries, shorter than a person's patience with a crashed worker.
static LEASE_SECONDS: GucSetting<i32> = GucSetting::<i32>::new(60);
/// With the backoff below, the eighth attempt comes about an hour after the first.
static MAX_ATTEMPTS: GucSetting<i32> = GucSetting::<i32>::new(8);
static BACKOFF_SECONDS: GucSetting<i32> = GucSetting::<i32>::new(30);
static BACKOFF_MAX_SECONDS: GucSetting<i32> = GucSetting::<i32>::new(3600);
/// A week: long enough to look into last weekend's incident.
static RETENTION_DAYS: GucSetting<i32> = GucSetting::<i32>::new(7);
/// Longer than any redelivery can take, so that a late duplicate is still recognised.
static PROCESSED_RETENTION_DAYS: GucSetting<i32> = GucSetting::<i32>::new(30);
/// 16 MiB: a message, not a file.
static MAX_PAYLOAD_BYTES: GucSetting<i32> = GucSetting::<i32>::new(16 * 1024 * 1024);
static PURGE_INTERVAL_SECONDS: GucSetting<i32> = GucSetting::<i32>::new(60);
static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

/// Nothing: most producers know of no trace, or pass it with the message.
static TRACEPARENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// What a setting may be that a topic can override.
pub mod range {
    use std::ops::RangeInclusive;

    pub const BATCH_SIZE: RangeInclusive<i32> = 1..=500;
    pub const LEASE_SECONDS: RangeInclusive<i32> = 10..=3600;
    pub const MAX_ATTEMPTS: RangeInclusive<i32> = 1..=50;
    pub const BACKOFF_SECONDS: RangeInclusive<i32> = 1..=3600;
    pub const BACKOFF_MAX_SECONDS: RangeInclusive<i32> = 1..=86_400;
    pub const RETENTION_DAYS: RangeInclusive<i32> = 1..=3650;
}

/// Messages per claim on `topic`.
pub fn batch_size(topic: &TopicRow) -> i32 {
    topic.batch_size.unwrap_or_else(|| BATCH_SIZE.get())
}

/// Length of a lease on `topic`, in seconds.
pub fn lease_seconds(topic: &TopicRow) -> i32 {
    topic.lease_seconds.unwrap_or_else(|| LEASE_SECONDS.get())
}

/// Deliveries before a message of `topic` is dead.
pub fn max_attempts(topic: &TopicRow) -> i16 {
    // Both are at most 50.
    topic.max_attempts.unwrap_or_else(|| MAX_ATTEMPTS.get()) as i16
}

/// First delay after a failure on `topic`, in seconds.
pub fn backoff_seconds(topic: &TopicRow) -> i32 {
    topic.backoff_seconds.unwrap_or_else(|| BACKOFF_SECONDS.get())
}

/// Longest delay after a failure on `topic`, in seconds.
pub fn backoff_max_seconds(topic: &TopicRow) -> i32 {
    topic.backoff_max_seconds.unwrap_or_else(|| BACKOFF_MAX_SECONDS.get())
}

/// How long a delivered or dead message is kept, in days of 24 hours.
pub fn retention_days() -> i32 {
    RETENTION_DAYS.get()
}

/// How long a consumer's marker is kept, in days of 24 hours.
pub fn processed_retention_days() -> i32 {
    PROCESSED_RETENTION_DAYS.get()
}

/// Largest payload or headers, in bytes of uncompressed jsonb and of its text.
pub fn max_payload_bytes() -> usize {
    MAX_PAYLOAD_BYTES.get().unsigned_abs() as usize
}

/// The trace that messages of this session belong to.
pub fn traceparent() -> Option<CString> {
    TRACEPARENT.get().filter(|text| !text.is_empty())
}

/// Seconds between two background purges; 0 means none.
pub fn purge_interval_seconds() -> i32 {
    PURGE_INTERVAL_SECONDS.get()
}

/// True if the background purge visits `database`.
pub fn purges(database: &str) -> bool {
    let list = DATABASES.get().map_or_else(String::new, |list| list.to_string_lossy().into_owned());
    let mut names = list.split(',').map(str::trim).filter(|name| !name.is_empty()).peekable();
    names.peek().is_none() || names.any(|name| name == database)
}

/// Whether commits are announced by NOTIFY.
pub fn notify() -> bool {
    shmem::notify::ENABLED.get()
}

/// Defines all settings and reserves their prefix.
pub fn register() {
    let int = |name: &'static CStr,
               short: &'static CStr,
               long: &'static CStr,
               setting: &'static GucSetting<i32>,
               range: std::ops::RangeInclusive<i32>,
               context: GucContext| {
        // No unit flags: SHOW answers plain seconds, as the names say.
        let flags = GucFlags::empty();
        GucRegistry::define_int_guc(name, short, long, setting, *range.start(), *range.end(), context, flags);
    };
    use GucContext::{Sighup, Suset, Userset};
    int(
        c"outbox.batch_size",
        c"Messages that one claim leases at most.",
        c"Used by outbox.claim() when it is given no batch_size.",
        &BATCH_SIZE,
        range::BATCH_SIZE,
        Userset,
    );
    int(
        c"outbox.lease_seconds",
        c"Time that a worker has to answer for a message.",
        c"Used by outbox.claim() and outbox.extend() when they are given no lease_seconds.",
        &LEASE_SECONDS,
        range::LEASE_SECONDS,
        Userset,
    );
    int(
        c"outbox.max_attempts",
        c"Deliveries of a message before it is dead.",
        c"",
        &MAX_ATTEMPTS,
        range::MAX_ATTEMPTS,
        Suset,
    );
    int(
        c"outbox.backoff_seconds",
        c"Delay after the first failed delivery; it doubles with every further one.",
        c"",
        &BACKOFF_SECONDS,
        range::BACKOFF_SECONDS,
        Suset,
    );
    int(
        c"outbox.backoff_max_seconds",
        c"Longest delay after a failed delivery.",
        c"",
        &BACKOFF_MAX_SECONDS,
        range::BACKOFF_MAX_SECONDS,
        Suset,
    );
    int(
        c"outbox.retention_days",
        c"Days for which delivered and dead messages are kept.",
        c"outbox.purge() deletes them afterwards; until then their ids are recognised as duplicates.",
        &RETENTION_DAYS,
        range::RETENTION_DAYS,
        Sighup,
    );
    int(
        c"outbox.processed_retention_days",
        c"Days for which the markers of outbox.consume_once() are kept.",
        c"A marker is kept longer while its message is still stored.",
        &PROCESSED_RETENTION_DAYS,
        1..=3650,
        Sighup,
    );
    int(
        c"outbox.max_payload_bytes",
        c"Largest payload or headers, as uncompressed jsonb and as text.",
        c"",
        &MAX_PAYLOAD_BYTES,
        1024..=268_435_455,
        Suset,
    );
    int(
        c"outbox.purge_interval_seconds",
        c"Time between two runs of the background purge; 0 turns it off.",
        c"Needs outbox in shared_preload_libraries.",
        &PURGE_INTERVAL_SECONDS,
        0..=86_400,
        Sighup,
    );
    GucRegistry::define_string_guc(
        c"outbox.databases",
        c"Databases that the background purge visits, separated by commas.",
        c"Empty means every database that allows connections and has the extension.",
        &DATABASES,
        Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_bool_guc(
        c"outbox.notify",
        c"Announces by NOTIFY that there are messages to claim.",
        c"On channel outbox, with the topic as payload, sent by a background worker after the commit.",
        &shmem::notify::ENABLED,
        Sighup,
        GucFlags::empty(),
    );
    server::define_traceparent(
        c"outbox.traceparent",
        c"Trace context of the messages that are appended.",
        c"Stands in headers.traceparent of messages that come without one. Set it per transaction.",
        &TRACEPARENT,
    );
    server::reserve_settings_prefix();
}
