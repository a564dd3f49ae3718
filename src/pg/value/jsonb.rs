//! jsonb without parsing it into anything of ours: sizes, shapes, elements and members.
//!
//! Values are cut out of the binary form as they are, so depth, number range and precision are PostgreSQL's own.

use crate::pg::value::datum::{Column, Json};
use crate::rules::jsonb_text::{text_bound, text_size};
use pgrx::pg_sys;
use std::ffi::CStr;
use std::marker::PhantomData;

impl<'a> Json<'a> {
    /// Bytes of the value uncompressed, header included, or of its text if that is more. A text that cannot be longer
    /// than `limit`, nor than 16 MiB, is not measured.
    pub fn size(self, limit: usize) -> usize {
        // SAFETY: reads the header of a valid varlena.
        let binary = unsafe { pg_sys::toast_raw_datum_size(self.datum()) };
        if binary > limit {
            return binary;
        }
        self.with_bytes(|bytes| {
            if text_bound(bytes) <= limit.min(1 << 24) { binary } else { binary.max(text_size(bytes)) }
        })
    }

    /// True for a JSON object.
    pub fn is_object(self) -> bool {
        // SAFETY: the root container starts with its header.
        unsafe { (*self.root()).header & pg_sys::JB_FOBJECT != 0 }
    }

    /// The elements of a JSON array, or None for any other value.
    pub fn elements(self) -> Option<Elements<'a>> {
        // SAFETY: the iterator reads the detoasted value, which lives in the current memory context.
        unsafe {
            let mut iterator = pg_sys::JsonbIteratorInit(self.root());
            let mut value = pg_sys::JsonbValue::default();
            let token = pg_sys::JsonbIteratorNext(&mut iterator, &mut value, true);
            let array = token == pg_sys::JsonbIteratorToken::WJB_BEGIN_ARRAY && !value.val.array.rawScalar;
            let count = if array { value.val.array.nElems as usize } else { 0 };
            array.then_some(Elements { iterator, count, json: PhantomData })
        }
    }

    /// The members of a JSON object, or None for any other value.
    pub fn members(self) -> Option<Members<'a>> {
        // SAFETY: the container is part of the detoasted value, which lives in the current memory context.
        unsafe { members(self.root()) }
    }

    /// A member of a JSON object.
    pub fn member(self, name: &str) -> Option<Value<'a>> {
        self.members()?.find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
    }

    /// This object with the members of another one that it has not got itself.
    pub fn completed_by(self, other: Json<'_>) -> Json<'static> {
        // SAFETY: both are jsonb objects; jsonb_concat takes the right one's members first and makes a new, non-null
        // jsonb.
        unsafe {
            let both = [Some(other.datum()), Some(self.datum())];
            let joined = pgrx::direct_function_call_as_datum(pg_sys::jsonb_concat, &both);
            <Json as Column>::from_datum(joined.unwrap_or(pg_sys::Datum::null()))
        }
    }

    fn root(self) -> *mut pg_sys::JsonbContainer {
        // SAFETY: a detoasted jsonb is a Jsonb struct.
        unsafe { &raw mut (*pg_sys::pg_detoast_datum(self.as_ptr()).cast::<pg_sys::Jsonb>()).root }
    }
}

/// Iterates over the elements of an array.
pub struct Elements<'a> {
    iterator: *mut pg_sys::JsonbIterator,
    count: usize,
    json: PhantomData<&'a [u8]>,
}

impl<'a> Elements<'a> {
    pub fn len(&self) -> usize {
        self.count
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let mut value = pg_sys::JsonbValue::default();
        // SAFETY: the iterator is valid until it says that the array ends, and then never asked again by `for`.
        let token = unsafe { pg_sys::JsonbIteratorNext(&mut self.iterator, &mut value, true) };
        (token == pg_sys::JsonbIteratorToken::WJB_ELEM).then_some(Value(value, PhantomData))
    }
}

/// An element or member.
pub struct Value<'a>(pg_sys::JsonbValue, PhantomData<&'a [u8]>);

impl<'a> Value<'a> {
    pub fn is_null(&self) -> bool {
        self.0.type_ == pg_sys::jbvType::jbvNull
    }

    /// The bytes of a JSON string.
    pub fn text(&self) -> Option<&'a [u8]> {
        // SAFETY: the type says that the union holds a string, which lives as long as the document.
        (self.0.type_ == pg_sys::jbvType::jbvString).then(|| unsafe { string(&self.0) })
    }

    /// The digits of a JSON number, as PostgreSQL writes them.
    pub fn number(&self) -> Option<&'a [u8]> {
        if self.0.type_ != pg_sys::jbvType::jbvNumeric {
            return None;
        }
        // SAFETY: the type says that the union holds a numeric; numeric_out makes a C string of it, which lives in the
        // current memory context.
        unsafe {
            let numeric = pg_sys::Datum::from(self.0.val.numeric);
            let digits = pgrx::direct_function_call_as_datum(pg_sys::numeric_out, &[Some(numeric)]);
            digits.map(|digits| CStr::from_ptr(digits.cast_mut_ptr()).to_bytes())
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        if self.0.type_ != pg_sys::jbvType::jbvBool {
            return None;
        }
        // SAFETY: the type says that the union holds a boolean.
        Some(unsafe { self.0.val.boolean })
    }

    /// The value as a jsonb of its own, in the current memory context.
    pub fn into_json(mut self) -> Json<'static> {
        // SAFETY: JsonbValueToJsonb copies the value into a new, non-null jsonb.
        unsafe { <Json as Column>::from_datum(pg_sys::Datum::from(pg_sys::JsonbValueToJsonb(&mut self.0))) }
    }

    /// The members of a JSON object, or None for any other value.
    pub fn members(&self) -> Option<Members<'a>> {
        if self.0.type_ != pg_sys::jbvType::jbvBinary {
            return None;
        }
        // SAFETY: the type says that the union holds a container, which lives as long as the document.
        unsafe { members(self.0.val.binary.data) }
    }
}

/// Iterates over the members of an object.
pub struct Members<'a> {
    iterator: *mut pg_sys::JsonbIterator,
    json: PhantomData<&'a [u8]>,
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut key, mut value) = (pg_sys::JsonbValue::default(), pg_sys::JsonbValue::default());
        // SAFETY: a key is a string and is followed by its value.
        unsafe {
            let token = pg_sys::JsonbIteratorNext(&mut self.iterator, &mut key, true);
            if token != pg_sys::JsonbIteratorToken::WJB_KEY {
                return None;
            }
            pg_sys::JsonbIteratorNext(&mut self.iterator, &mut value, true);
            Some((string(&key), Value(value, PhantomData)))
        }
    }
}

/// # Safety
/// `value` is a string that lives for 'a.
unsafe fn string<'a>(value: &pg_sys::JsonbValue) -> &'a [u8] {
    // SAFETY: a string's value has its length beside it.
    unsafe { std::slice::from_raw_parts(value.val.string.val.cast(), value.val.string.len as usize) }
}

/// # Safety
/// `container` is one that lives for 'a.
unsafe fn members<'a>(container: *mut pg_sys::JsonbContainer) -> Option<Members<'a>> {
    // SAFETY: the container lives for 'a, and the iterator has just begun.
    unsafe {
        let mut iterator = pg_sys::JsonbIteratorInit(container);
        let mut value = pg_sys::JsonbValue::default();
        let token = pg_sys::JsonbIteratorNext(&mut iterator, &mut value, true);
        let object = token == pg_sys::JsonbIteratorToken::WJB_BEGIN_OBJECT;
        object.then_some(Members { iterator, json: PhantomData })
    }
}

/// A JSON object in the making, in the current memory context. What is put into it is copied at the end.
pub struct Object<'a>(*mut pg_sys::JsonbParseState, PhantomData<&'a [u8]>);

impl<'a> Object<'a> {
    pub fn new() -> Object<'a> {
        let mut object = Object(std::ptr::null_mut(), PhantomData);
        object.push(pg_sys::JsonbIteratorToken::WJB_BEGIN_OBJECT, None);
        object
    }

    /// Adds text in the database's encoding. A name that comes again replaces the former value.
    pub fn put_text(&mut self, name: &'a str, text: &'a [u8]) {
        self.name(name);
        self.push(pg_sys::JsonbIteratorToken::WJB_VALUE, Some(&mut string_value(text)));
    }

    /// Adds a value as it is.
    pub fn put(&mut self, name: &'a str, json: Json<'a>) {
        self.name(name);
        let mut value =
            pg_sys::JsonbValue { type_: pg_sys::jbvType::jbvBinary, ..pg_sys::JsonbValue::default() };
        value.val.binary.data = json.root();
        // Its length is not asked for: the value is taken apart.
        self.push(pg_sys::JsonbIteratorToken::WJB_VALUE, Some(&mut value));
    }

    pub fn finish(mut self) -> Json<'static> {
        let value = self.push(pg_sys::JsonbIteratorToken::WJB_END_OBJECT, None);
        // SAFETY: the end of the outermost object returns it whole; JsonbValueToJsonb copies it into a new, non-null
        // jsonb.
        unsafe { <Json as Column>::from_datum(pg_sys::Datum::from(pg_sys::JsonbValueToJsonb(value))) }
    }

    fn name(&mut self, name: &'a str) {
        self.push(pg_sys::JsonbIteratorToken::WJB_KEY, Some(&mut string_value(name.as_bytes())));
    }

    fn push(
        &mut self,
        token: pg_sys::JsonbIteratorToken::Type,
        value: Option<&mut pg_sys::JsonbValue>,
    ) -> *mut pg_sys::JsonbValue {
        let value = value.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: begin, pairs of name and value, end; what a value points to lives for 'a, and `finish` copies it.
        unsafe { pg_sys::pushJsonbValue(&mut self.0, token, value) }
    }
}

fn string_value(text: &[u8]) -> pg_sys::JsonbValue {
    let mut value = pg_sys::JsonbValue { type_: pg_sys::jbvType::jbvString, ..pg_sys::JsonbValue::default() };
    value.val.string = pg_sys::JsonbValue__bindgen_ty_1__bindgen_ty_1 {
        len: text.len() as i32,
        val: text.as_ptr().cast_mut().cast(),
    };
    value
}
