//! A token proves one lease of one message: a version-8 uuid made of the delivery's `seq` and the lease's nonce.
//!
//! An answer finds its row by `seq` and is accepted only if the row still holds the nonce. The nonce is random, one
//! per claim call, from a generator of the session's own that the system's random source seeds: counters repeat after a
//! savepoint rollback, a crash or a failover.

use uuid::{Builder, Uuid, Variant, Version};

/// Random bits in a nonce: what version, variant and `seq` leave of a uuid.
const NONCE_BITS: u32 = 62;
const SEQ_BITS: u32 = 60;
const NONCE_MASK: u64 = (1 << NONCE_BITS) - 1;

/// A new nonce, never zero, so that a token with none of its bits set is nobody's.
pub fn nonce() -> i64 {
    loop {
        let (_, low) = Uuid::new_v4().as_u64_pair();
        let nonce = (low & NONCE_MASK).cast_signed();
        if nonce != 0 {
            return nonce;
        }
    }
}

/// The token of message `seq` under the lease `nonce`.
pub fn encode(seq: i64, nonce: i64) -> Uuid {
    let seq = seq.cast_unsigned();
    // seq's upper 48 bits, the version's place, its lower 12 bits, the variant's place, the nonce.
    let high = ((seq >> 12) << 16) | (seq & 0xfff);
    let bits = (u128::from(high) << 64) | u128::from(nonce.cast_unsigned() & NONCE_MASK);
    Builder::from_custom_bytes(bits.to_be_bytes()).into_uuid()
}

/// The `seq` and nonce in a token, or None for a uuid that no claim has made.
pub fn decode(token: Uuid) -> Option<(i64, i64)> {
    if token.get_version() != Some(Version::Custom) || token.get_variant() != Variant::RFC4122 {
        return None;
    }
    let (high, low) = token.as_u64_pair();
    let seq = ((high >> 16) << 12) | (high & 0xfff);
    debug_assert!(seq < 1 << SEQ_BITS);
    Some((seq.cast_signed(), (low & NONCE_MASK).cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(seq in 0..1_i64 << SEQ_BITS, nonce in 1..1_i64 << NONCE_BITS) {
            let token = encode(seq, nonce);
            prop_assert_eq!(token.get_version(), Some(Version::Custom));
            prop_assert_eq!(decode(token), Some((seq, nonce)));
        }

        #[test]
        fn a_decoded_token_is_the_only_one_of_its_lease(bits: u128) {
            let token = Uuid::from_u128(bits);
            if let Some((seq, nonce)) = decode(token) {
                prop_assert_eq!(encode(seq, nonce), token);
            }
        }
    }

    #[test]
    fn foreign_uuids_are_no_tokens() {
        assert_eq!(decode(Uuid::nil()), None);
        assert_eq!(decode(Uuid::max()), None);
        assert_eq!(decode(Uuid::new_v4()), None);
        assert_eq!(decode(Uuid::now_v7()), None);
    }

    #[test]
    fn nonces_differ_and_are_not_zero() {
        let nonces: std::collections::HashSet<i64> = (0..10_000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 10_000);
        assert!(!nonces.contains(&0));
    }
}
