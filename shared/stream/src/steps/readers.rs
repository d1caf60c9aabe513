//! Several readers of one run: each takes the batches of its ranks, and reads only their bytes.

use super::*;
use crate::samples::{SampleJob, SampleJobShape, batch, own};
use bytes::Bytes;
use gristmill_chunk::FrameCodec;
use gristmill_model::splits::ranks::TailPolicy;
use gristmill_ports::ObjectPath;
use std::{ops::Range, time::Duration};

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
    read.fetched_bytes = steps.fetcher().snapshot().fetched_bytes;
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
