//! Options and texts of commands about one job.

use gristmill_client::ServiceOptions;
use gristmill_model::JobName;
use gristmill_model::wire::{JobState, JobView};

/// Names a job of a running service.
#[derive(Debug, clap::Args)]
pub struct NamedJobArgs {
    /// The job's name
    pub job: JobName,
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The state as one word.
pub fn word(state: &JobState) -> &'static str {
    match state {
        JobState::Indexing => "indexing",
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Stopped => "stopped",
        JobState::Failed { .. } => "failed",
    }
}

/// The state, with the error of a job that failed.
pub fn state(view: &JobView) -> String {
    match &view.state {
        JobState::Failed { error } => format!("failed: {error}"),
        state => word(state).to_owned(),
    }
}
