//! The sets that functions return: written straight into a tuplestore, payloads untouched.
//!
//! All rows are there before the function returns, so a LIMIT on the call cannot leave a message leased and unseen.

use crate::error::{Difference, Error};
use crate::pg::catalog::{self, Object};
use crate::pg::datum::{Column, Text, Time};
use crate::pg::version;
use crate::queue::counts::Stock;
use crate::shmem::counters::Totals;
use crate::tables::envelope::Envelope;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use std::marker::PhantomData;
use uuid::Uuid;

/// Where a set-returning function's caller wants its rows: an argument that SQL does not see.
pub struct Caller<'fcx>(pg_sys::FunctionCallInfo, PhantomData<&'fcx ()>);

/// `SETOF outbox.claimed` in the making.
pub struct ClaimedRows<'fcx>(Rows<'fcx>);

/// `TABLE (token uuid, completed boolean)` in the making.
pub struct AnswerRows<'fcx>(Rows<'fcx>);

/// `TABLE` of a topic's stock and totals in the making.
pub struct StatsRows<'fcx>(Rows<'fcx>);

/// `TABLE (name text, ok boolean, detail text)` in the making.
pub struct StatusRows<'fcx>(Rows<'fcx>);

/// The types of what is pushed.
const CLAIMED: [pg_sys::Oid; 10] = [
    pg_sys::UUIDOID,
    pg_sys::UUIDOID,
    pg_sys::TEXTOID,
    pg_sys::TEXTOID,
    pg_sys::JSONBOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TEXTOID,
    pg_sys::JSONBOID,
    pg_sys::INT4OID,
    pg_sys::TIMESTAMPTZOID,
];
const ANSWER: [pg_sys::Oid; 2] = [pg_sys::UUIDOID, pg_sys::BOOLOID];
const STATS: [pg_sys::Oid; 9] = {
    let mut types = [pg_sys::INT8OID; 9];
    types[0] = pg_sys::TEXTOID;
    types
};
const STATUS: [pg_sys::Oid; 3] = [pg_sys::TEXTOID, pg_sys::BOOLOID, pg_sys::TEXTOID];

/// A set in the making.
struct Rows<'fcx> {
    store: *mut pg_sys::Tuplestorestate,
    shape: pg_sys::TupleDesc,
    caller: PhantomData<&'fcx ()>,
}

impl<'fcx> Caller<'fcx> {
    /// Starts the result of `claim`.
    ///
    /// # Errors
    /// [`Error::NoSet`] where no set can be taken, [`Error::Version`] see [`catalog::oid`], [`Error::Shape`].
    pub fn claimed_rows(self) -> Result<ClaimedRows<'fcx>, Error> {
        let claimed = catalog::oid(Object::Claimed)?;
        // SAFETY: the row type of a relation that exists.
        let rows = self
            .rows(|_| unsafe { pg_sys::lookup_rowtype_tupdesc_copy(pg_sys::get_rel_type_id(claimed), -1) })?;
        rows.check("outbox.claimed", &CLAIMED, true)?;
        Ok(ClaimedRows(rows))
    }

    /// Starts the result of `complete_batch`.
    ///
    /// # Errors
    /// [`Error::NoSet`] where no set can be taken, [`Error::Shape`].
    pub fn answer_rows(self) -> Result<AnswerRows<'fcx>, Error> {
        Ok(AnswerRows(self.table("outbox.complete_batch()", &ANSWER)?))
    }

    /// Starts the result of `read_stats`.
    ///
    /// # Errors
    /// [`Error::NoSet`] where no set can be taken, [`Error::Shape`].
    pub fn stats_rows(self) -> Result<StatsRows<'fcx>, Error> {
        Ok(StatsRows(self.table("outbox.read_stats()", &STATS)?))
    }

    /// Starts the result of `read_status`.
    ///
    /// # Errors
    /// [`Error::NoSet`] where no set can be taken, [`Error::Shape`].
    pub fn status_rows(self) -> Result<StatusRows<'fcx>, Error> {
        Ok(StatusRows(self.table("outbox.read_status()", &STATUS)?))
    }

    fn table(self, function: &str, types: &[pg_sys::Oid]) -> Result<Rows<'fcx>, Error> {
        let rows = self.rows(table_shape)?;
        rows.check(function, types, false)?;
        Ok(rows)
    }

    fn rows(
        self,
        shape: impl FnOnce(pg_sys::FunctionCallInfo) -> pg_sys::TupleDesc,
    ) -> Result<Rows<'fcx>, Error> {
        // SAFETY: the caller's ReturnSetInfo lives as long as the call; shape and store live in its query context.
        unsafe {
            let info: *mut pg_sys::ReturnSetInfo = (*self.0).resultinfo.cast();
            if info.is_null()
                || (*info).type_ != pg_sys::NodeTag::T_ReturnSetInfo
                || (*info).allowedModes as u32 & pg_sys::SetFunctionReturnMode::SFRM_Materialize == 0
            {
                return Err(Error::NoSet);
            }
            let context = pg_sys::MemoryContextSwitchTo((*(*info).econtext).ecxt_per_query_memory);
            let shape = shape(self.0);
            let random =
                (*info).allowedModes as u32 & pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random != 0;
            let store = pg_sys::tuplestore_begin_heap(random, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(context);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            (*info).setDesc = shape;
            Ok(Rows { store, shape, caller: PhantomData })
        }
    }
}

/// The shape of a function that is declared to return a TABLE.
fn table_shape(call: pg_sys::FunctionCallInfo) -> pg_sys::TupleDesc {
    let mut shape = std::ptr::null_mut();
    // SAFETY: finds it by the declaration.
    unsafe { pg_sys::get_call_result_type(call, std::ptr::null_mut(), &mut shape) };
    shape
}

impl Rows<'_> {
    /// Sees to it that the result has the columns that are pushed; a type may have grown.
    fn check(&self, object: &str, types: &[pg_sys::Oid], may_be_longer: bool) -> Result<(), Error> {
        // SAFETY: the shape is valid, and has as many columns as it says.
        let is_same = unsafe {
            let width = (*self.shape).natts as usize;
            let column = |place| &*version::attribute(self.shape, place);
            (width == types.len() || may_be_longer && width > types.len())
                && (0..).zip(types).all(|(place, kind)| column(place).atttypid == *kind)
        };
        let what = || "Its columns are not those that the library returns.".into();
        let cure = || "Run ALTER EXTENSION outbox UPDATE and connect again.".into();
        is_same
            .then_some(())
            .ok_or_else(|| Error::Shape(Difference { object: object.into(), what: what(), cure: cure() }))
    }

    /// Adds a row; `fields` are of the types that the shape was checked for. What it has besides is null.
    fn push<const WIDTH: usize>(&mut self, fields: [Option<pg_sys::Datum>; WIDTH]) {
        let mut nulls = fields.map(|field| field.is_none());
        let mut values = fields.map(|field| field.unwrap_or(pg_sys::Datum::null()));
        // SAFETY: the values are of the row's columns in order; tuplestore_putvalues copies them.
        unsafe {
            let width = (*self.shape).natts as usize;
            if width == WIDTH {
                pg_sys::tuplestore_putvalues(self.store, self.shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            } else {
                let (mut values, mut nulls) = (values.to_vec(), nulls.to_vec());
                values.resize(width, pg_sys::Datum::null());
                nulls.resize(width, true);
                pg_sys::tuplestore_putvalues(self.store, self.shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            }
        }
    }
}

impl ClaimedRows<'_> {
    /// Adds a message. A payload out of line stays so: the tuplestore holds the reference.
    pub fn push(&mut self, message: &Envelope<'_>, token: Uuid, attempts: i16, leased_until: Time) {
        self.0.push([
            Some(message.id.datum()),
            Some(token.datum()),
            Some(message.topic.datum()),
            Some(message.kind.datum()),
            Some(message.payload.datum()),
            Some(message.occurred_at.datum()),
            message.key.map(|key| key.datum()),
            message.headers.map(|headers| headers.datum()),
            Some(i32::from(attempts).datum()),
            Some(leased_until.datum()),
        ]);
    }
}

impl AnswerRows<'_> {
    pub fn push(&mut self, token: Uuid, completed: bool) {
        self.0.push([Some(token.datum()), Some(completed.datum())]);
    }
}

impl StatsRows<'_> {
    pub fn push(
        &mut self,
        topic: Text<'_>,
        stock: &Stock,
        oldest_ready_seconds: Option<i64>,
        totals: Option<Totals>,
    ) {
        let counts = [stock.ready, stock.leased, stock.waiting, stock.dead].map(|count| Some(count.datum()));
        let [ready, leased, waiting, dead] = counts;
        self.0.push([
            Some(topic.datum()),
            ready,
            leased,
            waiting,
            dead,
            oldest_ready_seconds.map(|seconds| seconds.datum()),
            totals.map(|totals| totals.delivered.datum()),
            totals.map(|totals| totals.failed.datum()),
            totals.map(|totals| totals.stale.datum()),
        ]);
    }
}

impl StatusRows<'_> {
    pub fn push(&mut self, name: Text<'_>, ok: bool, detail: Text<'_>) {
        self.0.push([Some(name.datum()), Some(ok.datum()), Some(detail.datum())]);
    }
}

// SAFETY: takes the call's own fcinfo, not an argument of it.
unsafe impl<'fcx> ArgAbi<'fcx> for Caller<'fcx> {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: passed on to the caller.
        Caller(unsafe { <pg_sys::FunctionCallInfo as ArgAbi>::unbox_arg_unchecked(arg) }, PhantomData)
    }

    fn is_virtual_arg() -> bool {
        true
    }
}

// SAFETY: invisible in SQL.
unsafe impl SqlTranslatable for Caller<'_> {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Caller<'_>);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Err(ReturnsError::Datum);
}

/// A function's result that is already with its caller, declared in SQL as `$sql`.
macro_rules! delivered {
    ($type:ident, $sql:literal) => {
        // SAFETY: in materialize mode the rows are in the ReturnSetInfo and the datum is ignored.
        unsafe impl BoxRet for $type<'_> {
            unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
                fcinfo.return_null()
            }
        }

        // SAFETY: `Caller` gives the store exactly the shape that the function declares.
        unsafe impl SqlTranslatable for $type<'_> {
            const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!($type<'_>);
            const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
            const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::Datum);
            const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
                Ok(ReturnsRef::One(SqlMappingRef::literal($sql)));
        }
    };
}

delivered!(ClaimedRows, "SETOF outbox.claimed");
delivered!(AnswerRows, "TABLE (token uuid, completed boolean)");
delivered!(
    StatsRows,
    "TABLE (topic text, ready bigint, leased bigint, waiting bigint, dead bigint, oldest_ready_seconds bigint, \
     delivered_total bigint, failed_total bigint, stale_total bigint)"
);
delivered!(StatusRows, "TABLE (name text, ok boolean, detail text)");
