//! Compares the autocache decision with the best mode in hindsight, on synthetic pipelines.
//!
//! One seed makes one pipeline, one object store and one noisy profile of 300 batches. The store's true
//! curve (latency, slow start, bandwidth, a tail) does not have the fitted form. The result is what the whole
//! job costs, with its profile, its put, and a week of storage.

use fastrand::Rng;
use gristmill_policy::{
    caching::{CachingProfile, Mode, PROFILE_BATCHES, ReadOverlap, ReadTime, decide},
    cost::{BilledRequests, DAY_S, FunctionShape, PriceList},
    plan::{MeasuredSample, OpCost, PlannedCachePoint, PlannedJob},
};
use serde::Serialize;
use std::{fmt, ops::Range};

/// Relative standard deviation of measurements of a batch or a GET.
pub const NOISE: f64 = 0.10;
/// Elements of a batch.
const BATCH: f64 = 64.0;
/// Delivered bytes of a split.
const SPLIT_BYTES: f64 = 64.0 * 1024.0 * 1024.0;
/// Seconds of a split beside reading and computing.
const OVERHEAD_S: f64 = 0.05;
/// GETs that are timed for each size of an object. Single GETs scatter by 10 %, the median of this many by 2.6 %.
const PROBES: u32 = 24;
/// One GET in this many takes several times as long.
const TAIL_ONE_IN: u32 = 50;

/// One pipeline, the decision and the best mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Case {
    pub seed: u64,
    pub reads: ReadOverlap,
    pub epochs: u32,
    pub chosen: Mode,
    pub best: Mode,
    /// Dollars of the whole job for a split: of the choice, and of the best mode.
    pub chosen_usd: f64,
    pub best_usd: f64,
}

impl Case {
    /// Relative excess cost: 0.05 is 5 %.
    pub fn regret(&self) -> f64 {
        self.chosen_usd / self.best_usd - 1.0
    }
}

/// Many cases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Study {
    pub cases: Vec<Case>,
}

impl Study {
    /// The case with the largest regret.
    pub fn worst(&self) -> Option<&Case> {
        self.cases.iter().max_by(|a, b| a.regret().total_cmp(&b.regret()))
    }

    /// Cases that cost more than `bar` beyond the best.
    pub fn beyond(&self, bar: f64) -> usize {
        self.cases.iter().filter(|case| case.regret() > bar).count()
    }
}

impl fmt::Display for Study {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |is: fn(&Case) -> bool| self.cases.iter().filter(|case| is(case)).count();
        let worst = self.worst().map_or(0.0, Case::regret);
        writeln!(
            f,
            "{} pipelines: {} compute, {} cache; the best mode in {}",
            self.cases.len(),
            count(|case| case.chosen == Mode::Compute),
            count(|case| case.chosen != Mode::Compute),
            count(|case| case.chosen == case.best),
        )?;
        write!(f, "at worst {:.1} % dearer than the best mode", 1e2 * worst)
    }
}

/// Runs a case for every seed. `noise` is usually [`NOISE`].
pub fn study(seeds: Range<u64>, noise: f64) -> Study {
    Study { cases: seeds.map(|seed| case(seed, noise)).collect() }
}

/// The true object store: GET of `bytes` in seconds, on average.
struct Store {
    latency_s: f64,
    bytes_per_s: f64,
    /// Extra time of a new connection, and the bytes after which it is at full speed.
    slow_start_s: f64,
    slow_start_bytes: f64,
    /// Time of a slow GET relative to a usual one.
    tail: f64,
}

impl Store {
    pub fn draw(rng: &mut Rng) -> Store {
        Store {
            latency_s: between(rng, 0.010, 0.080),
            bytes_per_s: between(rng, 30e6, 120e6),
            slow_start_s: between(rng, 0.001, 0.150),
            slow_start_bytes: between(rng, 0.5e6, 16e6),
            tail: between(rng, 2.0, 4.0),
        }
    }

    fn usual_s(&self, bytes: f64) -> f64 {
        let started = 1.0 - (-bytes / self.slow_start_bytes).exp();
        self.latency_s + bytes / self.bytes_per_s + self.slow_start_s * started
    }

    fn mean_s(&self, bytes: f64) -> f64 {
        self.usual_s(bytes) * (1.0 + (self.tail - 1.0) / f64::from(TAIL_ONE_IN))
    }

    fn measure_s(&self, rng: &mut Rng, bytes: f64, noise: f64) -> f64 {
        let tail = if rng.u32(..TAIL_ONE_IN) == 0 { self.tail } else { 1.0 };
        self.usual_s(bytes) * tail * noisy(rng, noise)
    }
}

/// True costs of an operator: seconds, elements and bytes per source record.
struct Op {
    active_s: f64,
    elements: f64,
    bytes: f64,
}

/// A synthetic pipeline with its true costs.
pub struct SyntheticPipeline {
    ops: Vec<Op>,
    /// Operators after which there is an `autocache`; distinct, ascending.
    pub points: Vec<usize>,
    records_per_split: f64,
    lake: Store,
    store: Store,
    reads: ReadOverlap,
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    // Uniform on a logarithmic scale: times and sizes spread over magnitudes.
    (low.ln() + rng.f64() * (high / low).ln()).exp()
}

/// A factor around 1 with standard deviation `noise`: twelve uniform draws approximate a normal one.
fn noisy(rng: &mut Rng, noise: f64) -> f64 {
    let normal: f64 = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
    (1.0 + noise * normal).max(0.05)
}

impl SyntheticPipeline {
    pub fn draw(rng: &mut Rng) -> SyntheticPipeline {
        let source_bytes = between(rng, 1e3, 1e6);
        let source = Op { active_s: between(rng, 2e-6, 2e-4), elements: 1.0, bytes: source_bytes };
        let mut ops = vec![source];
        let (mut elements, mut bytes) = (1.0, source_bytes);
        for _ in 0..rng.usize(1..9) {
            // One in five changes the number of elements, as `filter` and `flat_map` do.
            let cardinality = if rng.u32(..5) == 0 { between(rng, 0.2, 3.0) } else { 1.0 };
            elements *= cardinality;
            // At most 16 MB per record.
            bytes = (bytes * cardinality * between(rng, 0.2, 6.0)).min(16e6);
            ops.push(Op { active_s: between(rng, 5e-6, 5e-3), elements, bytes });
        }
        let points: Vec<usize> = (0..ops.len()).filter(|_| rng.u32(..3) == 0).collect();
        // At least one point; often one at the end.
        let points = if points.is_empty() || rng.bool() {
            points.into_iter().filter(|p| *p + 1 < ops.len()).chain([ops.len() - 1]).collect()
        } else {
            points
        };
        let records_per_split = (SPLIT_BYTES / bytes).ceil();
        let (mut lake, store) = (Store::draw(rng), Store::draw(rng));
        // Some data lakes are far away or throttled.
        if rng.bool() {
            lake.bytes_per_s /= between(rng, 1.0, 6.0);
        }
        let reads = if rng.bool() { ReadOverlap::Ahead } else { ReadOverlap::InTurn };
        SyntheticPipeline { ops, points, records_per_split, lake, store, reads }
    }

    fn split_bytes(&self, op: usize) -> f64 {
        self.ops[op].bytes * self.records_per_split
    }

    /// Seconds of one worker to compute a split from operator `first` on.
    fn active_s(&self, first: usize) -> f64 {
        self.ops[first..].iter().map(|op| op.active_s).sum::<f64>() * self.records_per_split
    }

    fn together(&self, read_s: f64, active_s: f64) -> f64 {
        match self.reads {
            ReadOverlap::InTurn => read_s + active_s,
            ReadOverlap::Ahead => read_s.max(active_s),
        }
    }

    /// True worker seconds of a split in `mode`.
    pub fn split_s(&self, mode: Mode) -> f64 {
        match mode {
            Mode::Get { point } | Mode::Put { point } => {
                let op = self.points[point as usize];
                self.together(self.store.mean_s(self.split_bytes(op)), self.active_s(op + 1))
            }
            _ => self.together(self.lake.mean_s(self.split_bytes(0)), self.active_s(0)),
        }
    }

    /// True dollars of a job of `epochs` for a split.
    pub fn job_usd(&self, mode: Mode, epochs: u32) -> f64 {
        let prices = PriceList::default();
        let second_usd = FunctionShape::default().usd_per_second(&prices).0;
        let request_usd = |requests: BilledRequests| requests.usd(&prices).0;
        let run_usd =
            |seconds: f64| second_usd * (seconds + OVERHEAD_S) + request_usd(BilledRequests::SPLIT);
        let compute_usd = run_usd(self.split_s(Mode::Compute));
        let Mode::Put { point } = mode else { return compute_usd * f64::from(epochs) };
        let op = self.points[point as usize];
        let is_last = op + 1 == self.ops.len();
        let read_usd = if is_last {
            request_usd(BilledRequests::CACHED_SPLIT)
        } else {
            run_usd(self.split_s(mode))
        };
        let puts = if is_last { 0.0 } else { 1.0 };
        let put_usd = request_usd(BilledRequests { puts, ..BilledRequests::default() });
        let stored_usd = prices.stored(self.split_bytes(op), 7.0 * DAY_S).0;
        // The profiled epoch, and unless it is what is stored, the one that stores.
        let made = if is_last { 1 } else { 2 };
        compute_usd * f64::from(made) + put_usd + stored_usd + read_usd * f64::from(epochs - made)
    }

    /// A noisy profile of 300 batches.
    fn measure(
        &self,
        rng: &mut Rng,
        noise: f64,
        epochs: u32,
    ) -> (CachingProfile, PlannedJob, ReadTime) {
        let elements_per_record = self.ops.last().map_or(1.0, |op| op.elements);
        let records = f64::from(PROFILE_BATCHES) * BATCH / elements_per_record;
        let splits = (records / self.records_per_split).ceil();
        let mut mean_noise = |samples: u32| {
            (0..samples).map(|_| noisy(rng, noise)).sum::<f64>() / f64::from(samples)
        };
        let ops: Vec<OpCost> = self
            .ops
            .iter()
            .enumerate()
            .map(|(i, op)| OpCost {
                op: format!("op{i}"),
                cpu_s: op.active_s * records * mean_noise(PROFILE_BATCHES),
                elements: op.elements * records,
                bytes: op.bytes * records,
                ..OpCost::default()
            })
            .collect();
        let compute_s = self.split_s(Mode::Compute);
        let source_wait_s = (compute_s - self.active_s(0)) * records / self.records_per_split
            * mean_noise(PROFILE_BATCHES);
        let objects = records / self.records_per_split;
        let (rows, row_bytes) = ops.last().map_or((0.0, 0.0), |op| (op.elements, op.bytes));
        let profile = CachingProfile {
            batches: PROFILE_BATCHES,
            measured: MeasuredSample { records, rows, row_bytes, ops, ..MeasuredSample::default() },
            source_wait_s,
            objects,
            reads: self.reads,
        };
        let point =
            |&after_op: &usize| PlannedCachePoint { after_op, ..PlannedCachePoint::default() };
        let job = PlannedJob {
            records: (1e5 * records) as u64,
            splits: Some((1e5 * objects) as u64),
            epochs,
            points: self.points.iter().map(point).collect(),
            // Measured times count.
            shape: FunctionShape { network_bytes_per_s: 0.0, ..FunctionShape::default() },
            ..PlannedJob::default()
        };
        // GETs of the system itself: manifests and indices, the trainer's fetches, and probes.
        let mut samples = Vec::new();
        for _ in 0..6 {
            let bytes = between(rng, 1e3, 5e5);
            samples.push((bytes, self.store.measure_s(rng, bytes, noise)));
        }
        for _ in 0..(splits as u32).clamp(3, 300) {
            let bytes = self.split_bytes(self.ops.len() - 1);
            samples.push((bytes, self.store.measure_s(rng, bytes, noise)));
        }
        // A ranged read is no longer than its object.
        let most = self.split_bytes(self.ops.len() - 1);
        for bytes in self.points.iter().map(|&op| self.split_bytes(op).min(most)) {
            for _ in 0..PROBES {
                samples.push((bytes, self.store.measure_s(rng, bytes, noise)));
            }
        }
        (profile, job, ReadTime::fit(&samples))
    }
}

fn case(seed: u64, noise: f64) -> Case {
    let mut rng = Rng::with_seed(seed);
    let pipeline = SyntheticPipeline::draw(&mut rng);
    let epochs = rng.u32(3..40);
    let (profile, job, read_time) = pipeline.measure(&mut rng, noise, epochs);
    let chosen = decide(&profile, &job, &read_time).mode;
    let points = (0..).zip(&pipeline.points).map(|(point, _)| Mode::Put { point });
    let modes: Vec<Mode> = [Mode::Compute].into_iter().chain(points).collect();
    let usd = |mode: &Mode| pipeline.job_usd(*mode, epochs);
    let best = modes.into_iter().min_by(|a, b| usd(a).total_cmp(&usd(b))).unwrap_or_default();
    let (chosen_usd, best_usd) = (usd(&chosen), usd(&best));
    Case { seed, reads: pipeline.reads, epochs, chosen, best, chosen_usd, best_usd }
}
