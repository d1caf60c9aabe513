//! One split: what a worker takes for it, and what it costs.

use super::{Cost, FunctionShape, Prices, Usd, quantity, ratio};
use serde::{Deserialize, Serialize};

/// What running one split takes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SplitWork {
    /// Seconds of one vCPU.
    pub cpu_s: f64,
    /// Seconds in which its computing thread waits without a processor (`sleep`, calls outside).
    pub wait_s: f64,
    /// Read of the source or of a cache.
    pub bytes_in: f64,
    /// Stored: the object.
    pub bytes_out: f64,
    /// Seconds that neither compute nor move bytes: calls of the coordinator, a lease's first read
    /// and last put, which nothing overlaps.
    pub overhead_s: f64,
}

/// What keeps a worker from being faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitBound {
    Compute,
    Network,
}

impl SplitWork {
    /// Seconds of its computing thread on `shape`.
    pub fn compute_s(&self, shape: &FunctionShape) -> f64 {
        ratio(quantity(self.cpu_s), shape.computing_vcpus()) + quantity(self.wait_s)
    }

    /// Seconds its bytes take, in and out.
    pub fn network_s(&self, shape: &FunctionShape) -> f64 {
        let bytes = quantity(self.bytes_in) + quantity(self.bytes_out);
        ratio(bytes, quantity(shape.network_bytes_per_s))
    }

    /// Seconds of a worker of `shape`: it computes one split while it reads the next and stores the
    /// last, so the longer of the two counts.
    pub fn worker_s(&self, shape: &FunctionShape) -> f64 {
        self.compute_s(shape).max(self.network_s(shape)) + quantity(self.overhead_s)
    }

    /// What a worker of `shape` is short of.
    pub fn bound(&self, shape: &FunctionShape) -> SplitBound {
        match self.network_s(shape) > self.compute_s(shape) {
            true => SplitBound::Network,
            false => SplitBound::Compute,
        }
    }

    /// What it costs on a function, its object kept for `kept_s` seconds.
    pub fn cost(
        &self,
        shape: &FunctionShape,
        requests: &Requests,
        kept_s: f64,
        prices: &Prices,
    ) -> Cost {
        Cost {
            compute: shape.usd_per_second(prices) * self.worker_s(shape),
            requests: requests.usd(prices),
            storage: prices.stored(self.bytes_out, kept_s),
            transfer: prices.transferred(self.bytes_in, self.bytes_out),
            accelerator: Usd::default(),
        }
    }
}

/// Requests of something, in units that are billed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Requests {
    pub invocations: f64,
    pub puts: f64,
    pub gets: f64,
    pub table_writes: f64,
    pub table_reads: f64,
}

impl Requests {
    /// Of one split that a function runs: a share of its worker's and its coordinator calls'
    /// invocations, one put, a get of the source and one by the trainer, and the table's share of
    /// claim, flush, poll and acknowledgement.
    pub const SPLIT: Requests =
        Requests { invocations: 1.0, puts: 1.0, gets: 2.0, table_writes: 4.0, table_reads: 4.0 };

    /// Of one split that the trainer reads from the cache: nothing runs, one get.
    pub const CACHED_SPLIT: Requests =
        Requests { invocations: 0.0, puts: 0.0, gets: 1.0, table_writes: 0.0, table_reads: 0.0 };

    /// Of one split that the trainer's own host runs: one get of the source, and the table.
    pub const LOCAL_SPLIT: Requests =
        Requests { invocations: 1.0, puts: 0.0, gets: 1.0, table_writes: 4.0, table_reads: 4.0 };

    /// What they cost.
    pub fn usd(&self, prices: &Prices) -> Usd {
        let Requests { invocations, puts, gets, table_writes, table_reads } = *self;
        let price = |count: f64, usd: f64, of: f64| quantity(count) * quantity(usd) / of;
        Usd(price(invocations, prices.function.usd_per_million_requests, 1e6)
            + price(puts, prices.objects.usd_per_thousand_puts, 1e3)
            + price(gets, prices.objects.usd_per_thousand_gets, 1e3)
            + price(table_writes, prices.table.usd_per_million_writes, 1e6)
            + price(table_reads, prices.table.usd_per_million_reads, 1e6))
    }
}
