//! The state of a job, asked from time to time.

use gristmill_client::JobHandle;
use gristmill_model::wire::{JobStatus, StatusCall};
use gristmill_ports::call_with_retry;
use gristmill_stream::waiting::WaitReason;
use std::time::Duration;
use tokio::{sync::watch, task::JoinSet};

/// Interval of questions.
const EVERY: Duration = Duration::from_millis(500);
/// Time within which the service must answer one.
const PATIENCE: Duration = Duration::from_secs(15);

/// Asks for the job's status until it is dropped.
pub struct StatusWatch {
    latest: watch::Receiver<Option<JobStatus>>,
    trouble: Option<String>,
    _asking: JoinSet<()>,
}

impl StatusWatch {
    /// Begins to ask.
    pub fn start(job: JobHandle) -> Self {
        let (sender, latest) = watch::channel(None);
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            // A service that does not answer is known to its link, and asked again.
            loop {
                let (ports, status) =
                    (&job.service.ports, StatusCall { job: job.view.job.clone() });
                let asked = call_with_retry(&*ports.coordinator, &*ports.clock, status, PATIENCE);
                if let Ok(status) = asked.await
                    && sender.send(Some(status)).is_err()
                {
                    return;
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { latest, trouble: None, _asking: asking }
    }

    /// The latest status, if it is new.
    pub fn latest(&mut self) -> Option<JobStatus> {
        if !self.latest.has_changed().unwrap_or(false) {
            return None;
        }
        let status = self.latest.borrow_and_update().clone();
        self.trouble = status.as_ref().and_then(|status| status.trouble.clone());
        status
    }

    /// Why the step of some ranks is missing.
    pub fn waiting(&self, ranks: &[u32]) -> WaitReason {
        match &self.trouble {
            Some(trouble) => {
                WaitReason { text: format!("the job to continue: {trouble}"), is_fault: true }
            }
            None => {
                WaitReason::patiently(format!("the fetcher of {} to deliver a batch", named(ranks)))
            }
        }
    }
}

/// Ranks by number.
fn named(ranks: &[u32]) -> String {
    match ranks {
        [only] => format!("rank {only}"),
        [first, .., last] => format!("{} of ranks {first} to {last}", ranks.len()),
        [] => "all ranks".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named() {
        assert_eq!(named(&[3]), "rank 3");
        assert_eq!(named(&[1, 4, 6]), "3 of ranks 1 to 6");
    }
}
