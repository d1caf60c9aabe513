//! What a person sees while a run goes on, on standard error: a line on a terminal that changes, or now and then
//! one that says what a long wait is for.

use crate::failure::Failure;
use gristmill_client::{
    Snapshot,
    signals::interruption,
    waiting::{Pace, Waiting},
};
use gristmill_model::wire::JobView;
use gristmill_synthetic::DatasetSpec;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// One line: splits, batches, rate, stall, workers.
pub struct Progress {
    bar: ProgressBar,
    epochs: u32,
    pace: Pace,
}

impl Progress {
    pub fn new(view: &JobView, epochs: u32) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(format!("job {}: waiting for the first batch", view.job));
        Self { bar, epochs, pace: Pace::default() }
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

    /// While the next batch is not there, since `waited`.
    pub fn waiting(&mut self, waited: Duration, waiting: &Waiting) {
        if self.pace.is_due(waited, waiting) {
            self.say(&waiting.text);
        }
    }

    /// Says what is waited for.
    pub fn say(&self, what: &str) {
        match self.bar.is_hidden() {
            true => eprintln!("waiting for {what}"),
            false => self.bar.set_message(format!("waiting for {what}")),
        }
    }

    /// A batch has come.
    pub fn came(&mut self) {
        self.pace.rest();
    }

    /// A wait has lasted long enough to be mentioned: what else there is to say comes after it.
    pub fn is_waiting(&self) -> bool {
        self.pace.has_said()
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Makes a generated dataset, once per machine, or finds it made; answers where it is. Ctrl-C removes what is unfinished.
pub async fn make_dataset(spec: DatasetSpec) -> Result<PathBuf, Failure> {
    let dir = gristmill_synthetic::default_dir(&spec)
        .map_err(|error| Failure::usage(format!("{error:#}")))?;
    make_dataset_in(dir, spec).await
}

/// As [`make_dataset`], in a directory of the caller's choice.
pub async fn make_dataset_in(dir: PathBuf, spec: DatasetSpec) -> Result<PathBuf, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let (making, stopped) = (dir.clone(), Arc::clone(&stop));
    let mut made = tokio::task::spawn_blocking(move || make_unless(&making, &spec, &stopped));
    tokio::select! {
        made = &mut made => {
            let made = made.map_err(Failure::failed)?;
            made.map_err(|error| Failure::failed(format!("{error:#}")))?;
            Ok(dir)
        }
        by = interruption() => {
            stop.store(true, Ordering::Relaxed);
            // It ends with an error that says so, once the unfinished files are gone.
            let _ = made.await;
            Err(Failure::interrupted(by))
        }
    }
}

fn make_unless(dir: &Path, spec: &DatasetSpec, stop: &AtomicBool) -> anyhow::Result<()> {
    let bar = ProgressBar::new(spec.records);
    if let Ok(style) =
        ProgressStyle::with_template("making records {bar:40} {pos}/{len} ({eta} left)")
    {
        bar.set_style(style);
    }
    let made = gristmill_synthetic::ensure(dir, spec, &|done, _| {
        bar.set_position(done);
        match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.finish_and_clear();
    made
}
