//! Items that unit tests share: a job, its trainer, and bundles as workers leave them.

use crate::{
    bundles::ScannedBundle,
    items::{BundleLayout, JobItem},
    snapshot::JobSnapshot,
    store::VersionedItem,
};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::{
    BundleRetryLimits, ClaimTransition, FlushTransition, JobProgress, LeaseTerm, SplitCommit,
    SplitOutcome, WorkerTimes, claim, flush, job::JobState, order::BundleDivision,
    window::WindowHints,
};
use gristmill_model::wire::{EpochPlan, JobSpec, PollCall, TrainerMetrics};
use gristmill_model::{Fingerprint, InvocationId, Nonce};
use std::num::NonZeroU32;

/// Splits of an epoch of [`running_job`], and its epochs.
pub(crate) const N_SPLITS: u32 = 100;
pub(crate) const EPOCHS: u32 = 2;

/// A running job of [`EPOCHS`] epochs, whose workers may be 40 splits ahead of the trainer.
pub(crate) fn running_job() -> JobItem {
    let plan = EpochPlan {
        records: 1_000,
        copies: 1,
        batch_size: 10,
        drop_last: false,
        in_order: false,
        split_records: 10,
        n_splits: N_SPLITS,
        max_bundle_splits: 4,
        window_splits: 40,
        window_bytes: 1 << 30,
        batch_bytes: 0,
    };
    let spec = JobSpec { epochs: EPOCHS, workers: 2, ..JobSpec::new("{}".into()) };
    JobItem {
        registered_ms: 1,
        registered_by: None,
        layout: BundleLayout::new(&spec, 16),
        spec,
        dataset_version: Fingerprint::from_content("test", b"data"),
        n_files: 16,
        state: JobState::Running,
        plan: Some(plan),
        closed: 0,
        caching: None,
        changes: Vec::new(),
        resumed: 0,
        protocol: gristmill_model::wire::VERSION,
    }
}

/// The same job before its dataset is indexed.
pub(crate) fn indexing_job() -> JobItem {
    JobItem { state: JobState::Indexing, plan: None, ..running_job() }
}

/// [`running_job`] with a trainer at the start, and the hints of the last look if there was one.
pub(crate) fn snapshot(hints: Option<WindowHints>) -> JobSnapshot {
    let hints = VersionedItem { version: u64::from(hints.is_some()), item: hints };
    JobSnapshot { item: running_job(), progress: JobProgress::default(), hints }
}

/// A poll of a plain trainer, which is a run of one rank, that neither joins nor reports.
pub(crate) fn poll() -> PollCall {
    PollCall {
        job: "j".parse().unwrap(),
        registered_ms: 1,
        from: Default::default(),
        ranks: RankRange::all(NonZeroU32::MIN),
        of: NonZeroU32::MIN,
        join: None,
        report: None,
        metrics: TrainerMetrics::default(),
        training: None,
    }
}

/// A commit of one batch of `rows` rows.
pub(crate) fn commit(split_index: u8, rows: u32) -> SplitCommit {
    let outcome = SplitOutcome { object_bytes: 1, rows, batches: 1, ..SplitOutcome::default() };
    SplitCommit { split_index, outcome }
}

/// A bundle of the first epoch, claimed at `claimed_ms` by `worker`, with commits made at `flushed_ms`.
pub(crate) fn bundle(
    division: &BundleDivision,
    index: u32,
    worker: u8,
    claimed_ms: u64,
    flushed_ms: u64,
    commits: &[SplitCommit],
    times: WorkerTimes,
) -> ScannedBundle {
    let mut bundle = ScannedBundle::unseen(division, 0, 0, index);
    let nonce = Nonce([worker; 8]);
    let term = |now_ms| LeaseTerm { now_ms, remaining_ms: 600_000, predicted_ms: 0 };
    let command = ClaimTransition {
        nonce,
        invocation: &InvocationId(worker.to_string()),
        term: term(claimed_ms),
        first: bundle.positions.start,
        records: &vec![1; bundle.positions.len()],
        death: None,
        control: None,
    };
    let leased = claim(None, &command, &BundleRetryLimits::default()).unwrap().into_item();
    let term = term(flushed_ms);
    let command = FlushTransition { attempt: 1, nonce, commits, next: None, term, times };
    bundle.item = Some(if commits.is_empty() {
        leased
    } else {
        flush(Some(&leased), &command).unwrap().into_item()
    });
    bundle.version = 1;
    bundle
}
