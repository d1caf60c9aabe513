//! What a person sees while a run goes on: on standard error, and only on a terminal.

use crate::{
    dataset::{self, DatasetSpec},
    failure::Failure,
};
use gristmill_fetcher::Snapshot;
use gristmill_protocol::JobView;
use indicatif::{ProgressBar, ProgressStyle};
use std::{path::Path, time::Duration};

/// One line: splits, batches, rate, stall, workers.
pub struct Progress {
    bar: ProgressBar,
    epochs: u32,
}

impl Progress {
    pub fn new(view: &JobView, epochs: u32) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(format!("job {}: waiting for the first batch", view.job));
        Self { bar, epochs }
    }

    /// While the dataset is indexed.
    pub fn indexing(&self, done: u32, files: u32) {
        self.bar.set_message(format!("indexing the dataset: {done} of {files} files"));
    }

    /// While batches flow.
    pub fn training(
        &self,
        epoch: u32,
        splits: (u64, u32),
        batches_per_s: f64,
        snapshot: &Snapshot,
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

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Makes the demo's dataset, or finds it made.
pub fn make_dataset(dir: &Path, spec: &DatasetSpec) -> Result<(), Failure> {
    let bar = ProgressBar::new(spec.records);
    if let Ok(style) =
        ProgressStyle::with_template("making images {bar:40} {pos}/{len} ({eta} left)")
    {
        bar.set_style(style);
    }
    let made = dataset::ensure(dir, spec, &|done, _| {
        bar.set_position(done);
        std::ops::ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    made.map_err(|error| Failure::failed(format!("{error:#}")))
}
