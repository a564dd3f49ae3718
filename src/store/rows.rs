//! The rows that `claim` returns: written straight into a tuplestore, payloads untouched.
//!
//! All rows are there before the function returns, so a LIMIT on the call cannot leave a message leased and unseen.

use super::catalog::{self, Object};
use super::record::Envelope;
use super::value::{Column, Time};
use crate::error::Error;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use std::marker::PhantomData;
use uuid::Uuid;

/// Columns of `outbox.claimed`.
const WIDTH: usize = 10;

/// Where a set-returning function's caller wants its rows: an argument that SQL does not see.
pub struct Caller<'fcx>(pg_sys::FunctionCallInfo, PhantomData<&'fcx ()>);

/// `SETOF outbox.claimed` in the making.
pub struct ClaimedRows<'fcx> {
    store: *mut pg_sys::Tuplestorestate,
    shape: pg_sys::TupleDesc,
    count: usize,
    caller: PhantomData<&'fcx ()>,
}

impl<'fcx> Caller<'fcx> {
    /// Starts the result.
    ///
    /// # Errors
    /// [`Error::NoSet`] where no set can be taken, [`Error::Version`] see [`catalog::oid`].
    pub fn claimed_rows(self) -> Result<ClaimedRows<'fcx>, Error> {
        let claimed = catalog::oid(Object::Claimed)?;
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
            let shape = pg_sys::lookup_rowtype_tupdesc_copy(pg_sys::get_rel_type_id(claimed), -1);
            let random =
                (*info).allowedModes as u32 & pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random != 0;
            let store = pg_sys::tuplestore_begin_heap(random, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(context);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            (*info).setDesc = shape;
            Ok(ClaimedRows { store, shape, count: 0, caller: PhantomData })
        }
    }
}

impl ClaimedRows<'_> {
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a message. A payload out of line stays so: the tuplestore holds the reference.
    pub fn push(&mut self, message: &Envelope<'_>, token: Uuid, attempts: i16, leased_until: Time) {
        let attempts = i32::from(attempts);
        let fields: [Option<pg_sys::Datum>; WIDTH] = [
            Some(message.id.datum()),
            Some(token.datum()),
            Some(message.topic.datum()),
            Some(message.kind.datum()),
            Some(message.payload.datum()),
            Some(message.occurred_at.datum()),
            message.key.map(|key| key.datum()),
            message.headers.map(|headers| headers.datum()),
            Some(attempts.datum()),
            Some(leased_until.datum()),
        ];
        let mut nulls = fields.map(|field| field.is_none());
        let mut values = fields.map(|field| field.unwrap_or(pg_sys::Datum::from(0)));
        // SAFETY: the values are of the row type's columns in order; tuplestore_putvalues copies them.
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        self.count += 1;
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

// SAFETY: in materialize mode the rows are in the ReturnSetInfo and the datum is ignored.
unsafe impl BoxRet for ClaimedRows<'_> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        fcinfo.return_null()
    }
}

// SAFETY: `Caller::claimed_rows` gives the store exactly the shape of outbox.claimed.
unsafe impl SqlTranslatable for ClaimedRows<'_> {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(ClaimedRows<'_>);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::Datum);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("SETOF outbox.claimed")));
}
