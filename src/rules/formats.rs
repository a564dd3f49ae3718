//! Texts whose form a standard prescribes. Pure.

/// W3C Trace Context: `version-trace id-parent id-flags`, lower-case hexadecimal, neither id all zero. A later version
/// than 00 may append more.
pub fn is_traceparent(text: &[u8]) -> bool {
    let Some((known, more)) = text.split_at_checked(55) else { return false };
    let parts: Vec<&[u8]> = known.split(|byte| *byte == b'-').collect();
    let [version, trace, parent, flags] = parts[..] else { return false };
    let is_hex = |part: &[u8], length: usize| {
        part.len() == length && part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |part: &[u8], length| is_hex(part, length) && part.iter().any(|byte| *byte != b'0');
    is_hex(version, 2)
        && version != b"ff"
        && is_id(trace, 32)
        && is_id(parent, 16)
        && is_hex(flags, 2)
        && (more.is_empty() || version != b"00" && more[0] == b'-')
}

/// RFC 3339, in UTC, of microseconds since 2000-01-01.
pub fn rfc3339(micros: i64) -> String {
    const UNIX_TO_2000: i128 = 946_684_800 * 1_000_000;
    let nanos = (i128::from(micros) + UNIX_TO_2000) * 1_000;
    let Ok(time) = time::OffsetDateTime::from_unix_timestamp_nanos(nanos) else { return String::new() };
    let ((hour, minute, second), date) = (time.to_hms(), time.date());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", time.microsecond())
}

/// One segment of a URI's path, RFC 3986: everything but unreserved characters is percent-encoded.
pub fn path_segment(text: &[u8]) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                segment.push(char::from(*byte))
            }
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument::iso_time;
    use proptest::prelude::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparents() {
        for good in [
            GOOD,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-what the future brings",
        ] {
            assert!(is_traceparent(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(rfc3339(0), "2000-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(1), "2000-01-01T00:00:00.000001Z");
        assert_eq!(rfc3339(-1), "1999-12-31T23:59:59.999999Z");
    }

    #[test]
    fn segments() {
        assert_eq!(path_segment(b"orders-v1_~."), "orders-v1_~.");
        assert_eq!(path_segment(b"a/b c%?#"), "a%2Fb%20c%25%3F%23");
        assert_eq!(path_segment("\u{fc}".as_bytes()), "%C3%BC");
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(micros in 0..2_000_000_000_000_000_i64) {
            prop_assert_eq!(iso_time("t", rfc3339(micros).as_bytes()), Ok(micros));
        }

        #[test]
        fn what_is_no_hexadecimal_digit_or_dash_is_in_no_traceparent(place in 0..55_usize, byte in any::<u8>()) {
            let mut text = GOOD.as_bytes().to_vec();
            text[place] = byte;
            if is_traceparent(&text) {
                prop_assert!(byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            }
        }
    }
}
