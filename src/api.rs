//! The SQL surface, in the order a message lives: arguments in, rows out. `sql/functions.sql` declares
//! and documents each function; names, order and types of the arguments are the same there.
//!
//! Every argument is an Option: pgrx makes a function STRICT otherwise, and a NULL would silently answer NULL.
//! Every error is an ErrorReport, by value: the only type in which pgrx keeps a SQLSTATE.
#![allow(clippy::result_large_err)]

use crate::error::Error;
use crate::functions::{
    Function, append, call, claim, cloudevent, complete, consume_once, discard, extend, fail, grant_access,
    pause, purge, redrive, release, retry_dead, set_topic, stats, status, wait,
};
use crate::pg::calls::call::Call;
use crate::pg::calls::error_report::passing;
use crate::pg::session::server;
use crate::pg::value::datum::{Json, Text, Time, UuidArray, uuid};
use crate::queue::look::Request;
use crate::queue::result::{AnswerRows, Caller, ClaimedRows, StatsRows, StatusRows};
use crate::tables::privileges;
use pgrx::Uuid;
use pgrx::iter::SetOfIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

/// A call; one that writes is refused where that is not allowed, before anything is touched.
fn run<T>(function: Function, call: impl FnOnce() -> Result<T, Error>) -> Result<T, ErrorReport> {
    let may_write = || if function.writes { server::may_write(function.name) } else { Ok(()) };
    passing(|| may_write().and_then(|()| call())).map_err(ErrorReport::from)
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
    run(call::append, || {
        let draft = append::Draft { kind: r#type, payload, id: id.map(uuid), available_at, key, headers };
        Ok(sql_uuid(append::append(topic, draft)?))
    })
}

#[pg_extern(sql = false)]
fn append_batch(
    topic: Option<Text<'_>>,
    messages: Option<Json<'_>>,
) -> Result<SetOfIterator<'static, Uuid>, ErrorReport> {
    run(call::append_batch, || {
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
    run(call::claim, || {
        claim::claim(Request { owner, topic, batch_size, lease_seconds, wait_seconds }, caller)
    })
}

#[pg_extern(sql = false)]
fn wait(topic: Option<Text<'_>>, wait_seconds: Option<i32>, caller: Call<'_>) -> Result<(), ErrorReport> {
    run(call::wait, || wait::wait(topic, wait_seconds, caller))
}

#[pg_extern(sql = false)]
fn complete(token: Option<Uuid>) -> Result<bool, ErrorReport> {
    run(call::complete, || complete::complete(token.map(uuid)))
}

#[pg_extern(sql = false)]
fn complete_batch<'fcx>(
    tokens: Option<UuidArray>,
    caller: Caller<'fcx>,
) -> Result<AnswerRows<'fcx>, ErrorReport> {
    run(call::complete_batch, || complete::complete_batch(tokens, caller))
}

#[pg_extern(sql = false)]
fn fail(
    token: Option<Uuid>,
    error: Option<Text<'_>>,
    retry_at: Option<Time>,
) -> Result<Option<String>, ErrorReport> {
    run(call::fail, || Ok(fail::fail(token.map(uuid), error, retry_at)?.map(String::from)))
}

#[pg_extern(sql = false)]
fn abandon(token: Option<Uuid>, error: Option<Text<'_>>) -> Result<bool, ErrorReport> {
    run(call::abandon, || fail::abandon(token.map(uuid), error))
}

#[pg_extern(sql = false)]
fn extend(token: Option<Uuid>, lease_seconds: Option<i32>) -> Result<Option<Time>, ErrorReport> {
    run(call::extend, || extend::extend(token.map(uuid), lease_seconds))
}

#[pg_extern(sql = false)]
fn release(token: Option<Uuid>) -> Result<bool, ErrorReport> {
    run(call::release, || release::release(token.map(uuid)))
}

#[pg_extern(sql = false)]
fn consume_once(consumer: Option<Text<'_>>, message_id: Option<Uuid>) -> Result<bool, ErrorReport> {
    run(call::consume_once, || consume_once::consume_once(consumer, message_id.map(uuid)))
}

#[pg_extern(sql = false)]
fn retry_dead(id: Option<Uuid>) -> Result<bool, ErrorReport> {
    run(call::retry_dead, || retry_dead::retry_dead(id.map(uuid)))
}

#[pg_extern(sql = false)]
fn redrive(
    topic: Option<Text<'_>>,
    r#type: Option<Text<'_>>,
    max_messages: Option<i32>,
    dry_run: Option<bool>,
) -> Result<i64, ErrorReport> {
    run(call::redrive, || redrive::redrive(topic, r#type, max_messages, dry_run))
}

#[pg_extern(sql = false)]
fn discard(
    topic: Option<Text<'_>>,
    r#type: Option<Text<'_>>,
    before: Option<Time>,
    max_messages: Option<i32>,
    dry_run: Option<bool>,
) -> Result<i64, ErrorReport> {
    run(call::discard, || discard::discard(topic, r#type, before, max_messages, dry_run))
}

#[pg_extern(sql = false)]
fn pause(topic: Option<Text<'_>>) -> Result<bool, ErrorReport> {
    run(call::pause, || pause::pause(topic))
}

#[pg_extern(sql = false)]
fn resume(topic: Option<Text<'_>>) -> Result<bool, ErrorReport> {
    run(call::resume, || pause::resume(topic))
}

#[pg_extern(sql = false)]
fn set_topic(topic: Option<Text<'_>>, settings: Option<Json<'_>>) -> Result<(), ErrorReport> {
    run(call::set_topic, || set_topic::set_topic(topic, settings))
}

#[pg_extern(sql = false)]
fn cloudevent(id: Option<Uuid>) -> Result<Option<Json<'static>>, ErrorReport> {
    run(call::cloudevent, || cloudevent::cloudevent(id.map(uuid)))
}

#[pg_extern(sql = false)]
fn grant_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), ErrorReport> {
    run(call::grant_access, || grant_access::grant_access(role_name, capability))
}

#[pg_extern(sql = false)]
fn revoke_access(role_name: Option<Text<'_>>, capability: Option<Text<'_>>) -> Result<(), ErrorReport> {
    run(call::revoke_access, || grant_access::revoke_access(role_name, capability))
}

/// A trigger; what it answers means nothing.
#[pg_extern(sql = false)]
fn apply_access() -> Result<(), ErrorReport> {
    run(call::apply_access, privileges::follow_rows)
}

#[pg_extern(sql = false)]
fn read_stats<'fcx>(caller: Caller<'fcx>) -> Result<StatsRows<'fcx>, ErrorReport> {
    run(call::read_stats, || stats::stats(caller))
}

#[pg_extern(sql = false)]
fn read_status<'fcx>(caller: Caller<'fcx>) -> Result<StatusRows<'fcx>, ErrorReport> {
    run(call::read_status, || status::status(caller))
}

#[pg_extern(sql = false)]
fn purge(max_messages: Option<i32>) -> Result<i64, ErrorReport> {
    run(call::purge, || Ok(purge::purge(max_messages)?.messages))
}
