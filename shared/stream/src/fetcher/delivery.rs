//! Deliveries to a trainer: batches, and the totals of each epoch.

use crate::{DeliveryWaits, downloader::MemoryShare};
use bytes::Bytes;
use gristmill_model::Epoch;
use gristmill_model::splits::{Cursor, WorkerTimes};
use gristmill_model::wire::{EpochPlan, ScaleState, TrainerMetrics};
use serde::{Deserialize, Serialize};

/// One batch as delivered to the trainer.
#[derive(Debug, Clone)]
pub struct DeliveredBatch {
    pub epoch: Epoch,
    /// Number of the batch in its epoch.
    pub batch_index: u64,
    pub rows: u32,
    /// A safetensors blob: the element's tensors with a leading dimension of `rows`, `__key__`
    /// (u64) and `__copy__` (u32).
    pub frame: Bytes,
    /// The share that the batch holds of the memory for objects that are fetched ahead.
    pub room: MemoryShare,
}

impl DeliveredBatch {
    /// The batch's place in the order of delivery.
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, batch_index: self.batch_index }
    }
}

/// The next item delivered to a trainer.
#[derive(Debug)]
pub enum StreamDelivery {
    Batch(DeliveredBatch),
    /// The batches before `next` exist, and other readers take those that were not delivered here.
    OfOthers {
        next: Cursor,
    },
    EpochEnd(EpochTotals),
    /// All epochs are delivered.
    End,
}

/// Totals of an epoch, and their JSON in the last frame of a fetcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochTotals {
    pub epoch: Epoch,
    pub batches: u64,
    pub rows: u64,
    /// Those of them that the batches of splits left over.
    #[serde(default)]
    pub remainder_rows: u64,
    pub skipped: u64,
    pub splits: u32,
    /// Those of them that workers on the trainer's host made.
    #[serde(default)]
    pub local_splits: u32,
    /// Time of remote workers for the others.
    #[serde(flatten)]
    pub times: WorkerTimes,
    /// Time of workers on the trainer's host.
    #[serde(default)]
    pub local_times: WorkerTimes,
    /// Stored bytes of its objects, written in this epoch or an earlier one.
    pub stored_bytes: u64,
    /// Time that the trainer waited, by cause.
    pub waits: DeliveryWaits,
}

impl EpochTotals {
    /// Why the epoch delivered no batch; none if it delivered one.
    pub fn why_empty(&self, plan: &EpochPlan) -> Option<String> {
        let Self { batches: 0, rows, skipped, .. } = *self else { return None };
        let (records, batch) = (plan.records, plan.batch_size);
        if records == 0 {
            return Some(
                "the dataset has no records: its files hold none (check `--data` and the format that the source \
                 names), or `take`, `skip` or `shard` leaves none"
                    .to_owned(),
            );
        }
        Some(match (rows, skipped) {
            (1.., _) => format!(
                "its {rows} elements are fewer than a batch of {batch}, and drop_remainder leaves out a batch \
                 that is not full"
            ),
            (0, 0) => {
                format!("the pipeline's operators, such as filter, dropped all {records} records")
            }
            (0, skipped) if skipped >= records => {
                format!("all {records} records were skipped as bad")
            }
            (0, skipped) => format!(
                "{skipped} of {records} records were skipped as bad, and the pipeline's operators dropped \
                 the others"
            ),
        })
    }
}

/// A job's numbers at one moment, for display.
#[derive(Debug, Clone, Default)]
pub struct JobStatistics {
    pub metrics: TrainerMetrics,
    pub scale: ScaleState,
    pub active_workers: u32,
    pub workers_max: u32,
    pub indexed_files: u32,
    /// Committed splits that were recomputed here because their objects were missing or damaged.
    pub healed: u32,
    /// Bytes of objects that this fetcher read from the store.
    pub fetched_bytes: u64,
    /// The bound on bytes of objects ahead of the trainer, and of splits made here and not yet taken.
    pub prefetch_bytes: u64,
    /// Bytes of splits that were made here and not yet taken.
    pub local_bytes: u64,
}
