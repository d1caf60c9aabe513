//! Progress of a run on standard error: on a terminal one line that changes, else a line for each
//! long wait.

use gristmill_model::wire::JobView;
use gristmill_stream::{
    JobStatistics,
    waiting::{WaitReason, WaitReportLimiter},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// The progress line: splits, batches, rate, stall, workers.
pub struct ProgressLine {
    bar: ProgressBar,
    epochs: u32,
    pace: WaitReportLimiter,
}

impl ProgressLine {
    pub fn new(view: &JobView) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(format!("job {}: waiting for the first batch", view.job));
        Self { bar, epochs: view.spec.epochs, pace: WaitReportLimiter::default() }
    }

    /// Shows progress while the dataset is indexed.
    pub fn indexing(&self, done: u32, files: u32) {
        self.bar.set_message(format!("indexing the dataset: {done} of {files} files"));
    }

    /// Shows progress while batches arrive.
    pub fn training(
        &self,
        epoch: u32,
        splits: (u64, u32),
        batches_per_s: f64,
        snapshot: &JobStatistics,
    ) {
        let metrics = &snapshot.metrics;
        self.bar.set_message(format!(
            "epoch {} of {}  splits {}/{}  {batches_per_s:.1} batches/s  stall {:.0} %  workers {}",
            epoch + 1,
            self.epochs,
            splits.0,
            splits.1,
            metrics.stall_fraction * 100.0,
            snapshot.active_workers
        ));
    }

    /// Shows that the next batch is missing, for `waited` so far.
    pub fn waiting(&mut self, waited: Duration, waiting: &WaitReason) {
        if self.pace.is_due(waited, waiting) {
            self.say(&waiting.text);
        }
    }

    /// Shows the cause of a wait.
    pub fn say(&self, what: &str) {
        if self.bar.is_hidden() {
            gristmill_client::complain!("waiting for {what}")
        } else {
            self.bar.set_message(format!("waiting for {what}"))
        }
    }

    /// Ends the wait: a batch has arrived.
    pub fn came(&mut self) {
        self.pace.rest();
    }

    /// Whether a wait has been shown, so that further details follow it.
    pub fn is_waiting(&self) -> bool {
        self.pace.has_said()
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
