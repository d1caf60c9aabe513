//! All runs of a job, and what their readers have reported.

use super::LaunchedRun;
use crate::FaultSimulation;
use gristmill_model::RunToken;
use gristmill_model::splits::{Cursor, JobProgress, ProgressAck};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// All runs of a job, by their tokens.
#[derive(Default)]
pub struct RunRegistry {
    runs: Mutex<BTreeMap<RunToken, Arc<LaunchedRun>>>,
    /// The furthest point that any run has made durable.
    durable: Mutex<Cursor>,
    /// Generations of runs that began behind what was collected.
    behind: Mutex<BTreeSet<u64>>,
    /// The furthest position that readers of each generation have reported.
    reported: Mutex<BTreeMap<u64, Cursor>>,
    /// The furthest position reported to each registration of the job, by its time.
    reported_to: Mutex<BTreeMap<u64, Cursor>>,
}

impl RunRegistry {
    pub fn add(&self, run: &Arc<LaunchedRun>) {
        let mut runs = self.runs.lock();
        runs.insert(run.token(), Arc::clone(run));
    }

    /// Runs so far.
    pub fn count(&self) -> usize {
        self.runs.lock().len()
    }

    /// Records what a reader is about to report to the job registered at `registered_ms`.
    pub fn note_report(&self, registered_ms: u64, ack: &ProgressAck) {
        for (of, key) in [(&self.reported, ack.generation), (&self.reported_to, registered_ms)] {
            let mut reported = of.lock();
            let most = reported.entry(key).or_default();
            *most = ack.durable.max(*most);
        }
    }

    /// Checks the state file found by a restarted fetcher: it holds all that was reported as durable.
    pub fn check_kept(&self, sim: &FaultSimulation, registered_ms: u64, kept: Option<Cursor>) {
        let reported = self.reported_to.lock();
        let reported = reported.get(&registered_ms).copied().unwrap_or_default();
        let kept = kept.unwrap_or_default();
        if kept < reported {
            sim.violated(format_args!(
                "{reported} was reported as durable, and the state file holds {kept}"
            ));
        }
    }

    /// Invariant 11: only readers of a run move its position.
    fn check_reported(&self, sim: &FaultSimulation, after: &JobProgress) {
        let reported = self.reported.lock();
        // An earlier job of the name has other runs.
        let Some(most) = reported.get(&after.generation) else { return };
        if after.durable > *most {
            sim.violated(format_args!(
                "invariant 11: {} is durable, and the run's readers have reported {most}",
                after.durable
            ));
        }
    }

    /// Whether the run of that generation began behind what was collected.
    pub fn began_behind(&self, generation: u64) -> bool {
        self.behind.lock().contains(&generation)
    }

    /// Checks a written progress of the job against what its run's ranks have saved.
    pub fn check(&self, sim: &FaultSimulation, after: &JobProgress) {
        self.check_reported(sim, after);
        if after.durable < after.collected {
            let mut behind = self.behind.lock();
            behind.insert(after.generation);
        }
        let runs = self.runs.lock();
        let found = after.run.and_then(|of| Some((of, runs.get(&of.token).cloned()?)));
        drop(runs);
        let mut furthest = self.durable.lock();
        let before = *furthest;
        *furthest = before.max(after.durable);
        drop(furthest);
        if let Some((of, run)) = found {
            let began = run.begin_at(of.ranks.from);
            if run.resume.is_none() && began > before {
                sim.violated(format_args!(
                    "a run without a checkpoint began at {began}, and {before} was durable"
                ));
            }
            run.check_durable(sim, after);
        }
    }
}
