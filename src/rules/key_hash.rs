//! The hash by which the messages of a key are found.

/// FNV-1a of topic and key: the same for ever and everywhere, because it is stored.
pub fn of(topic: &[u8], key: &[u8]) -> i64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let topic = topic.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    let both = key.iter().fold(fold(topic, &0), fold);
    both.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: i64 = -2_361_327_707_992_201_626;

    #[test]
    fn what_is_stored_is_found_by_later_versions() {
        assert_eq!(of(b"orders", b"42"), STORED);
        assert_ne!(of(b"orders4", b"2"), STORED);
    }
}
