//! Measurements of a trainer: its means for people, and the reports on which scaling decides.

use gristmill_model::Epoch;
use gristmill_model::splits::batches::SplitCounts;
use gristmill_model::splits::{SplitKind, WorkerTimes};
use gristmill_model::wire::{PollReply, ReadySplit, TrainerMetrics, TrainingReport};
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
    pub since_last: Duration,
    /// Part of it spent waiting.
    pub waited: Duration,
    /// Part of the wait during which its split was committed and being fetched.
    pub fetching: Duration,
}

/// Batches that workers made, and the time that remote ones took.
#[derive(Debug, Default)]
struct MadeBatches {
    times: WorkerTimes,
    batches: f64,
    local_batches: f64,
}

impl MadeBatches {
    fn add(&mut self, entry: &ReadySplit, batch_size: f64) {
        let SplitCounts { batches, remainder_rows } = entry.outcome.counts();
        let batches = f64::from(batches) + f64::from(remainder_rows) / batch_size;
        match entry.outcome.kind {
            SplitKind::Object => {
                self.times = self.times.plus(entry.times);
                self.batches += batches;
            }
            SplitKind::Local => self.local_batches += batches,
            SplitKind::Poison => {}
        }
    }

    /// Adds the times for a batch to `report`.
    fn tell(&self, report: &mut TrainingReport) {
        let mean_s = |ms: u64| ms as f64 / 1e3 / self.batches;
        let WorkerTimes { source_ms, compute_ms, put_ms } = self.times;
        if self.batches > 0.0 {
            report.remote_source_s = mean_s(source_ms);
            report.remote_compute_s = mean_s(compute_ms);
            report.remote_put_s =
                mean_s(put_ms.saturating_sub(source_ms).saturating_sub(compute_ms));
        }
        let all = self.batches + self.local_batches;
        report.local_share = if all > 0.0 { self.local_batches / all } else { 0.0 };
    }
}

/// Measurements of a trainer, gathered into means and reports.
#[derive(Debug, Default)]
pub(crate) struct DeliveryMeter {
    recent: VecDeque<BatchTimes>,
    batches: u64,
    queue_batches: u32,
    /// The next report: its means are of what was measured since the last one.
    report: TrainingReport,
    report_batches: u64,
    report_time: Duration,
    report_polls: u32,
    /// Splits that became ready since the last report, by the first epoch of their cache mode. Those of an
    /// epoch that the trainer has not reached are kept until it does.
    work: BTreeMap<Option<Epoch>, MadeBatches>,
    /// Whether something is reported about the current mode: the first report is sent early.
    is_known: bool,
    /// The first epoch of the current mode.
    mode_from: Option<Epoch>,
    /// The host at the last report.
    host: Option<HostCpu>,
}

/// Processor time of everything on a host until a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostCpu {
    pub at: Duration,
    pub cpu: Duration,
    pub cores: usize,
}

impl HostCpu {
    /// Processors that were busy since `before`.
    fn busy_since(self, before: Self) -> f64 {
        let passed_s = self.at.saturating_sub(before.at).as_secs_f64();
        let cpu_s = self.cpu.saturating_sub(before.cpu).as_secs_f64();
        if passed_s > 0.0 { cpu_s / passed_s } else { 0.0 }
    }
}

fn add_to(mean: &mut f64, value: f64, n: f64) {
    *mean += (value - *mean) / n;
}

impl DeliveryMeter {
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
        self.recent.push_front(times);
        self.report_batches += 1;
        self.report_time += since_last;
        let (report, n) = (&mut self.report, self.report_batches as f64);
        let stall = waited.min(since_last);
        add_to(&mut report.step_s, (since_last - stall).as_secs_f64(), n);
        add_to(&mut report.stall_s, stall.as_secs_f64(), n);
        add_to(&mut report.fetch_stall_s, fetching.min(stall).as_secs_f64(), n);
    }

    /// Records a poll's facts about workers, for a trainer in `epoch`.
    pub fn polled(&mut self, polled: &PollReply, epoch: Epoch) {
        let Some(plan) = polled.job.plan else { return };
        let batch_size = plan.batch_size.max(1);
        let caching = polled.job.caching.as_ref();
        let mode_from = |epoch: Epoch| caching.and_then(|c| c.mode_at(epoch)).map(|mode| mode.from);
        for entry in &polled.ready {
            let of_mode = self.work.entry(mode_from(entry.place.epoch)).or_default();
            of_mode.add(entry, f64::from(batch_size));
        }
        let mode_from = mode_from(epoch);
        if self.mode_from != mode_from {
            // Measurements in compute mode do not apply to reading a cache.
            self.restart();
            self.work.retain(|of, _| *of >= mode_from);
            (self.is_known, self.mode_from) = (false, mode_from);
        }
        self.report_polls += 1;
        let (report, n) = (&mut self.report, f64::from(self.report_polls));
        let ready: u64 = polled.ready.iter().map(|entry| u64::from(entry.outcome.batches)).sum();
        let queue_batches = u64::from(self.queue_batches) + ready;
        add_to(&mut report.queue_batches, queue_batches as f64, n);
        add_to(&mut report.window_full, f64::from(u8::from(polled.window_full)), n);
        add_to(&mut report.remote_workers, polled.remote_workers.into(), n);
        add_to(&mut report.local_workers, polled.local_workers.into(), n);
        let split_batches = plan.split_records / batch_size;
        report.ahead_batches = u64::from(polled.ahead) * u64::from(split_batches);
        report.lease_batches = split_batches.saturating_mul(plan.max_bundle_splits);
    }

    /// Begins the next report, and returns what was measured so far.
    fn restart(&mut self) -> TrainingReport {
        (self.report_batches, self.report_time, self.report_polls) = Default::default();
        std::mem::take(&mut self.report)
    }

    /// The report on the batches since the last one, once there are enough; one poll sends it. The first
    /// comes early, because a rough number of workers is better than none.
    pub fn report(&mut self, host: impl FnOnce() -> Option<HostCpu>) -> Option<TrainingReport> {
        let enough = if self.is_known { METRIC_BATCHES as u64 } else { FIRST_REPORT_BATCHES };
        let is_long = self.report_time >= REPORT_AT_LEAST && self.report_batches >= FEWEST_BATCHES;
        if self.report_batches < enough && !is_long || self.report_polls == 0 {
            return None;
        }
        self.is_known = true;
        let mut report = TrainingReport { batches: self.batches, ..self.restart() };
        if let Some(work) = self.work.remove(&self.mode_from) {
            work.tell(&mut report);
        }
        let host = host();
        if let (Some(before), Some(now)) = (self.host, host) {
            report.busy_cores = now.busy_since(before);
            report.host_cores = now.cores as f64;
        }
        self.host = host;
        Some(report)
    }

    /// Means over the last batches.
    pub fn metrics(&self) -> TrainerMetrics {
        let n = self.recent.len().max(1) as f64;
        let total: Duration = self.recent.iter().map(|times| times.since_last).sum();
        let waited: Duration = self.recent.iter().map(|times| times.waited).sum();
        let stall_fraction = if total.is_zero() {
            0.0
        } else {
            (waited.as_secs_f64() / total.as_secs_f64()).min(1.0)
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
    use gristmill_model::wire::{CacheMode, CachingView, EpochCacheMode};

    const TIMES: BatchTimes = BatchTimes {
        since_last: Duration::from_millis(50),
        waited: Duration::from_millis(10),
        fetching: Duration::from_millis(4),
    };

    #[test]
    fn a_report_covers_the_batches_since_the_last_one() {
        let mut meter = DeliveryMeter::default();
        for _ in 0..9 {
            meter.handed_over(TIMES, 2);
        }
        let mut stored = entry(0, 0, 4);
        stored.times.put_ms = 520;
        meter.polled(&polled(&[stored]), 0);
        assert_eq!(meter.report(|| None), None, "too few");
        meter.handed_over(TIMES, 2);
        let report = meter.report(|| None).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!((report.batches, report.ahead_batches), (10, 8));
        assert!(close(report.step_s, 0.04) && close(report.stall_s, 0.01), "{report:?}");
        assert!(close(report.fetch_stall_s, 0.004), "{report:?}");
        assert!(close(report.queue_batches, 6.0) && close(report.window_full, 1.0), "{report:?}");
        assert_eq!((report.remote_workers, report.local_workers), (2.0, 1.0));
        assert!(close(report.remote_source_s, 0.01), "{report:?}");
        assert!(close(report.remote_compute_s, 0.1), "{report:?}");
        assert!(close(report.remote_put_s, 0.02), "beyond the other two: {report:?}");
        assert_eq!(meter.report(|| None), None, "it goes out once");
        for _ in 0..99 {
            meter.handed_over(TIMES, 0);
        }
        meter.polled(&polled(&[entry(0, 0, 4)]), 0);
        assert_eq!(meter.report(|| None), None);
        meter.handed_over(TIMES, 0);
        assert_eq!(meter.report(|| None).unwrap().batches, 110);
    }

    #[test]
    fn batches_of_local_workers_and_busy_cores_are_reported_apart() {
        let mut meter = DeliveryMeter::default();
        let host = |at, cpu| {
            move || {
                let [at, cpu] = [at, cpu].map(Duration::from_secs);
                Some(HostCpu { at, cpu, cores: 4 })
            }
        };
        let mut local = entry(0, 1, 4);
        (local.outcome.kind, local.times.compute_ms) = (SplitKind::Local, 9_000);
        let mut poisoned = entry(0, 2, 4);
        poisoned.outcome.kind = SplitKind::Poison;
        let mut report = |entries: &[ReadySplit], at, cpu| {
            (0..100).for_each(|_| meter.handed_over(TIMES, 0));
            meter.polled(&polled(entries), 0);
            meter.report(host(at, cpu)).unwrap()
        };
        let remote = report(&[entry(0, 0, 4)], 10, 50);
        assert_eq!((remote.local_share, remote.busy_cores), (0.0, 0.0), "nothing before it");
        let both = report(&[entry(0, 0, 4), local.clone(), poisoned], 20, 75);
        assert_eq!((both.local_share, both.busy_cores, both.host_cores), (0.5, 2.5, 4.0));
        assert_eq!(both.remote_compute_s, remote.remote_compute_s, "remote batches have a price");
        let own = report(&[local], 20, 75);
        assert_eq!((own.local_share, own.busy_cores, own.remote_compute_s), (1.0, 0.0, 0.0));
    }

    #[test]
    fn costs_of_another_mode_are_kept_until_the_trainer_is_there() {
        let mode =
            |from, mode| EpochCacheMode { from, mode, reason: String::new(), cache_prefix: None };
        let modes = vec![mode(0, CacheMode::Profile), mode(1, CacheMode::Compute)];
        let caching = CachingView { points: Vec::new(), modes, unsettled: None };
        let poll = |epoch, compute_ms| {
            let mut polled = polled(&[entry(epoch, 0, 4)]);
            polled.job.caching = Some(caching.clone());
            polled.ready[0].times.compute_ms = compute_ms;
            polled
        };
        let mut meter = DeliveryMeter::default();
        let compute_s = |meter: &mut DeliveryMeter| {
            (0..100).for_each(|_| meter.handed_over(TIMES, 0));
            (meter.report(|| None).unwrap().remote_compute_s * 1e3).round()
        };
        meter.polled(&poll(0, 400), 0);
        meter.polled(&poll(1, 800), 0);
        assert_eq!(compute_s(&mut meter), 100.0, "the trainer is in epoch 0");
        meter.polled(&poll(1, 1200), 0);
        assert_eq!(compute_s(&mut meter), 0.0, "nothing new of that mode");
        meter.polled(&poll(0, 400), 1);
        assert_eq!(compute_s(&mut meter), 250.0, "both splits of epoch 1, and no other");
    }

    #[test]
    fn means_are_of_the_last_batches() {
        let mut meter = DeliveryMeter::default();
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
