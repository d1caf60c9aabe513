//! A stored object of which any byte is damaged or missing is computed again.

use super::*;
use crate::samples::entry;
use crate::{
    Fetcher, FetcherPorts, FolderBuckets, StreamDelivery,
    ledger::SplitLedger,
    memory::MemoryBound,
    progress::FetcherProgress,
    samples::{SampleJob, batch, computed::key, own, split},
    steps::{StepDelivery, StepStream},
};
use gristmill_chunk::{FrameCodec, FrameEncoding};
use gristmill_model::Nonce;
use gristmill_model::splits::batches::PlannedBatch;
use gristmill_model::splits::batches::SplitRows;
use gristmill_model::splits::ranks::TailPolicy;
use gristmill_ports::ObjectPath;
use std::collections::BTreeSet;

const CODECS: [FrameCodec; 2] = [FrameCodec::Stored, FrameCodec::Zstd { level: 2 }];

/// Gets splits of a job, for a trainer that was admitted.
struct Download {
    source: SplitDownloader,
    entry: ReadySplit,
    path: ObjectPath,
    object: Bytes,
}

impl Download {
    /// Gets the split at `position`.
    async fn get(codec: FrameCodec, position: usize) -> Self {
        let (job, ports, config) = SampleJob::computed(codec).await;
        let context = JobContext::load(ports.runner(&config), &config.job).await.unwrap();
        let entry = job.entries()[position].clone();
        let path = ObjectPath::new("b", key(&context.view, &entry));
        let object = ports.objects.get(&path).await.unwrap();
        let ledger =
            SplitLedger::new((*context.view).clone(), split(0, 0), FolderBuckets::default());
        let progress =
            FetcherProgress::new(ServedRanks::one(Nonce([7; 8]), batch(0, 0)), batch(0, 0));
        progress.acks().take_over(0, 1, Nonce([0; 8]));
        progress.starts_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        progress.announce();
        let first = progress.acks().request(true, false);
        progress.acknowledged(first.ack().unwrap());
        let bound = MemoryBound::new(config.prefetch, 0, 1, config.object_sizes);
        let state = StreamState::new(ledger, progress, bound, false, ports.clock);
        let source = SplitDownloader { context, state };
        Self { source, entry, path, object }
    }

    /// `frames` of the split if `object` is stored, and whether they were computed again.
    async fn with(
        &self,
        object: Vec<u8>,
        share: &NeededPart,
        frames: &[u32],
    ) -> (Vec<Bytes>, bool) {
        let objects = &self.source.context.runner.objects;
        objects.delete("b", std::slice::from_ref(&self.path.key)).await.unwrap();
        objects.put_if_absent(&self.path, object.into(), "damaged").await.unwrap();
        let healed = || self.source.state.ledger.statistics().healed;
        let before = healed();
        let chunk = self.source.chunk(&self.entry, share, None).await.unwrap();
        let frame = |frame: &u32| chunk.frame(*frame as usize).unwrap();
        (frames.iter().map(frame).collect(), healed() > before)
    }
}

fn flipped(object: &[u8], at: usize) -> Vec<u8> {
    let mut damaged = object.to_vec();
    damaged[at] ^= 1 << (at % 8);
    damaged
}

#[tokio::test]
async fn an_object_of_which_any_byte_is_damaged_or_cut_off_is_computed_again() {
    for codec in CODECS {
        // Two batches; and one with rows that are left over.
        for position in [0, 2] {
            let download = Download::get(codec, position).await;
            let chunk = Chunk::open(download.object.clone(), &Default::default()).unwrap();
            let is_packed = chunk.frames().iter().any(|info| info.encoding == FrameEncoding::Zstd);
            assert_eq!(is_packed, codec != FrameCodec::Stored);
            let object = download.object.to_vec();
            let (right, healed) = download.with(object, &NeededPart::Whole, &[0, 1]).await;
            assert!(!healed, "nothing is damaged yet");
            for at in 0..download.object.len() {
                for damaged in [flipped(&download.object, at), download.object[..at].to_vec()] {
                    let (frames, healed) =
                        download.with(damaged, &NeededPart::Whole, &[0, 1]).await;
                    assert!(healed && frames == right, "byte {at}, {codec:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn frames_of_an_object_are_right_whichever_byte_is_damaged() {
    for codec in CODECS {
        let download = Download::get(codec, 0).await;
        let share = NeededPart::Frames { frames: BTreeSet::from([1]), bytes: 1 };
        let (right, healed) = download.with(download.object.to_vec(), &share, &[1]).await;
        assert!(!healed);
        let mut count = 0;
        for at in 0..download.object.len() {
            for damaged in [flipped(&download.object, at), download.object[..at].to_vec()] {
                let (frames, healed) = download.with(damaged, &share, &[1]).await;
                assert!(frames == right, "byte {at}, {codec:?}");
                count += usize::from(healed);
            }
        }
        // Those of the frame and of the index, and every cut.
        let all = download.object.len();
        assert!((all + 40..2 * all).contains(&count), "{count} of {all} bytes");
    }
}

/// Damages one byte in the middle of every object of a job.
async fn damage_all(ports: &FetcherPorts) -> u32 {
    let mut count = 0;
    for info in ports.objects.list("b", "t/a/jobs/").await.unwrap() {
        let path = ObjectPath::new("b", &info.key);
        let object = ports.objects.get(&path).await.unwrap();
        ports.objects.delete("b", &[info.key]).await.unwrap();
        let damaged = flipped(&object, object.len() / 2).into();
        ports.objects.put_if_absent(&path, damaged, "damaged").await.unwrap();
        count += 1;
    }
    count
}

/// All batches of the job.
async fn batches(ports: &FetcherPorts, config: &crate::FetcherConfig) -> (Vec<Bytes>, u32) {
    let mut fetcher = Fetcher::start(ports.clone(), config.clone()).await.unwrap();
    let mut batches = Vec::new();
    loop {
        match fetcher.next().await.unwrap() {
            StreamDelivery::Batch(batch) => batches.push(batch.frame),
            StreamDelivery::OfOthers { .. } | StreamDelivery::EpochEnd(_) => {}
            StreamDelivery::End => return (batches, fetcher.statistics().healed),
        }
    }
}

#[tokio::test]
async fn a_job_whose_objects_are_all_damaged_delivers_the_same_batches() {
    for codec in CODECS {
        let (_, ports, config) = SampleJob::computed(codec).await;
        let (right, healed) = batches(&ports, &config).await;
        assert_eq!((right.len(), healed), (6, 0));
        let damaged = damage_all(&ports).await;
        assert_eq!(batches(&ports, &config).await, (right, damaged));
    }
}

#[tokio::test]
async fn a_reader_of_one_rank_computes_what_it_needs_again() {
    for codec in CODECS {
        let (_, ports, mut config) = SampleJob::computed(codec).await;
        let (right, _) = batches(&ports, &config).await;
        assert!(damage_all(&ports).await > 0);
        config.own = Some(own(2, 1..2, batch(0, 0), TailPolicy::Drop));
        let mut steps = StepStream::new(Fetcher::start(ports, config).await.unwrap());
        let StepDelivery::Step { batches, .. } = steps.next().await.unwrap() else { panic!() };
        let frame = batches.into_iter().flatten().next().map(|own| own.batch.frame);
        assert_eq!(frame.as_ref(), right.get(1));
        assert!(steps.fetcher().statistics().healed > 0);
    }
}

#[tokio::test]
async fn a_split_that_is_computed_again_and_differs_ends_the_stream_in_one_line() {
    let mut download = Download::get(FrameCodec::Stored, 0).await;
    download.entry.outcome.crc32c ^= 1;
    let fetched = download.source.chunk(&download.entry, &NeededPart::Whole, None).await;
    let error = fetched.unwrap_err().to_string();
    assert!(error.contains("differs from the one committed") && !error.contains('\n'), "{error}");
}

/// A split of `batches` batches and a remainder of four rows, in an object of 1 MiB.
fn large(position: u32, batches: u32) -> ReadySplit {
    let mut entry = entry(0, position, batches);
    (entry.outcome.object_bytes, entry.outcome.remainder_rows) = (1 << 20, 4);
    entry
}

fn whole(position: u32, frame: u32) -> PlannedBatch {
    PlannedBatch { batch_index: 0, rows: 8, source: BatchLocation::Whole { position, frame } }
}

fn joined(pieces: &[(u32, std::ops::Range<u32>)]) -> PlannedBatch {
    let piece = |(position, rows): &(u32, std::ops::Range<u32>)| SplitRows {
        position: *position,
        rows: rows.clone(),
    };
    let source = BatchLocation::Joined(pieces.iter().map(piece).collect());
    PlannedBatch { batch_index: 0, rows: 8, source }
}

fn frames_of(share: &NeededPart) -> Vec<u32> {
    match share {
        NeededPart::Frames { frames, .. } => frames.iter().copied().collect(),
        NeededPart::Whole => panic!("the whole object"),
    }
}

#[test]
fn rows_of_an_earlier_split_are_read_with_the_split_that_completes_their_batch() {
    let mut needs = SplitNeeds::new(8, true);
    assert!(needs.parts_of_split(&large(0, 4), &PickedBatches::default()).is_empty());
    let batches = vec![whole(1, 2), joined(&[(0, 32..36), (1, 32..36)])];
    let shares = needs.parts_of_split(
        &large(1, 4),
        &PickedBatches { batches, needed: 2, ..PickedBatches::default() },
    );
    let [(first, remainder), (second, own)] = shares.as_slice() else { panic!("{shares:?}") };
    assert_eq!((first.place.position, frames_of(remainder)), (0, vec![4]));
    assert_eq!((second.place.position, frames_of(own)), (1, vec![2, 4]));
    assert_eq!(own.bytes(second, 1 << 20), (1 << 20) * 12 / 36);
    assert_eq!(own.bytes(second, 36), 11, "about a third of the bytes for which the object counts");
    assert!(needs.entries.is_empty());
}

#[test]
fn an_object_is_read_whole_where_most_of_it_is_needed_or_it_is_small() {
    let share = |entry: &ReadySplit, frames: std::ops::Range<u32>| {
        NeededPart::from_frames(entry, frames.collect(), 8)
    };
    let ten = large(0, 10);
    assert_eq!(share(&ten, 0..10), NeededPart::Whole);
    assert_ne!(share(&ten, 0..9), NeededPart::Whole);
    let mut small = large(0, 10);
    small.outcome.object_bytes = SMALL_BYTES;
    assert_eq!(share(&small, 0..1), NeededPart::Whole);
    let mut local = large(0, 10);
    local.outcome.kind = SplitKind::Local;
    assert_eq!(share(&local, 0..1), NeededPart::Whole);
}

#[test]
fn a_reader_of_all_batches_takes_whole_objects() {
    let mut needs = SplitNeeds::new(8, false);
    let passed = |left| PickedBatches { is_passed: true, left, ..PickedBatches::default() };
    assert!(needs.parts_of_split(&large(0, 4), &passed(None)).is_empty());
    let left = SplitRows { position: 0, rows: 32..36 };
    assert_eq!(needs.parts_of_split(&large(0, 4), &passed(Some(left))).len(), 1);
    let batches = vec![whole(0, 1)];
    let picked = PickedBatches { batches, ..PickedBatches::default() };
    assert_eq!(needs.parts_of_split(&large(0, 4), &picked)[0].1, NeededPart::Whole);
    let again = needs.parts_of_split(&large(0, 4), &PickedBatches::default());
    assert!(again.is_empty(), "the trainer has all its batches");
    let mut poison = large(0, 0);
    poison.outcome.kind = SplitKind::Poison;
    assert!(needs.parts_of_split(&poison, &PickedBatches::default()).is_empty());
}
