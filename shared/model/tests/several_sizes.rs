//! Splits whose whole batches differ in size: their number does not follow from that of their rows.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_model::splits::{
    Bundle, BundleState, CommittedSplit, SplitKind, SplitOutcome, WorkerTimes,
    batches::{BatchJoiner, BatchLocation, BatchRules, PlannedBatch, SplitCounts},
    epoch::{SealTransition, open, seal},
};
use gristmill_model::{InvocationId, Nonce};

/// Batches, rows in all, and rows left over of each split; joined batches have four.
const SPLITS: [(u32, u32, u32); 3] = [(2, 21, 3), (0, 2, 2), (3, 13, 0)];

fn bundle() -> Bundle {
    let nonce = Nonce([1; 8]);
    let entry = |(batches, rows, remainder_rows)| {
        let (kind, object_bytes, crc32c, skipped_records) = (SplitKind::Object, 100, 0, 0);
        let outcome = SplitOutcome {
            kind,
            object_bytes,
            crc32c,
            rows,
            batches,
            remainder_rows,
            skipped_records,
        };
        Some(CommittedSplit { attempt: 1, nonce, outcome })
    };
    Bundle {
        state: BundleState::Done,
        attempt: 1,
        owner: nonce,
        invocation: InvocationId("i".into()),
        until_ms: 0,
        retry_at_ms: 0,
        since_ms: 0,
        entries: SPLITS.map(entry).to_vec(),
        current_split: None,
        suspect: None,
        control: None,
        error: None,
        times: WorkerTimes { source_ms: 1, compute_ms: 2, put_ms: 3 },
    }
}

/// The batches that a reader makes of the counts.
fn joined(drop_last: bool) -> Vec<PlannedBatch> {
    let mut joiner = BatchJoiner::new(BatchRules { size: 4, drop_last, in_order: false });
    let mut made = Vec::new();
    for (batches, _, remainder_rows) in SPLITS {
        joiner.push(SplitCounts { batches, remainder_rows }, |batch| made.push(batch));
    }
    made.extend(joiner.finish());
    made
}

#[test]
fn the_seal_counts_the_batches_that_readers_make() {
    for (drop_last, batches) in [(false, 7), (true, 6)] {
        let bundle = bundle();
        let command = SealTransition {
            bundles: &[Some(&bundle)],
            cached: None,
            batch_size: 4,
            drop_last,
            max_skipped: 0,
        };
        let opened = open(None, 7).unwrap().into_item();
        let totals = seal(Some(&opened), &command).unwrap().into_item().totals.unwrap();
        assert_eq!((totals.rows, totals.batches), (36, batches));
        assert_eq!(joined(drop_last).len() as u64, batches);
    }
}

#[test]
fn whole_batches_pass_and_the_rest_is_joined() {
    let made = joined(false);
    let is_whole = |batch: &PlannedBatch| matches!(batch.source, BatchLocation::Whole { .. });
    let whole: Vec<bool> = made.iter().map(is_whole).collect();
    assert_eq!(whole, [true, true, false, true, true, true, false]);
    assert_eq!([made[2].rows, made[6].rows], [4, 1]);
    // Rows are counted as if every whole batch had as many as a joined one, so that a row names its frame.
    let BatchLocation::Joined(pieces) = &made[2].source else { panic!("{made:?}") };
    assert_eq!(pieces.iter().map(|piece| piece.rows.clone()).collect::<Vec<_>>(), [8..11, 0..1]);
}
