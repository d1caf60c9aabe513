//! Steps of ranks over a sample job.

use super::*;
use crate::samples::{SampleJob, SampleJobShape, batch, own};
use bytes::Bytes;
use gristmill_chunk::FrameCodec;
use gristmill_model::splits::ranks::TailPolicy;
use gristmill_ports::ObjectPath;
use std::{ops::Range, time::Duration};

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

// Several readers of one run: each takes the batches of its ranks, and reads only their bytes.

const TAILS: [TailPolicy; 3] = [TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven];
/// Splits with and without remainders, some smaller than a batch, two without rows.
const UNEVEN: [u32; 12] = [13, 3, 30, 0, 8, 5, 21, 17, 2, 40, 0, 9];

/// A batch as a rank gets it: step, rank, number, the number it is repeated for, bytes.
type Given = (u64, u32, u64, Option<u64>, Bytes);

/// All that one reader gives its ranks.
#[derive(Default)]
struct Read {
    given: Vec<Given>,
    cursors: Vec<Cursor>,
    left_out: u64,
    fetched_bytes: u64,
}

/// Reads the ranks `range` of a run.
async fn read(shape: &SampleJobShape, range: Range<u32>, run: (u32, Cursor, TailPolicy)) -> Read {
    let (count, from, tail) = run;
    let (_, ports, mut config) = SampleJob::from_shape(shape).await;
    config.resume = from;
    // Two objects of the usual size at a time.
    config.prefetch = crate::PrefetchMemory::Bytes(1);
    config.own = Some(own(count, range.clone(), from, tail));
    let mut steps = StepStream::new(Fetcher::start(ports, config).await.unwrap());
    let mut read = Read::default();
    loop {
        match steps.next().await.unwrap() {
            StepDelivery::Step { step, batches, next } => {
                assert_eq!(batches.len(), range.len());
                for (rank, batch) in range.clone().zip(batches) {
                    let Some(RankBatch { batch, repeated_for }) = batch else { continue };
                    let DeliveredBatch { batch_index, frame, .. } = batch;
                    read.given.push((step.number, rank, batch_index, repeated_for, frame));
                }
                read.cursors.push(next);
            }
            StepDelivery::EpochEnd { left_out, .. } => read.left_out = left_out,
            StepDelivery::End => break,
        }
    }
    read.fetched_bytes = steps.fetcher().statistics().fetched_bytes;
    read
}

/// Reads a run by readers of `ranks` ranks each; together they give what one reader of all ranks gives.
async fn divided(shape: &SampleJobShape, ranks: u32, run: (u32, Cursor, TailPolicy)) -> u64 {
    let (count, ..) = run;
    let whole = read(shape, 0..count, run).await;
    let (mut given, mut fetched_bytes) = (Vec::new(), 0);
    for first in (0..count).step_by(ranks as usize) {
        let part = read(shape, first..count.min(first + ranks), run).await;
        assert_eq!(part.cursors, whole.cursors, "all readers have the same steps: {run:?}");
        assert_eq!(part.left_out, whole.left_out);
        given.extend(part.given);
        fetched_bytes += part.fetched_bytes;
    }
    given.sort_by_key(|(step, rank, ..)| (*step, *rank));
    assert!(given == whole.given, "the readers of {ranks} ranks give the same batches: {run:?}");
    fetched_bytes
}

/// Splits whose objects are too large to be read whole without need.
fn large(rows: &[u32]) -> SampleJobShape {
    SampleJobShape { width: 512, ..SampleJobShape::from_rows(rows) }
}

#[tokio::test]
async fn readers_together_give_what_one_reader_gives() {
    for in_order in [false, true] {
        let shape = SampleJobShape { in_order, ..large(&UNEVEN) };
        for tail in TAILS {
            for count in 2..=8 {
                divided(&shape, 1, (count, Cursor::default(), tail)).await;
                divided(&shape, count.div_ceil(2), (count, batch(0, 5), tail)).await;
            }
        }
    }
}

#[tokio::test]
async fn compressed_frames_and_small_objects_are_the_same_batches() {
    let packed = SampleJobShape {
        codec: FrameCodec::Zstd { level: 3 },
        width: 4096,
        ..SampleJobShape::from_rows(&UNEVEN)
    };
    for shape in [
        packed,
        SampleJobShape::from_rows(&UNEVEN),
        SampleJobShape::from_rows(&[0, 0]),
        large(&[5]),
    ] {
        for tail in TAILS {
            divided(&shape, 2, (3, Cursor::default(), tail)).await;
            divided(&shape, 1, (4, batch(0, 0), tail)).await;
        }
    }
}

#[tokio::test]
async fn readers_read_little_more_than_the_objects_once() {
    // Every split leaves a remainder, and two or three of them make a batch.
    let rows: Vec<u32> = (0..24).map(|split| 64 + 3 + split % 4).collect();
    for width in [64, 512] {
        let shape = SampleJobShape { width, ..SampleJobShape::from_rows(&rows) };
        let (_, ports, config) = SampleJob::from_shape(&shape).await;
        let objects = ports.objects.list(&config.bucket, "").await.unwrap();
        let bytes: u64 = objects.iter().map(|object| object.size).sum();
        let fetched = divided(&shape, 2, (8, Cursor::default(), TailPolicy::Drop)).await;
        assert!(fetched * 10 <= bytes * 11, "{fetched} of {bytes} bytes, {width} numbers a row");
    }
}

/// The first step of a reader of rank 2 of 8, after `change` to the first object; none removes it.
async fn after(
    change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>,
) -> Result<StepDelivery, FetchError> {
    let (_, ports, mut config) = SampleJob::from_shape(&large(&[64, 64])).await;
    let objects = &ports.objects;
    let first = objects.list("b", "").await.unwrap().remove(0);
    let path = ObjectPath::new("b", &first.key);
    let object = objects.get(&path).await.unwrap();
    objects.delete("b", &[first.key]).await.unwrap();
    if let Some(object) = change(object.to_vec()) {
        objects.put_if_absent(&path, object.into(), "changed").await.unwrap();
    }
    config.own = Some(own(8, 2..3, Cursor::default(), TailPolicy::Drop));
    StepStream::new(Fetcher::start(ports, config).await.unwrap()).next().await
}

/// The object with a changed byte in frame `frame`, or in the index.
fn flipped(frame: Option<usize>) -> impl FnOnce(Vec<u8>) -> Option<Vec<u8>> {
    move |mut object| {
        let at = frame.map_or(object.len() - 60, |frame| frame * 33_000 + 10_000);
        object[at] ^= 1;
        Some(object)
    }
}

#[tokio::test]
async fn a_part_that_is_not_as_committed_is_computed_again() {
    // The sample job has no data to compute it from, so the error names what was wrong at first.
    let lacks = async |what: &str, change| {
        let error = after(change).await.unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("cannot be computed again"), "{error}");
    };
    lacks("its index does not match", flipped(None)).await;
    lacks("has crc32c", flipped(Some(2))).await;
    assert!(after(flipped(Some(3))).await.is_ok(), "another reader's frame");
    let gone = after(|_| None).await.unwrap_err().to_string();
    assert!(gone.contains("is gone") && gone.contains("cannot be computed again"), "{gone}");
}

#[tokio::test]
async fn a_window_smaller_than_a_step_is_never_stuck() {
    let (job, ports, mut config) = SampleJob::from_shape(&large(&UNEVEN)).await;
    job.commit(2);
    config.prefetch = crate::PrefetchMemory::Bytes(1);
    // A step of eight batches needs six to nine splits.
    config.own = Some(own(8, 3..5, Cursor::default(), TailPolicy::Repeat));
    let mut steps = StepStream::new(Fetcher::start(ports, config).await.unwrap());
    let progress = steps.fetcher().progress();
    // Workers keep two splits ahead of the reader.
    let work = async {
        let mut committed = 2;
        while committed < UNEVEN.len() {
            committed = UNEVEN.len().min(progress.acks().delivered().position as usize + 2);
            job.commit(committed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let train = async {
        let mut count = 0;
        while let StepDelivery::Step { batches, .. } = steps.next().await.unwrap() {
            assert!(batches.iter().all(Option::is_some));
            count += 1;
        }
        count
    };
    let ((), count) = tokio::join!(work, train);
    assert_eq!(count, 3, "148 rows are 18 batches and a last one of four rows");
}
