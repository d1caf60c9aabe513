//! Cost model of one split.

use super::{CostBreakdown, FunctionShape, PriceList, Usd, quantity, ratio};
use serde::{Deserialize, Serialize};

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

/// Bottleneck of a worker.
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
    pub fn bound(&self, shape: &FunctionShape) -> SplitBound {
        if self.network_s(shape) > self.compute_s(shape) {
            SplitBound::Network
        } else {
            SplitBound::Compute
        }
    }

    /// Cost on a function, with its object kept for `kept_s` seconds.
    pub fn cost(
        &self,
        shape: &FunctionShape,
        requests: &BilledRequests,
        kept_s: f64,
        prices: &PriceList,
    ) -> CostBreakdown {
        CostBreakdown {
            compute: shape.usd_per_second(prices) * self.worker_s(shape),
            requests: requests.usd(prices),
            storage: prices.stored(self.bytes_out, kept_s),
            transfer: prices.transferred(self.bytes_in, self.bytes_out),
            accelerator: Usd::default(),
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
        puts: 0.0,
        gets: 1.0,
        table_writes: 0.0,
        table_reads: 0.0,
    };

    /// One split run on the trainer's own host: one get of the source, and the table units.
    pub const LOCAL_SPLIT: BilledRequests = BilledRequests {
        invocations: 1.0,
        puts: 0.0,
        gets: 1.0,
        table_writes: 4.0,
        table_reads: 4.0,
    };

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
