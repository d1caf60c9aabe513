//! The ports over the SDK.

mod aws;
mod coordinator;
mod dynamodb;
mod fault;
mod lambda;
mod objects;
mod probes;
mod service;
mod table;
#[cfg(test)]
mod testing;

use crate::{
    AwsCredentials, AwsEndpoints, BucketRights, CallerIdentity, ConcurrencyQuota, DeployedFunction,
    PROBE_DEADLINE, ProbeError, ReadableObject, ServiceResponder, SettingsError,
};

pub use aws::Aws;
pub use coordinator::HttpCoordinator;
pub use lambda::LambdaInvoker;
pub use objects::S3Objects;
pub use probes::DeploymentProbes;
pub use service::ProvisionError;
