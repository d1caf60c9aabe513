//! Answers of a coordinator, and a whole job, for unit tests.

#![allow(clippy::unwrap_used, reason = "only tests call it")]

#[cfg(test)]
pub(crate) mod computed;

use crate::{FetcherConfig, FetcherPorts, ServedRanks};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_chunk::{
    ChunkFrameKind, ChunkWriter, FrameCodec, FrameSchema, TensorDType, TensorSpec, checksum,
};
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::readers::{self, RankRange};
use gristmill_model::splits::run::{self, TrainingRun};
use gristmill_model::splits::{
    Cursor, JobProgress, ReaderProgress, SplitPlace, TransitionRefusal as SplitRefusal,
    ack as splits_ack,
};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    AnyCall, AnyReply, CallRefusal, JobState, JobStatus, JobView, PollCall, PollReply,
    ReaderStanding, ReadySplit, RefusalKind, ScaleState, WorkProfile,
};
use gristmill_model::{RunToken, Visitation};
use gristmill_ports::{CallError, Coordinator, ObjectPath, ObjectStore, memory::MemoryObjects};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncReadExt as _, DuplexStream};

/// A job of one epoch: 640 records in 20 splits of four batches of 8.
fn job() -> Value {
    json!({
        "job": "j",
        "spec": {
            "pipeline": "", "seed": 0, "epochs": 1, "on_error": "fail", "numerics": "",
            "split_batches": null, "workers": 4, "local_workers": 0, "max_skipped": "0",
        },
        "dataset_version": "0".repeat(64), "n_files": 1, "state": "running",
        "plan": {
            "records": 640, "batch_size": 8, "drop_last": false, "in_order": false,
            "split_records": 32, "n_splits": 20, "max_bundle_splits": 1, "window_splits": 8, "window_bytes": 1,
        },
    })
}

/// The cursor of a batch.
pub fn batch(epoch: u32, batch_index: u64) -> Cursor {
    Cursor { epoch, batch_index }
}

/// The place of a split.
pub fn split(epoch: u32, position: u32) -> SplitPlace {
    SplitPlace { epoch, position }
}

/// A running job of 640 records.
pub fn view() -> JobView {
    serde_json::from_value(job()).unwrap()
}

/// The ranks `range` of `count`.
pub fn own(count: u32, range: Range<u32>, from: Cursor, tail: TailPolicy) -> ServedRanks {
    let number = |count| NonZeroU32::new(count).unwrap();
    let ranks = RunRanks::new(number(count), from, tail);
    let run = TrainingRun { token: RunToken::from_name("run"), ranks, epochs: None };
    let range = RankRange { first: range.start, count: number(range.end - range.start) };
    ServedRanks { run, range, is_successor: false, local_workers: 0 }
}

/// The next frame that a server sends, read by the protocol's description: its magic, position and payload.
pub async fn frame(stream: &mut DuplexStream) -> ([u8; 4], Cursor, Vec<u8>) {
    let mut magic = [0; 4];
    stream.read_exact(&mut magic).await.unwrap();
    let epoch = stream.read_u32_le().await.unwrap();
    let batch_index = stream.read_u64_le().await.unwrap();
    let mut payload = vec![0; stream.read_u64_le().await.unwrap() as usize];
    stream.read_exact(&mut payload).await.unwrap();
    (magic, Cursor { epoch, batch_index }, payload)
}

/// The status of a job that nothing is known of but its view.
pub fn status() -> JobStatus {
    JobStatus {
        job: view(),
        delivered: SplitPlace::default(),
        durable: Cursor::default(),
        heartbeat_ms: 0,
        ready: 0,
        window: 0,
        claimable: 0,
        active_workers: 0,
        indexed_files: 0,
        scale: ScaleState::default(),
        profile: WorkProfile::default(),
        trouble: None,
        run: None,
    }
}

/// A committed split of `batches` batches that took 40 ms to read and 400 ms to compute.
pub fn entry(epoch: u32, position: u32, batches: u32) -> ReadySplit {
    let entry = json!({
        "place": { "epoch": epoch, "position": position }, "bundle": 0, "attempt": 1,
        "nonce": "0".repeat(16),
        "outcome": {
            "kind": "object", "object_bytes": 1, "crc32c": 0, "rows": 8 * batches,
            "batches": batches, "remainder_rows": 0, "skipped_records": 0,
        },
        "times": { "source_ms": 40, "compute_ms": 400, "put_ms": 0 },
    });
    serde_json::from_value(entry).unwrap()
}

/// The answer to a poll: `ready` splits, and three workers at work.
pub fn polled(ready: &[ReadySplit]) -> PollReply {
    let polled = json!({
        "job": job(), "generation": 0, "remote_workers": 2, "local_workers": 1, "claimable": 0, "window_full": true,
        "ahead": 2, "indexed_files": 1, "ready": ready,
        "scale": { "target": 0, "next_worker": 0, "outstanding": [], "log": [] },
        "reader": { "run": null, "number": 0, "next_poll_ms": 0, "next_report_ms": 0 },
    });
    serde_json::from_value(polled).unwrap()
}

/// A coordinator that never answers.
pub struct SilentCoordinator;

#[async_trait]
impl Coordinator for SilentCoordinator {
    async fn exchange(&self, _: &AnyCall) -> Result<AnyReply, CallError> {
        std::future::pending().await
    }

    fn speak(&self, _: u32) {}
}

/// A job of one epoch over numbers, four batches of 8 rows a split, with a coordinator that answers polls at once
/// and keeps acknowledgements.
pub struct SampleJob {
    view: JobView,
    entries: Vec<ReadySplit>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    committed: usize,
    joins: usize,
    progress: Option<JobProgress>,
    /// Reports of readers, by their first rank.
    reports: BTreeMap<u32, ReaderProgress>,
    /// Refuses the next join or report.
    refusal: Option<RefusalKind>,
}

const PIPELINE: &str = "
source: { tfrecord: ., features: { value: { key: value, dtype: i64 } } }
ops: [{ batch: { size: 8 } }]
";

/// The splits of a sample job.
#[derive(Debug, Clone)]
pub struct SampleJobShape {
    /// Rows of each split.
    pub rows: Vec<u32>,
    /// Numbers of 8 bytes in a row; the first is the row's number in the epoch.
    pub width: u64,
    pub codec: FrameCodec,
    pub in_order: bool,
}

impl SampleJobShape {
    /// Splits of these numbers of rows, each row one number, stored uncompressed.
    pub fn from_rows(rows: &[u32]) -> Self {
        Self { rows: rows.to_vec(), width: 1, codec: FrameCodec::Stored, in_order: false }
    }
}

impl SampleJob {
    /// A job of `n_splits` splits, of which `committed` are committed and stored.
    pub async fn new(n_splits: u32, committed: usize) -> (Arc<Self>, FetcherPorts, FetcherConfig) {
        let (job, ports, config) =
            Self::from_shape(&SampleJobShape::from_rows(&vec![32; n_splits as usize])).await;
        job.commit(committed);
        (job, ports, config)
    }

    /// A job of splits that are all committed and stored.
    pub async fn from_shape(shape: &SampleJobShape) -> (Arc<Self>, FetcherPorts, FetcherConfig) {
        let mut view = view();
        view.spec.pipeline = gristmill_operators::parse(PIPELINE).unwrap().canonical_json();
        let plan = view.plan.as_mut().unwrap();
        let records: u32 = shape.rows.iter().sum();
        (plan.n_splits, plan.records) = (shape.rows.len() as u32, u64::from(records));
        plan.in_order = shape.in_order;
        let config = FetcherConfig::new("a".parse().unwrap(), "b".into(), view.job.clone());
        let objects = MemoryObjects::default();
        let mut entries = Vec::new();
        let mut first = 0;
        for (position, rows) in (0..).zip(&shape.rows) {
            let object = object(shape, first, *rows);
            first += u64::from(*rows);
            let mut entry = entry(0, position, rows / 8);
            (entry.outcome.rows, entry.outcome.remainder_rows) = (*rows, rows % 8);
            entry.outcome.object_bytes = object.len() as u64;
            entry.outcome.crc32c = checksum(&object).unwrap();
            let prefix = keys::bundle_prefix(&config.ns, &view.job, 0, entry.bundle);
            let key = keys::chunk(&prefix, position, entry.attempt, entry.nonce);
            objects.put_if_absent(&ObjectPath::new("b", &key), object, "chunk").await.unwrap();
            entries.push(entry);
        }
        let job = Arc::new(Self::committed(view, entries));
        let ports = FetcherPorts::new(Arc::<Self>::clone(&job), Arc::new(objects));
        (job, ports, config)
    }

    /// The job of `view`, with these splits committed.
    pub fn committed(view: JobView, entries: Vec<ReadySplit>) -> Self {
        let state = Mutex::new(State { committed: entries.len(), ..State::default() });
        Self { view, entries, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Commits all splits before `committed`.
    pub fn commit(&self, committed: usize) {
        self.state().committed = committed;
    }

    /// Refuses the next join or report.
    pub fn refuse(&self, kind: RefusalKind) {
        self.state().refusal = Some(kind);
    }

    /// The job's progress.
    pub fn progress(&self) -> Option<JobProgress> {
        self.state().progress
    }

    /// Whether all of it is delivered and acknowledged.
    pub fn is_done(&self) -> bool {
        self.progress().is_some_and(|job| job.durable.epoch >= self.view.spec.epochs)
    }

    /// The same job, with another guarantee of delivery.
    pub fn visited(&self, visitation: Visitation) -> Arc<Self> {
        let mut view = self.view.clone();
        view.spec.settings.visitation = visitation;
        Arc::new(Self::committed(view, self.entries.clone()))
    }

    /// Number of calls so far that joined a run.
    pub fn joins(&self) -> usize {
        self.state().joins
    }

    fn poll(&self, poll: &PollCall) -> Result<PollReply, CallError> {
        let mut state = self.state();
        if (poll.join.is_some() || poll.report.is_some())
            && let Some(kind) = state.refusal.take()
        {
            return Err(CallRefusal { kind, message: "refused as asked".into() }.into());
        }
        let number = state.take_part(poll, self.view.spec.settings.visitation).map_err(refused)?;
        let ready = self.entries[..state.committed].iter();
        let ready: Vec<_> = ready.filter(|entry| entry.place >= poll.from).cloned().collect();
        let progress = state.progress.unwrap_or_default();
        let mut view = self.view.clone();
        if progress.durable.epoch >= view.spec.epochs {
            view.state = JobState::Done;
        }
        let JobProgress { generation, delivered, run, .. } = progress;
        let reader = ReaderStanding { run, number, ..ReaderStanding::default() };
        Ok(PollReply { job: view, generation, delivered, reader, ..polled(&ready) })
    }
}

impl State {
    /// Applies the join and the report of `poll`, and merges all reports. Returns the number of the reader of these
    /// ranks.
    fn take_part(&mut self, poll: &PollCall, visitation: Visitation) -> Result<u64, SplitRefusal> {
        if let Some(join) = &poll.join {
            let before = self.progress.as_ref();
            let joined = if poll.is_alone() {
                run::join_alone(before, join, visitation, 0)?
            } else {
                run::join(before, join, 0)?
            };
            self.progress = Some(joined.into_item());
        }
        let before = self.reports.get(&poll.ranks.first);
        let mut number = before.map_or(0, |before| before.reader);
        let Some(progress) = self.progress else { return Ok(number) };
        match &poll.report {
            Some(report) if poll.is_alone() && poll.join.is_none() => {
                self.progress = Some(splits_ack(Some(&progress), &report.ack, 0)?.into_item());
            }
            Some(report) => {
                let after = readers::report(before, report, 0)?.into_item();
                number = after.reader;
                self.reports.insert(poll.ranks.first, after);
            }
            None => {}
        }
        if !poll.is_alone() {
            let reports: Vec<_> = self.reports.values().copied().collect();
            self.progress = Some(readers::merge(Some(&progress), &reports, 0)?.into_item());
        }
        Ok(number)
    }
}

/// A refusal of the split table as a coordinator sends it.
fn refused(refusal: SplitRefusal) -> CallError {
    let kind = match refusal {
        SplitRefusal::RunDiffers { run, .. } => RefusalKind::RunDiffers { run },
        SplitRefusal::Fenced { .. } | SplitRefusal::Replaced { .. } => RefusalKind::Fenced,
        _ => RefusalKind::Invalid,
    };
    CallRefusal { kind, message: refusal.to_string() }.into()
}

/// A chunk of `rows` rows, which are numbered from `first` on.
fn object(shape: &SampleJobShape, first: u64, rows: u32) -> Bytes {
    let dims = if shape.width == 1 { vec![] } else { vec![shape.width as usize] };
    let schema =
        FrameSchema::new(vec![TensorSpec::fixed("value", TensorDType::I64, dims)]).unwrap();
    let mut writer = ChunkWriter::new(shape.codec);
    for begin in (0..rows).step_by(8) {
        let rows = (rows - begin).min(8);
        writer.begin_frame(&schema, 8).unwrap();
        for row in 0..rows {
            let number = first + u64::from(begin + row);
            let numbers = (0..shape.width).map(|i| if i == 0 { number } else { number * i });
            let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
            writer.row_mut(0, row as usize).unwrap().copy_from_slice(&bytes);
        }
        let kind = if rows == 8 { ChunkFrameKind::Batch } else { ChunkFrameKind::Remainder };
        writer.end_frame(kind, rows as usize).unwrap();
    }
    writer.finish().unwrap().into()
}

#[async_trait]
impl Coordinator for SampleJob {
    fn speak(&self, _: u32) {}

    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        match call {
            AnyCall::Describe(_) => Ok(AnyReply::Describe(self.view.clone())),
            AnyCall::Poll(poll) => {
                self.state().joins += usize::from(poll.join.is_some());
                Ok(AnyReply::Poll(self.poll(poll)?))
            }
            AnyCall::Status(_) => {
                let durable = self.progress().unwrap_or_default().durable;
                Ok(AnyReply::Status(JobStatus { job: self.view.clone(), durable, ..status() }))
            }
            _ => Err(CallError::Rejected("not a call of a trainer's host".into())),
        }
    }
}
