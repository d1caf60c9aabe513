//! Result of a split, between its computation and its commit.

use bytes::Bytes;
use gristmill_model::splits::{SplitCommit, SplitKind, SplitOutcome, WorkerTimes};
use gristmill_model::wire::{SkippedRecordLocation, WorkProfile};
use gristmill_model::{Position, RecordKey};

/// A split that was computed and awaits its commit.
#[derive(Debug)]
pub struct FinishedSplit {
    pub position: Position,
    /// The chunk object; empty for an indexed file.
    pub object: Bytes,
    /// Outcome of the split; kind and checksum are set when the object is stored.
    pub outcome: SplitOutcome,
    pub skipped: Vec<SkippedRecordLocation>,
    /// Raw records to store under the `quarantine` policy.
    pub quarantined: Vec<(RecordKey, Bytes)>,
    pub times: WorkerTimes,
    /// True for an indexed file: no object to store; the outcome's `rows` counts the file's records.
    pub indexed: bool,
    /// Prefix of the object's key; none for the job's own prefix.
    pub shelf: Option<String>,
    /// The output at an `autocache` point: keys and objects, in the order in which to put them.
    pub cached: Vec<(String, Bytes)>,
    /// Measurements of the operators, if the lease asks for them.
    pub profile: Option<WorkProfile>,
}

impl FinishedSplit {
    /// The result of indexing a file.
    pub(crate) fn indexed(position: Position, records: u32, source_ms: u64) -> Self {
        Self {
            position,
            object: Bytes::new(),
            outcome: SplitOutcome { rows: records, ..SplitOutcome::default() },
            skipped: Vec::new(),
            quarantined: Vec::new(),
            times: WorkerTimes { source_ms, ..WorkerTimes::default() },
            indexed: true,
            shelf: None,
            cached: Vec::new(),
            profile: None,
        }
    }

    /// The commit of this split, stored as `kind` with checksum `crc32c`.
    pub fn commit(&self, split_index: u8, kind: SplitKind, crc32c: u32) -> SplitCommit {
        SplitCommit { split_index, outcome: SplitOutcome { kind, crc32c, ..self.outcome } }
    }
}
