//! Tests of ready splits: they end at the first gap.

use super::*;
use crate::fixtures::{bundle, commit};
use gristmill_model::splits::{WorkerTimes, order::BundleDivision, ranges::BundleRanges};
use proptest::prelude::*;

/// Bundles of `n` splits; those in `open` are not committed.
fn bundles(n: u32, open: &[u32]) -> Vec<ScannedBundle> {
    let ranges = BundleRanges::from_epoch(BundleDivision::new(n, 4), 0, 0..n);
    let bundle = |index| {
        let positions = (0u8..).zip(ranges.division.positions(index));
        let committed = positions.filter(|(_, position)| !open.contains(position));
        let commits: Vec<_> = committed.map(|(at, position)| commit(at, position)).collect();
        bundle(&ranges.division, index, 7, 0, 0, &commits, WorkerTimes::default())
    };
    ranges.by_epoch[0].bundles.clone().map(bundle).collect()
}

proptest! {
    #[test]
    fn ready_splits_end_at_the_first_gap(
        n in 1u32..60, gaps in proptest::collection::vec(0u32..60, 0..4), from in 0u32..60,
        most in 1usize..40,
    ) {
        let from = from.min(n);
        let mut prefix = CommittedPrefix::default();
        prefix.extend(bundles(n, &gaps), from.into(), most);
        let first = (from..n).find(|at| gaps.contains(at));
        let end = first.unwrap_or(n).min(from + most as u32);
        let positions: Vec<u32> = prefix.entries.iter().map(|entry| entry.place.position).collect();
        prop_assert_eq!(positions, (from..end).collect::<Vec<_>>());
        let gap = prefix.gap.map(|(at, bundle)| (at as u32, bundle.positions.contains(&(at as u32))));
        prop_assert_eq!(gap, first.filter(|at| *at < from + most as u32).map(|at| (at, true)));
    }
}
