//! The SQL surface, in the order a message lives: arguments in, rows out. `sql/functions.sql` declares
//! and documents each function; names, order and types of the arguments are the same there.
//!
//! Every argument is an Option: pgrx makes a function STRICT otherwise, and a NULL would silently answer NULL.
//! Every error is an ErrorReport, by value: the only type in which pgrx keeps a SQLSTATE.
#![allow(clippy::result_large_err)]

use crate::error::Error;
use crate::functions::{
    append, claim, cloudevent, consume_once, grant_access, purge, set_topic, stats, status,
};
use crate::pg::call::Call;
use crate::pg::datum::{Json, Text, Time, UuidArray, uuid};
use crate::pg::error_report::passing;
use crate::pg::server;
use crate::queue::result::{AnswerRows, Caller, ClaimedRows, StatsRows, StatusRows};
use crate::queue::{answer, revive};
use crate::tables::privileges;
use pgrx::Uuid;
use pgrx::iter::SetOfIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;

/// A call that reads.
fn reading<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, ErrorReport> {
    passing(call).map_err(ErrorReport::from)
}

/// A call that writes, and is refused where that is not allowed, before anything is touched.
fn writing<T>(function: &'static CStr, call: impl FnOnce() -> Result<T, Error>) -> Result<T, ErrorReport> {
    reading(|| server::may_write(function).and_then(|()| call()))
}

fn sql_uuid(id: uuid::Uuid) -> Uuid {
    Uuid::from_bytes(id.into_bytes())
}

#[pg_extern(sql = false)]
fn append(
    topic: Option<Text<'_>>,
    r#type: Option<Text<'_>>,
    payload: Option<Json<'_>>,
    id: Option<Uuid>,
    available_at: Option<Time>,
    key: Option<Text<'_>>,
    headers: Option<Json<'_>>,
) -> Result<Uuid, ErrorReport> {
    writing(c"outbox.append()", || {
        let draft = append::Draft { kind: r#type, payload, id: id.map(uuid), available_at, key, headers };
        Ok(sql_uuid(append::append(topic, draft)?))
    })
}

#[pg_extern(sql = false)]
fn append_batch(
    topic: Option<Text<'_>>,
    messages: Option<Json<'_>>,
) -> Result<SetOfIterator<'static, Uuid>, ErrorReport> {
    writing(c"outbox.append_batch()", || {
        let ids = append::append_batch(topic, messages)?;
        Ok(SetOfIterator::new(ids.into_iter().map(sql_uuid)))
    })
}

#[pg_extern(sql = false)]
fn claim<'fcx>(
    owner: Option<Text<'fcx>>,
    topic: Option<Text<'fcx>>,
    batch_size: Option<i32>,
    lease_seconds: Option<i32>,
    wait_seconds: Option<i32>,
    caller: Caller<'fcx>,
) -> Result<ClaimedRows<'fcx>, ErrorReport> {
    writing(c"outbox.claim()", || {
        claim::claim(claim::Request { owner, topic, batch_size, lease_seconds, wait_seconds }, caller)
    })
}

#[pg_extern(sql = false)]
fn wait(topic: Option<Text<'_>>, wait_seconds: Option<i32>, call: Call<'_>) -> Result<(), ErrorReport> {
    writing(c"outbox.wait()", || claim::wait(topic, wait_seconds, call))
}

#[pg_extern(sql = false)]
fn complete(token: Option<Uuid>) -> Result<bool, ErrorReport> {
    writing(c"outbox.complete()", || answer::complete(token.map(uuid)))
}

#[pg_extern(sql = false)]
fn complete_batch<'fcx>(
    tokens: Option<UuidArray>,
    caller: Caller<'fcx>,
) -> Result<AnswerRows<'fcx>, ErrorReport> {
    writing(c"outbox.complete_batch()", || answer::complete_batch(tokens, caller))
}

#[pg_extern(sql = false)]
fn fail(
    token: Option<Uuid>,
    error: Option<Text<'_>>,
    retry_at: Option<Time>,
) -> Result<Option<String>, ErrorReport> {
    writing(c"outbox.fail()", || Ok(answer::fail(token.map(uuid), error, retry_at)?.map(String::from)))
}

#[pg_extern(sql = false)]
fn abandon(token: Option<Uuid>, error: Option<Text<'_>>) -> Result<bool, ErrorReport> {
    writing(c"outbox.abandon()", || answer::abandon(token.map(uuid), error))
}

#[pg_extern(sql = false)]
fn extend(token: Option<Uuid>, lease_seconds: Option<i32>) -> Result<Option<Time>, ErrorReport> {
    writing(c"outbox.extend()", || answer::extend(token.map(uuid), lease_seconds))
}

#[pg_extern(sql = false)]
fn release(token: Option<Uuid>) -> Result<bool, ErrorReport> {
    writing(c"outbox.release()", || answer::release(token.map(uuid)))
}

#[pg_extern(sql = false)]
fn consume_once(consumer: Option<Text<'_>>, message_id: Option<Uuid>) -> Result<bool, ErrorReport> {
    writing(c"outbox.consume_once()", || consume_once::consume_once(consumer, message_id.map(uuid)))
}

#[pg_extern(sql = false)]
fn retry_dead(id: Option<Uuid>) -> Result<bool, ErrorReport> {
    writing(c"outbox.retry_dead()", || revive::retry_dead(id.map(uuid)))
}

#[pg_extern(sql = false)]
fn redrive(
    topic: Option<Text<'_>>,
    r#type: Option<Text<'_>>,
    max_messages: Option<i32>,
    dry_run: Option<bool>,
) -> Result<i64, ErrorReport> {
    writing(c"outbox.redrive()", || revive::redrive(topic, r#type, max_messages, dry_run))
}

#[pg_extern(sql = false)]
fn pause(topic: Option<Text<'_>>) -> Result<bool, ErrorReport> {
    writing(c"outbox.pause()", || set_topic::pause(topic))
}

#[pg_extern(sql = false)]
fn resume(topic: Option<Text<'_>>) -> Result<bool, ErrorReport> {
    writing(c"outbox.resume()", || set_topic::resume(topic))
}

#[pg_extern(sql = false)]
fn set_topic(topic: Option<Text<'_>>, settings: Option<Json<'_>>) -> Result<(), ErrorReport> {
    writing(c"outbox.set_topic()", || set_topic::set_topic(topic, settings))
}

#[pg_extern(sql = false)]
fn cloudevent(id: Option<Uuid>) -> Result<Option<Json<'static>>, ErrorReport> {
    reading(|| cloudevent::cloudevent(id.map(uuid)))
}

#[pg_extern(sql = false)]
fn grant_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), ErrorReport> {
    writing(c"outbox.grant_access()", || grant_access::grant_access(role_name, capability))
}

#[pg_extern(sql = false)]
fn revoke_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), ErrorReport> {
    writing(c"outbox.revoke_access()", || grant_access::revoke_access(role_name, capability))
}

/// A trigger; what it answers means nothing.
#[pg_extern(sql = false)]
fn apply_access() -> Result<(), ErrorReport> {
    reading(privileges::follow_rows)
}

#[pg_extern(sql = false)]
fn read_stats<'fcx>(caller: Caller<'fcx>) -> Result<StatsRows<'fcx>, ErrorReport> {
    reading(|| stats::stats(caller))
}

#[pg_extern(sql = false)]
fn read_status<'fcx>(caller: Caller<'fcx>) -> Result<StatusRows<'fcx>, ErrorReport> {
    reading(|| status::status(caller))
}

#[pg_extern(sql = false)]
fn purge(max_messages: Option<i32>) -> Result<i64, ErrorReport> {
    writing(c"outbox.purge()", || Ok(purge::purge(max_messages)?.messages))
}
