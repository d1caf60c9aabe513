//! Reports about a trainer's checkpoints, while another thread waits for the next batch.

use super::Fetcher;
use crate::{FetchError, ledger::SplitLedger, progress::FetcherProgress};
use gristmill_model::splits::Cursor;
use gristmill_ports::{Clock, outlast};
use std::{pin::pin, sync::Arc, time::Duration};

/// Records which batches of a fetcher are safe in a checkpoint.
#[derive(Clone)]
pub struct BatchAcknowledger {
    progress: Arc<FetcherProgress>,
    ledger: Arc<SplitLedger>,
    clock: Arc<dyn Clock>,
    patience: Duration,
    /// Whether the fetcher serves all ranks.
    is_alone: bool,
}

impl BatchAcknowledger {
    /// Records that everything before `next` is safe in a checkpoint.
    pub fn checkpointed_before(&self, next: Cursor) {
        self.progress.acks().make_durable(next);
    }

    /// As [`Fetcher::finish`], while the fetcher lives. Cancel safe.
    ///
    /// # Errors
    /// As [`Fetcher::finish`].
    pub async fn settle(&self) -> Result<(), FetchError> {
        let epochs = self.ledger.view().map_or(0, |view| view.spec.epochs);
        self.progress.acknowledge_always();
        let mut over = pin!(outlast(&*self.clock, self.patience));
        let mut is_over = false;
        // Progress is not fully reported before the first answer, and the last answer closes the job.
        let is_closed = || {
            let acks = self.progress.acks();
            let closes = acks.durable().epoch >= epochs;
            acks.is_settled() && (!closes || self.ledger.has_no_more_to_close())
        };
        while !is_closed() {
            if let Some(error) = self.ledger.stream_error() {
                return Err(error);
            }
            // Other readers may take any time.
            if is_over && self.is_alone {
                let error = "the job is not closed yet: end it again with its last checkpoint";
                return Err(FetchError::Unreachable {
                    waited_s: self.patience.as_secs(),
                    error: error.to_owned(),
                });
            }
            tokio::select! {
                biased;
                () = &mut over, if !is_over => is_over = true,
                () = self.clock.sleep(Duration::from_millis(5)) => {}
            }
        }
        Ok(())
    }
}

impl Fetcher {
    /// A handle that records checkpoints while another thread waits for the next batch.
    pub fn acknowledger(&self) -> BatchAcknowledger {
        BatchAcknowledger {
            progress: Arc::clone(&self.progress),
            ledger: Arc::clone(&self.ledger),
            clock: Arc::clone(&self.ports.clock),
            patience: self.config.patience,
            is_alone: self.own().are_all(),
        }
    }
}
