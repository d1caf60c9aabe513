//! The ports on AWS: DynamoDB for the table, S3 for objects, Lambda for the invoker, a signed function URL
//! for the coordinator. Only this crate uses the SDK.
//!
//! Without the feature `sdk` it has the same names and reaches nothing: a small program says in one line that it was
//! built so.

mod access;
mod findings;
mod machine;
#[cfg(feature = "sdk")]
mod sdk;
mod settings;
#[cfg(not(feature = "sdk"))]
mod without_sdk;

pub use access::{Credentials, Endpoints};
pub use findings::{
    BucketRights, Caller, DeployedFunction, PROBE_DEADLINE, Quota, ReadableObject, Responder,
    Trouble,
};
pub use machine::{OUTSIDE_AWS, is_on_aws};
#[cfg(feature = "sdk")]
pub use sdk::{
    Aws, DynamoTable, HttpCoordinator, LambdaInvoker, Probes, ProvisionError, S3Objects,
};
pub use settings::{Settings, SettingsError, function_memory_mb, is_built};
#[cfg(not(feature = "sdk"))]
pub use without_sdk::{Aws, HttpCoordinator, Probes, S3Objects};
