//! The objects of a service on this machine; and the worker of a stack on AWS.

#[cfg(feature = "aws")]
mod deployed;

#[cfg(feature = "aws")]
pub use deployed::serve;

use gristmill_aws::{AwsCredentials, S3Objects};
use gristmill_host::{ForeignS3, HostError, HostObjects, ServiceFile};
use std::sync::Arc;

/// The objects of the service that `file` describes; other buckets are those that the user may read.
pub(crate) fn host_objects(file: &ServiceFile) -> Result<HostObjects, HostError> {
    HostObjects::open(file, Arc::new(S3Objects::ambient()), |s3| {
        let ForeignS3 { endpoint, region, access_key_id, secret_access_key } = s3.clone();
        let keys = AwsCredentials { access_key_id, secret_access_key, session_token: None };
        Arc::new(S3Objects::at(endpoint, region, keys))
    })
}
