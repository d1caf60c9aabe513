//! Batch arithmetic, case by case.

use super::*;
use proptest::prelude::*;

fn counts(batches: u32, remainder_rows: u32) -> SplitCounts {
    SplitCounts { batches, remainder_rows }
}

fn cut(size: u32, drop_last: bool) -> BatchRules {
    BatchRules { size, drop_last, in_order: false }
}

/// All batches of an epoch.
fn plan(size: u32, drop_last: bool, splits: &[SplitCounts]) -> Vec<PlannedBatch> {
    plan_of(cut(size, drop_last), splits)
}

fn plan_of(cut: BatchRules, splits: &[SplitCounts]) -> Vec<PlannedBatch> {
    let mut joiner = BatchJoiner::new(cut);
    let mut batches = Vec::new();
    for split in splits {
        joiner.push(*split, |batch| batches.push(batch));
    }
    batches.extend(joiner.finish());
    batches
}

#[test]
fn whole_batches_come_first_and_a_joined_one_follows_the_split_that_completes_it() {
    let batches = plan(4, false, &[counts(1, 3), counts(2, 2), counts(0, 1)]);
    let piece = |position, rows| SplitRows { position, rows };
    let expected = [
        (4, BatchLocation::Whole { position: 0, frame: 0 }),
        (4, BatchLocation::Whole { position: 1, frame: 0 }),
        (4, BatchLocation::Whole { position: 1, frame: 1 }),
        (4, BatchLocation::Joined(vec![piece(0, 4..7), piece(1, 8..9)])),
        (2, BatchLocation::Joined(vec![piece(1, 9..10), piece(2, 0..1)])),
    ];
    let expected: Vec<_> = (0..)
        .zip(expected)
        .map(|(batch_index, (rows, source))| PlannedBatch { batch_index, rows, source })
        .collect();
    assert_eq!(batches, expected);
    assert_eq!(batches[3].positions().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn in_order_no_row_passes_another() {
    let in_order = BatchRules { in_order: true, ..cut(5, false) };
    let batches = plan_of(in_order, &[counts(0, 3), counts(1, 1), counts(0, 4), counts(1, 0)]);
    let piece = |position, rows| SplitRows { position, rows };
    let expected = [
        BatchLocation::Joined(vec![piece(0, 0..3), piece(1, 0..2)]),
        BatchLocation::Joined(vec![piece(1, 2..6), piece(2, 0..1)]),
        BatchLocation::Joined(vec![piece(2, 1..4), piece(3, 0..2)]),
        BatchLocation::Joined(vec![piece(3, 2..5)]),
    ];
    assert_eq!(batches.iter().map(|batch| batch.source.clone()).collect::<Vec<_>>(), expected);
    // Without remainders, batches pass unchanged.
    let whole = plan_of(in_order, &[counts(2, 0), counts(1, 0)]);
    assert!(whole.iter().all(|batch| matches!(batch.source, BatchLocation::Whole { .. })));
}

#[test]
fn a_last_batch_that_is_not_full_can_be_dropped() {
    let splits = [counts(1, 1)];
    assert_eq!(plan(4, true, &splits).len(), 1);
    assert_eq!(plan(4, false, &splits).len(), 2);
    assert!(plan(4, false, &[]).is_empty());
    assert!(plan(4, false, &[counts(0, 0)]).is_empty());
}

#[test]
fn the_first_needed_split_is_the_one_whose_rows_wait() {
    let mut joiner = BatchJoiner::new(cut(8, false));
    assert_eq!(joiner.first_needed(), 0);
    joiner.push(counts(3, 0), |_| {});
    joiner.push(counts(0, 2), |_| {});
    joiner.push(counts(0, 0), |_| {});
    joiner.push(counts(0, 3), |_| {});
    assert_eq!((joiner.position(), joiner.first_needed(), joiner.batch_index()), (4, 1, 3));
}

fn splits() -> impl Strategy<Value = (u32, Vec<SplitCounts>)> {
    (1u32..9).prop_flat_map(|batch_size| {
        let split = (0u32..4, 0..batch_size).prop_map(|(b, r)| counts(b, r));
        (Just(batch_size), prop::collection::vec(split, 0..30))
    })
}

proptest! {
    /// Batches are full but the last, are numbered without a gap and hold every row once; in order
    /// if `in_order`.
    #[test]
    fn every_row_is_in_exactly_one_batch((batch_size, splits) in splits(), in_order: bool) {
        let batches = plan_of(BatchRules { in_order, ..cut(batch_size, false) }, &splits);
        let rows: u64 = splits
            .iter()
            .map(|split| u64::from(split.batches) * u64::from(batch_size) + u64::from(split.remainder_rows))
            .sum();
        prop_assert_eq!(batches.len() as u64, rows.div_ceil(u64::from(batch_size)));
        let rows_of = |split: &SplitCounts| split.batches * batch_size + split.remainder_rows;
        let mut seen: Vec<Vec<u32>> = splits.iter().map(|split| vec![0; rows_of(split) as usize]).collect();
        let mut order = Vec::new();
        for (g, batch) in (0..).zip(&batches) {
            prop_assert_eq!(batch.batch_index, g);
            let last = batch.batch_index + 1 == batches.len() as u64;
            prop_assert!(batch.rows == batch_size || last);
            let pieces = match &batch.source {
                BatchLocation::Whole { position, frame } => {
                    let rows = frame * batch_size..(frame + 1) * batch_size;
                    vec![SplitRows { position: *position, rows }]
                }
                BatchLocation::Joined(pieces) => pieces.clone(),
            };
            prop_assert_eq!(pieces.iter().map(SplitRows::len).sum::<u32>(), batch.rows);
            for piece in pieces {
                prop_assert!(!piece.is_empty());
                for row in piece.rows {
                    seen[piece.position as usize][row as usize] += 1;
                    order.push((piece.position, row));
                }
            }
        }
        prop_assert!(seen.iter().flatten().all(|times| *times == 1));
        prop_assert!(!in_order || order.is_sorted());
    }

    /// From batch g on, a joiner that seeks continues exactly as one that never stopped, and needs
    /// no split before the one it names.
    #[test]
    fn seeking_gives_the_same_batches(
        (batch_size, splits) in splits(), at in 0usize..200, in_order: bool,
    ) {
        let cut = BatchRules { in_order, ..cut(batch_size, false) };
        let batches = plan_of(cut, &splits);
        let g = (at % (batches.len() + 1)) as u64;
        let mut joiner = BatchJoiner::seek(cut, g, splits.iter().copied());
        prop_assert!(joiner.batch_index() <= g);
        let needed = joiner.first_needed();
        let mut rest = Vec::new();
        for split in &splits[joiner.position() as usize..] {
            joiner.push(*split, |batch| rest.push(batch));
        }
        rest.extend(joiner.finish());
        rest.retain(|batch| batch.batch_index >= g);
        prop_assert_eq!(&rest, &batches[g as usize..]);
        prop_assert!(rest.iter().flat_map(PlannedBatch::positions).all(|position| position >= needed));
    }

    /// Hostile counts neither panic nor lose the numbering.
    #[test]
    fn a_remainder_larger_than_a_batch_is_still_cut_into_batches(rows in 0u32..1000) {
        let batches = plan(7, false, &[counts(0, rows)]);
        prop_assert_eq!(batches.len() as u32, rows.div_ceil(7));
    }
}
