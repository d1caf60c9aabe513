//! Assignment of batches to ranks, over counts, numbers of ranks, tails and restarts.

use super::*;
use crate::splits::batches::{BatchRules, SplitCounts};
use proptest::prelude::*;

fn ranks(count: u32, from: (Epoch, u64), tail: TailPolicy) -> RunRanks {
    let from = Cursor { epoch: from.0, batch_index: from.1 };
    RunRanks::new(NonZeroU32::new(count).unwrap(), from, tail)
}

fn all(count: u64) -> KnownBatches {
    KnownBatches { count, is_all: true }
}

fn some(count: u64) -> KnownBatches {
    KnownBatches { count, is_all: false }
}

fn step(epoch: Epoch, number: u64) -> TrainingStep {
    TrainingStep { epoch, number }
}

fn batch(batch_index: u64) -> RankAssignment {
    RankAssignment::Batch { batch_index }
}

fn any_tail() -> impl Strategy<Value = TailPolicy> {
    prop_oneof![Just(TailPolicy::Drop), Just(TailPolicy::Repeat), Just(TailPolicy::Uneven)]
}

#[test]
fn the_first_epoch_begins_at_the_cursor_and_later_ones_at_their_first_batch() {
    let run = ranks(3, (2, 10), TailPolicy::Drop);
    let first = run.assign_batches(step(2, 1), some(16));
    assert_eq!(first, Some(vec![batch(13), batch(14), batch(15)]));
    assert_eq!(run.assign_batches(step(3, 0), some(3)), Some(vec![batch(0), batch(1), batch(2)]));
}

#[test]
fn a_step_is_released_whole() {
    let run = ranks(3, (0, 0), TailPolicy::Drop);
    for rank in 0..3 {
        assert_eq!(run.assign(step(0, 1), rank, some(5)), RankAssignment::Wait);
        assert_eq!(run.assign(step(0, 1), rank, some(6)), batch(3 + u64::from(rank)));
        assert_eq!(run.assign(step(0, 1), rank, all(5)), RankAssignment::End);
    }
}

#[test]
fn each_tail_treats_two_batches_of_five_ranks_its_way() {
    let tail = |tail| ranks(5, (0, 0), tail).assign_batches(step(0, 2), all(12)).unwrap();
    let repeat = |batch_index, slot| RankAssignment::Repeat { batch_index, slot };
    assert_eq!(tail(TailPolicy::Drop), [RankAssignment::End; 5]);
    let repeated = [batch(10), batch(11), repeat(11, 12), repeat(10, 13), repeat(11, 14)];
    assert_eq!(tail(TailPolicy::Repeat), repeated);
    let end = RankAssignment::End;
    assert_eq!(tail(TailPolicy::Uneven), [batch(10), batch(11), end, end, end]);
    let left_out = |tail| ranks(5, (0, 0), tail).left_out(0, 12);
    assert_eq!([TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven].map(left_out), [2, 0, 0]);
}

#[test]
fn an_epoch_without_batches_has_no_step() {
    for tail in [TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven] {
        let run = ranks(4, (0, 0), tail);
        assert_eq!(run.assign(step(0, 0), 3, some(0)), RankAssignment::Wait);
        assert_eq!(run.assign(step(0, 0), 3, all(0)), RankAssignment::End);
        assert_eq!((run.steps(0, 0), run.left_out(0, 0)), (0, 0));
    }
}

#[test]
fn a_checkpoint_after_a_step_is_the_same_for_all_readers() {
    let run = ranks(4, (1, 2), TailPolicy::Repeat);
    let after = |number, known| run.cursor_after(step(1, number), known);
    for known in [some(6), some(9), all(6), all(13)] {
        assert_eq!(after(0, known), Cursor { epoch: 1, batch_index: 6 });
    }
    // Whether another batch follows is not known to all: a run that begins there finds out.
    for known in [some(10), all(10), all(13)] {
        assert_eq!(after(1, known), Cursor { epoch: 1, batch_index: 10 });
    }
    assert_eq!(after(2, all(13)), Cursor { epoch: 2, batch_index: 0 });
}

#[test]
fn a_cursor_belongs_to_the_step_that_hands_out_its_batch() {
    let run = ranks(4, (1, 2), TailPolicy::Repeat);
    let of = |epoch, batch_index| run.step_of(Cursor { epoch, batch_index });
    assert_eq!(of(1, 2), Some(step(1, 0)));
    assert_eq!(of(1, 9), Some(step(1, 1)));
    assert_eq!(of(2, 4), Some(step(2, 1)));
    assert_eq!(of(1, 1), None);
    assert_eq!(of(0, 7), None);
}

#[test]
fn one_rank_takes_every_batch() {
    let run = RunRanks::one(Cursor { epoch: 0, batch_index: 7 });
    assert_eq!(run.assign(step(0, 3), 0, some(11)), batch(10));
    assert_eq!((run.steps(0, 11), run.left_out(0, 11)), (4, 0));
}

#[test]
fn tails_are_read_as_they_are_written() {
    for tail in [TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven] {
        assert_eq!(tail.to_string().parse(), Ok(tail));
    }
    let refused = "\"Drop\" is not a tail: use one of drop, repeat, uneven";
    assert_eq!("Drop".parse::<TailPolicy>(), Err(refused.to_owned()));
    assert_eq!([true, false].map(TailPolicy::default_for), [TailPolicy::Drop, TailPolicy::Repeat]);
}

#[test]
fn no_ranks_at_all_cannot_be_stored() {
    let stored = serde_json::to_string(&ranks(2, (0, 0), TailPolicy::Drop)).unwrap();
    assert!(serde_json::from_str::<RunRanks>(&stored).is_ok());
    assert!(serde_json::from_str::<RunRanks>(&stored.replace(":2", ":0")).is_err());
}

/// Runs `run` over epochs of so many batches, up to `stop` steps, and notes the batches of each
/// rank. Returns the cursor of the checkpoint after the last step, and the batches left out.
fn train(
    run: RunRanks,
    batches: &[u64],
    stop: u64,
    given: &mut [Vec<(Cursor, RankAssignment)>],
) -> (Cursor, Vec<Cursor>) {
    let mut cursor = run.from;
    let mut left_out = Vec::new();
    let mut taken = 0;
    while let Some(count) = batches.get(cursor.epoch as usize).copied() {
        let epoch = cursor.epoch;
        let mut number = run.step_of(cursor).unwrap().number;
        assert_eq!(run.first_of(step(epoch, number)), cursor.batch_index);
        while number < run.steps(epoch, count) {
            if taken == stop {
                return (
                    Cursor { epoch, batch_index: run.first_of(step(epoch, number)) },
                    left_out,
                );
            }
            let assigned = run.assign_batches(step(epoch, number), all(count)).unwrap();
            for (rank, assignment) in given.iter_mut().zip(assigned) {
                rank.push((
                    Cursor { epoch, batch_index: run.first_of(step(epoch, number)) },
                    assignment,
                ));
            }
            (number, taken) = (number + 1, taken + 1);
        }
        let first = count - run.left_out(epoch, count);
        left_out.extend((first..count).map(|batch_index| Cursor { epoch, batch_index }));
        cursor = Cursor { epoch: epoch + 1, batch_index: 0 };
    }
    (cursor, left_out)
}

proptest! {
    /// Runs with other numbers of ranks, one after the other, each from the checkpoint of the one
    /// before, take each batch once.
    #[test]
    fn any_sequence_of_runs_takes_each_batch_once(
        batches in prop::collection::vec(0u64..40, 1..4),
        runs in prop::collection::vec((1u32..9, any_tail(), 0u64..12), 0..6),
        last in (1u32..9, any_tail()),
    ) {
        let runs = runs.into_iter().chain([(last.0, last.1, u64::MAX)]);
        let mut times: Vec<_> = batches.iter().map(|count| vec![0; *count as usize]).collect();
        let mut cursor = Cursor::default();
        for (count, tail, stop) in runs {
            let run = ranks(count, (cursor.epoch, cursor.batch_index), tail);
            let mut given = vec![Vec::new(); count as usize];
            let (next, left_out) = train(run, &batches, stop, &mut given);
            cursor = next;
            for at in left_out {
                times[at.epoch as usize][at.batch_index as usize] += 1;
            }
            for (first, assignment) in given.iter().flatten() {
                match *assignment {
                    RankAssignment::Batch { batch_index } => {
                        times[first.epoch as usize][batch_index as usize] += 1;
                    }
                    RankAssignment::Repeat { batch_index, slot } => {
                        let of_step = first.batch_index..first.batch_index + u64::from(count);
                        prop_assert!(of_step.contains(&batch_index) && of_step.contains(&slot));
                        prop_assert!(slot >= batches[first.epoch as usize], "{slot} exists");
                    }
                    RankAssignment::End => prop_assert_eq!(tail, TailPolicy::Uneven),
                    RankAssignment::Wait => prop_assert!(false, "everything is known"),
                }
            }
        }
        prop_assert!(times.iter().flatten().all(|times| *times == 1), "{:?}", times);
    }

    /// Every rank counts the same steps, whichever part of the epoch it learns of at a time.
    #[test]
    fn all_ranks_stop_after_the_same_step(
        count in 1u32..9,
        from in 0u64..20,
        batches in 0u64..60,
        is_drop: bool,
        news in prop::collection::vec(0u64..10, 1..20),
    ) {
        let tail = TailPolicy::default_for(is_drop);
        let run = ranks(count, (0, from.min(batches)), tail);
        let mut counted = Vec::new();
        for rank in 0..count {
            // Each rank learns of more batches on its own, and at last of the end.
            let mut known = some(0);
            let mut at = step(0, 0);
            let mut news = news.iter().cycle().skip(rank as usize);
            let steps = loop {
                match run.assign(at, rank, known) {
                    RankAssignment::Wait => {
                        let more = known.count + news.next().unwrap();
                        known = KnownBatches { count: more.min(batches), is_all: more > batches };
                        if news.clone().take(20).all(|more| *more == 0) {
                            known = all(batches);
                        }
                    }
                    RankAssignment::End => break at.number,
                    RankAssignment::Batch { .. } | RankAssignment::Repeat { .. } => at = at.next(),
                }
            };
            counted.push(steps);
        }
        prop_assert!(counted.iter().all(|steps| *steps == run.steps(0, batches)), "{:?}", counted);
    }

    /// No answer is taken back when more becomes known, and all ranks wait or none.
    #[test]
    fn answers_are_final_and_ranks_wait_together(
        count in 1u32..9, tail in any_tail(), number in 0u64..6, batches in 0u64..60, less in 0u64..60,
    ) {
        let run = ranks(count, (0, 0), tail);
        let end = run.assign_batches(step(0, number), all(batches)).unwrap();
        let known = some(batches.saturating_sub(less));
        match run.assign_batches(step(0, number), known) {
            Some(earlier) => prop_assert_eq!(earlier, end),
            None => {
                let waits = |rank| run.assign(step(0, number), rank, known) == RankAssignment::Wait;
                prop_assert!((0..count).all(waits));
                prop_assert!(known.count < run.first_of(step(0, number + 1)));
            }
        }
    }

    /// Batches known from the counts of splits never exceed those that the epoch has in the end.
    #[test]
    fn known_batches_grow_to_those_of_the_epoch(
        splits in prop::collection::vec((0u32..4, 0u32..8), 0..12), drop_last: bool,
    ) {
        let cut = BatchRules { size: 8, drop_last, in_order: false };
        let n_splits = splits.len() as Position;
        let mut joiner = BatchJoiner::new(cut);
        let mut made = 0;
        let mut known = KnownBatches::from_joiner(&joiner, n_splits);
        for (batches, remainder_rows) in splits {
            prop_assert!(!known.is_all);
            joiner.push(SplitCounts { batches, remainder_rows }, |_| made += 1);
            let more = KnownBatches::from_joiner(&joiner, n_splits);
            prop_assert!(more.count >= known.count);
            known = more;
        }
        prop_assert!(known.is_all);
        prop_assert_eq!(known.count, made + u64::from(joiner.finish().is_some()));
    }
}

proptest! {
    /// A checkpoint after a rank's last batch of an epoch is one of the next epoch, and no earlier one is.
    #[test]
    fn the_place_after_the_last_batch_of_a_rank_is_past_the_end(
        count in 1_u32..6,
        from in 0_u64..4,
        tail in any_tail(),
        batches in 0_u64..20,
        epoch in 0_u32..2,
    ) {
        let run = ranks(count, (0, from), tail);
        let end = Cursor::new(epoch, batches);
        for rank in 0..count {
            let has = |number: &u64| {
                run.assign(step(epoch, *number), rank, all(batches)) != RankAssignment::End
            };
            let steps = (0..).take_while(has).count() as u64;
            for number in 0..steps {
                let at = Cursor::new(epoch, run.first_of(step(epoch, number)));
                prop_assert_eq!(run.past_end(rank, at, end), at);
            }
            if let Some(last) = steps.checked_sub(1) {
                let after = run.cursor_after(step(epoch, last), all(batches));
                let next = Cursor::start_of(epoch + 1);
                prop_assert!(after == next || run.past_end(rank, after, end) == next);
            }
        }
    }
}

/// Eight ranks in a mesh with so many ranks before and after its data dimension.
fn meshed(replicas: &str, tail: TailPolicy) -> RunRanks {
    RunRanks { replicas: replicas.parse().unwrap(), ..ranks(8, (0, 0), tail) }
}

#[test]
fn replicas_take_the_batch_of_their_place_in_the_mesh() {
    let given = |replicas| {
        let run = meshed(replicas, TailPolicy::Drop);
        let assigned = run.assign_batches(step(0, 1), some(64)).unwrap();
        let first = run.first_of(step(0, 1));
        assigned
            .iter()
            .map(|assigned| match assigned {
                RankAssignment::Batch { batch_index } => batch_index - first,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(given("1"), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(given("2"), [0, 0, 1, 1, 2, 2, 3, 3], "tensor parallelism, the last dimension");
    assert_eq!(given("2x1"), [0, 1, 2, 3, 0, 1, 2, 3], "pipeline parallelism, the first one");
    assert_eq!(given("2x2"), [0, 0, 1, 1, 0, 0, 1, 1], "data in the middle");
    assert_eq!(given("8"), [0; 8]);
}

#[test]
fn a_step_has_a_batch_for_each_data_rank_and_its_tail_goes_by_them() {
    let run = meshed("2", TailPolicy::Repeat);
    assert_eq!((run.data_ranks(), run.first_of(step(0, 3)), run.steps(0, 13)), (4, 12, 4));
    assert_eq!(run.step_of(Cursor::new(0, 13)), Some(step(0, 3)));
    let tail = run.assign_batches(step(0, 3), all(14)).unwrap();
    let repeat = |batch_index, slot| RankAssignment::Repeat { batch_index, slot };
    let of_data = [batch(12), batch(13), repeat(13, 14), repeat(12, 15)];
    assert_eq!(tail, of_data.map(|of| [of; 2]).concat());
    let uneven = meshed("2x1", TailPolicy::Uneven).assign_batches(step(0, 3), all(13)).unwrap();
    let end = RankAssignment::End;
    assert_eq!(uneven, [batch(12), end, end, end, batch(12), end, end, end]);
    assert_eq!(meshed("2x2", TailPolicy::Drop).left_out(0, 13), 1);
}

#[test]
fn a_checkpoint_is_the_same_for_any_replicas() {
    let after = |count, replicas: &str, number| {
        let run = RunRanks {
            replicas: replicas.parse().unwrap(),
            ..ranks(count, (0, 0), TailPolicy::Drop)
        };
        run.cursor_after(step(0, number), some(64))
    };
    assert_eq!(after(4, "1", 1), after(8, "2", 1));
    assert_eq!(after(8, "2", 1), after(8, "4", 3), "4 x 2 and 2 x 4 ranks");
}

#[test]
fn ranks_without_replicas_are_stored_as_before() {
    let stored = serde_json::to_string(&ranks(2, (0, 0), TailPolicy::Drop)).unwrap();
    assert!(!stored.contains("replicas"), "{stored}");
    let meshed = meshed("2x2", TailPolicy::Drop);
    let stored = serde_json::to_value(meshed).unwrap();
    assert_eq!(stored["replicas"], "2x2");
    assert_eq!(serde_json::from_value::<RunRanks>(stored).unwrap(), meshed);
}

proptest! {
    #[test]
    fn a_range_takes_what_its_ranks_take(outer in 1u32..4, data in 1u32..6, inner in 1u32..4, at in any::<(u32, u32)>()) {
        let count = outer * data * inner;
        let first = at.0 % count;
        let range = RankRange { first, count: NonZeroU32::new(1 + at.1 % (count - first)).unwrap() };
        let replicas = format!("{outer}x{inner}").parse().unwrap();
        let run = RunRanks { replicas, ..ranks(count, (0, 0), TailPolicy::Drop) };
        let taken: std::collections::BTreeSet<_> = (first..range.end()).map(|rank| run.data_rank(rank)).collect();
        prop_assert_eq!(run.data_ranks_in(range) as usize, taken.len());
        for rank in 0..data {
            prop_assert_eq!(run.takes(range, rank), taken.contains(&rank));
        }
    }
}
