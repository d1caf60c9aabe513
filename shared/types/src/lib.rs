//! The words every other crate speaks in: identifiers, positions, keys and policies.
//!
//! Plain values without behaviour: no I/O, no clock, no randomness.

mod compression;
mod dataset_op;
mod function;
mod hex;
mod ids;
mod record;
mod visitation;

pub use compression::Compression;
pub use dataset_op::DatasetOp;
pub use function::{MB_PER_VCPU, worker_threads};
pub use ids::{
    Attempt, BundleIndex, Epoch, Fingerprint, InvocationId, JobName, NameError, Namespace, Nonce,
    Position, SplitId,
};
pub use record::{ErrorPolicy, RecordKey, SkipLimit, SkippedRecord};
pub use visitation::{Sharding, Visitation};
