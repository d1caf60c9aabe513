//! Answers of a coordinator, for unit tests.

use async_trait::async_trait;
use gristmill_model::wire::{AnyCall, AnyReply, JobView, Polled, ReadySplit};
use gristmill_ports::{CallError, Coordinator};
use serde_json::{Value, json};

/// A job of one epoch: 640 records in 20 splits of four batches of 8.
fn job() -> Value {
    json!({
        "job": "j",
        "spec": {
            "pipeline": "", "seed": 0, "epochs": 1, "on_error": "fail", "numerics": "",
            "split_batches": null, "workers": 4, "local_workers": 0, "max_skipped": "0",
        },
        "dataset_version": "0".repeat(64), "n_files": 1, "state": "running",
        "plan": {
            "records": 640, "batch_size": 8, "drop_last": false, "in_order": false,
            "split_records": 32, "n_splits": 20, "max_bundle_splits": 1, "window_splits": 8, "window_bytes": 1,
        },
    })
}

pub(crate) fn view() -> JobView {
    serde_json::from_value(job()).unwrap()
}

/// A committed split of `batches` batches that took 40 ms to read and 400 ms to compute.
pub(crate) fn entry(epoch: u32, position: u32, batches: u32) -> ReadySplit {
    let entry = json!({
        "place": { "epoch": epoch, "position": position }, "bundle": 0, "attempt": 1,
        "nonce": "0".repeat(16),
        "outcome": {
            "kind": "object", "object_bytes": 1, "crc32c": 0, "rows": 8 * batches,
            "batches": batches, "remainder_rows": 0, "skipped_records": 0,
        },
        "times": { "source_ms": 40, "compute_ms": 400, "put_ms": 0 },
    });
    serde_json::from_value(entry).unwrap()
}

/// The answer to a poll: `ready` splits, and three workers at work.
pub(crate) fn polled(ready: &[ReadySplit]) -> Polled {
    let polled = json!({
        "job": job(), "generation": 0, "active_workers": 3, "claimable": 0, "window_full": true,
        "ahead": 2, "indexed_files": 1, "ready": ready,
        "scale": { "target": 0, "next_worker": 0, "outstanding": [], "log": [] },
    });
    serde_json::from_value(polled).unwrap()
}

/// A coordinator that never answers.
pub(crate) struct Silent;

#[async_trait]
impl Coordinator for Silent {
    async fn exchange(&self, _: &AnyCall) -> Result<AnyReply, CallError> {
        std::future::pending().await
    }
}
