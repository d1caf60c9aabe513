//! The model: identifiers and positions, the split table ([`splits`]), checkpoints ([`Checkpoint`]), calls and
//! events ([`wire`]), and the names of what is stored ([`stored`]).
//!
//! Pure: no I/O, no clock, no randomness.

mod checkpoint;
mod cost;
mod declared;
mod ids;
pub mod limits;
mod local_share;
mod record;
pub mod splits;
/// Names of stored objects and items.
pub mod stored {
    pub mod keys;
}
mod visitation;
pub mod wire;
mod words;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use cost::{CostBreakdown, Usd};
pub use declared::{DatasetOp, DeclaredCost};
pub use ids::{
    Attempt, BundleIndex, Epoch, Fingerprint, InvocationId, JobName, NameError, Namespace, Nonce,
    Position, RunToken, SplitId,
};
pub use limits::{MB_PER_VCPU, worker_threads};
pub use local_share::LocalShare;
pub use record::{ErrorPolicy, RecordKey, SkipLimit, SkippedRecord};
pub use visitation::{Compression, Sharding, Visitation, WorkerRemoval};
