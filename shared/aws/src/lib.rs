//! The ports on AWS: DynamoDB for the table, S3 for objects, Lambda for the invoker, a signed function URL
//! for the coordinator. Only this crate uses the SDK.
//!
//! Without the feature `sdk` it has the same names and reaches nothing: a small program says in one line that it was
//! built so.

mod findings;
#[cfg(feature = "sdk")]
mod sdk;
mod settings;
#[cfg(not(feature = "sdk"))]
mod without_sdk;

pub use findings::{AwsCredentials, AwsEndpoints};
pub use findings::{
    BucketRights, CallerIdentity, ConcurrencyQuota, DeployedFunction, PROBE_DEADLINE, ProbeError,
    ReadableObject, ServiceResponder,
};
pub use findings::{OUTSIDE_AWS, is_on_aws};
#[cfg(feature = "sdk")]
pub use sdk::{Aws, DeploymentProbes, HttpCoordinator, LambdaInvoker, ProvisionError, S3Objects};
pub use settings::{SettingsError, StackSettings, function_memory_mb, is_built};
#[cfg(not(feature = "sdk"))]
pub use without_sdk::{Aws, DeploymentProbes, HttpCoordinator, S3Objects};
