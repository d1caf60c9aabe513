//! Where splits are computed.

use crate::RunError;

/// How a host runs work that keeps a processor busy for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compute {
    /// On a thread of its own, so that objects are sent and received meanwhile.
    #[default]
    Threads,
    /// Where it is asked for: in simulations, where the order of everything must be known.
    Inline,
}

impl Compute {
    /// Runs `work` to its end. A panic is a passing fault of this worker, not of the job.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, RunError> + Send + 'static,
    ) -> Result<T, RunError> {
        match self {
            Self::Threads => join(tokio::task::spawn_blocking(work)).await,
            Self::Inline => work(),
        }
    }
}

/// The result of a task; one that panicked is a passing fault.
pub(crate) async fn join<T>(
    task: tokio::task::JoinHandle<Result<T, RunError>>,
) -> Result<T, RunError> {
    task.await.unwrap_or_else(|error| Err(RunError::Passing(format!("a task died: {error}"))))
}
