//! The number of local workers of a running job, decided from its trainer's reports.
//!
//! A local worker makes what a function would be paid for, on processors that are paid for already, until it slows the
//! trainer's step: the trainer costs far more than a function. So counts are tried, the step is compared, and the greater
//! count stays while the step becomes longer by less than it saves. The scaling policy decides on the remote workers, by
//! what the local ones leave to them: [`PlacementState::remote_part`]. [`place`] is pure.

mod reason;
mod step;
#[cfg(test)]
mod tests;

use super::local_part::{LocalPart, RELIED_ON};
use crate::scaling::ScalerFacts;
use gristmill_model::wire::TrainingReport;
use serde::{Deserialize, Serialize};
use step::{StepBlock, TrialVerdict};

pub use reason::{PlacementDecision, PlacementReason};

/// Batches after a change of workers in which the step is not measured.
const SKIPPED_BATCHES: u64 = 150;
/// Changes of the local workers under one load.
const MOVES_MOST: u32 = 6;
/// Cost of a trial: so many reports in which the step may be longer by this share.
const TRIAL_REPORTS: f64 = 20.0;
const TRIAL_SLOWDOWN: f64 = 0.03;
/// Share of the host's processors that may be busy before anything else slows down, until it is measured.
const KNEE: f64 = 0.9;
/// Reports in a row of another step, and the difference as a share, that make it another load.
const OTHER_REPORTS: u32 = 3;
const OTHER_STEP: f64 = 0.2;

/// Workers to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerTarget {
    /// Functions.
    pub remote: u32,
    /// Workers on the trainers' hosts, all together.
    pub local: u32,
}

/// One report of the trainer, and what else is known at that time.
#[derive(Debug, Clone, Copy)]
pub struct PlacementObservation<'r> {
    pub report: &'r TrainingReport,
    pub facts: &'r ScalerFacts,
    /// Remote workers that the scaling policy wants for [`PlacementState::remote_part`].
    pub remote: u32,
    /// Whether that policy has found its count.
    pub has_converged: bool,
    /// Whether the epoch's cache mode is one that lasts: neither `profile` nor `put`.
    pub lasts: bool,
    /// Processors of all trainers' hosts; 0 if that is not known.
    pub host_cores: f64,
    /// Batches that the job has left.
    pub batches_left: u64,
}

impl PlacementObservation<'_> {
    /// Seconds in which one batch is due, over all trainers.
    fn due_s(&self) -> f64 {
        self.report.step_s / self.facts.clients()
    }
}

/// Settings by the user, and prices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementSettings {
    /// Most local workers.
    pub max_local: u32,
    /// Price of one remote worker for an hour, and of the trainer with its accelerators.
    pub usd_per_worker_hour: f64,
    pub usd_per_trainer_hour: f64,
}

impl Default for PlacementSettings {
    fn default() -> Self {
        let prices = crate::scaling::Settings::default();
        Self {
            max_local: u32::MAX,
            usd_per_worker_hour: prices.usd_per_worker_hour,
            usd_per_trainer_hour: prices.usd_per_trainer_hour,
        }
    }
}

/// Another number of local workers, under comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct LocalTrial {
    from: u32,
    to: u32,
}

/// State between two reports. Unknown fields are ignored and missing ones default, so that two versions can share an
/// item.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementState {
    /// Workers to hold.
    pub target: WorkerTarget,
    /// Changes of the local workers under this load.
    pub moves: u32,
    /// Whether no other count is worth a trial.
    pub has_converged: bool,
    #[serde(flatten)]
    part: LocalPart,
    /// Batches of the last report alone.
    report_batches: u64,
    mode: u32,
    /// Before this batch the step is not that of the present workers.
    settled_at: u64,
    /// The step with the count that is held, and with the one that is tried.
    held: StepBlock,
    tried: StepBlock,
    trial: Option<LocalTrial>,
    /// The least count that was refused, and the greatest that lost to a greater one.
    refused: Option<u32>,
    outdone: Option<u32>,
    /// Seconds of a remote worker for a batch, as last measured.
    remote_batch_s: Option<f64>,
    /// Reports in a row of another step, and of a costly wait without remote workers.
    other_reports: u32,
    waits: u32,
    /// Local workers alone do not suffice.
    needs_remote: bool,
}

/// The next state, and the workers to hold with the reason.
pub fn place(
    seen: &PlacementObservation<'_>,
    state: &PlacementState,
    settings: &PlacementSettings,
) -> (PlacementState, PlacementDecision) {
    let mut next = state.clone();
    let reason = next.observe(seen, settings);
    next.target.local = next.target.local.min(settings.max_local);
    next.target.remote = next.remote(seen, settings);
    let target = next.target;
    (next, PlacementDecision { target, reason })
}

impl PlacementState {
    /// State before the first report, at the workers of a plan.
    pub fn begin(target: WorkerTarget) -> Self {
        Self { target, ..Self::default() }
    }

    /// State of a job whose like ended with `target`: other counts were tried then.
    pub fn begin_with(target: WorkerTarget) -> Self {
        Self { target, moves: MOVES_MOST, has_converged: true, ..Self::default() }
    }

    /// The report as of a trainer that is fed by remote workers alone: the scaling policy decides by it.
    pub fn remote_part(&self, report: &TrainingReport, facts: &ScalerFacts) -> TrainingReport {
        self.part.remote_part(report, f64::from(self.target.local), facts)
    }

    /// Share of the batches that local workers could make: 0 to 1.
    fn local_part(&self, due_s: f64) -> f64 {
        self.part.share(f64::from(self.target.local), due_s)
    }

    /// Takes a report: measures, begins a trial, or ends it.
    fn observe(
        &mut self,
        seen: &PlacementObservation<'_>,
        settings: &PlacementSettings,
    ) -> PlacementReason {
        let report = seen.report;
        let before = self.part.batches;
        if !report.is_plausible() || report.batches <= before {
            return PlacementReason::Held;
        }
        let local = f64::from(self.target.local);
        self.part.add(report, local, seen.facts, before >= self.settled_at);
        self.remote_batch_s = report.remote_batch_s().or(self.remote_batch_s);
        self.report_batches = report.batches - before;
        if std::mem::replace(&mut self.mode, seen.facts.mode) != seen.facts.mode && before > 0 {
            return self.begin_load();
        }
        if before < self.settled_at || !seen.lasts {
            return PlacementReason::Held;
        }
        if let Some(trial) = self.trial {
            return self.compare(trial, seen, settings);
        }
        if self.is_other_load(report.step_s) {
            return self.begin_load();
        }
        self.propose(seen, settings)
    }

    /// Earlier trials say nothing about another load.
    fn begin_load(&mut self) -> PlacementReason {
        let Self { target, part, mode, remote_batch_s, .. } = *self;
        let target = match self.trial {
            Some(trial) => WorkerTarget { local: trial.from.min(trial.to), ..target },
            None => target,
        };
        let kept = Self::begin(target);
        *self = Self { part, mode, remote_batch_s, ..kept };
        self.settle();
        PlacementReason::LoadChanged { local: self.target.local }
    }

    /// Adds a step to what is held, and says whether the steps are of another load.
    fn is_other_load(&mut self, step_s: f64) -> bool {
        let differs = self.held.differs(step_s, OTHER_STEP);
        self.other_reports = if differs { self.other_reports + 1 } else { 0 };
        if !differs {
            self.held.add(step_s);
        }
        self.other_reports >= OTHER_REPORTS
    }

    /// From now on the step is that of other workers, once what they hold is delivered.
    fn settle(&mut self) {
        self.settled_at = self.part.batches.saturating_add(SKIPPED_BATCHES);
        self.tried = StepBlock::default();
        self.other_reports = 0;
    }

    /// The step with the count that is tried, beside that of the one before.
    fn compare(
        &mut self,
        trial: LocalTrial,
        seen: &PlacementObservation<'_>,
        settings: &PlacementSettings,
    ) -> PlacementReason {
        self.tried.add(seen.report.step_s);
        let LocalTrial { from, to } = trial;
        let (few, many) =
            if from < to { (&self.held, &self.tried) } else { (&self.tried, &self.held) };
        let break_even = self.break_even(from.abs_diff(to), seen, settings);
        let slowdown = few.slowdown(many);
        let local = match few.verdict(many, break_even, self.tried.is_full()) {
            TrialVerdict::Open => return PlacementReason::Compared { from, to },
            TrialVerdict::Fewer => from.min(to),
            TrialVerdict::More => from.max(to),
        };
        self.trial = None;
        if local < from.max(to) {
            self.refused = Some(from.max(to));
        } else {
            self.outdone = Some(from.min(to));
        }
        if local == to {
            self.held = self.tried;
        } else {
            self.move_to(local);
        }
        PlacementReason::Decided { from, to, local, slowdown, break_even }
    }

    fn move_to(&mut self, local: u32) {
        self.target.local = local;
        self.moves += 1;
        self.settle();
    }

    /// The slowdown of the step at which so many more local workers cost what they save, as a share.
    fn break_even(
        &self,
        more: u32,
        seen: &PlacementObservation<'_>,
        settings: &PlacementSettings,
    ) -> f64 {
        let saved_usd = self.functions_saved(more, seen) * settings.usd_per_worker_hour;
        // Without a price of the trainer nothing is lost by a longer step.
        if settings.usd_per_trainer_hour > 0.0 {
            saved_usd / settings.usd_per_trainer_hour
        } else {
            f64::INFINITY
        }
    }

    /// Functions that make what so many local workers do.
    fn functions_saved(&self, local: u32, seen: &PlacementObservation<'_>) -> f64 {
        let local_s = self.local_s(seen);
        let remote_s = self.remote_batch_s.or(local_s).unwrap_or(0.0);
        local_s.map_or(0.0, |time_s| f64::from(local) * remote_s / time_s)
    }

    /// A local worker's time for a batch: before any was at work, that of a function's processor.
    fn local_s(&self, seen: &PlacementObservation<'_>) -> Option<f64> {
        let computing = Some(seen.report.remote_compute_s).filter(|time_s| *time_s > 0.0);
        self.part.local_batch_s.or(computing)
    }

    /// Another count to try, if one may save more than the trial costs.
    fn propose(
        &mut self,
        seen: &PlacementObservation<'_>,
        settings: &PlacementSettings,
    ) -> PlacementReason {
        let is_alone = self.target.remote == 0 && self.target.local > 0;
        if !self.held.is_known() || !seen.has_converged && !is_alone {
            return PlacementReason::Held;
        }
        let from = self.target.local;
        let more = if is_alone { None } else { self.more(seen, settings) };
        let to = more.or_else(|| self.fewer());
        let pays = |to: &u32| self.pays(from.abs_diff(*to), seen, settings);
        // One for the trial, and one for the way back.
        let Some(to) = to.filter(|_| self.moves + 2 <= MOVES_MOST).filter(pays) else {
            self.has_converged = true;
            return PlacementReason::Held;
        };
        self.has_converged = false;
        self.trial = Some(LocalTrial { from, to });
        self.move_to(to);
        PlacementReason::Tried { from, to }
    }

    /// More local workers, as the demand and idle processors allow, unless more were refused. Beyond the processors that
    /// are idle by the assumed knee only where one of all is worth less than what a local worker saves.
    fn more(&self, seen: &PlacementObservation<'_>, settings: &PlacementSettings) -> Option<u32> {
        let local = self.target.local;
        // Casts saturate.
        let needed = (self.local_s(seen)? / seen.due_s() / RELIED_ON).ceil() as u32;
        // These do not make enough: remote workers are needed beside them.
        let needed = needed.max(local + 1);
        let step = local.saturating_add(step_of(local));
        let busy = seen.report.busy_cores;
        let next = if busy > 0.0 && seen.host_cores > 0.0 {
            let idle = (KNEE * seen.host_cores - busy).max(0.0) as u32;
            let beyond = self.break_even(1, seen, settings) > 1.0 / seen.host_cores;
            let most = if beyond && local > 0 { seen.host_cores as u32 } else { 0 };
            local.saturating_add(idle).max(step.min(most))
        } else {
            step
        };
        let next = next.min(needed).min(settings.max_local);
        let is_known = self.refused.is_some_and(|refused| next >= refused);
        (next > local && !is_known).then_some(next)
    }

    /// Fewer local workers, unless that was tried.
    fn fewer(&self) -> Option<u32> {
        let local = self.target.local;
        (local > 0 && self.outdone.is_none()).then(|| local - step_of(local))
    }

    /// Whether so many local workers save more, over the rest of the job, than their trial costs.
    fn pays(
        &self,
        local: u32,
        seen: &PlacementObservation<'_>,
        settings: &PlacementSettings,
    ) -> bool {
        let saved = self.functions_saved(local, seen) * settings.usd_per_worker_hour;
        let trial = TRIAL_REPORTS * TRIAL_SLOWDOWN * settings.usd_per_trainer_hour;
        saved * seen.batches_left as f64 > trial * self.report_batches as f64
    }

    /// Remote workers: none where local ones make enough, or where the wait costs less than a function.
    fn remote(&mut self, seen: &PlacementObservation<'_>, settings: &PlacementSettings) -> u32 {
        if self.target.local == 0 {
            return seen.remote;
        }
        let report = seen.report;
        if self.target.remote == 0 && self.part.batches > 0 && self.part.batches >= self.settled_at
        {
            let waits = report.stall_s / report.batch_time_s() * settings.usd_per_trainer_hour;
            self.waits = if waits > settings.usd_per_worker_hour { self.waits + 1 } else { 0 };
            self.needs_remote |= self.waits >= 2;
        }
        let missing = (1.0 - self.local_part(seen.due_s())) * settings.usd_per_trainer_hour;
        let suffices = self.target.remote == 0 || missing <= settings.usd_per_worker_hour;
        if suffices && !self.needs_remote { 0 } else { seen.remote.max(1) }
    }
}

/// Local workers more or fewer that are tried: enough to be seen in the step.
fn step_of(local: u32) -> u32 {
    (local / 5).max(1)
}
