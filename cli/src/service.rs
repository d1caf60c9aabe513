//! The service that a command uses: a running one, one that it shares with others, or one of its own.

use crate::program;
use gristmill_client::{
    ProgramFailure, ServiceBackend, ServiceConnection, ServiceOptions, connect, start_local,
};
use gristmill_model::{
    JobName,
    wire::{CoordinatorCall, JobState, JobView, RefusalKind},
};
use gristmill_ports::{CallError, call_with_retry};
use std::time::Duration;

/// Connects to the service that the options name. Otherwise to the one that all processes of this user share, or the
/// one on the state directory of the options; starts it if it does not run.
pub async fn open(options: &ServiceOptions) -> Result<ServiceConnection, ProgramFailure> {
    match (options.backend, &options.endpoint) {
        (ServiceBackend::Local, None) => {
            let dir = options.state_dir.as_deref();
            start_local(&program::launcher()?, dir, program::operators()).await
        }
        _ => connect(options, program::operators()).await,
    }
}

/// As [`open`], but a state directory must be there: a job or a cache of it is asked for.
pub async fn open_existing(options: &ServiceOptions) -> Result<ServiceConnection, ProgramFailure> {
    match &options.state_dir {
        Some(dir) if !gristmill_host::is_state_dir(dir) => {
            connect(options, program::operators()).await
        }
        _ => open(options).await,
    }
}

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
pub fn job_state_word(state: &JobState) -> &'static str {
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
        JobState::Failed { error, .. } => format!("failed: {error}"),
        state => job_state_word(state).to_owned(),
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
