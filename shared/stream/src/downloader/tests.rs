//! A stored object of which any byte is damaged or missing is computed again.

use super::*;
use crate::{
    Fetcher, FetcherPorts, FolderBuckets, StreamDelivery,
    samples::{SampleJob, batch, computed::key, own, split},
    steps::{StepDelivery, StepStream},
};
use gristmill_chunk::{FrameCodec, FrameEncoding};
use gristmill_model::Nonce;
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
    async fn of(codec: FrameCodec, position: usize) -> Self {
        let (job, ports, config) = SampleJob::computed(codec).await;
        let runner = ports.runner(&config);
        let context = Arc::new(JobContext::load(&runner, &config.job).await.unwrap());
        let entry = job.entries()[position].clone();
        let path = ObjectPath::new("b", key(&context.view, &entry));
        let object = ports.objects.get(&path).await.unwrap();
        let ledger =
            SplitLedger::new((*context.view).clone(), split(0, 0), FolderBuckets::default());
        let progress =
            FetcherProgress::new(ServedRanks::one(Nonce([7; 8]), batch(0, 0)), batch(0, 0));
        progress.acks().take_over(0, 1, Nonce([0; 8]));
        progress.starts_at(batch(0, 0), (batch(0, 0), split(0, 0)), split(0, 0));
        progress.announce();
        let first = progress.acks().request(true, false);
        progress.acknowledged(first.ack().unwrap());
        let bound = Arc::new(MemoryBound::new(config.prefetch, (0, 1), config.object_sizes));
        let source = SplitDownloader {
            runner,
            context,
            ledger: Arc::new(ledger),
            progress: Arc::new(progress),
            local: Arc::new(LocalStore::new(Arc::clone(&bound), false)),
            bound,
        };
        Self { source, entry, path, object }
    }

    /// `frames` of the split if `object` is stored, and whether they were computed again.
    async fn with(
        &self,
        object: Vec<u8>,
        share: &NeededPart,
        frames: &[u32],
    ) -> (Vec<Bytes>, bool) {
        let objects = &self.source.runner.objects;
        objects.delete("b", std::slice::from_ref(&self.path.key)).await.unwrap();
        objects.put_if_absent(&self.path, object.into(), "damaged").await.unwrap();
        let healed = || self.source.ledger.snapshot().healed;
        let before = healed();
        let chunk = self.source.chunk((&self.entry, share), None).await.unwrap();
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
            let download = Download::of(codec, position).await;
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
        let download = Download::of(codec, 0).await;
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
            StreamDelivery::End => return (batches, fetcher.snapshot().healed),
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
        assert!(steps.fetcher().snapshot().healed > 0);
    }
}

#[tokio::test]
async fn a_split_that_is_computed_again_and_differs_ends_the_stream_in_one_line() {
    let mut download = Download::of(FrameCodec::Stored, 0).await;
    download.entry.outcome.crc32c ^= 1;
    let fetched = download.source.chunk((&download.entry, &NeededPart::Whole), None).await;
    let error = fetched.unwrap_err().to_string();
    assert!(error.contains("differs from the one committed") && !error.contains('\n'), "{error}");
}
