//! What this session's client can be shown: text goes to it in its encoding, and core raises an error where that has
//! not the character.

use crate::pg::value::datum::{Json, Text};
use crate::rules::jsonb_text::{Part, visit};
use pgrx::pg_sys;
use std::ffi::CStr;

/// How the server turns its text into the client's encoding.
pub struct ToClient {
    server: i32,
    client: i32,
    /// None: the bytes go as they are, and are checked.
    conversion: Option<pg_sys::Oid>,
}

impl ToClient {
    /// None if text goes to the client as it is, unchecked.
    pub fn of_session() -> Option<ToClient> {
        // SAFETY: reads two numbers of this session, and looks up a conversion, in a transaction.
        let (server, client) = unsafe { (pg_sys::GetDatabaseEncoding(), pg_sys::pg_get_client_encoding()) };
        let ascii = pg_sys::pg_enc::PG_SQL_ASCII as i32;
        if client == server || client == ascii {
            return None;
        }
        if server == ascii {
            return Some(ToClient { server, client, conversion: None });
        }
        // SAFETY: as above.
        let conversion = unsafe { pg_sys::FindDefaultConversionProc(server, client) };
        (conversion != pg_sys::InvalidOid).then_some(ToClient {
            server,
            client,
            conversion: Some(conversion),
        })
    }

    /// Why the client cannot be shown a text, in core's words.
    pub fn refuses_text(&self, text: Text<'_>) -> Option<String> {
        self.refuses(text.bytes())
    }

    /// The same of the text of a jsonb value.
    pub fn refuses_json(&self, json: Json<'_>) -> Option<String> {
        json.with_bytes(|bytes| {
            let mut refused = None;
            visit(bytes, |part| {
                if let Part::Text(text) = part {
                    refused = self.refuses(text);
                }
                refused.is_none()
            });
            refused
        })
    }

    fn refuses(&self, text: &[u8]) -> Option<String> {
        let mut rest = text;
        while !rest.is_ascii() {
            let good = self.convert(rest);
            if good == 0 {
                return Some(self.reason(rest));
            }
            rest = &rest[good..];
        }
        None
    }

    /// How many bytes from the start of `text` the client can be shown; 0 if not even one character. Not all at once.
    fn convert(&self, text: &[u8]) -> usize {
        const GROWTH: usize = 4;
        let mut converted = [0; 2048 * GROWTH];
        let (from, length) = (text.as_ptr().cast_mut(), text.len() as i32);
        // SAFETY: both functions read at most `length` bytes, and say how many are good instead of raising an error;
        // the conversion writes at most as many bytes as it is told there are.
        let good = unsafe {
            match self.conversion {
                None => pg_sys::pg_encoding_verifymbstr(self.client, from.cast(), length),
                Some(conversion) => pg_sys::pg_do_encoding_conversion_buf(
                    conversion,
                    self.server,
                    self.client,
                    from,
                    length,
                    converted.as_mut_ptr(),
                    converted.len() as i32,
                    true,
                ),
            }
        };
        usize::try_from(good).unwrap_or(0)
    }

    /// Says of the first character of `text` that the client's encoding has none like it.
    fn reason(&self, text: &[u8]) -> String {
        // SAFETY: reads the character's first byte; names of encodings are C strings.
        let (length, names) = unsafe {
            let name = |name| CStr::from_ptr(name).to_string_lossy();
            let length = pg_sys::pg_encoding_mblen(self.server, text.as_ptr().cast());
            (
                length.unsigned_abs() as usize,
                [name(pg_sys::GetDatabaseEncodingName()), name(pg_sys::pg_get_client_encoding_name())],
            )
        };
        let bytes: Vec<String> = text.iter().take(length).map(|byte| format!("0x{byte:02x}")).collect();
        let [server, client] = names;
        format!(
            "character with byte sequence {} in encoding \"{server}\" has no equivalent in encoding \"{client}\"",
            bytes.join(" ")
        )
    }
}
