//! The work of some records, as it was measured: what all costs are computed from.

use crate::cost::{quantity, ratio};
use gristmill_model::wire::{OpWork, WorkProfile};
use serde::{Deserialize, Serialize};

/// Totals of one operator over the sample.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpCost {
    /// Name in the pipeline file; `source` for the first.
    pub op: String,
    /// Whether it is a cache point.
    pub is_point: bool,
    /// Seconds of a processor.
    pub cpu_s: f64,
    /// Seconds in which it waited without a processor (`sleep`, external calls).
    pub wait_s: f64,
    /// Elements it yielded.
    pub elements: f64,
    /// Bytes of the elements it yielded: the size of a cache there.
    pub bytes: f64,
}

/// Records of a dataset, run through its pipeline on some machine: a sample before a job runs, or a running job's first
/// splits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredSample {
    /// Source records in the sample.
    pub records: f64,
    /// Their stored bytes.
    pub source_bytes: f64,
    /// Delivered elements.
    pub rows: f64,
    /// Delivered bytes, as stored in objects.
    pub row_bytes: f64,
    /// The source, then every operator in execution order.
    pub ops: Vec<OpCost>,
    /// Seconds of a function's vCPU per second of the measuring machine's processor: 1.25 if the function
    /// is a quarter slower.
    pub function_slowdown: f64,
}

impl Default for MeasuredSample {
    fn default() -> Self {
        MeasuredSample {
            records: 0.0,
            source_bytes: 0.0,
            rows: 0.0,
            row_bytes: 0.0,
            ops: Vec::new(),
            function_slowdown: 1.0,
        }
    }
}

impl From<&WorkProfile> for MeasuredSample {
    fn from(profile: &WorkProfile) -> Self {
        let seconds = |us: u64| us as f64 / 1e6;
        let busy = profile.ops.iter().filter(|op| !op.waits);
        let busy_s = seconds(busy.map(|op| op.active_us).sum());
        // Other processes lengthen the time of an operator, but not the processor time of them all.
        let pace = if profile.cpu_us > 0 { ratio(seconds(profile.cpu_us), busy_s) } else { 1.0 };
        let op = |op: &OpWork| {
            let active_s = seconds(op.active_us);
            let (cpu_s, wait_s) = if op.waits { (0.0, active_s) } else { (active_s * pace, 0.0) };
            let (elements, bytes) = (op.elements as f64, op.bytes as f64);
            let (name, is_point) = (op.op.clone(), op.is_point);
            OpCost { op: name, is_point, cpu_s, wait_s, elements, bytes }
        };
        let mut ops: Vec<OpCost> = profile.ops.iter().map(op).collect();
        let row_bytes = profile.object_bytes as f64;
        if let [.., before, batch] = ops.as_mut_slice() {
            // The batch operator counts batches, and each has elements.
            (batch.elements, batch.bytes) = (before.elements, row_bytes);
        }
        // Not all reads are kept.
        let read: u64 = profile.reads.iter().map(|(bytes, _)| bytes).sum();
        let kept = ratio(profile.reads.len() as f64, f64::from(profile.splits));
        MeasuredSample {
            records: profile.records as f64,
            source_bytes: ratio(read as f64, kept.min(1.0)),
            rows: ops.last().map_or(0.0, |op| op.elements),
            row_bytes,
            ops,
            function_slowdown: 1.0,
        }
    }
}

impl MeasuredSample {
    /// Processor seconds per record from operator `first` on, on the measuring machine.
    pub fn cpu_s_per_record(&self, first: usize) -> f64 {
        let total: f64 = self.ops.iter().skip(first).map(|op| quantity(op.cpu_s)).sum();
        ratio(total, quantity(self.records))
    }

    /// Seconds of waiting per record from operator `first` on.
    pub fn wait_s_per_record(&self, first: usize) -> f64 {
        let total: f64 = self.ops.iter().skip(first).map(|op| quantity(op.wait_s)).sum();
        ratio(total, quantity(self.records))
    }

    /// Stored bytes per record.
    pub fn source_bytes_per_record(&self) -> f64 {
        ratio(quantity(self.source_bytes), quantity(self.records))
    }

    /// Bytes per source record after operator `op`.
    pub fn bytes_per_record(&self, op: usize) -> f64 {
        let bytes = self.ops.get(op).map_or(0.0, |op| quantity(op.bytes));
        ratio(bytes, quantity(self.records))
    }

    /// Delivered elements per source record.
    pub fn rows_per_record(&self) -> f64 {
        ratio(quantity(self.rows), quantity(self.records))
    }

    /// Delivered bytes per source record.
    pub fn delivered_bytes_per_record(&self) -> f64 {
        ratio(quantity(self.row_bytes), quantity(self.records))
    }
}
