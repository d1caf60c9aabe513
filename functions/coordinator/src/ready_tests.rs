//! Tests of ready splits: they end at the first gap.

use super::*;
use gristmill_model::splits::{
    Claim, Commit, Flush, Limits, SplitKind, SplitOutcome, Term, WorkerTimes, claim,
    course::Course, flush, order::Ramp,
};
use gristmill_model::{InvocationId, Nonce};
use proptest::prelude::*;

const TERM: Term = Term { now_ms: 0, remaining_ms: 60_000, predicted_ms: 0 };

/// Bundles of `n` splits; those in `open` are not committed.
fn bundles(n: u32, open: &[u32]) -> Vec<ScannedBundle> {
    let course = Course::of_epoch(Ramp::new(n, 4), 0, 0..n);
    let leg = &course.legs[0];
    let mut bundles = Vec::new();
    for index in leg.bundles.clone() {
        let mut bundle = ScannedBundle::unseen(&course.ramp, (0, 0), index);
        let records = vec![1; bundle.positions.len()];
        let nonce = Nonce([7; 8]);
        let lease = Claim {
            nonce,
            invocation: &InvocationId("i".into()),
            term: TERM,
            first: bundle.positions.start,
            records: &records,
            death: None,
            control: None,
        };
        let leased = claim(None, &lease, &Limits::default()).unwrap().into_item();
        let commit = |(at, position): (u8, u32)| {
            let rows = position;
            (!open.contains(&position)).then_some(Commit {
                split_index: at,
                outcome: SplitOutcome {
                    kind: SplitKind::Object,
                    object_bytes: 1,
                    crc32c: 0,
                    rows,
                    batches: 1,
                    remainder_rows: 0,
                    skipped_records: 0,
                },
            })
        };
        let commits: Vec<_> = (0..).zip(bundle.positions.clone()).filter_map(commit).collect();
        let command = Flush {
            attempt: 1,
            nonce,
            commits: &commits,
            next: None,
            term: TERM,
            times: WorkerTimes::default(),
        };
        bundle.item = Some(flush(Some(&leased), &command).unwrap().into_item());
        bundles.push(bundle);
    }
    bundles
}

proptest! {
    #[test]
    fn what_is_ready_ends_at_the_first_gap(
        n in 1u32..60, gaps in proptest::collection::vec(0u32..60, 0..4), from in 0u32..60,
        most in 1usize..40,
    ) {
        let from = from.min(n);
        let mut prefix = Prefix::default();
        prefix.extend(bundles(n, &gaps), from.into(), most);
        let first = (from..n).find(|at| gaps.contains(at));
        let end = first.unwrap_or(n).min(from + most as u32);
        let positions: Vec<u32> = prefix.entries.iter().map(|entry| entry.place.position).collect();
        prop_assert_eq!(positions, (from..end).collect::<Vec<_>>());
        let gap = prefix.gap.map(|(at, bundle)| (at as u32, bundle.positions.contains(&(at as u32))));
        prop_assert_eq!(gap, first.filter(|at| *at < from + most as u32).map(|at| (at, true)));
    }
}
