//! The checkpoint of a training run as text: the job and the batch at which any later run goes on.
//!
//! It is the same on all ranks after the same step, and does not hold the number of ranks.

use crate::splits::Cursor;
use crate::wire::JobView;
use crate::{Epoch, Fingerprint, JobName};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Most bytes of a checkpoint's text: a longer text is not a checkpoint.
const MAX_BYTES: usize = 4 << 10;

/// A place in the batches of a job. Its text is one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    pub job: JobName,
    /// Identifies the batches: covers the version of the dataset and all that determines them.
    pub fingerprint: Fingerprint,
    /// A part of the fingerprint, kept beside it so that a mismatch can be named.
    pub seed: u64,
    /// Batches of a split, which determine the order of records; a part of the fingerprint too. 0 if that is not known
    /// yet, before the first batch.
    pub split_batches: u32,
    pub epoch: Epoch,
    /// The next batch; all earlier ones, and every earlier epoch, are done.
    #[serde(rename = "g")]
    pub batch_index: u64,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error(
        "not a checkpoint ({0}): it is one line such as \
         {{\"job\":\"j\",\"fingerprint\":\"..\",\"seed\":0,\"split_batches\":1,\"epoch\":0,\"g\":0}}"
    )]
    Malformed(String),
    #[error(
        "the checkpoint is of job {found}, and this is job {job}: resume from one of job {job}"
    )]
    OtherJob { found: JobName, job: JobName },
    #[error(
        "the checkpoint is of job {job} with seed {found}, and the job has seed {seed}: resume from \
         one with seed {seed}"
    )]
    OtherSeed { job: JobName, found: u64, seed: u64 },
    #[error(
        "the checkpoint is of job {job} with splits of {found} batches, and the job has splits of {split_batches}: \
         start a job with --split-batches {found}, or from the checkpoint"
    )]
    OtherSplits { job: JobName, found: u32, split_batches: u32 },
    #[error("the dataset of job {0} is not indexed yet, so its batches cannot be compared")]
    NotPlanned(JobName),
    #[error(
        "the checkpoint is of job {job} over another dataset or pipeline (fingerprint {found:.12}, \
         not {fingerprint:.12}): resume from one of these batches"
    )]
    OtherBatches { job: JobName, found: String, fingerprint: String },
    #[error("the checkpoint is at epoch {epoch}, and job {job} has {epochs} epochs")]
    BeyondEnd { job: JobName, epoch: Epoch, epochs: Epoch },
}

/// The fingerprint of all that determines a job's batches, its dataset included.
fn fingerprint(job: &JobView) -> Fingerprint {
    let parts = [job.dataset_version.0, job.batches_fingerprint().0].concat();
    Fingerprint::from_content("gristmill checkpoint v2", &parts)
}

impl Checkpoint {
    /// The checkpoint of a run of `job` that goes on at `next`.
    pub fn new(job: &JobView, next: Cursor) -> Self {
        let Cursor { epoch, batch_index } = next;
        Self {
            job: job.job.clone(),
            fingerprint: fingerprint(job),
            seed: job.spec.seed,
            split_batches: job.split_batches().unwrap_or(0),
            epoch,
            batch_index,
        }
    }

    /// The batch at which a run of `job` goes on. The error names the first difference between the
    /// job and that of the checkpoint.
    pub fn cursor_in(&self, job: &JobView) -> Result<Cursor, CheckpointError> {
        let Self { job: found, seed, split_batches, epoch, batch_index, .. } = self;
        let (name, spec) = (job.job.clone(), &job.spec);
        if *found != name {
            return Err(CheckpointError::OtherJob { found: found.clone(), job: name });
        }
        if *seed != spec.seed {
            return Err(CheckpointError::OtherSeed { job: name, found: *seed, seed: spec.seed });
        }
        // Taken before the first batch.
        if *split_batches == 0 && (*epoch, *batch_index) == (0, 0) {
            return Ok(Cursor::default());
        }
        let own = job.split_batches().ok_or_else(|| CheckpointError::NotPlanned(name.clone()))?;
        if *split_batches != own {
            let found = *split_batches;
            return Err(CheckpointError::OtherSplits { job: name, found, split_batches: own });
        }
        let expected = fingerprint(job);
        if self.fingerprint != expected {
            return Err(CheckpointError::OtherBatches {
                job: name,
                found: self.fingerprint.to_string(),
                fingerprint: expected.to_string(),
            });
        }
        if (*epoch, *batch_index) > (spec.epochs, 0) {
            let (epoch, epochs) = (*epoch, spec.epochs);
            return Err(CheckpointError::BeyondEnd { job: name, epoch, epochs });
        }
        Ok(Cursor { epoch: *epoch, batch_index: *batch_index })
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

impl FromStr for Checkpoint {
    type Err = CheckpointError;

    fn from_str(text: &str) -> Result<Self, CheckpointError> {
        let text = text.trim();
        if text.len() > MAX_BYTES {
            return Err(CheckpointError::Malformed(format!("{} bytes", text.len())));
        }
        if !text.starts_with('{') {
            let what = if text.is_empty() { "it is empty" } else { "it is not a JSON object" };
            return Err(CheckpointError::Malformed(what.to_owned()));
        }
        serde_json::from_str(text).map_err(|error| CheckpointError::Malformed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{EpochPlan, JobSpec, JobState};

    fn view() -> JobView {
        JobView {
            job: "j".parse().unwrap(),
            registered_ms: 1,
            spec: JobSpec { seed: 7, epochs: 3, ..JobSpec::new("{}".to_owned()) },
            dataset_version: Fingerprint([1; 32]),
            n_files: 1,
            state: JobState::Running,
            plan: Some(EpochPlan { batch_size: 4, split_records: 12, ..EpochPlan::default() }),
            caching: None,
            changes: Vec::new(),
            resumed: 0,
        }
    }

    fn at(epoch: Epoch, batch_index: u64) -> Cursor {
        Cursor { epoch, batch_index }
    }

    #[test]
    fn its_text_is_one_line_that_reads_back() {
        let checkpoint = Checkpoint::new(&view(), at(1, 42));
        let text = checkpoint.to_string();
        assert!(text.starts_with(r#"{"job":"j","fingerprint":""#), "{text}");
        assert!(text.ends_with(r#","seed":7,"split_batches":3,"epoch":1,"g":42}"#), "{text}");
        assert_eq!(format!(" {text}\n").parse(), Ok(checkpoint.clone()));
        assert_eq!(checkpoint.cursor_in(&view()), Ok(at(1, 42)));
    }

    #[test]
    fn workers_and_epochs_may_differ() {
        let checkpoint = Checkpoint::new(&view(), at(0, 5));
        let mut job = view();
        (job.spec.workers, job.spec.epochs, job.registered_ms) = (9, 1, 2);
        assert_eq!(checkpoint.cursor_in(&job), Ok(at(0, 5)));
    }

    #[test]
    fn a_checkpoint_of_other_batches_is_refused_by_what_differs() {
        let refused = |job: &JobView| {
            Checkpoint::new(&view(), at(1, 0)).cursor_in(job).unwrap_err().to_string()
        };
        let other = JobView { job: "k".parse().unwrap(), ..view() };
        assert!(refused(&other).contains("is of job j, and this is job k"), "{}", refused(&other));
        let mut other = view();
        other.spec.seed = 8;
        assert!(refused(&other).contains("with seed 7, and the job has seed 8"));
        let mut other = view();
        other.spec.pipeline = "[]".to_owned();
        let why = refused(&other);
        assert!(why.contains("another dataset or pipeline (fingerprint "), "{why}");
        let mut other = view();
        other.plan = Some(EpochPlan { split_records: 8, ..view().plan.unwrap() });
        let why = refused(&other);
        assert!(why.contains("splits of 3 batches, and the job has splits of 2: "), "{why}");
        assert!(why.contains("--split-batches 3"), "{why}");
        let why = refused(&JobView { plan: None, ..view() });
        assert!(why.contains("not indexed yet"), "{why}");
        let dataset = JobView { dataset_version: Fingerprint([2; 32]), ..view() };
        assert!(refused(&dataset).contains("another dataset or pipeline"));
    }

    #[test]
    fn a_checkpoint_before_the_first_batch_is_one_of_any_splits() {
        let early = Checkpoint::new(&JobView { plan: None, ..view() }, at(0, 0));
        assert_eq!(early.split_batches, 0);
        assert_eq!(early.cursor_in(&view()), Ok(at(0, 0)));
        assert_eq!(early.cursor_in(&JobView { plan: None, ..view() }), Ok(at(0, 0)));
        let later = Checkpoint { batch_index: 1, ..early };
        assert!(later.cursor_in(&view()).is_err());
    }

    #[test]
    fn splits_that_a_job_is_given_count_before_its_dataset_is_indexed() {
        let mut given = JobView { plan: None, ..view() };
        given.spec.settings.split_batches = Some(3);
        assert_eq!(Checkpoint::new(&view(), at(1, 42)), Checkpoint::new(&given, at(1, 42)));
    }

    #[test]
    fn the_end_of_the_last_epoch_is_the_last_checkpoint() {
        let checked = |epoch, g| Checkpoint::new(&view(), at(epoch, g)).cursor_in(&view());
        assert_eq!(checked(3, 0), Ok(at(3, 0)));
        for (epoch, g) in [(3, 1), (4, 0)] {
            let why = checked(epoch, g).unwrap_err().to_string();
            assert_eq!(why, format!("the checkpoint is at epoch {epoch}, and job j has 3 epochs"));
        }
    }

    #[test]
    fn malformed_checkpoint_is_refused() {
        let long = " x".repeat(MAX_BYTES);
        let missing = r#"{"job":"j","seed":7,"split_batches":3,"epoch":1,"g":42}"#;
        let of_before = r#"{"job":"j","fingerprint":"","seed":7,"epoch":1,"g":42}"#;
        let negative = Checkpoint::new(&view(), at(0, 1)).to_string().replace(":1}", ":-1}");
        for text in ["", "7", "[]", "{}", "checkpoint.json", &long, missing, of_before, &negative] {
            let why = text.parse::<Checkpoint>().unwrap_err().to_string();
            assert!(why.starts_with("not a checkpoint ("), "{why}");
            assert!(why.len() < 300, "{why}");
        }
        let why = missing.parse::<Checkpoint>().unwrap_err().to_string();
        assert!(why.contains("missing field `fingerprint`"), "{why}");
    }
}
