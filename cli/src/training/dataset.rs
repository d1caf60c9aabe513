//! Generated datasets, made once per machine.

use gristmill_client::{ProgramFailure, interruption};
use gristmill_synthetic::DatasetSpec;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Generates a dataset once per machine, or finds it; returns its directory. Ctrl-C removes an
/// unfinished one.
pub async fn make_dataset(spec: DatasetSpec) -> Result<PathBuf, ProgramFailure> {
    let dir = gristmill_synthetic::default_dir(&spec)
        .map_err(|error| ProgramFailure::usage(format!("{error:#}")))?;
    make_dataset_in(dir, spec).await
}

/// As [`make_dataset`], in a directory of the caller's choice.
pub async fn make_dataset_in(dir: PathBuf, spec: DatasetSpec) -> Result<PathBuf, ProgramFailure> {
    let stop = Arc::new(AtomicBool::new(false));
    let (making, stopped) = (dir.clone(), Arc::clone(&stop));
    let mut made = tokio::task::spawn_blocking(move || make_unless(&making, &spec, &stopped));
    tokio::select! {
        made = &mut made => {
            let made = made.map_err(ProgramFailure::failed)?;
            made.map_err(|error| ProgramFailure::failed(format!("{error:#}")))?;
            Ok(dir)
        }
        by = interruption() => {
            stop.store(true, Ordering::Relaxed);
            // It ends with an error that reports the interruption, once the unfinished files are
            // removed.
            let _ = made.await;
            Err(ProgramFailure::Interrupted(by))
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
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    made
}
