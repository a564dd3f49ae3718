//! When a failed message is due again: exponential, capped, no jitter (docs/contract.md section 4, `fail`).

const SECOND: i64 = 1_000_000;

/// Microseconds from now to the next attempt after `attempts` deliveries:
/// `least(backoff_seconds * 2^(attempts-1), backoff_max_seconds)`.
pub fn delay(attempts: i16, backoff_seconds: i32, backoff_max_seconds: i32) -> i64 {
    let doublings = u32::from(attempts.clamp(1, 63).unsigned_abs()) - 1;
    let seconds = i64::from(backoff_seconds).saturating_mul(1_i64 << doublings.min(62));
    seconds.min(i64::from(backoff_max_seconds)) * SECOND
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_until_the_cap() {
        let seconds: Vec<i64> = (1..=9).map(|n| delay(n, 30, 3600) / SECOND).collect();
        assert_eq!(seconds, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(delay(50, 3600, 86_400), 86_400 * SECOND);
        assert_eq!(delay(1, 3600, 1), SECOND);
    }

    proptest! {
        #[test]
        fn grows_and_stays_capped(n in 1..50_i16, base in 1..=3600_i32, cap in 1..=86_400_i32) {
            let (now, later) = (delay(n, base, cap), delay(n + 1, base, cap));
            prop_assert!(now > 0 && now <= later && later <= i64::from(cap) * SECOND);
        }
    }
}
