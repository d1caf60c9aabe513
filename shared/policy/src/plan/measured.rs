//! What was measured of a few hundred records.

use crate::cost::{quantity, ratio};
use serde::{Deserialize, Serialize};

/// Totals of one operator over the sample.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpCost {
    /// As the pipeline file names it; `source` for the first.
    pub op: String,
    /// Seconds of a processor.
    pub cpu_s: f64,
    /// Seconds in which it waited and used none (`sleep`, calls outside).
    pub wait_s: f64,
    /// Elements it yielded.
    pub elements: f64,
    /// Bytes of the elements it yielded: what caching there would store.
    pub bytes: f64,
}

/// A sample of a dataset, run through its pipeline on some machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Source records that were run.
    pub records: f64,
    /// Their bytes where they are stored.
    pub source_bytes: f64,
    /// Elements that came out.
    pub rows: f64,
    /// Their bytes as they are delivered, in objects.
    pub row_bytes: f64,
    /// The source, then every operator in the order they run.
    pub ops: Vec<OpCost>,
    /// Processor seconds of a function's vCPU for one of the machine that measured: 1.25 if the
    /// function is a quarter slower.
    pub function_slowdown: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Measured {
            records: 0.0,
            source_bytes: 0.0,
            rows: 0.0,
            row_bytes: 0.0,
            ops: Vec::new(),
            function_slowdown: 1.0,
        }
    }
}

impl Measured {
    /// Processor seconds for a record from operator `first` on, where it was measured.
    pub fn cpu_s_per_record(&self, first: usize) -> f64 {
        let total: f64 = self.ops.iter().skip(first).map(|op| quantity(op.cpu_s)).sum();
        ratio(total, quantity(self.records))
    }

    /// Seconds of waiting for a record from operator `first` on.
    pub fn wait_s_per_record(&self, first: usize) -> f64 {
        let total: f64 = self.ops.iter().skip(first).map(|op| quantity(op.wait_s)).sum();
        ratio(total, quantity(self.records))
    }

    /// Bytes of a record where it is stored.
    pub fn source_bytes_per_record(&self) -> f64 {
        ratio(quantity(self.source_bytes), quantity(self.records))
    }

    /// Bytes that a record becomes after operator `op`.
    pub fn bytes_per_record(&self, op: usize) -> f64 {
        let bytes = self.ops.get(op).map_or(0.0, |op| quantity(op.bytes));
        ratio(bytes, quantity(self.records))
    }

    /// Elements that a record becomes.
    pub fn rows_per_record(&self) -> f64 {
        ratio(quantity(self.rows), quantity(self.records))
    }

    /// Delivered bytes of a record.
    pub fn delivered_bytes_per_record(&self) -> f64 {
        ratio(quantity(self.row_bytes), quantity(self.records))
    }
}
