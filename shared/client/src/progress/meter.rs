//! Batch times of a trainer, and the reports on which scaling decides.

use gristmill_model::Epoch;
use gristmill_model::splits::SplitKind;
use gristmill_model::wire::{Polled, ReadySplit, TrainerMetrics, TrainingReport, WorkerSeconds};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Batches over which the reported means are taken (Cachew 4.3 averages over the last 100).
const METRIC_BATCHES: usize = 100;
/// Batches of the first report.
const FIRST_REPORT_BATCHES: u64 = 10;
/// After this time a report is sent with fewer batches, at least [`FEWEST_BATCHES`]: large batches take
/// seconds each.
const REPORT_AT_LEAST: Duration = Duration::from_secs(5);
const FEWEST_BATCHES: u64 = 5;

/// Times that a trainer measured for one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchTimes {
    /// Time since the previous batch.
    pub since_last: Duration,
    /// Part of it spent waiting.
    pub waited: Duration,
    /// Part of the wait during which its split was committed and being fetched.
    pub fetching: Duration,
}

/// The measurements of the next report.
#[derive(Debug, Default)]
struct Gathering {
    /// Batches handed over since the last report, the total time between them, and the part spent waiting.
    batches: u64,
    time: Duration,
    waited: Duration,
    fetching: Duration,
    polls: u32,
    full_polls: u32,
    queue_batches: u64,
    workers: u64,
    ahead_batches: u64,
    lease_batches: u32,
}

/// Seconds that workers spent, and the number of batches.
#[derive(Debug, Default)]
struct Cost {
    spent: WorkerSeconds,
    batches: f64,
}

impl Cost {
    fn add(&mut self, entry: &ReadySplit, batch_size: f64) {
        self.spent.source_s += f64::from(entry.times.source_ms) / 1e3;
        self.spent.compute_s += f64::from(entry.times.compute_ms) / 1e3;
        self.spent.put_s += f64::from(entry.times.put_ms) / 1e3;
        self.batches += f64::from(entry.outcome.rows) / batch_size;
    }

    fn per_batch(&self) -> Option<WorkerSeconds> {
        let WorkerSeconds { source_s, compute_s, put_s } = self.spent;
        let mean = |seconds: f64| seconds / self.batches;
        (self.batches > 0.0).then(|| WorkerSeconds {
            source_s: mean(source_s),
            compute_s: mean(compute_s),
            put_s: mean(put_s),
        })
    }
}

/// Measurements of a trainer, gathered into means and reports.
#[derive(Debug)]
pub(super) struct Meter {
    /// (time since the previous batch, part of it spent waiting).
    recent: VecDeque<(Duration, Duration)>,
    batches: u64,
    queue_batches: u32,
    report: Gathering,
    /// Cost of splits that became ready since the last report, by the first epoch of their cache mode. Costs
    /// of an epoch that the trainer has not reached are kept until it does.
    costs: BTreeMap<Option<Epoch>, Cost>,
    /// Whether the next report is sent early, because nothing is known yet about the current mode.
    soon: bool,
    /// The first epoch of the current mode.
    mode_from: Option<Epoch>,
}

impl Meter {
    pub fn new() -> Self {
        Self {
            recent: VecDeque::new(),
            batches: 0,
            queue_batches: 0,
            report: Gathering::default(),
            costs: BTreeMap::new(),
            soon: true,
            mode_from: None,
        }
    }

    /// The stream restarts: nothing is queued.
    pub fn reopen(&mut self) {
        self.queue_batches = 0;
    }

    /// Records a batch that is handed to the trainer.
    pub fn handed_over(&mut self, times: BatchTimes, queue_batches: usize) {
        let BatchTimes { since_last, waited, fetching } = times;
        self.batches += 1;
        self.queue_batches = u32::try_from(queue_batches).unwrap_or(u32::MAX);
        self.recent.truncate(METRIC_BATCHES - 1);
        self.recent.push_front((since_last, waited));
        let report = &mut self.report;
        report.batches += 1;
        report.time += since_last;
        report.waited += waited.min(since_last);
        report.fetching += fetching.min(waited).min(since_last);
    }

    /// Records a poll's facts about workers, for a trainer in `epoch`.
    pub fn polled(&mut self, polled: &Polled, epoch: Epoch) {
        let Some(plan) = polled.job.plan else { return };
        let batch_size = f64::from(plan.batch_size.max(1));
        let caching = polled.job.caching.as_ref();
        let mode_from = |epoch: Epoch| caching.and_then(|c| c.of(epoch)).map(|mode| mode.from);
        for entry in polled.ready.iter().filter(|entry| entry.outcome.kind == SplitKind::Object) {
            self.costs.entry(mode_from(entry.place.epoch)).or_default().add(entry, batch_size);
        }
        let mode_from = mode_from(epoch);
        if self.mode_from != mode_from {
            // Measurements in compute mode do not apply to reading a cache.
            self.report = Gathering::default();
            self.costs.retain(|of, _| *of >= mode_from);
            (self.soon, self.mode_from) = (true, mode_from);
        }
        let fetched = u64::from(self.queue_batches);
        let report = &mut self.report;
        report.polls += 1;
        report.full_polls += u32::from(polled.window_full);
        report.workers += u64::from(polled.active_workers);
        let per_split = u64::from(plan.split_records / plan.batch_size.max(1));
        report.ahead_batches = u64::from(polled.ahead) * per_split;
        report.lease_batches =
            u32::try_from(per_split).unwrap_or(u32::MAX).saturating_mul(plan.max_bundle_splits);
        let ready: u64 = polled.ready.iter().map(|entry| u64::from(entry.outcome.batches)).sum();
        report.queue_batches += fetched + ready;
    }

    /// The report on the batches since the last one, once there are enough; one poll sends it. The first
    /// comes early, because a rough number of workers is better than none.
    pub fn report(&mut self) -> Option<TrainingReport> {
        let enough = match self.soon {
            true => FIRST_REPORT_BATCHES,
            false => METRIC_BATCHES as u64,
        };
        let long = self.report.time >= REPORT_AT_LEAST && self.report.batches >= FEWEST_BATCHES;
        if self.report.batches < enough && !long || self.report.polls == 0 {
            return None;
        }
        self.soon = false;
        let batches = self.batches;
        let Gathering { time, waited, fetching, polls, .. } = self.report;
        let mode_from = self.mode_from;
        let worker = self.costs.remove(&mode_from).and_then(|cost| cost.per_batch());
        let gathered = std::mem::take(&mut self.report);
        let (n, polls) = (gathered.batches as f64, f64::from(polls));
        Some(TrainingReport {
            batches,
            step_s: time.saturating_sub(waited).as_secs_f64() / n,
            stall_s: waited.as_secs_f64() / n,
            fetch_stall_s: fetching.as_secs_f64() / n,
            queue_batches: gathered.queue_batches as f64 / polls,
            ahead_batches: gathered.ahead_batches,
            lease_batches: gathered.lease_batches,
            window_full: f64::from(gathered.full_polls) / polls,
            workers: gathered.workers as f64 / polls,
            worker,
        })
    }

    /// Means over the last batches.
    pub fn metrics(&self) -> TrainerMetrics {
        let n = self.recent.len().max(1) as f64;
        let total: Duration = self.recent.iter().map(|(time, _)| *time).sum();
        let waited: Duration = self.recent.iter().map(|(_, waited)| *waited).sum();
        let stall_fraction = match total.is_zero() {
            true => 0.0,
            false => (waited.as_secs_f64() / total.as_secs_f64()).min(1.0),
        };
        TrainerMetrics {
            batch_time_ms: total.as_secs_f64() * 1e3 / n,
            stall_fraction,
            batches: self.batches,
            queue_batches: self.queue_batches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{entry, polled};
    use gristmill_model::wire::{CacheMode, CachingView, EpochMode};

    const TIMES: BatchTimes = BatchTimes {
        since_last: Duration::from_millis(50),
        waited: Duration::from_millis(10),
        fetching: Duration::from_millis(4),
    };

    #[test]
    fn a_report_covers_the_batches_since_the_last_one() {
        let mut meter = Meter::new();
        for _ in 0..9 {
            meter.handed_over(TIMES, 2);
        }
        meter.polled(&polled(&[entry(0, 0, 4)]), 0);
        assert_eq!(meter.report(), None, "too few");
        meter.handed_over(TIMES, 2);
        let report = meter.report().unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!((report.batches, report.ahead_batches), (10, 8));
        assert!(close(report.step_s, 0.04) && close(report.stall_s, 0.01), "{report:?}");
        assert!(close(report.fetch_stall_s, 0.004), "{report:?}");
        assert!(close(report.queue_batches, 6.0) && close(report.workers, 3.0), "{report:?}");
        let worker = report.worker.unwrap();
        assert!(close(worker.source_s, 0.01) && close(worker.compute_s, 0.1), "{worker:?}");
        assert_eq!(meter.report(), None, "it goes out once");
        for _ in 0..99 {
            meter.handed_over(TIMES, 0);
        }
        meter.polled(&polled(&[entry(0, 0, 4)]), 0);
        assert_eq!(meter.report(), None);
        meter.handed_over(TIMES, 0);
        assert_eq!(meter.report().unwrap().batches, 110);
    }

    #[test]
    fn costs_of_another_mode_are_kept_until_the_trainer_is_there() {
        let mode = |from, mode| EpochMode { from, mode, reason: String::new(), shelf: None };
        let modes = vec![mode(0, CacheMode::Profile), mode(1, CacheMode::Compute)];
        let caching = CachingView { points: Vec::new(), modes, unsettled: None };
        let poll = |epoch, compute_ms| {
            let mut polled = polled(&[entry(epoch, 0, 4)]);
            polled.job.caching = Some(caching.clone());
            polled.ready[0].times.compute_ms = compute_ms;
            polled
        };
        let mut meter = Meter::new();
        let compute_s = |meter: &mut Meter| {
            (0..100).for_each(|_| meter.handed_over(TIMES, 0));
            meter.report().unwrap().worker.map(|worker| (worker.compute_s * 1e3).round())
        };
        meter.polled(&poll(0, 400), 0);
        meter.polled(&poll(1, 800), 0);
        assert_eq!(compute_s(&mut meter), Some(100.0), "the trainer is in epoch 0");
        meter.polled(&poll(1, 1200), 0);
        assert_eq!(compute_s(&mut meter), None, "nothing new of that mode");
        meter.polled(&poll(0, 400), 1);
        assert_eq!(compute_s(&mut meter), Some(250.0), "both splits of epoch 1, and no other");
    }

    #[test]
    fn means_are_of_the_last_batches() {
        let mut meter = Meter::new();
        assert_eq!(meter.metrics().stall_fraction.to_bits(), 0.0_f64.to_bits());
        meter.handed_over(TIMES, 2);
        let metrics = meter.metrics();
        assert!((metrics.stall_fraction - 0.2).abs() < 1e-9);
        assert_eq!((metrics.batches, metrics.queue_batches), (1, 2));
        let faster = BatchTimes { waited: Duration::ZERO, ..TIMES };
        (0..METRIC_BATCHES).for_each(|_| meter.handed_over(faster, 0));
        assert!(meter.metrics().stall_fraction.abs() < 1e-9);
        meter.reopen();
        assert_eq!(meter.metrics().queue_batches, 0);
    }
}
