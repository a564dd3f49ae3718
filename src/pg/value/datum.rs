//! Values as the server holds them: passed through untouched, looked into only where a rule needs it.

use crate::rules::argument::{ARRAY_ELEMENTS, TIMES};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, FromDatum, IntoDatum};
use pgrx::nullable::Nullable;
use pgrx::{impl_sql_translatable, pg_sys};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::time::Duration;
use uuid::Uuid;

/// A `text` value in the database's encoding, perhaps compressed or out of line.
#[derive(Clone, Copy)]
pub struct Text<'a>(NonNull<pg_sys::varlena>, PhantomData<&'a [u8]>);

/// A `jsonb` value, perhaps compressed or out of line. Never parsed into anything of ours.
#[derive(Clone, Copy)]
pub struct Json<'a>(NonNull<pg_sys::varlena>, PhantomData<&'a [u8]>);

/// A `timestamptz`: microseconds since 2000-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

/// An `int8[]` value without nulls.
#[derive(Clone, Copy)]
pub struct Numbers<'a>(NonNull<pg_sys::ArrayType>, PhantomData<&'a [i64]>);

/// A `uuid[]` argument, taken apart unless it is too long: where Rust gets no memory, the server ends.
pub struct UuidArray {
    pub dimensions: i32,
    pub length: usize,
    pub elements: Vec<Option<Uuid>>,
}

impl<'a> Text<'a> {
    /// The text's bytes, in the database's encoding.
    pub fn bytes(self) -> &'a [u8] {
        // SAFETY: the pointer is a valid varlena for 'a; detoasting returns it or a copy in the current memory
        // context, which outlives the call that holds the value.
        unsafe { varlena_bytes(pg_sys::pg_detoast_datum_packed(self.0.as_ptr())) }
    }

    /// The text as far as it can be understood, see [`letters`].
    pub fn letters(self) -> Result<&'a str, &'a [u8]> {
        letters(self.bytes())
    }

    /// A new value in the current memory context.
    pub fn new(bytes: &[u8]) -> Text<'static> {
        // SAFETY: cstring_to_text_with_len copies exactly the given bytes into a new varlena, never null.
        unsafe {
            let text = pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as i32);
            Text(NonNull::new_unchecked(text.cast()), PhantomData)
        }
    }

    /// A copy in the current memory context, free of the scan it was read from.
    pub fn copied(self) -> Text<'static> {
        Text::new(self.bytes())
    }

    /// At most `limit` bytes, cut on a character border of the database's encoding.
    pub fn cut(self, limit: i32) -> Text<'a> {
        let bytes = self.bytes();
        let Ok(length) = i32::try_from(bytes.len()) else { return self };
        if length <= limit {
            return self;
        }
        // SAFETY: reads at most `length` bytes of a valid text.
        let kept = unsafe { pg_sys::pg_mbcliplen(bytes.as_ptr().cast(), length, limit) };
        Text::new(&bytes[..kept.unsigned_abs() as usize])
    }
}

/// Characters if the database's encoding is UTF8, else the bytes.
pub fn letters(bytes: &[u8]) -> Result<&str, &[u8]> {
    // SAFETY: reads a number that is fixed for the session.
    if unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32 {
        std::str::from_utf8(bytes).map_err(|_| bytes)
    } else {
        Err(bytes)
    }
}

/// # Safety
/// `value` points to a varlena that is neither compressed nor out of line and lives for 'a.
unsafe fn varlena_bytes<'a>(value: *const pg_sys::varlena) -> &'a [u8] {
    // SAFETY: header and data of a plain varlena lie one behind the other.
    unsafe {
        std::slice::from_raw_parts(
            pgrx::varlena::vardata_any(value).cast(),
            pgrx::varlena::varsize_any_exhdr(value),
        )
    }
}

impl Numbers<'_> {
    /// A new value in the current memory context.
    pub fn new(numbers: &[i64]) -> Numbers<'static> {
        let mut elements: Vec<pg_sys::Datum> = numbers.iter().map(|number| (*number).into()).collect();
        // SAFETY: construct_array copies the elements into a new array, never null.
        unsafe {
            let array = pg_sys::construct_array(
                elements.as_mut_ptr(),
                elements.len() as i32,
                pg_sys::INT8OID,
                size_of::<i64>() as i32,
                true,
                pg_sys::TYPALIGN_DOUBLE as std::ffi::c_char,
            );
            Numbers(NonNull::new_unchecked(array), PhantomData)
        }
    }
}

impl<'a> Json<'a> {
    /// The pointer to the value, as the server passed it.
    pub fn as_ptr(self) -> *mut pg_sys::varlena {
        self.0.as_ptr()
    }

    /// Reads the value's bytes, uncompressed. A copy that this needs is freed at once.
    pub fn with_bytes<T>(self, read: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: the pointer is a valid varlena for 'a; detoasting returns it, or a copy that nobody else knows.
        unsafe {
            let value = pg_sys::pg_detoast_datum_packed(self.0.as_ptr());
            let read = read(varlena_bytes(value));
            if value != self.0.as_ptr() {
                pg_sys::pfree(value.cast());
            }
            read
        }
    }
}

impl Time {
    /// False for `infinity` and `-infinity`.
    pub fn is_finite(self) -> bool {
        self.0 != i64::MIN && self.0 != i64::MAX
    }

    /// Whole seconds from this time to a later one; 0 if it is not later.
    pub fn seconds_until(self, later: Time) -> i64 {
        later.0.saturating_sub(self.0).max(0) / 1_000_000
    }

    pub fn plus_seconds(self, seconds: i32) -> Time {
        self.plus_micros(i64::from(seconds) * 1_000_000)
    }

    /// The end of time stays the end.
    pub fn plus_micros(self, micros: i64) -> Time {
        Time(self.0.saturating_add(micros).clamp(*TIMES.start(), *TIMES.end()))
    }

    /// From this time to that one; nothing if that one is earlier.
    pub fn until(self, that: Time) -> Duration {
        Duration::from_micros(that.0.saturating_sub(self.0).max(0).unsigned_abs())
    }
}

/// What a table column can hold, and how it looks as a datum.
pub trait Column<'a>: Sized {
    /// The datum for this value. What it points to must live until the datum is used.
    fn datum(&self) -> pg_sys::Datum;
    /// # Safety
    /// `datum` is a non-null value of the matching SQL type and lives for 'a.
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self;
}

macro_rules! by_value {
    ($($type:ty),*) => {$(
        impl Column<'_> for $type {
            fn datum(&self) -> pg_sys::Datum {
                pg_sys::Datum::from(*self)
            }
            unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
                datum.value() as $type
            }
        }
    )*};
}
by_value!(i64, i32, i16, i8);

impl Column<'_> for pg_sys::Oid {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        pg_sys::Oid::from(datum.value() as u32)
    }
}

impl Column<'_> for bool {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        datum.value() & 0xff != 0
    }
}

impl Column<'_> for Time {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0)
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        Time(datum.value() as i64)
    }
}

impl Column<'_> for Uuid {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.as_bytes().as_ptr())
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        // SAFETY: a uuid datum points to 16 bytes.
        Uuid::from_bytes(unsafe { *datum.cast_mut_ptr::<[u8; 16]>() })
    }
}

impl<'a> Column<'a> for Text<'a> {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0.as_ptr())
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        // SAFETY: a non-null text datum is a pointer to a varlena.
        Text(unsafe { NonNull::new_unchecked(datum.cast_mut_ptr()) }, PhantomData)
    }
}

impl<'a> Column<'a> for Numbers<'a> {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0.as_ptr())
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        // SAFETY: a non-null int8[] datum is a pointer to an array.
        Numbers(unsafe { NonNull::new_unchecked(datum.cast_mut_ptr()) }, PhantomData)
    }
}

impl<'a> Column<'a> for Json<'a> {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0.as_ptr())
    }
    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        // SAFETY: a non-null jsonb datum is a pointer to a varlena.
        Json(unsafe { NonNull::new_unchecked(datum.cast_mut_ptr()) }, PhantomData)
    }
}

/// An argument or result of a SQL function, for a type that is already a [`Column`].
macro_rules! argument {
    ($type:ty) => {
        impl<'fcx> FromDatum for $type {
            unsafe fn from_polymorphic_datum(
                datum: pg_sys::Datum,
                null: bool,
                _: pg_sys::Oid,
            ) -> Option<Self> {
                // SAFETY: the function's declaration says that the argument has this SQL type.
                (!null).then(|| unsafe { <$type as Column<'fcx>>::from_datum(datum) })
            }
        }
        by_from_datum!($type);
    };
}

macro_rules! by_from_datum {
    ($type:ty) => {
        // SAFETY: FromDatum above reads exactly the declared type.
        unsafe impl<'fcx> ArgAbi<'fcx> for $type {
            unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
                // SAFETY: the caller guarantees a non-null argument of this type.
                unsafe { arg.unbox_arg_using_from_datum().unwrap_unchecked() }
            }

            unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
                // SAFETY: the caller guarantees an argument of this type.
                unsafe { arg.unbox_arg_using_from_datum().into() }
            }
        }
    };
}

/// An argument of a statement that SPI runs.
macro_rules! parameter {
    ($type:ty, $oid:path) => {
        impl IntoDatum for $type {
            fn into_datum(self) -> Option<pg_sys::Datum> {
                Some(self.datum())
            }

            fn type_oid() -> pg_sys::Oid {
                $oid
            }
        }
    };
}

parameter!(Text<'_>, pg_sys::TEXTOID);
parameter!(Json<'_>, pg_sys::JSONBOID);
parameter!(Time, pg_sys::TIMESTAMPTZOID);

argument!(Text<'fcx>);
argument!(Json<'fcx>);
argument!(Time);
impl_sql_translatable!(Text<'_>, "text");
impl_sql_translatable!(Json<'_>, "jsonb");
impl_sql_translatable!(Time, "timestamptz");

// SAFETY: a timestamptz is passed by value.
unsafe impl BoxRet for Time {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the function is declared to return timestamptz.
        unsafe { fcinfo.return_raw_datum(self.datum()) }
    }
}

// SAFETY: a jsonb is passed by reference, and this one lives in a memory context that outlives the call.
unsafe impl BoxRet for Json<'_> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the function is declared to return jsonb.
        unsafe { fcinfo.return_raw_datum(self.datum()) }
    }
}

impl FromDatum for UuidArray {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, null: bool, _: pg_sys::Oid) -> Option<Self> {
        if null {
            return None;
        }
        // SAFETY: the function's declaration says that the argument is a uuid[], whose lengths follow its header;
        // deconstruct_array allocates `length` datums and null flags in the current memory context.
        unsafe {
            let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            let dimensions = (*array).ndim;
            let mut length = pg_sys::ArrayGetNItems(dimensions, array.add(1).cast());
            if length as usize > ARRAY_ELEMENTS {
                return Some(UuidArray { dimensions, length: length as usize, elements: Vec::new() });
            }
            let (mut values, mut nulls) = (std::ptr::null_mut(), std::ptr::null_mut());
            pg_sys::deconstruct_array(
                array,
                pg_sys::UUIDOID,
                16,
                false,
                pg_sys::TYPALIGN_CHAR as std::ffi::c_char,
                &mut values,
                &mut nulls,
                &mut length,
            );
            let length = length as usize;
            let elements = (0..length)
                .map(|place| (!*nulls.add(place)).then(|| <Uuid as Column>::from_datum(*values.add(place))))
                .collect();
            Some(UuidArray { dimensions, length, elements })
        }
    }
}
by_from_datum!(UuidArray);
impl_sql_translatable!(UuidArray, "uuid[]");

/// A `uuid` argument or result as the `uuid` crate's type.
pub fn uuid(value: pgrx::Uuid) -> Uuid {
    Uuid::from_bytes(*value.as_bytes())
}

/// Text as core's own input function reads it, with its errors.
pub fn parse_uuid(text: &[u8]) -> Uuid {
    // The bytes of a JSON string have no zero byte.
    let text: Vec<u8> = text.iter().copied().chain([0]).collect();
    // SAFETY: uuid_in takes a C string and returns a uuid or raises an error.
    unsafe {
        let value = pgrx::direct_function_call_as_datum(pg_sys::uuid_in, &[Some(text.as_ptr().into())]);
        value.map_or(Uuid::nil(), |value| <Uuid as Column>::from_datum(value))
    }
}

/// A value that is stored as a letter.
pub trait Letter: Copy {
    fn letter(self) -> u8;
    fn of(letter: u8) -> Self;
}

impl<T: Letter> Column<'_> for T {
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.letter().cast_signed())
    }

    unsafe fn from_datum(datum: pg_sys::Datum) -> Self {
        T::of(datum.value() as u8)
    }
}
