//! The threads that compute splits.

use crate::LeaseError;
use futures::future::Either;
use gristmill_model::worker_threads;
use gristmill_ports::Clock;
use std::{future::Future, panic::resume_unwind, time::Duration};
use tokio::task::JoinHandle;

/// The nicest value.
#[cfg(target_os = "linux")]
const LOWEST_PRIORITY: i32 = 19;

/// How a host runs work that keeps a processor busy for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    /// This many splits at a time, each on its own thread, so that I/O continues meanwhile.
    Threads(usize),
    /// One split at a time, on a thread that runs where the rest of the machine leaves a processor idle.
    Background,
    /// On the calling thread, for deterministic simulations.
    Inline,
    /// Like `Inline`, and each split then takes this long on the runner's clock, plus or minus 20 %: for
    /// simulations of the cost of coordination.
    Modelled(Duration),
}

impl Default for ComputeMode {
    fn default() -> Self {
        Self::Threads(1)
    }
}

impl ComputeMode {
    /// Threads for a function with this much memory; one if the memory is not known.
    pub fn from_function_memory(memory_mb: Option<u32>) -> Self {
        Self::Threads(memory_mb.map_or(1, worker_threads) as usize)
    }

    /// This mode beside a trainer, which comes first.
    #[must_use]
    pub fn in_background(self) -> Self {
        match self {
            Self::Threads(_) => Self::Background,
            mode => mode,
        }
    }

    /// Number of splits computed at a time, at least one.
    pub(crate) fn at_once(self) -> usize {
        match self {
            Self::Threads(threads) => threads.max(1),
            Self::Background | Self::Inline | Self::Modelled(_) => 1,
        }
    }

    /// Number of `splits` computed at a time, at least one.
    pub(crate) fn at_once_of(self, splits: usize) -> usize {
        self.at_once().min(splits).max(1)
    }

    /// Runs `work` to its end; with threads it begins before the future is polled. A panic is a temporary fault of this
    /// worker and does not fail the job.
    pub(crate) fn run<T: Send + 'static, W>(
        self,
        work: W,
    ) -> impl Future<Output = Result<T, LeaseError>> + use<T, W>
    where
        W: FnOnce() -> Result<T, LeaseError> + Send + 'static,
    {
        match self {
            Self::Threads(_) => Either::Left(join(tokio::task::spawn_blocking(work))),
            Self::Background => {
                Either::Left(join(tokio::task::spawn_blocking(|| at_lowest_priority(work))))
            }
            Self::Inline | Self::Modelled(_) => Either::Right(async move { work() }),
        }
    }

    /// Extra time that a split takes in a simulation; none outside of [`Modelled`](Self::Modelled).
    pub(crate) fn modelled(self, clock: &dyn Clock) -> Option<Duration> {
        let Self::Modelled(mean) = self else { return None };
        let [low, high, ..] = clock.nonce().0;
        let random = f64::from(u16::from_le_bytes([low, high]));
        Some(mean.mul_f64(0.8 + 0.4 * random / f64::from(u16::MAX)))
    }
}

/// Runs `work` on a thread of its own: the priority of a thread cannot be raised again.
fn at_lowest_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        // On other systems it would be that of the process.
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::setpriority_process(None, LOWEST_PRIORITY) {
            tracing::debug!(%error, "a local worker keeps the priority of its trainer");
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// The result of a task; a panic becomes [`LeaseError::Passing`].
pub(crate) async fn join<T>(task: JoinHandle<Result<T, LeaseError>>) -> Result<T, LeaseError> {
    task.await.unwrap_or_else(|error| Err(LeaseError::Passing(format!("a task died: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_than_splits_are_at_work() {
        let at_once = |threads, splits| ComputeMode::Threads(threads).at_once_of(splits);
        assert_eq!([at_once(2, 8), at_once(6, 3), at_once(2, 0), at_once(0, 4)], [2, 3, 1, 1]);
        assert_eq!(ComputeMode::Inline.at_once_of(8), 1);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_local_worker_has_the_lowest_priority_and_its_thread_alone() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let own = priority();
        let mode = ComputeMode::Threads(1).in_background();
        assert_eq!(mode.run(move || Ok(priority())).await.unwrap(), LOWEST_PRIORITY);
        let after = ComputeMode::Threads(1).run(move || Ok(priority())).await.unwrap();
        assert_eq!((priority(), after), (own, own));
        let panics = mode.run(|| -> Result<(), LeaseError> { panic!("a kernel's") }).await;
        assert!(matches!(panics, Err(LeaseError::Passing(_))));
    }

    #[test]
    fn threads_follow_the_processors_that_memory_brings() {
        assert_eq!(ComputeMode::from_function_memory(Some(3008)), ComputeMode::Threads(2));
        assert_eq!(ComputeMode::from_function_memory(None), ComputeMode::default());
    }
}
