//! A procedure's CALL: what the server holds for it, and what it may let go of.

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use std::marker::PhantomData;

/// The CALL under way: an argument that SQL does not see.
pub struct Call<'fcx>(pg_sys::FunctionCallInfo, PhantomData<&'fcx ()>);

impl Call<'_> {
    /// Lets go of the statement's snapshot, so that what comes does not hold up vacuum. In a transaction block, or
    /// called by a function, it stays: others may be using it.
    pub fn let_go_of_snapshot(self) {
        // SAFETY: reads the call's context; where it is not atomic the procedure might commit, and the server expects
        // that the snapshot is gone when it returns.
        unsafe {
            let context = (*self.0).context;
            let is_call = !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_CallContext;
            if is_call && !(*context.cast::<pg_sys::CallContext>()).atomic {
                pg_sys::ForgetPortalSnapshots();
            }
        }
    }
}

// SAFETY: takes the call's own fcinfo, not an argument of it.
unsafe impl<'fcx> ArgAbi<'fcx> for Call<'fcx> {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: passed on to the caller.
        Call(unsafe { <pg_sys::FunctionCallInfo as ArgAbi>::unbox_arg_unchecked(arg) }, PhantomData)
    }

    fn is_virtual_arg() -> bool {
        true
    }
}

// SAFETY: invisible in SQL.
unsafe impl SqlTranslatable for Call<'_> {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Call<'_>);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Err(ReturnsError::Datum);
}
