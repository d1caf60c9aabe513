//! The ports on AWS: DynamoDB for the table, S3 for objects, Lambda for the invoker, a signed function URL
//! for the coordinator. Only this crate uses the SDK.

mod aws;
mod connect;
mod coordinator;
mod counts;
mod credentials;
mod dynamodb;
mod fault;
mod invoker;
mod lambda;
mod machine;
mod objects;
mod probes;
mod provision;
mod service;
mod settings;
mod signing;
mod table;
#[cfg(test)]
mod testing;

pub use aws::{Aws, Credentials, Endpoints};
pub use coordinator::HttpCoordinator;
pub use invoker::LambdaInvoker;
pub use machine::{OUTSIDE_AWS, is_on_aws};
pub use objects::S3Objects;
pub use probes::{
    BucketRights, Caller, DeployedFunction, PROBE_DEADLINE, Probes, Quota, ReadableObject,
    Responder, Trouble,
};
pub use provision::ProvisionError;
pub use settings::{Settings, SettingsError, function_memory_mb};
pub use table::DynamoTable;
