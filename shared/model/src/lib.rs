//! The model: identifiers and positions, the split table ([`splits`]), checkpoints ([`Checkpoint`]), calls and
//! events ([`wire`]), and the names of what is stored ([`stored`]).
//!
//! Pure: no I/O, no clock, no randomness.

mod checkpoint;
mod compression;
mod dataset_op;
mod declared_cost;
mod function;
mod ids;
pub mod limits;
mod record;
pub mod splits;
pub mod stored;
mod visitation;
pub mod wire;
mod words;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use compression::Compression;
pub use dataset_op::DatasetOp;
pub use declared_cost::DeclaredCost;
pub use function::{MB_PER_VCPU, worker_threads};
pub use ids::{
    Attempt, BundleIndex, Epoch, Fingerprint, InvocationId, JobName, NameError, Namespace, Nonce,
    Position, RunToken, SplitId,
};
pub use record::{ErrorPolicy, RecordKey, SkipLimit, SkippedRecord};
pub use visitation::{Sharding, Visitation};
