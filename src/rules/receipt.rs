//! Which completed messages share a receipt. Pure.
//!
//! A receipt names a range of numbers, all of them or a list. It must not reach far: a session that looks for a
//! number's receipt looks at those that begin less than [`SPAN`] before it. Those of one call to `append_batch` have
//! consecutive numbers; appended one by one, 64 messages fit a span.

/// `last - first` of a receipt is less than this; `outbox.message` relies on it.
pub const SPAN: i64 = 1 << 16;

/// Ascending numbers in groups that each fit a receipt.
pub fn groups(seqs: &[i64]) -> impl Iterator<Item = &[i64]> {
    let mut rest = seqs;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let end = rest.partition_point(|seq| seq - first < SPAN);
        let (group, others) = rest.split_at(end);
        rest = others;
        Some(group)
    })
}

/// True if no number is missing between the first and the last.
pub fn is_gapless(seqs: &[i64]) -> bool {
    seqs.windows(2).all(|pair| pair[1] - pair[0] == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_view_looks_as_far_back_as_a_receipt_reaches() {
        let view = include_str!("../../sql/views.sql");
        assert!(
            view.contains(&format!("a.first OPERATOR(pg_catalog.>) (e.seq OPERATOR(pg_catalog.-) {SPAN})"))
        );
    }

    #[test]
    fn consecutive_numbers_need_no_list() {
        assert!(is_gapless(&[7]) && is_gapless(&[7, 8, 9]));
        assert!(!is_gapless(&[7, 9]));
    }

    proptest! {
        #[test]
        fn every_number_is_in_one_group_and_no_group_reaches_far(
            seqs in prop::collection::btree_set(0..4 * SPAN, 0..200)
        ) {
            let seqs: Vec<i64> = seqs.into_iter().collect();
            let groups: Vec<&[i64]> = groups(&seqs).collect();
            prop_assert_eq!(&groups.concat(), &seqs);
            for group in &groups {
                prop_assert!(group[group.len() - 1] - group[0] < SPAN);
            }
            // As few as possible: no group could have taken the first of the next.
            for pair in groups.windows(2) {
                prop_assert!(pair[1][0] - pair[0][0] >= SPAN);
            }
        }
    }
}
