//! jsonb as it lies in memory, part by part: how long its text is, without printing it. Pure.
//!
//! A container is a header, one entry for each element (of an object: all keys, then all values), and their data.

const COUNT: u32 = 0x0FFF_FFFF;
const IS_SCALAR: u32 = 0x1000_0000;
const IS_OBJECT: u32 = 0x2000_0000;

const LENGTH: u32 = 0x0FFF_FFFF;
const TYPE: u32 = 0x7000_0000;
const STRING: u32 = 0;
const NUMBER: u32 = 0x1000_0000;
const FALSE: u32 = 0x2000_0000;
const CONTAINER: u32 = 0x5000_0000;
/// The entry says where its data end, not how long they are.
const HAS_OFFSET: u32 = 0x8000_0000;

/// What the text consists of.
pub enum Part<'a> {
    /// A string, or the name of a member, as its characters are.
    Text(&'a [u8]),
    /// A `numeric`.
    Number(&'a [u8]),
    /// That many characters: a word, or the brackets, colons and commas of a container.
    Marks(usize),
}

/// A container that is being read: the rest of its entries, and where its data and the next element's begin.
struct Container<'a> {
    entries: std::slice::ChunksExact<'a, u8>,
    data: usize,
    start: usize,
}

impl<'a> Container<'a> {
    /// The container at `at`, and how many brackets, colons and commas it has, with spaces.
    fn open(value: &'a [u8], at: usize) -> Option<(Container<'a>, usize)> {
        let header = word(value.get(at..)?)?;
        let count = (header & COUNT) as usize;
        let commas = 2 * count.saturating_sub(1);
        let (elements, marks) = if header & IS_OBJECT != 0 {
            (2 * count, 2 + commas + 2 * count)
        } else {
            (count, if header & IS_SCALAR != 0 { 0 } else { 2 + commas })
        };
        let data = at + 4 + 4 * elements;
        Some((Container { entries: value.get(at + 4..data)?.chunks_exact(4), data, start: 0 }, marks))
    }
}

/// Shows `visit` all parts of a jsonb value, whose header and compression are gone, until it says false.
pub fn visit<'a>(value: &'a [u8], mut visit: impl FnMut(Part<'a>) -> bool) -> Option<()> {
    let (mut container, marks) = Container::open(value, 0)?;
    let mut outer = Vec::new();
    let mut goes_on = visit(Part::Marks(marks));
    while goes_on {
        let Some(entry) = container.entries.next() else {
            container = outer.pop()?;
            continue;
        };
        let entry = word(entry)?;
        let (start, length) = (container.start, (entry & LENGTH) as usize);
        let end = if entry & HAS_OFFSET != 0 { length } else { start + length };
        container.start = end;
        let part = match entry & TYPE {
            STRING => Part::Text(value.get(container.data + start..container.data + end)?),
            NUMBER => {
                Part::Number(value.get(container.data + start.next_multiple_of(4)..container.data + end)?)
            }
            CONTAINER => {
                let (inner, marks) = Container::open(value, container.data + start.next_multiple_of(4))?;
                outer.push(std::mem::replace(&mut container, inner));
                Part::Marks(marks)
            }
            FALSE => Part::Marks(5),
            _ => Part::Marks(4),
        };
        goes_on = visit(part);
    }
    None
}

/// Bytes that the text of a jsonb value, see [`visit`], has at most: in a microsecond for 8 kB, a fifth of what the
/// text itself takes. Zeros that are not stored are counted wherever a number can begin, and all bytes as if they were
/// control characters.
pub fn text_bound(value: &[u8]) -> usize {
    let size = value.len() as u32;
    let words = value.chunks_exact(4).map(|bytes| word(bytes).unwrap_or(0));
    // With one of its lower bits set a word is no length, and out of range.
    let begins = |length: u32| length.to_le().rotate_right(2).wrapping_sub(6) <= size;
    let numbers = words.clone().zip(words.skip(1)).filter(|(length, _)| begins(*length));
    let zeros = numbers.map(|(_, header)| Shape::of(header as u16, (header >> 16) as u16).zeros() as usize);
    6 * value.len() + zeros.sum::<usize>()
}

/// Bytes of the text of a jsonb value, see [`visit`].
pub fn text_size(value: &[u8]) -> usize {
    let mut size = 0;
    visit(value, |part| {
        size += match part {
            Part::Text(text) => text.len() + text.chunks(32).map(escapes).sum::<usize>() + 2,
            Part::Number(number) => digits(number).unwrap_or(0),
            Part::Marks(marks) => marks,
        };
        true
    });
    size
}

/// Bytes that up to 32 bytes of a string need besides.
fn escapes(bytes: &[u8]) -> usize {
    let escape = |byte: u8| {
        let short = matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c);
        if short { 1 } else { 5 * u8::from(byte < 0x20) }
    };
    bytes.iter().map(|byte| escape(*byte)).sum::<u8>().into()
}

/// What a `numeric` is like before its digits, of base 10,000: how many of them follow the first before the point, or a
/// negative number, and how many decimal ones come after it.
struct Shape {
    negative: bool,
    weight: i16,
    scale: u16,
}

impl Shape {
    const SHORT: u16 = 0x8000;

    fn of(header: u16, weight: u16) -> Shape {
        if header & Self::SHORT != 0 {
            let weight = (header << 9).cast_signed() >> 9;
            Shape { negative: header & 0x2000 != 0, weight, scale: (header & 0x1F80) >> 7 }
        } else {
            Shape { negative: header & 0x4000 != 0, weight: weight.cast_signed(), scale: header & 0x3FFF }
        }
    }

    /// Characters that need not be stored.
    fn zeros(&self) -> u32 {
        4 * u32::from(self.weight.max(0).unsigned_abs()) + u32::from(self.scale)
    }
}

/// Characters of a `numeric`.
fn digits(number: &[u8]) -> Option<usize> {
    let half = |at: usize| number.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    let header = half(4)?;
    let shape = Shape::of(header, half(6).unwrap_or(0));
    let first = half(if header & Shape::SHORT != 0 { 6 } else { 8 }).filter(|_| shape.weight >= 0);
    let more_of_first = first.and_then(u16::checked_ilog10).unwrap_or(0);
    let marks = usize::from(shape.negative) + usize::from(shape.scale > 0);
    Some(marks + 1 + more_of_first as usize + shape.zeros() as usize)
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn jsonb(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn numbers() {
        let scalar = |words: &[u32]| {
            let mut value = vec![0x4000_0001 | IS_SCALAR, NUMBER | (4 * words.len() as u32)];
            value.extend(words);
            let value = jsonb(&value);
            assert!(text_size(&value) <= text_bound(&value));
            text_size(&value)
        };
        assert_eq!(scalar(&[8 << 2, 0x8000 | 1 << 16]), 1); // 1
        assert_eq!(scalar(&[8 << 2, 0xA000 | 12 << 16]), 3); // -12
        assert_eq!(scalar(&[8 << 2, 0x8080 | 0x7F | 1000 << 16]), 3); // 0.1
        assert_eq!(scalar(&[12 << 2, 0x7FFF_3FFF, 9_999]), 131_072 + 1 + 16_383);
        assert_eq!(scalar(&[8 << 2, 0x3FFF]), 1 + 1 + 16_383); // 0.00…
    }

    #[test]
    fn containers() {
        // {"a": [false, null]}
        let value =
            jsonb(&[0x2000_0001, 1, CONTAINER | 15, u32::from(b'a'), 0x4000_0002, FALSE, 0x4000_0000]);
        assert_eq!(text_size(&value), 20);
        assert!(text_bound(&value) >= 20);
    }

    #[test]
    fn strings() {
        let value = |text: &[u8]| [&jsonb(&[0x4000_0001 | IS_SCALAR, text.len() as u32]), text].concat();
        assert_eq!(text_size(&value(b"")), 2);
        assert_eq!(text_size(&value("\u{fc}\u{7f}".as_bytes())), 5);
        assert_eq!(text_size(&value(b"\"\\\n\r\t\x08\x0c")), 16);
        assert_eq!(text_size(&value(&[1; 100])), 602);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_size(value in prop::collection::vec(any::<u8>(), 0..64)) {
            text_size(&value);
            text_bound(&value);
        }
    }
}
