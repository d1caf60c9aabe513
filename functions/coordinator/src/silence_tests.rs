//! Tests of silence: which leases end early, and which never do.

use super::*;
use crate::{
    bundles::ScannedBundle,
    fixtures::{self, commit},
    scan::scanned,
};
use gristmill_model::splits::{WorkerTimes, order::BundleDivision};
use proptest::prelude::*;

/// A bundle claimed at `claimed_ms` by `worker`; its first `committed` splits took `split_ms` each and were
/// committed at `flushed_ms`.
fn bundle(
    index: u32,
    worker: u8,
    times_ms: (u64, u64),
    committed: u8,
    split_ms: u32,
) -> ScannedBundle {
    let commits: Vec<_> = (0..committed).map(|split_index| commit(split_index, 1)).collect();
    let (claimed_ms, flushed_ms) = times_ms;
    let compute_ms = u64::from(split_ms * u32::from(committed));
    let times = WorkerTimes { compute_ms, ..WorkerTimes::default() };
    fixtures::bundle(
        &BundleDivision::new(1_000, 4),
        index,
        worker,
        claimed_ms,
        flushed_ms,
        &commits,
        times,
    )
}

/// Indices of the bundles whose leases end at `now_ms`.
fn ended(bundles: Vec<ScannedBundle>, steady_since_ms: u64, now_ms: u64) -> Vec<usize> {
    silent_bundles(&scanned(bundles), steady_since_ms, now_ms)
}

/// A worker that claimed at 100 s and was silent since, beside one that made progress.
fn dead_and_living(split_ms: u32) -> Vec<ScannedBundle> {
    let dead = bundle(8, 1, (100_000, 0), 0, 0);
    vec![dead, bundle(9, 2, (100_500, 101_500), 4, split_ms)]
}

#[test]
fn a_worker_that_is_silent_while_others_go_on_loses_its_lease() {
    assert_eq!(ended(dead_and_living(100), 0, 102_500), Vec::<usize>::new());
    assert_eq!(ended(dead_and_living(100), 0, 102_501), [0]);
}

#[test]
fn longer_splits_are_waited_for_longer_but_not_for_ever() {
    // Expected: two splits per flush, times three.
    assert_eq!(ended(dead_and_living(1_000), 0, 106_000), Vec::<usize>::new());
    assert_eq!(ended(dead_and_living(1_000), 0, 106_001), [0]);
    assert_eq!(ended(dead_and_living(600_000), 0, 115_001), [0]);
}

#[test]
fn silence_says_nothing_where_nobody_else_goes_on() {
    let alone = vec![bundle(8, 1, (100_000, 0), 0, 0)];
    assert!(ended(alone, 0, 125_000).is_empty());
    // The other worker committed its splits before this lease began.
    let before = bundle(7, 2, (90_000, 99_000), 4, 100);
    let held = vec![before, bundle(8, 1, (100_000, 0), 0, 0)];
    assert!(ended(held, 0, 125_000).is_empty());
}

#[test]
fn silence_says_nothing_while_nobody_was_answered() {
    assert!(ended(dead_and_living(100), 104_000, 106_500).is_empty());
    assert_eq!(ended(dead_and_living(100), 104_000, 106_501), [0]);
}

#[test]
fn a_bundle_that_came_back_is_waited_for_twice_as_long_and_in_the_end_as_its_lease_says() {
    let failure_limits = |attempt| {
        let mut bundles = dead_and_living(100);
        bundles[0].item.as_mut().unwrap().attempt = attempt;
        (100_000..132_000).find(|now_ms| !ended(bundles.clone(), 0, *now_ms).is_empty())
    };
    let expected = [Some(102_501), Some(105_001), Some(110_001), None];
    assert_eq!([1, 2, 3, 4].map(failure_limits), expected);
}

proptest! {
    /// A worker that flushes in time, or sends a sign of life every ten seconds, keeps its lease, however
    /// long the splits of others take.
    #[test]
    fn a_worker_in_contact_keeps_its_lease(
        silent_ms in 0u64..20_000, split_ms in 0u32..5_000, committed in 0u8..4,
    ) {
        let now_ms = 200_000;
        let last_contact_ms = now_ms - silent_ms;
        let held = bundle(8, 1, (last_contact_ms, last_contact_ms), committed, split_ms);
        let other = bundle(9, 2, (now_ms - 1_000, now_ms), 4, split_ms);
        let ends = ended(vec![held, other], 0, now_ms).contains(&0);
        let flushes_within_ms = u64::from(split_ms) * 2;
        prop_assert!(!ends || silent_ms > 2_500 && silent_ms > flushes_within_ms.min(10_000));
        prop_assert!(ends || silent_ms <= 15_000);
    }
}
