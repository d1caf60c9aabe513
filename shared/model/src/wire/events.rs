//! Events that invoke the worker and the scaler function, and the scaler's state.

use crate::wire::{
    AccountRoom, BudgetFacts, MetricsOrigin, OutstandingWorkers, SpendingLedger, SpokenVersions,
    TrainingReport,
};
use crate::{Epoch, Fingerprint, InvocationId, JobName, Namespace, splits::line_of};
use serde::{Deserialize, Serialize};

/// Starts one worker. The event carries no work: the worker claims bundles itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEvent {
    pub v: u32,
    pub ns: Namespace,
    pub job: JobName,
    /// The worker's number, never reused within a job.
    pub worker: u32,
    /// Set for a job with a budget: the age in milliseconds at which the invocation ends itself unless a lease lets it
    /// go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ms: Option<u64>,
}

/// Asks the scaler to look at a job. The coordinator sends it when a trainer's report shows
/// claimable work and too few workers; a schedule sends it too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalerEvent {
    pub v: u32,
    pub ns: Namespace,
    pub job: JobName,
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Outstanding workers that have been silent for too long, because their event or the report of
    /// their end was lost. The scaler removes them.
    #[serde(default)]
    pub silent: Vec<u32>,
    /// Remote workers that the job wants; with `autoscale`, the most of them.
    pub wanted: u32,
    /// Whether the scaler decides the number of workers.
    #[serde(default)]
    pub autoscale: bool,
    /// Name of the policy by which it decides; the default one if absent.
    #[serde(default)]
    pub policy: Option<String>,
    /// Workers that the job's budget of an hour pays for, if it has one.
    #[serde(default)]
    pub budget_workers: Option<u32>,
    /// The job's budget, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetFacts>,
    /// Most local workers on all the trainer's hosts together, if the scaler decides on them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_local: Option<u32>,
    /// Batches that the job has left; 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub batches_left: u64,
    /// The trainer's report, if the event follows from one.
    #[serde(default)]
    pub training: Option<TrainingReport>,
    /// Changes when the work for a batch changes, such as reading a cache instead of computing.
    #[serde(default)]
    pub mode: u32,
    /// Whether that mode does not last, as it stores what later epochs read: no placement is tried in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_passing: bool,
    /// The pipeline, by which what jobs measure is kept for later ones.
    #[serde(default)]
    pub pipeline: Option<Fingerprint>,
    /// The epoch that is delivered.
    #[serde(default)]
    pub epoch: Epoch,
    /// Batches delivered to the trainer so far: the timeline's x axis.
    pub batches: u64,
    /// Splits committed so far; see [`WorkerFailureSeries`].
    #[serde(default)]
    pub progress: u64,
    /// When the observation was made.
    pub at_ms: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The scaler's item: which invocations are outstanding, and the latest decisions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ScaleState {
    /// Remote workers to hold while there is work; 0 before the first decision.
    pub target: u32,
    /// Local workers to hold on all the trainer's hosts together, if the scaler decides on them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<u32>,
    /// State of that decision between two reports, which only the scaler reads; replies leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<serde_json::Value>,
    /// State of the scaling policy between two reports, which only the scaler reads; replies leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<serde_json::Value>,
    /// Whether the policy rests on what earlier jobs measured.
    #[serde(default, skip_serializing_if = "MetricsOrigin::is_measured")]
    pub metrics: MetricsOrigin,
    /// The latest epoch in which measurements were kept for later jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Epoch>,
    /// Invocations that the platform refused since the previous report.
    #[serde(default)]
    pub throttled: u32,
    /// The account's room for workers, while events that expired show that it is less than wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<AccountRoom>,
    /// The worker function, version included, that the job began with and keeps: workers of two
    /// versions might give different bytes.
    #[serde(default)]
    pub worker_function: Option<String>,
    /// The versions of the protocol that `worker_function` speaks.
    #[serde(default, skip_serializing_if = "is_unsaid")]
    pub worker_spoken: SpokenVersions,
    /// Number the next worker gets.
    pub next_worker: u32,
    /// Invocations sent and not known to have ended. Workers that left after this item was written
    /// are in the shards of [`DepartedWorkers`](crate::wire::DepartedWorkers).
    pub outstanding: OutstandingWorkers,
    /// Invocations reported dead most recently, oldest first, bounded: a claim that one of them
    /// sent may still arrive.
    #[serde(default)]
    pub dead: Vec<InvocationId>,
    /// The latest decisions, oldest first, bounded.
    pub log: Vec<ScaleDecision>,
    /// Workers that ended without a result since the last commit.
    #[serde(default)]
    #[serde(rename = "barren")]
    pub failed_workers: WorkerFailureSeries,
    /// The ledger of a job with a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spending: Option<SpendingLedger>,
}

fn is_unsaid(spoken: &SpokenVersions) -> bool {
    *spoken == SpokenVersions::default()
}

impl ScaleState {
    /// Most workers to have outstanding at `now_ms`, of `wanted`.
    pub fn attainable(&self, wanted: u32, now_ms: u64) -> u32 {
        self.room.map_or(wanted, |room| wanted.min(room.most(now_ms)))
    }

    /// This state without that of policies.
    #[must_use]
    pub fn without_policy(self) -> Self {
        Self { policy: None, placement: None, ..self }
    }

    /// Whether a policy has decided on the workers.
    pub fn is_decided(&self) -> bool {
        self.target > 0 || self.local.is_some()
    }
}

/// Longest time that one more worker adds to [`WorkerFailureSeries::lasted_ms`].
const STEP_MS: u64 = 15_000;
/// Longest error that [`WorkerFailureSeries`] keeps, in bytes.
const MAX_ERROR_BYTES: usize = 300;

/// Consecutive workers that died, could not start or could not be invoked, without a commit in
/// between: a sign that the cause is not a split.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkerFailureSeries {
    /// Splits committed when the first of them ended; a different number ends the series.
    pub progress: u64,
    pub workers: u32,
    /// When the latest ended, by the clock of the function that recorded it.
    pub latest_ms: u64,
    /// Duration of the series. Clocks of two hosts may differ, so that no step counts for more than
    /// `STEP_MS`, either way.
    pub lasted_ms: u64,
    /// Error of the latest worker that reported one, one line.
    pub error: String,
}

impl WorkerFailureSeries {
    /// Counts `workers` more that ended for `error`, which may be empty.
    pub fn note(&mut self, workers: u32, progress: u64, now_ms: u64, error: &str) {
        if self.workers == 0 || self.progress != progress {
            *self = Self { progress, latest_ms: now_ms, ..Self::default() };
        }
        self.workers = self.workers.saturating_add(workers);
        self.lasted_ms = match now_ms.checked_sub(self.latest_ms) {
            Some(later_ms) => self.lasted_ms + later_ms.min(STEP_MS),
            None => self.lasted_ms.saturating_sub((self.latest_ms - now_ms).min(STEP_MS)),
        };
        self.latest_ms = now_ms;
        if !error.is_empty() {
            self.error = line_of(error, MAX_ERROR_BYTES);
        }
    }
}

/// One change of the worker count, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleDecision {
    /// Batches delivered when it was made.
    pub batch: u64,
    /// Remote workers to hold after it.
    pub workers: u32,
    /// Local workers to hold after it, if the scaler decides on them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<u32>,
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_in_vain_are_counted_until_something_is_committed() {
        let mut failed_workers = WorkerFailureSeries::default();
        for step in 0..5 {
            failed_workers.note(
                1,
                7,
                1_000 + step * 2_000,
                if step == 1 { "killed\n9" } else { "" },
            );
        }
        assert_eq!((failed_workers.workers, failed_workers.lasted_ms), (5, 8_000));
        assert_eq!(failed_workers.error, "killed 9");
        failed_workers.note(3, 8, 20_000, "");
        assert_eq!(
            (failed_workers.workers, failed_workers.lasted_ms, failed_workers.error.as_str()),
            (3, 0, "")
        );
    }

    #[test]
    fn replies_leave_out_the_memory_of_the_policy() {
        let policy = Some(serde_json::json!({ "mean_s": 0.1 }));
        let placement = Some(serde_json::json!({ "moves": 1 }));
        let state = ScaleState { target: 3, policy, placement, ..ScaleState::default() };
        let stored = serde_json::to_string(&state).unwrap();
        assert!(stored.contains(r#""policy":{"mean_s":0.1}"#), "{stored}");
        assert!(stored.contains(r#""placement":{"moves":1}"#), "{stored}");
        assert_eq!(serde_json::from_str::<ScaleState>(&stored).unwrap(), state);
        let sent = serde_json::to_string(&state.without_policy()).unwrap();
        assert!(!sent.contains("policy") && !sent.contains("placement"), "{sent}");
        assert_eq!(serde_json::from_str::<ScaleState>(&sent).unwrap().target, 3);
    }

    #[test]
    fn clocks_that_differ_make_no_time() {
        let mut failed_workers = WorkerFailureSeries::default();
        for step in 0..100 {
            let ahead_ms = if step % 2 == 0 { 0 } else { 600_000 };
            failed_workers.note(1, 7, 1_000_000 + step * 1_000 + ahead_ms, "");
        }
        assert!(failed_workers.lasted_ms <= 15_000, "{failed_workers:?}");
    }
}
