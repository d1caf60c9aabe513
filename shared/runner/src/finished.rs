//! A split that has been run, on its way to its commit.

use bytes::Bytes;
use gristmill_model::splits::{Commit, SplitKind, SplitOutcome, WorkerTimes};
use gristmill_model::wire::{SkippedAt, WorkProfile};
use gristmill_model::{Position, RecordKey};

/// A split that has been run and awaits its commit.
#[derive(Debug)]
pub struct FinishedSplit {
    pub position: Position,
    /// The chunk object; empty for an indexed file.
    pub object: Bytes,
    /// Content of the object; its kind and checksum are set when it is stored.
    pub outcome: SplitOutcome,
    pub skipped: Vec<SkippedAt>,
    /// Raw records to set aside, under the `quarantine` policy.
    pub quarantined: Vec<(RecordKey, Bytes)>,
    pub times: WorkerTimes,
    /// Nothing to store: the result is in the index, and the outcome's `rows` counts the file's records.
    pub indexed: bool,
    /// Prefix of the object's key, if it is not put among the job's own.
    pub shelf: Option<String>,
    /// The output at an `autocache` point: objects and their keys, in the order in which they are put.
    pub cached: Vec<(String, Bytes)>,
    /// Times and yields of its operators, if the lease asks for them.
    pub profile: Option<WorkProfile>,
}

impl FinishedSplit {
    /// A file that is indexed.
    pub(crate) fn indexed(position: Position, records: u32, source_ms: u32) -> Self {
        Self {
            position,
            object: Bytes::new(),
            outcome: SplitOutcome {
                kind: SplitKind::Object,
                object_bytes: 0,
                crc32c: 0,
                rows: records,
                batches: 0,
                remainder_rows: 0,
                skipped_records: 0,
            },
            skipped: Vec::new(),
            quarantined: Vec::new(),
            times: WorkerTimes { source_ms, ..WorkerTimes::default() },
            indexed: true,
            shelf: None,
            cached: Vec::new(),
            profile: None,
        }
    }

    /// The commit of this split, given where its object went.
    pub fn commit(&self, split_index: u8, kind: SplitKind, crc32c: u32) -> Commit {
        Commit { split_index, outcome: SplitOutcome { kind, crc32c, ..self.outcome } }
    }
}
