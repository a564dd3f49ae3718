//! The sets that the SQL functions return.

pub use crate::pg::calls::result_set::Caller;
use crate::pg::calls::result_set::{Kind, Set};
use crate::pg::catalog::Object;
use crate::pg::value::datum::{Text, Time};
use crate::queue::counts::StateCounts;
use crate::rules::counters::Totals;
use crate::tables::envelope::Envelope;
use pgrx::pg_sys::{self, BOOLOID, INT4OID, INT8OID, JSONBOID, TEXTOID, TIMESTAMPTZOID, UUIDOID};
use uuid::Uuid;

pub enum Claimed {}
pub enum Answer {}
pub enum Stats {}
pub enum Status {}

pub type ClaimedRows<'fcx> = Set<'fcx, Claimed>;
pub type AnswerRows<'fcx> = Set<'fcx, Answer>;
pub type StatsRows<'fcx> = Set<'fcx, Stats>;
pub type StatusRows<'fcx> = Set<'fcx, Status>;

impl Kind for Claimed {
    const IDENT: &'static str = "outbox.claimed";
    const SQL: &'static str = "SETOF outbox.claimed";
    const OBJECT: &'static str = "outbox.claimed";
    const ROW_TYPE: Option<Object> = Some(Object::Claimed);
    const TYPES: &'static [pg_sys::Oid] = &[
        UUIDOID,
        UUIDOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
        TIMESTAMPTZOID,
        TEXTOID,
        JSONBOID,
        INT4OID,
        TIMESTAMPTZOID,
    ];
}

impl ClaimedRows<'_> {
    pub fn push(&mut self, message: &Envelope<'_>, token: Uuid, attempts: i16, leased_until: Time) {
        self.add(|row| {
            row.put(&message.id)
                .put(&token)
                .put(&message.topic)
                .put(&message.kind)
                .put(&message.payload)
                .put(&message.occurred_at)
                .put_opt(&message.key)
                .put_opt(&message.headers)
                .put(&i32::from(attempts))
                .put(&leased_until);
        });
    }
}

impl Kind for Answer {
    const IDENT: &'static str = "outbox.complete_batch";
    const SQL: &'static str = "TABLE (token uuid, completed boolean)";
    const OBJECT: &'static str = "outbox.complete_batch()";
    const TYPES: &'static [pg_sys::Oid] = &[UUIDOID, BOOLOID];
}

impl AnswerRows<'_> {
    pub fn push(&mut self, token: Uuid, completed: bool) {
        self.add(|row| {
            row.put(&token).put(&completed);
        });
    }
}

impl Kind for Stats {
    const IDENT: &'static str = "outbox.read_stats";
    const SQL: &'static str = "TABLE (topic text, ready bigint, leased bigint, waiting bigint, dead bigint, \
         oldest_ready_seconds bigint, delivered_total bigint, failed_total bigint, stale_total bigint)";
    const OBJECT: &'static str = "outbox.read_stats()";
    const TYPES: &'static [pg_sys::Oid] =
        &[TEXTOID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID];
}

impl StatsRows<'_> {
    pub fn push(
        &mut self,
        topic: Text<'_>,
        states: &StateCounts,
        oldest_ready: Option<i64>,
        totals: Option<Totals>,
    ) {
        self.add(|row| {
            row.put(&topic)
                .put(&states.ready)
                .put(&states.leased)
                .put(&states.waiting)
                .put(&states.dead)
                .put_opt(&oldest_ready)
                .put_opt(&totals.map(|totals| totals.delivered))
                .put_opt(&totals.map(|totals| totals.failed))
                .put_opt(&totals.map(|totals| totals.stale));
        });
    }
}

impl Kind for Status {
    const IDENT: &'static str = "outbox.read_status";
    const SQL: &'static str = "TABLE (name text, ok boolean, detail text)";
    const OBJECT: &'static str = "outbox.read_status()";
    const TYPES: &'static [pg_sys::Oid] = &[TEXTOID, BOOLOID, TEXTOID];
}

impl StatusRows<'_> {
    pub fn push(&mut self, name: Text<'_>, ok: bool, detail: Text<'_>) {
        self.add(|row| {
            row.put(&name).put(&ok).put(&detail);
        });
    }
}
