//! What a caller may pass, as pure rules: ranges, names, times, sizes. `error.rs` gives each fault its SQLSTATE.

/// The longest topic, type, key, owner or consumer, in bytes.
pub const NAME_BYTES: usize = 255;
/// The most elements an array argument may hold.
pub const ARRAY_ELEMENTS: usize = 10_000;
/// The most messages one claim leases.
pub const BATCH_SIZE: std::ops::RangeInclusive<i32> = 1..=500;
/// The length of a lease, in seconds, when a call passes one.
pub const LEASE_SECONDS: std::ops::RangeInclusive<i32> = 1..=43_200;
/// How long a claim may wait, in seconds.
pub const WAIT_SECONDS: std::ops::RangeInclusive<i32> = 0..=60;
/// Payload and headers together. The server sends rows of at most 1 GB: a dump doubles what is in quotes, and another
/// encoding needs up to three times the bytes. And as an event the message still is one jsonb, of at most 256 MB.
pub const MESSAGE_BYTES: usize = 268_431_360;
/// The times that PostgreSQL can print, in microseconds since 2000-01-01 UTC: 4714-11-24 BC to 294276-12-31.
pub const TIMES: std::ops::RangeInclusive<i64> = -211_813_488_000_000_000..=9_223_371_331_199_999_999;

/// Why an argument is refused. The first field is the argument's name as the caller wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Null(&'static str),
    NullElement(&'static str),
    Blank(&'static str),
    Control(&'static str),
    TooLong(&'static str, usize),
    OutOfRange(&'static str, i32, i32, i32),
    NotPositive(&'static str, i32),
    NilUuid(&'static str),
    NotFinite(&'static str),
    Dimensions(&'static str, i32),
    TooManyElements(&'static str, usize),
    TooLarge(&'static str, usize, usize),
    NotAnObject(&'static str),
    NotAnArray(&'static str),
    /// A key, and those that are known.
    UnknownKey(String, &'static str),
    UnknownCapability(String),
    NotText(&'static str),
    NotWhole(&'static str, i32, i32),
    NotBoolean(&'static str),
    /// Not ISO 8601 with an offset.
    NotATime(&'static str),
}

impl Fault {
    /// A key of a JSON object that is none of `known`, shortened.
    pub fn unknown_key(key: Letters<'_>, known: &'static str) -> Fault {
        Fault::UnknownKey(shown(key), known)
    }
}

/// Refuses NULL for `argument`.
pub fn required<T>(argument: &'static str, value: Option<T>) -> Result<T, Fault> {
    value.ok_or(Fault::Null(argument))
}

/// Text as a database holds it: characters if its encoding is UTF8, else bytes of which only ASCII is understood.
pub type Letters<'a> = Result<&'a str, &'a [u8]>;

/// Text as an error message repeats it: shortened.
pub fn shown(letters: Letters<'_>) -> String {
    match letters {
        Ok(text) => text.chars().take(64).collect(),
        Err(bytes) => bytes.escape_ascii().map(char::from).take(64).collect(),
    }
}

/// A topic, type, key, owner or consumer: 1 to 255 bytes, not only white space, no control characters.
pub fn name(argument: &'static str, letters: Letters<'_>) -> Result<(), Fault> {
    let (bytes, blank, control) = match letters {
        Ok(text) => (text.len(), text.trim().is_empty(), text.contains(char::is_control)),
        Err(bytes) => (bytes.len(), bytes.trim_ascii().is_empty(), bytes.iter().any(u8::is_ascii_control)),
    };
    if bytes > NAME_BYTES {
        return Err(Fault::TooLong(argument, bytes));
    }
    // A tab alone is blank and a control character; say the more useful of the two.
    if control {
        return Err(Fault::Control(argument));
    }
    if blank {
        return Err(Fault::Blank(argument));
    }
    Ok(())
}

/// A value inside its range.
pub fn within(
    argument: &'static str,
    value: i32,
    range: std::ops::RangeInclusive<i32>,
) -> Result<i32, Fault> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(Fault::OutOfRange(argument, value, *range.start(), *range.end()))
}

/// A whole number inside a range, from the digits of a JSON number.
pub fn whole(
    argument: &'static str,
    digits: &[u8],
    range: std::ops::RangeInclusive<i32>,
) -> Result<i32, Fault> {
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = whole.parse().ok().filter(|_| fraction.bytes().all(|digit| digit == b'0'));
    whole.filter(|value| range.contains(value)).ok_or(Fault::NotWhole(argument, *range.start(), *range.end()))
}

/// A count of at least one.
pub fn positive(argument: &'static str, value: i32) -> Result<i32, Fault> {
    if value > 0 { Ok(value) } else { Err(Fault::NotPositive(argument, value)) }
}

/// An array of one dimension, or empty, and not too long.
pub fn array(argument: &'static str, dimensions: i32, elements: usize) -> Result<(), Fault> {
    if dimensions > 1 {
        return Err(Fault::Dimensions(argument, dimensions));
    }
    if elements > ARRAY_ELEMENTS {
        return Err(Fault::TooManyElements(argument, elements));
    }
    Ok(())
}

/// A jsonb value of at most `limit` bytes, uncompressed and as text.
pub fn size(argument: &'static str, bytes: usize, limit: usize) -> Result<(), Fault> {
    if bytes <= limit { Ok(()) } else { Err(Fault::TooLarge(argument, bytes, limit)) }
}

/// Microseconds since 2000-01-01 UTC of an ISO 8601 date and time with an offset.
pub fn iso_time(argument: &'static str, text: &[u8]) -> Result<i64, Fault> {
    const UNIX_TO_2000_SECONDS: i128 = 946_684_800;
    let fault = || Fault::NotATime(argument);
    let text = std::str::from_utf8(text).map_err(|_| fault())?;
    let format = &time::format_description::well_known::Iso8601::PARSING;
    let time = time::OffsetDateTime::parse(text, format).map_err(|_| fault())?;
    let micros = time.unix_timestamp_nanos().div_euclid(1_000) - UNIX_TO_2000_SECONDS * 1_000_000;
    i64::try_from(micros).ok().filter(|micros| TIMES.contains(micros)).ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names() {
        assert_eq!(name("topic", Ok("orders")), Ok(()));
        assert_eq!(name("topic", Ok("bestellungen-ü")), Ok(()));
        assert_eq!(name("topic", Ok("")), Err(Fault::Blank("topic")));
        assert_eq!(name("topic", Ok("   ")), Err(Fault::Blank("topic")));
        assert_eq!(name("topic", Ok("\u{3000}\u{a0}")), Err(Fault::Blank("topic")));
        assert_eq!(name("topic", Ok("a\tb")), Err(Fault::Control("topic")));
        assert_eq!(name("topic", Ok("a\u{85}b")), Err(Fault::Control("topic")));
        assert_eq!(name("topic", Ok(&"a".repeat(255))), Ok(()));
        assert_eq!(name("topic", Ok(&"a".repeat(256))), Err(Fault::TooLong("topic", 256)));
    }

    #[test]
    fn names_in_other_encodings() {
        assert_eq!(name("topic", Err(b"\xe9t\xe9")), Ok(()));
        assert_eq!(name("topic", Err(b"\xc2\x85")), Ok(()));
        assert_eq!(name("topic", Err(b"\xe9\x07")), Err(Fault::Control("topic")));
        assert_eq!(name("topic", Err(b" ")), Err(Fault::Blank("topic")));
        assert_eq!(Fault::unknown_key(Err(b"k\xe9"), "a"), Fault::UnknownKey("k\\xe9".into(), "a"));
    }

    #[test]
    fn times_need_an_offset() {
        assert_eq!(iso_time("t", b"2000-01-01T00:00:00Z"), Ok(0));
        assert_eq!(iso_time("t", b"2000-01-01T01:00:00.000001+01:00"), Ok(1));
        assert_eq!(iso_time("t", b"1999-12-31T23:59:59.9999999Z"), Ok(-1));
        assert_eq!(iso_time("t", b"2000-01-01T00:00:00+00"), Ok(0));
        assert_eq!(iso_time("t", b"-004713-11-24T00:00:00Z"), Ok(*TIMES.start()));
        for bad in [
            "",
            "now",
            "infinity",
            "2000-01-01",
            "2000-01-01T00:00:00",
            "1735689600",
            "2000-13-01T00:00:00Z",
            "-004713-11-23T23:59:59.999999Z",
            "+294277-01-01T00:00:00Z",
        ] {
            assert_eq!(iso_time("t", bad.as_bytes()), Err(Fault::NotATime("t")), "{bad}");
        }
    }

    #[test]
    fn whole_numbers_of_json() {
        assert_eq!(whole("n", b"1", 1..=50), Ok(1));
        assert_eq!(whole("n", b"50.00", 1..=50), Ok(50));
        for bad in ["0", "51", "-1", "1.5", "1.01", "2147483648", "1e1", "NaN", ""] {
            assert_eq!(whole("n", bad.as_bytes(), 1..=50), Err(Fault::NotWhole("n", 1, 50)), "{bad}");
        }
    }

    #[test]
    fn limits_are_inclusive() {
        assert_eq!(within("batch_size", 500, BATCH_SIZE), Ok(500));
        assert_eq!(within("batch_size", 501, BATCH_SIZE), Err(Fault::OutOfRange("batch_size", 501, 1, 500)));
        assert_eq!(size("payload", 1024, 1024), Ok(()));
        assert_eq!(size("payload", 1025, 1024), Err(Fault::TooLarge("payload", 1025, 1024)));
        assert_eq!(array("tokens", 0, 0), Ok(()));
        assert_eq!(array("tokens", 2, 4), Err(Fault::Dimensions("tokens", 2)));
        assert_eq!(array("tokens", 1, 10_001), Err(Fault::TooManyElements("tokens", 10_001)));
        assert_eq!(positive("max_messages", 0), Err(Fault::NotPositive("max_messages", 0)));
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_short_visible_text(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if name("topic", std::str::from_utf8(&bytes).map_err(|_| bytes.as_slice())).is_ok() {
                prop_assert!((1..=NAME_BYTES).contains(&bytes.len()));
                prop_assert!(!bytes.iter().any(u8::is_ascii_control));
            }
        }

        #[test]
        fn any_text_as_a_time_is_a_time_or_a_fault(text in ".{0,40}") {
            let _ = iso_time("t", text.as_bytes());
        }
    }
}
