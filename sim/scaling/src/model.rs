//! The modelled parts of a run: trainer, function platform, split table, shared limits, noise, and what is measured
//! between two reports.

use crate::ModelConditions;
use std::{
    collections::{BTreeSet, VecDeque},
    f64::consts::TAU,
};

#[derive(Debug, Clone)]
pub(crate) struct ModelTrainer {
    /// Times at which each next batch in order was made, and reaches the host.
    arrivals: VecDeque<Arrival>,
    ingest: SharedLimit,
    noise: NoiseStream,
    free_s: f64,
    /// Duration of the latest step.
    pub step_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    made_s: f64,
    at_s: f64,
}

/// A trainer's wait, and the part of it with the batch in transit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrainerStall {
    pub all_s: f64,
    pub fetch_s: f64,
}

impl ModelTrainer {
    /// A trainer that has received nothing.
    pub fn new(noise: NoiseStream) -> Self {
        let (arrivals, ingest) = Default::default();
        Self { arrivals, ingest, noise, free_s: 0.0, step_s: 0.0 }
    }

    /// Adds `batches` batches in order; the fetcher receives them in sequence.
    pub fn arrived(&mut self, batches: u64, now_s: f64, conditions: &ModelConditions) {
        for _ in 0..batches {
            let at_s = self.ingest.serve(now_s, conditions.batch_bytes, conditions.ingest_per_s);
            self.arrivals.push_back(Arrival { made_s: now_s, at_s });
        }
    }

    /// Time at which it takes its next batches; infinite until they are committed.
    pub fn next_take_s(&self, conditions: &ModelConditions) -> f64 {
        let last = self.arrivals.get(conditions.clients as usize - 1);
        last.map_or(f64::INFINITY, |last| last.at_s.max(self.free_s))
    }

    /// Takes an available batch for each client. The step takes `slowing` times as long as on a free host.
    pub fn take(&mut self, now_s: f64, slowing: f64, conditions: &ModelConditions) -> TrainerStall {
        let last = self.arrivals.drain(..conditions.clients as usize).next_back();
        let made_s = last.map_or(now_s, |last| last.made_s);
        let all_s = (now_s - self.free_s).max(0.0);
        let fetch_s = (now_s - made_s.max(self.free_s)).max(0.0);
        self.step_s = conditions.step_s * slowing * self.noise.factor(conditions.step_noise);
        self.free_s = now_s + self.step_s;
        TrainerStall { all_s, fetch_s }
    }
}

/// Time at which it is free again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SharedLimit {
    free_s: f64,
}

impl SharedLimit {
    /// Completion time of `amount` requested at `at_s`, at rate `per_s`; immediate without a limit.
    pub fn serve(&mut self, at_s: f64, amount: f64, per_s: f64) -> f64 {
        if per_s.is_infinite() {
            return at_s;
        }
        self.free_s = self.free_s.max(at_s) + amount / per_s;
        self.free_s
    }
}

/// Environments of one speed.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    running: u32,
    warm: u32,
}

/// Invocations and environments of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelPlatform {
    /// Invoked and not ended.
    pub outstanding: u32,
    /// Workers that hold a lease.
    pub at_work: u32,
    /// Environments of each speed class, busy and idle.
    kinds: Vec<Kind>,
    /// Environments that may be started now, and the time of the last update.
    tokens: f64,
    counted_s: Option<f64>,
}

impl ModelPlatform {
    /// Accepted invocations out of `desired`.
    pub fn grant(&mut self, desired: u32, now_s: f64, conditions: &ModelConditions) -> u32 {
        let most = conditions.scale_up_per_10s;
        self.tokens = match self.counted_s {
            None => most,
            Some(since_s) => (self.tokens + (now_s - since_s) * most / 10.0).min(most),
        };
        self.counted_s = Some(now_s);
        let room = conditions.grantable().saturating_sub(self.outstanding);
        // Only cold starts need tokens.
        let warm: u32 = self.kinds.iter().map(|kind| kind.warm).sum();
        let startable = warm.saturating_add(self.tokens as u32);
        let granted = desired.min(room).min(startable);
        self.tokens -= f64::from(granted.saturating_sub(warm));
        self.outstanding += granted;
        granted
    }

    /// Takes an environment for one invocation: its speed class, and whether it starts cold. Classes are kept equally
    /// frequent, so that a count means the same mix however it was reached; otherwise no count would be optimal.
    pub fn take_environment(&mut self, conditions: &ModelConditions) -> (usize, bool) {
        self.kinds.resize(conditions.speeds.len().max(1), Kind::default());
        let fewest = |kind: &usize| self.kinds[*kind].running;
        let kind = (0..self.kinds.len()).min_by_key(fewest).unwrap_or(0);
        let taken = &mut self.kinds[kind];
        taken.running += 1;
        let is_cold = taken.warm == 0;
        if !is_cold {
            taken.warm -= 1;
        }
        (kind, is_cold)
    }

    /// Whether a worker of this class should leave: there are more than the target, and more of its class than its share.
    pub fn is_superfluous(&self, kind: usize, target: u32) -> bool {
        let share = f64::from(target) / self.kinds.len().max(1) as f64;
        self.outstanding > target && f64::from(self.kinds[kind].running) > share
    }

    /// Ends an invocation; its environment stays warm unless it died.
    pub fn ended(&mut self, kind: usize, stays_warm: bool) {
        self.outstanding -= 1;
        self.kinds[kind].running -= 1;
        self.kinds[kind].warm += u32::from(stays_warm);
    }
}

/// Positions, counted through all epochs.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelSplits {
    split_batches: u64,
    epoch_splits: u64,
    total: u64,
    pub batches: u64,
    /// The first position never claimed.
    unclaimed: u64,
    /// Positions released because their worker died.
    returned: BTreeSet<u64>,
    /// The first position not committed, and the commits after it.
    first_open: u64,
    done: VecDeque<bool>,
    committed: u64,
    pub delivered: u64,
}

impl ModelSplits {
    /// The splits of a run of `batches` batches, none claimed.
    pub fn new(batches: u64, conditions: &ModelConditions) -> Self {
        let split_batches = u64::from(conditions.split_batches);
        // The last split may extend beyond the run.
        let total = batches.div_ceil(split_batches);
        Self {
            split_batches,
            epoch_splits: conditions.epoch_splits,
            total,
            batches,
            ..Self::default()
        }
    }

    /// Batches of one split.
    pub fn split_batches(&self) -> f64 {
        self.split_batches as f64
    }

    /// Batches committed.
    pub fn made(&self) -> u64 {
        self.committed * self.split_batches
    }

    /// Batches committed and not delivered.
    pub fn ready(&self) -> u64 {
        self.made().saturating_sub(self.delivered)
    }

    /// Batches handed out or ready, and not delivered.
    pub fn ahead(&self) -> u64 {
        (self.unclaimed * self.split_batches).saturating_sub(self.delivered)
    }

    /// The first position that must not be claimed yet.
    fn end(&self, conditions: &ModelConditions) -> u64 {
        let delivered = self.delivered / self.split_batches;
        let window = (delivered + conditions.window_batches / self.split_batches).min(self.total);
        if !conditions.epoch_barrier {
            return window;
        }
        let epoch_end = (delivered / self.epoch_splits + 1).saturating_mul(self.epoch_splits);
        window.min(epoch_end)
    }

    /// Splits that workers may claim now: new ones within the window, and returned ones.
    pub fn claimable(&self, conditions: &ModelConditions) -> u32 {
        let fresh = self.end(conditions).saturating_sub(self.unclaimed) as usize;
        (fresh + self.returned.len()).min(u32::MAX as usize) as u32
    }

    /// Whether splits of dead workers wait to be claimed again.
    pub fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Whether the full window allows no claim.
    pub fn is_full(&self, conditions: &ModelConditions) -> bool {
        self.unclaimed < self.total && self.claimable(conditions) == 0
    }

    /// Claims a lease: its first split and number of splits.
    pub fn claim(&mut self, conditions: &ModelConditions) -> Option<(u64, u32)> {
        if let Some(split) = self.returned.pop_first() {
            return Some((split, 1));
        }
        let splits = self.end(conditions).saturating_sub(self.unclaimed);
        let splits = splits.min(u64::from(conditions.lease_splits)) as u32;
        let first = self.unclaimed;
        self.unclaimed += u64::from(splits);
        (splits > 0).then_some((first, splits))
    }

    /// Releases the split of a dead worker and `more` following ones of its lease.
    pub fn give_back(&mut self, first: u64, more: u32) {
        self.returned.extend(first..=first + u64::from(more));
    }

    /// Commits a split; `arrived` receives the number of batches that are next in order.
    pub fn commit(&mut self, split: u64, mut arrived: impl FnMut(u64)) {
        let index = (split - self.first_open) as usize;
        if self.done.len() <= index {
            self.done.resize(index + 1, false);
        }
        self.done[index] = true;
        self.committed += 1;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.first_open += 1;
            arrived(self.split_batches);
        }
    }
}

/// A stream of factors.
#[derive(Debug, Clone)]
pub struct NoiseStream {
    rng: fastrand::Rng,
    spare: Option<f64>,
}

impl NoiseStream {
    /// The stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        // Neighbouring seeds must not give shifted copies of one stream.
        let mixed =
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mut rng = fastrand::Rng::with_seed(mixed);
        rng.u64(..);
        Self { rng, spare: None }
    }

    /// A log-normal factor with mean 1 and relative standard deviation `sigma`.
    pub fn factor(&mut self, sigma: f64) -> f64 {
        if sigma <= 0.0 {
            return 1.0;
        }
        // Variance of the logarithm.
        let variance = sigma.mul_add(sigma, 1.0).ln();
        (variance.sqrt() * self.normal() - variance / 2.0).exp()
    }

    /// An exponentially distributed time with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.f64()).ln()
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.rng.f64()).ln()).sqrt();
        let (sin, cos) = (TAU * self.rng.f64()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReportMeter {
    /// Batches taken by each client.
    pub rounds: u32,
    pub step_s: f64,
    pub stall_s: f64,
    pub fetch_stall_s: f64,
    /// Sum of the queue's length at each take.
    pub queue: f64,
    /// Invocations refused.
    pub throttled: u32,
    flushes: f64,
    times_s: [f64; 3],
    elapsed_s: f64,
    worker_s: f64,
    full_s: f64,
    /// Seconds of local workers at work, and the batches that they and remote ones made.
    local_s: f64,
    local_batches: f64,
    remote_batches: f64,
}

impl ReportMeter {
    /// Adds `seconds` with `at_work` workers, during which the window was full or not.
    pub fn pass(&mut self, seconds: f64, at_work: u32, full: bool) {
        self.elapsed_s += seconds;
        self.worker_s += seconds * f64::from(at_work);
        if full {
            self.full_s += seconds;
        }
    }

    /// Adds `seconds` with `at_work` local workers.
    pub fn pass_local(&mut self, seconds: f64, at_work: u32) {
        self.local_s += seconds * f64::from(at_work);
    }

    /// Batches that became ready, by a local worker or a remote one.
    pub fn made(&mut self, batches: f64, is_local: bool) {
        if is_local {
            self.local_batches += batches;
        } else {
            self.remote_batches += batches;
        }
    }

    /// Local workers at work, as a mean over time, and the share of the batches that they made.
    pub fn local(&self) -> (f64, f64) {
        let part = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let made = self.local_batches + self.remote_batches;
        (part(self.local_s, self.elapsed_s), part(self.local_batches, made))
    }

    /// Adds one batch that the trainer took, with `ready` others behind it.
    pub fn taken(&mut self, stall: &TrainerStall, step_s: f64, ready: u64) {
        self.rounds += 1;
        self.stall_s += stall.all_s;
        self.fetch_stall_s += stall.fetch_s;
        self.step_s += step_s;
        self.queue += ready as f64;
    }

    /// A split of `batches` batches is committed.
    pub fn flushed(&mut self, times_s: [f64; 3], batches: f64) {
        self.flushes += 1.0;
        for (sum, time_s) in self.times_s.iter_mut().zip(times_s) {
            *sum += time_s / batches;
        }
    }

    /// Means over the flushes; `None` without one.
    pub fn times_s(&self) -> Option<[f64; 3]> {
        (self.flushes > 0.0).then(|| self.times_s.map(|sum| sum / self.flushes))
    }

    /// Workers at work, as a mean over time.
    pub fn mean_workers(&self) -> f64 {
        if self.elapsed_s > 0.0 { self.worker_s / self.elapsed_s } else { 0.0 }
    }

    /// Share of the time with a full window, from 0 to 1.
    pub fn share_full(&self) -> f64 {
        if self.elapsed_s > 0.0 { (self.full_s / self.elapsed_s).clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod server_tests {
    use super::*;

    #[test]
    fn it_serves_one_after_the_other_and_no_faster_than_its_rate() {
        let mut server = SharedLimit::default();
        assert_eq!(server.serve(1.0, 10.0, 5.0), 3.0);
        assert_eq!(server.serve(2.0, 5.0, 5.0), 4.0, "waits for the one before");
        assert_eq!(server.serve(9.0, 5.0, 5.0), 10.0, "idle between");
        assert_eq!(server.serve(9.5, 5.0, f64::INFINITY), 9.5);
    }
}

#[cfg(test)]
mod platform_tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::ScalingScenario;

    #[test]
    fn a_mix_of_machines_keeps_its_shares() {
        let text =
            "name = 'w'\n[trainer]\nstep = '1s'\n[worker]\ncompute = '1s'\nslowness = [1.0, 2.0]\n";
        let conditions =
            ScalingScenario::parse(text, "w.toml").unwrap().phases[0].conditions.clone();
        let mut platform = ModelPlatform::default();
        assert_eq!(platform.grant(10, 0.0, &conditions), 10);
        let kinds: Vec<usize> = (0..10).map(|_| platform.take_environment(&conditions).0).collect();
        assert_eq!(kinds.iter().sum::<usize>(), 5, "half of each");
        // Two of the four that are left are of each class, in any order.
        for kind in [0, 0, 0, 0, 0, 1, 1, 1, 1, 1] {
            if platform.is_superfluous(kind, 4) {
                platform.ended(kind, true);
            }
        }
        assert_eq!(platform.kinds.iter().map(|kind| kind.running).collect::<Vec<_>>(), [2, 2]);
        platform.grant(1, 1.0, &conditions);
        assert!(!platform.take_environment(&conditions).1, "one that is up");
    }
}

#[cfg(test)]
mod splits_tests {
    use super::*;
    use crate::ScalingScenario;

    #[test]
    fn splits_arrive_in_order_within_the_window() {
        let text = "name = 'w'\n[trainer]\nstep = '1s'\n[worker]\ncompute = '1s'\n\
                    [data]\nsplit_batches = 2\nwindow_batches = 6\n[run]\nbatches = 1000";
        let scenario = ScalingScenario::parse(text, "w.toml").unwrap();
        let conditions = &scenario.phases[0].conditions;
        let mut splits = ModelSplits::new(1_000, conditions);
        let claimed: Vec<_> = (0..4).map(|_| splits.claim(conditions)).collect();
        assert_eq!(claimed, [Some((0, 1)), Some((1, 1)), Some((2, 1)), None], "the window is full");
        let mut arrived = 0;
        splits.commit(1, |batches| arrived += batches);
        assert_eq!((arrived, splits.ready()), (0, 2), "0 comes first");
        splits.commit(0, |batches| arrived += batches);
        assert_eq!(arrived, 4);
        assert!(splits.is_full(conditions));
        splits.delivered += 2;
        assert_eq!(splits.claim(conditions), Some((3, 1)));
        splits.give_back(2, 0);
        assert_eq!(splits.claim(conditions), Some((2, 1)), "what a dead worker had comes first");
    }
}

#[cfg(test)]
mod noise_tests {
    use super::*;

    #[test]
    fn factors_have_mean_one_and_the_deviation_asked_for() {
        let mut noise = NoiseStream::new(7, 1);
        let drawn: Vec<f64> = (0..20_000).map(|_| noise.factor(0.1)).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!((mean - 1.0).abs() < 0.003 && (variance.sqrt() - 0.1).abs() < 0.003);
        assert_eq!(NoiseStream::new(7, 1).factor(0.1), drawn[0], "a seed decides");
        assert_eq!(noise.factor(0.0), 1.0);
    }
}
