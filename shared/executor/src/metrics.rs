//! Cost and output of each operator, the input of the policies.

use serde::Serialize;

/// Totals of one operator over one split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpMetrics {
    /// The operator as the pipeline file names it; `source` for reading and parsing records.
    pub op: &'static str,
    /// Index in the pipeline's stages; `None` for the source.
    pub stage: Option<u32>,
    /// Time spent in the operator, in nanoseconds.
    pub active_ns: u64,
    /// Elements it produced; for `batch`, frames.
    pub num_elements: u64,
    /// Bytes of the values it read.
    pub bytes_in: u64,
    /// Bytes of the values it wrote.
    pub bytes_produced: u64,
}

impl OpMetrics {
    pub(crate) fn new(op: &'static str, stage: Option<u32>) -> Self {
        OpMetrics { op, stage, active_ns: 0, num_elements: 0, bytes_in: 0, bytes_produced: 0 }
    }

    pub(crate) fn add(
        &mut self,
        active_ns: u64,
        elements: u64,
        bytes_in: usize,
        bytes_produced: usize,
    ) {
        self.active_ns += active_ns;
        self.num_elements += elements;
        self.bytes_in += bytes_in as u64;
        self.bytes_produced += bytes_produced as u64;
    }
}
