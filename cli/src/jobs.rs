//! Options and texts of commands about one job.

use gristmill_client::{ProgramFailure, ServiceConnection, ServiceOptions};
use gristmill_model::JobName;
use gristmill_model::wire::{CoordinatorCall, JobState, JobView, RefusalKind};
use gristmill_ports::{CallError, call_with_retry};
use std::time::Duration;

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

/// Time within which the service must answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Sends a call until the service answers.
pub async fn call<C: CoordinatorCall>(
    service: &ServiceConnection,
    call: C,
) -> Result<C::Reply, ProgramFailure> {
    let answer = call_with_retry(&*service.ports.coordinator, &*service.ports.clock, call, TIMEOUT);
    answer.await.map_err(|error| match &error {
        CallError::Refused(refusal) if refusal.kind == RefusalKind::NotFound => {
            ProgramFailure::usage(error)
        }
        _ => ProgramFailure::failed(error),
    })
}
