//! The APIs of a service.

use crate::ServiceFile;
use gristmill_aws::{Aws, Credentials, Endpoints};

/// The AWS APIs of a service on this machine.
pub fn aws_of(file: &ServiceFile) -> Aws {
    let endpoints = Endpoints {
        s3: file.s3.clone(),
        dynamodb: file.dynamodb.clone(),
        lambda: file.endpoint.clone(),
        region: file.region.clone(),
    };
    let credentials = Credentials {
        access_key_id: file.access_key_id.clone(),
        secret_access_key: file.secret_access_key.clone(),
        session_token: None,
    };
    Aws::with(endpoints, credentials)
}
