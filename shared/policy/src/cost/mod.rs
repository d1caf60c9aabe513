//! The cost model: function time and service usage of a split, and an epoch of them in seconds and
//! dollars. Caching, planning and budgets all use it, so that prices agree everywhere.
//!
//! Prices are data ([`PriceList`]); nothing here is a measurement on AWS. Inputs that are negative or not
//! finite count as zero, so that an incomplete profile gives a figure that is too low instead of one
//! that is not a number.

mod prices;
#[cfg(test)]
mod tests;

use gristmill_model::wire::{JobBudget, PICODOLLARS};
use gristmill_model::{MB_PER_VCPU, worker_threads};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

pub use gristmill_model::{CostBreakdown, Usd};
pub use prices::{
    FunctionPrices, InstancePrices, ObjectPrices, PriceError, PriceList, TablePrices,
    TransferPrices,
};

/// Bytes of a gigabyte as AWS bills memory, storage and transfer.
pub const BILLED_GB_BYTES: f64 = (1u64 << 30) as f64;
/// Days of the month in "GB-month". S3 uses the actual days of the month.
pub const DAYS_PER_MONTH: f64 = 30.0;
/// Seconds of an hour.
pub const HOUR_S: f64 = 3600.0;
/// Seconds of a day.
pub const DAY_S: f64 = 24.0 * HOUR_S;

/// Exceeds any real quantity (bytes, seconds, dollars); products of a few stay finite.
const MAX_QUANTITY: f64 = 1e18;

/// `value` if it is a valid quantity, else 0.
pub(crate) fn quantity(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, MAX_QUANTITY) } else { 0.0 }
}

/// `part / whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { quantity(part / whole) } else { 0.0 }
}

// Capability and price of a function of a given size.

/// Sustained network rate of a function in each direction. Inferred from others' reports (600 Mbit/s
/// and less); neither published nor measured by us.
pub const NETWORK_BYTES_PER_S: f64 = 71e6;
/// MB in the gigabyte that memory is billed by.
const MB_PER_GB: f64 = 1024.0;

/// The instruction set of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionArchitecture {
    #[default]
    Arm64,
    #[serde(rename = "x86_64")]
    X86_64,
}

/// Size of a worker function.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionShape {
    /// 128 to 10,240.
    pub memory_mb: u32,
    pub architecture: FunctionArchitecture,
    /// Network rate in each direction.
    pub network_bytes_per_s: f64,
}

impl Default for FunctionShape {
    /// The stack's worker: one vCPU, arm64.
    fn default() -> Self {
        FunctionShape {
            memory_mb: MB_PER_VCPU as u32,
            architecture: FunctionArchitecture::Arm64,
            network_bytes_per_s: NETWORK_BYTES_PER_S,
        }
    }
}

impl FromStr for FunctionShape {
    type Err = String;

    /// Reads `MB/ARCHITECTURE`, the stack's output `WorkerShape`: `1769/arm64`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not memory and architecture, such as 1769/arm64");
        let (memory, architecture) = text.split_once('/').ok_or_else(wrong)?;
        let memory_mb = memory.parse().ok().filter(|mb| (128..=10_240).contains(mb));
        let architecture = match architecture {
            "arm64" => FunctionArchitecture::Arm64,
            "x86_64" => FunctionArchitecture::X86_64,
            _ => return Err(wrong()),
        };
        Ok(Self { memory_mb: memory_mb.ok_or_else(wrong)?, architecture, ..Self::default() })
    }
}

impl FunctionShape {
    /// Processors of the function.
    pub fn vcpus(&self) -> f64 {
        f64::from(self.memory_mb) / MB_PER_VCPU
    }

    /// Processors used for computing: those that a worker has threads for.
    pub fn computing_vcpus(&self) -> f64 {
        self.vcpus().min(f64::from(worker_threads(self.memory_mb)))
    }

    /// How many of these at one time cost at most `usd_per_hour`.
    pub fn affordable(&self, usd_per_hour: f64, prices: &PriceList) -> u32 {
        let worker_usd = self.usd_per_second(prices).0 * HOUR_S;
        if worker_usd > 0.0 { (quantity(usd_per_hour) / worker_usd) as u32 } else { u32::MAX }
    }

    /// Price of a second, busy or idle.
    pub fn usd_per_second(&self, prices: &PriceList) -> Usd {
        let usd_per_gb_second = match self.architecture {
            FunctionArchitecture::Arm64 => prices.function.arm64_usd_per_gb_second,
            FunctionArchitecture::X86_64 => prices.function.x86_64_usd_per_gb_second,
        };
        Usd(f64::from(self.memory_mb) / MB_PER_GB * quantity(usd_per_gb_second))
    }
}

// Cost model of one split.

/// Resources that one split takes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SplitWork {
    /// Seconds of one vCPU.
    pub cpu_s: f64,
    /// Seconds in which its thread waits without using a processor (`sleep`, external calls).
    pub wait_s: f64,
    /// Bytes read of the source or of a cache.
    pub bytes_in: f64,
    /// Bytes stored: the object.
    pub bytes_out: f64,
    /// Seconds of coordinator calls, a lease's first read and its last put: nothing overlaps them.
    pub overhead_s: f64,
}

impl SplitWork {
    /// Seconds of its computing thread on `shape`.
    pub fn compute_s(&self, shape: &FunctionShape) -> f64 {
        ratio(quantity(self.cpu_s), shape.computing_vcpus()) + quantity(self.wait_s)
    }

    /// Seconds to transfer its bytes, in and out.
    pub fn network_s(&self, shape: &FunctionShape) -> f64 {
        let bytes = quantity(self.bytes_in) + quantity(self.bytes_out);
        ratio(bytes, quantity(shape.network_bytes_per_s))
    }

    /// Seconds of a worker of `shape`. It computes one split while it reads the next and stores the last,
    /// so the longer of the two counts.
    pub fn worker_s(&self, shape: &FunctionShape) -> f64 {
        self.compute_s(shape).max(self.network_s(shape)) + quantity(self.overhead_s)
    }

    /// Bottleneck of a worker of `shape`.
    pub fn bound(&self, shape: &FunctionShape) -> EpochBound {
        if self.network_s(shape) > self.compute_s(shape) {
            EpochBound::WorkerNetwork
        } else {
            EpochBound::Workers
        }
    }

    /// Cost of one that comes from `origin`, the storage of its object aside.
    pub fn cost(
        &self,
        origin: SplitOrigin,
        shape: &FunctionShape,
        prices: &PriceList,
    ) -> CostBreakdown {
        let (worker_s, bytes_in, bytes_out) = match origin {
            SplitOrigin::Function => (self.worker_s(shape), self.bytes_in, self.bytes_out),
            SplitOrigin::TrainerHost => (0.0, self.bytes_in, 0.0),
            SplitOrigin::Cache => (0.0, 0.0, self.bytes_out),
        };
        CostBreakdown {
            compute: shape.usd_per_second(prices) * worker_s,
            requests: origin.requests().usd(prices),
            transfer: prices.transferred(bytes_in, bytes_out),
            ..CostBreakdown::default()
        }
    }
}

/// The origin of a split, which decides what is paid for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitOrigin {
    /// A function computes it.
    #[default]
    Function,
    /// The trainer's host computes it.
    TrainerHost,
    /// The trainer reads it as it was stored before: nothing runs.
    Cache,
}

impl SplitOrigin {
    /// Requests of one such split.
    pub fn requests(self) -> BilledRequests {
        match self {
            SplitOrigin::Function => BilledRequests::SPLIT,
            SplitOrigin::TrainerHost => BilledRequests::LOCAL_SPLIT,
            SplitOrigin::Cache => BilledRequests::CACHED_SPLIT,
        }
    }
}

/// Request counts, in billed units.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BilledRequests {
    pub invocations: f64,
    pub puts: f64,
    pub gets: f64,
    pub table_writes: f64,
    pub table_reads: f64,
}

impl BilledRequests {
    /// One split run by a function: a share of its worker's and its coordinator calls' invocations, one
    /// put, a get of the source and one by the trainer, and the table units of claim, flush, poll and
    /// acknowledgement.
    pub const SPLIT: BilledRequests = BilledRequests {
        invocations: 1.0,
        puts: 1.0,
        gets: 2.0,
        table_writes: 4.0,
        table_reads: 4.0,
    };

    /// One split that the trainer reads from the cache: nothing runs, one get.
    pub const CACHED_SPLIT: BilledRequests = BilledRequests {
        invocations: 0.0,
        table_writes: 0.0,
        table_reads: 0.0,
        ..Self::LOCAL_SPLIT
    };

    /// One split run on the trainer's own host: one get of the source, and the table units.
    pub const LOCAL_SPLIT: BilledRequests = BilledRequests { puts: 0.0, gets: 1.0, ..Self::SPLIT };

    /// Price of these requests.
    pub fn usd(&self, prices: &PriceList) -> Usd {
        let BilledRequests { invocations, puts, gets, table_writes, table_reads } = *self;
        let price = |count: f64, usd: f64, of: f64| quantity(count) * quantity(usd) / of;
        Usd(price(invocations, prices.function.usd_per_million_requests, 1e6)
            + price(puts, prices.objects.usd_per_thousand_puts, 1e3)
            + price(gets, prices.objects.usd_per_thousand_gets, 1e3)
            + price(table_writes, prices.table.usd_per_million_writes, 1e6)
            + price(table_reads, prices.table.usd_per_million_reads, 1e6))
    }
}

/// A stored object counts as kept for so long: workers are ahead of the trainer by a window at most.
const KEPT_S: f64 = HOUR_S;

/// The budget of a job that may spend `usd` with workers of `shape`. Prices are rounded up, the cap down.
pub fn job_budget(usd: f64, shape: &FunctionShape, prices: &PriceList) -> JobBudget {
    let price = |of: Usd| (quantity(of.0) * PICODOLLARS).ceil() as u64;
    let mib = f64::from(1 << 20);
    JobBudget {
        cap: (quantity(usd) * PICODOLLARS) as u64,
        worker_ms: price(shape.usd_per_second(prices) * 1e-3),
        split: price(BilledRequests::SPLIT.usd(prices)),
        local_split: price(BilledRequests::LOCAL_SPLIT.usd(prices)),
        mib: price(prices.stored(mib, KEPT_S) + prices.transferred(mib, mib)),
        revision: 0,
    }
}

// Cost model of an epoch: its duration with a number of workers, its bottleneck and its price.

/// An epoch's work, divided into splits of one size.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EpochWork {
    pub splits: u64,
    pub batches: u64,
    /// Source records of the epoch.
    pub records: u64,
    pub split: SplitWork,
    pub origin: SplitOrigin,
    /// Mean object bytes that wait for the trainer or its checkpoint.
    pub held_bytes: f64,
}

/// The trainer's demand.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainerDemand {
    /// Seconds of a step without waiting.
    pub step_s: f64,
    /// Bytes per second that its host can receive; 0 is no limit.
    pub ingest_bytes_per_s: f64,
}

/// Bottleneck of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochBound {
    /// Training itself: data is always ready.
    Trainer,
    /// The workers' computing.
    Workers,
    /// The workers' network.
    WorkerNetwork,
    /// The network of the trainer's host.
    TrainerNetwork,
    /// The processors of the trainer's host: the step itself takes longer.
    TrainerHost,
}

/// The longest of `bounds`, and of equal ones the first.
pub(crate) fn longest<B: Copy, const N: usize>(bounds: [(f64, B); N]) -> (f64, B) {
    let longer =
        |longest: (f64, B), bound: (f64, B)| if bound.0 > longest.0 { bound } else { longest };
    bounds.into_iter().fold(bounds[0], longer)
}

impl fmt::Display for EpochBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EpochBound::Trainer => "the trainer",
            EpochBound::Workers => "the workers' computing",
            EpochBound::WorkerNetwork => "the workers' network",
            EpochBound::TrainerNetwork => "the trainer's network",
            EpochBound::TrainerHost => "the processors of the trainer's host",
        })
    }
}

/// An epoch in seconds and dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EpochEstimate {
    pub workers: u32,
    /// Seconds of an epoch among many; a job's first begins later by a cold start and a split.
    pub seconds: f64,
    /// Seconds of training alone.
    pub trainer_s: f64,
    pub bound: EpochBound,
    pub cost: CostBreakdown,
}

impl EpochWork {
    /// Seconds that `workers` of `shape` take, regardless of the trainer. At most one worker per split is
    /// useful; none waits at an epoch's end, because the next epoch is already open. With 0 workers the
    /// result is 0: ask only if something else does the work.
    pub fn workers_s(&self, workers: u32, shape: &FunctionShape) -> f64 {
        let at_work = u64::from(workers).min(self.splits) as f64;
        ratio(self.splits as f64 * self.split.worker_s(shape), at_work)
    }

    /// Seconds of the epoch, and its bottleneck. More workers never make it longer.
    pub fn seconds(
        &self,
        workers: u32,
        shape: &FunctionShape,
        trainer: &TrainerDemand,
    ) -> (f64, EpochBound) {
        let trainer_s = self.batches as f64 * quantity(trainer.step_s);
        let bytes = self.splits as f64 * quantity(self.split.bytes_out);
        let ingest_s = ratio(bytes, quantity(trainer.ingest_bytes_per_s));
        longest([
            (trainer_s, EpochBound::Trainer),
            (ingest_s, EpochBound::TrainerNetwork),
            (self.workers_s(workers, shape), self.split.bound(shape)),
        ])
    }

    /// Cost of an epoch of `seconds`.
    pub fn cost(&self, seconds: f64, shape: &FunctionShape, prices: &PriceList) -> CostBreakdown {
        CostBreakdown {
            storage: prices.stored(self.held_bytes, seconds),
            accelerator: prices.accelerator(seconds),
            ..self.split.cost(self.origin, shape, prices) * self.splits as f64
        }
    }

    /// Duration and cost on `workers` functions. Workers leave when the window is full, so those beyond
    /// the trainer's demand cost no more than their start.
    pub fn on_functions(
        &self,
        workers: u32,
        shape: &FunctionShape,
        trainer: &TrainerDemand,
        prices: &PriceList,
    ) -> EpochEstimate {
        let (seconds, bound) = self.seconds(workers, shape, trainer);
        let trainer_s = self.batches as f64 * quantity(trainer.step_s);
        let cost = self.cost(seconds, shape, prices);
        EpochEstimate { workers, seconds, trainer_s, bound, cost }
    }

    /// Fewest workers that make the epoch as short as it can be: limited by the trainer's step (Pecan 5.1;
    /// FastFlow 9), its network, or one worker per split. At least 1, at most `most`.
    pub fn workers_needed(&self, shape: &FunctionShape, trainer: &TrainerDemand, most: u32) -> u32 {
        let (least_s, _) = self.seconds(u32::MAX, shape, trainer);
        // Slightly less, to absorb rounding.
        let needed = ratio(self.workers_s(1, shape), least_s) * (1.0 - 1e-9);
        (needed.ceil() as u32).clamp(1, most.max(1))
    }
}
