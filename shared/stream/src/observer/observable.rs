//! The state of a run that an [`RunObserver`](super::Observer) reads while batches are delivered.

use crate::{Fetcher, JobStatistics};
use gristmill_model::wire::{JobStatus, JobView};
use gristmill_pipeline::Pipeline;
use std::time::{Duration, Instant};

/// A run that can be observed: over the fetcher of this process, or over fetchers that are processes of
/// their own.
pub trait ObservableRun: Sync {
    /// The pipeline of the job.
    fn pipeline(&self) -> &Pipeline;

    /// The job's numbers, as last known.
    fn snapshot(&self) -> JobStatistics;

    /// The job, as last known.
    fn view(&self) -> Option<JobView>;

    /// How long the trainer has waited for deliveries so far.
    fn waited(&self) -> Duration;
}

impl ObservableRun for Fetcher {
    fn pipeline(&self) -> &Pipeline {
        Fetcher::pipeline(self)
    }

    fn snapshot(&self) -> JobStatistics {
        Fetcher::snapshot(self)
    }

    fn view(&self) -> Option<JobView> {
        Fetcher::view(self)
    }

    fn waited(&self) -> Duration {
        Fetcher::waited(self)
    }
}

/// A job as the service reports it, and the waits of a trainer whose fetchers are other processes.
pub struct PolledJob {
    pipeline: Pipeline,
    view: JobView,
    snapshot: JobStatistics,
    /// Waits that are over, and the start of the present one.
    waited: Duration,
    waits_since: Option<Instant>,
}

impl PolledJob {
    /// A job of which no status has been read yet.
    pub fn new(pipeline: Pipeline, view: JobView) -> Self {
        let (snapshot, waited) = (JobStatistics::default(), Duration::ZERO);
        Self { pipeline, view, snapshot, waited, waits_since: None }
    }

    /// Takes the latest status.
    pub fn update(&mut self, status: JobStatus) {
        let JobStatus { job, active_workers, indexed_files, scale, .. } = status;
        self.view = job;
        self.snapshot.workers_max = self.snapshot.workers_max.max(active_workers);
        self.snapshot.active_workers = active_workers;
        self.snapshot.indexed_files = indexed_files;
        self.snapshot.scale = scale;
    }

    /// The trainer waits from now on, unless it does already.
    pub fn begin_wait(&mut self) {
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// The trainer has what it waited for.
    pub fn end_wait(&mut self) {
        self.waited += self.present_wait();
        self.waits_since = None;
    }

    /// How long the trainer has been waiting.
    pub fn present_wait(&self) -> Duration {
        self.waits_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl ObservableRun for PolledJob {
    fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    fn snapshot(&self) -> JobStatistics {
        self.snapshot.clone()
    }

    fn view(&self) -> Option<JobView> {
        Some(self.view.clone())
    }

    fn waited(&self) -> Duration {
        self.waited + self.present_wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::Fingerprint;
    use gristmill_model::wire::{JobSpec, JobState, ScaleState};

    const PIPELINE: &str =
        "source: { jsonl: x, features: { t: { dtype: i64 } } }\nops: [batch: { size: 8 }]";

    fn view(state: JobState) -> JobView {
        JobView {
            job: "j".parse().unwrap(),
            registered_ms: 1,
            spec: JobSpec::new("{}".to_owned()),
            dataset_version: Fingerprint([1; 32]),
            n_files: 1,
            state,
            plan: None,
            caching: None,
            changes: Vec::new(),
            resumed: 0,
        }
    }

    fn status(active_workers: u32, target: u32) -> JobStatus {
        JobStatus {
            job: view(JobState::Done),
            active_workers,
            indexed_files: 3,
            scale: ScaleState { target, ..ScaleState::default() },
            ..crate::samples::status()
        }
    }

    #[test]
    fn a_polled_job_is_as_the_last_status_says_with_the_most_workers_of_all() {
        let mut job =
            PolledJob::new(gristmill_operators::parse(PIPELINE).unwrap(), view(JobState::Running));
        assert_eq!(job.view().unwrap().state, JobState::Running);
        job.update(status(5, 6));
        job.update(status(2, 4));
        let JobStatistics { active_workers, workers_max, indexed_files, scale, .. } =
            job.snapshot();
        assert_eq!((active_workers, workers_max, indexed_files, scale.target), (2, 5, 3, 4));
        assert_eq!(job.view().unwrap().state, JobState::Done);
    }

    #[test]
    fn waits_of_a_trainer_add_up() {
        let mut job =
            PolledJob::new(gristmill_operators::parse(PIPELINE).unwrap(), view(JobState::Running));
        let wait = Duration::from_millis(5);
        for round in 1..3 {
            job.begin_wait();
            std::thread::sleep(wait);
            // Asking again goes on with the same wait.
            job.begin_wait();
            assert!(job.present_wait() >= wait && job.waited() >= wait * round);
            job.end_wait();
        }
        let waited = job.waited();
        std::thread::sleep(wait);
        assert_eq!((job.present_wait(), job.waited()), (Duration::ZERO, waited));
    }
}
