//! The sets that functions return: written straight into a tuplestore.
//!
//! All rows are there before the function returns, so a LIMIT on the call leaves nothing half done.

use crate::error::{Difference, Error};
use crate::pg::catalog::{self, Object};
use crate::pg::rows::row::FieldsMut;
use crate::pg::version;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use std::marker::PhantomData;

/// Where a set-returning function's caller wants its rows: an argument that SQL does not see.
pub struct Caller<'fcx>(pg_sys::FunctionCallInfo, PhantomData<&'fcx ()>);

/// What a set has.
pub trait Kind {
    /// The Rust type's name.
    const IDENT: &'static str;
    /// What the function is declared to return.
    const SQL: &'static str;
    /// What errors about its shape name.
    const OBJECT: &'static str;
    /// The row type, if it is a named one: it may have grown.
    const ROW_TYPE: Option<Object> = None;
    /// The types of the columns that are written.
    const TYPES: &'static [pg_sys::Oid];
}

/// A set in the making.
pub struct Set<'fcx, K> {
    store: *mut pg_sys::Tuplestorestate,
    shape: pg_sys::TupleDesc,
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
    caller: PhantomData<(&'fcx (), K)>,
}

impl<'fcx> Caller<'fcx> {
    /// Starts the result.
    ///
    /// # Errors
    /// [`Error::NoSet`] where no set can be taken, [`Error::Version`] see [`catalog::oid`], [`Error::Shape`].
    pub fn rows<K: Kind>(self) -> Result<Set<'fcx, K>, Error> {
        let row_type = K::ROW_TYPE.map(catalog::oid).transpose()?;
        // SAFETY: the caller's ReturnSetInfo lives as long as the call; shape and store live in its query context. The
        // row type is that of a relation that exists.
        let (store, shape, width) = unsafe {
            let info: *mut pg_sys::ReturnSetInfo = (*self.0).resultinfo.cast();
            if info.is_null()
                || (*info).type_ != pg_sys::NodeTag::T_ReturnSetInfo
                || (*info).allowedModes as u32 & pg_sys::SetFunctionReturnMode::SFRM_Materialize == 0
            {
                return Err(Error::NoSet);
            }
            let context = pg_sys::MemoryContextSwitchTo((*(*info).econtext).ecxt_per_query_memory);
            let mut shape = std::ptr::null_mut();
            match row_type {
                Some(row) => shape = pg_sys::lookup_rowtype_tupdesc_copy(pg_sys::get_rel_type_id(row), -1),
                None => {
                    pg_sys::get_call_result_type(self.0, std::ptr::null_mut(), &mut shape);
                }
            }
            let random =
                (*info).allowedModes as u32 & pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random != 0;
            let store = pg_sys::tuplestore_begin_heap(random, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(context);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            (*info).setDesc = shape;
            (store, shape, (*shape).natts as usize)
        };
        let (values, nulls) = (vec![pg_sys::Datum::null(); width], vec![true; width]);
        let rows = Set { store, shape, values, nulls, caller: PhantomData };
        rows.check()?;
        Ok(rows)
    }
}

impl<K: Kind> Set<'_, K> {
    /// Sees to it that the result has the columns that are written.
    fn check(&self) -> Result<(), Error> {
        let width = self.values.len();
        // SAFETY: the shape is valid, and has as many columns as it says.
        let column = |place| unsafe { &*version::attribute(self.shape, place) };
        let fits = width == K::TYPES.len() || K::ROW_TYPE.is_some() && width > K::TYPES.len();
        if fits && (0..).zip(K::TYPES).all(|(place, kind)| column(place).atttypid == *kind) {
            return Ok(());
        }
        let update = format!("Run ALTER EXTENSION {} UPDATE", catalog::extension().name.to_string_lossy());
        Err(Error::Shape(Difference {
            object: K::OBJECT.into(),
            what: "Its columns are not those that the library returns.".into(),
            cure: format!("{update} and connect again."),
        }))
    }

    /// Adds a row: `write` writes the columns that the shape was checked for. What it has besides is null. A value out
    /// of line stays so: the tuplestore holds the reference.
    pub fn add(&mut self, write: impl FnOnce(&mut FieldsMut<'_>)) {
        write(&mut FieldsMut { values: &mut self.values, nulls: &mut self.nulls, place: 0 });
        // SAFETY: the values are of the row's columns in order; tuplestore_putvalues copies them.
        unsafe {
            let (values, nulls) = (self.values.as_mut_ptr(), self.nulls.as_mut_ptr());
            pg_sys::tuplestore_putvalues(self.store, self.shape, values, nulls);
        }
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
unsafe impl<K: Kind> BoxRet for Set<'_, K> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        fcinfo.return_null()
    }
}

// SAFETY: the store was checked for the shape that the function declares.
unsafe impl<K: Kind> SqlTranslatable for Set<'_, K> {
    const TYPE_IDENT: &'static str = K::IDENT;
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::Datum);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Ok(ReturnsRef::One(SqlMappingRef::literal(K::SQL)));
}
