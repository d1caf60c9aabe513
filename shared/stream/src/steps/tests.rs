//! Steps of ranks over a sample job.

use super::*;
use crate::samples::{SampleJob, batch, own};
use gristmill_model::splits::ranks::TailPolicy;
use std::time::Duration;

/// The steps of `count` ranks over a job of `n_splits` splits of four batches, from `from` on.
async fn steps(n_splits: u32, count: u32, from: Cursor, tail: TailPolicy) -> StepStream {
    let (_, ports, mut config) = SampleJob::new(n_splits, n_splits as usize).await;
    config.resume = from;
    config.own = Some(own(count, 0..count, from, tail));
    StepStream::new(Fetcher::start(ports, config).await.unwrap())
}

/// The batches of each step by rank, the cursors after them, and the batches left out.
async fn all(mut steps: StepStream) -> (Vec<Vec<Option<u64>>>, Vec<Cursor>, Vec<u64>) {
    let (mut given, mut cursors, mut left) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match steps.next().await.unwrap() {
            StepDelivery::Step { batches, next, .. } => {
                let index = |batch: &RankBatch| batch.batch.batch_index;
                given.push(batches.iter().map(|batch| batch.as_ref().map(index)).collect());
                cursors.push(next);
            }
            StepDelivery::EpochEnd { totals, left_out, left_batches } => {
                assert_eq!(totals.batches % 4, 0);
                assert_eq!(left_out, left_batches.len() as u64);
                left.extend(left_batches.iter().map(|batch| batch.batch_index));
            }
            StepDelivery::End => return (given, cursors, left),
        }
    }
}

#[tokio::test]
async fn every_rank_takes_one_of_consecutive_batches() {
    let (given, cursors, left) = all(steps(1, 2, batch(0, 0), TailPolicy::Drop).await).await;
    assert_eq!(given, [[Some(0), Some(1)], [Some(2), Some(3)]]);
    assert_eq!((cursors[0], left), (batch(0, 2), vec![]));
}

#[tokio::test]
async fn the_last_batches_are_left_out_or_repeated_or_uneven() {
    let tail = async |tail| all(steps(1, 3, batch(0, 0), tail).await).await;
    let (given, _, left) = tail(TailPolicy::Drop).await;
    assert_eq!((given, left), (vec![vec![Some(0), Some(1), Some(2)]], vec![3]));
    let (given, cursors, left) = tail(TailPolicy::Repeat).await;
    assert_eq!((&given[1], left), (&vec![Some(3), Some(3), Some(3)], vec![]));
    assert_eq!(cursors[1], batch(1, 0));
    let (given, _, left) = tail(TailPolicy::Uneven).await;
    assert_eq!((&given[1], left), (&vec![Some(3), None, None], vec![]));
}

#[tokio::test]
async fn a_run_of_other_ranks_goes_on_at_any_batch() {
    let (given, _, _) = all(steps(2, 2, batch(0, 3), TailPolicy::Uneven).await).await;
    assert_eq!(given, [[Some(3), Some(4)], [Some(5), Some(6)], [Some(7), None]]);
    let (given, _, left) = all(steps(2, 2, batch(0, 8), TailPolicy::Drop).await).await;
    assert!(given.is_empty() && left.is_empty(), "the epoch is over");
}

#[tokio::test]
async fn no_rank_gets_a_batch_of_a_step_that_is_not_whole() {
    let (job, ports, mut config) = SampleJob::new(2, 1).await;
    config.own = Some(own(3, 0..3, Cursor::default(), TailPolicy::Repeat));
    let mut steps = StepStream::new(Fetcher::start(ports, config).await.unwrap());
    assert!(matches!(steps.next().await.unwrap(), StepDelivery::Step { .. }));
    // Batch 3 is here, and batches 4 and 5 are not committed.
    let early = tokio::time::timeout(Duration::from_millis(300), steps.next()).await;
    assert!(early.is_err());
    job.commit(2);
    let StepDelivery::Step { step, batches, next } = steps.next().await.unwrap() else {
        panic!("the epoch goes on");
    };
    let taken: Vec<_> = batches.into_iter().flatten().map(|rank| rank.batch.batch_index).collect();
    assert_eq!((step.number, taken, next), (1, vec![3, 4, 5], batch(0, 6)));
}

#[tokio::test]
async fn a_step_that_is_larger_than_the_memory_budget_arrives() {
    let (_, ports, mut config) = SampleJob::new(4, 4).await;
    // Two objects of four batches at a time.
    config.prefetch = crate::PrefetchMemory::Bytes(1);
    config.own = Some(own(16, 0..16, Cursor::default(), TailPolicy::Drop));
    let mut steps = StepStream::new(Fetcher::start(ports, config).await.unwrap());
    let StepDelivery::Step { batches, .. } = steps.next().await.unwrap() else {
        panic!("there is a step");
    };
    assert_eq!(batches.iter().flatten().count(), 16);
    steps.checkpointed(batch(1, 0));
    assert!(matches!(steps.next().await.unwrap(), StepDelivery::EpochEnd { .. }));
    steps.into_fetcher().finish().await.unwrap();
}

#[tokio::test]
async fn a_trainer_that_keeps_every_batch_gets_all_of_them() {
    let (_, ports, mut config) = SampleJob::new(6, 6).await;
    config.prefetch = crate::PrefetchMemory::Bytes(1);
    let mut fetcher = Fetcher::start(ports, config).await.unwrap();
    let mut kept = Vec::new();
    loop {
        match fetcher.next().await.unwrap() {
            StreamDelivery::Batch(batch) => kept.push(batch),
            StreamDelivery::End => break,
            _ => {}
        }
    }
    assert_eq!(kept.len(), 24);
}

#[tokio::test]
async fn readers_of_some_ranks_take_what_one_reader_of_all_takes() {
    for tail in [TailPolicy::Drop, TailPolicy::Uneven] {
        for from in [batch(0, 0), batch(0, 3)] {
            let (whole, cursors, left) = all(steps(5, 3, from, tail).await).await;
            for (first, end) in [(0, 1), (1, 3), (2, 3)] {
                let (_, ports, mut config) = SampleJob::new(5, 5).await;
                config.resume = from;
                config.own = Some(own(3, first..end, from, tail));
                let mut run = StepStream::new(Fetcher::start(ports, config).await.unwrap());
                for (expected, cursor) in whole.iter().zip(&cursors) {
                    let StepDelivery::Step { batches, next, .. } = run.next().await.unwrap() else {
                        panic!("every reader has the same steps");
                    };
                    let own = &expected[first as usize..end as usize];
                    let given = batches.iter().map(|b| Some(b.as_ref()?.batch.batch_index));
                    assert_eq!((given.collect::<Vec<_>>(), &next), (own.to_vec(), cursor));
                }
                let StepDelivery::EpochEnd { left_out, .. } = run.next().await.unwrap() else {
                    panic!("the epoch ends after the same step");
                };
                assert_eq!(left_out, left.len() as u64);
                assert!(matches!(run.next().await.unwrap(), StepDelivery::End));
            }
        }
    }
}

#[test]
fn a_stream_that_begins_within_a_step_has_the_next_one_first() {
    let ranks = own(4, 0..4, batch(1, 2), TailPolicy::Drop).run.ranks;
    let first = |epoch, index| {
        let step = whole_step(&ranks, batch(epoch, index));
        (step.epoch, step.number)
    };
    assert_eq!([first(1, 2), first(1, 3), first(1, 6)], [(1, 0), (1, 1), (1, 1)]);
    assert_eq!([first(2, 0), first(2, 3), first(2, 4)], [(2, 0), (2, 1), (2, 1)]);
}

#[tokio::test]
async fn a_run_begins_again_at_any_of_its_steps() {
    let mut run = steps(2, 3, batch(0, 1), TailPolicy::Drop).await;
    let first = async |run: &mut StepStream| match run.next().await.unwrap() {
        StepDelivery::Step { batches, .. } => batches[0].clone().unwrap().batch.batch_index,
        other => panic!("{other:?}"),
    };
    assert_eq!([first(&mut run).await, first(&mut run).await], [1, 4]);
    let refused = run.reopen(batch(0, 3)).await.unwrap_err();
    assert!(refused.to_string().contains("first batch of a step"), "{refused}");
    run.reopen(batch(0, 4)).await.unwrap();
    run.fetcher().announce();
    assert_eq!(first(&mut run).await, 4);
}
