//! Addresses and keys that a program is given.

use std::fmt;

/// Endpoints of single services; `None`: as the SDK finds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AwsEndpoints {
    pub s3: Option<String>,
    pub dynamodb: Option<String>,
    pub lambda: Option<String>,
}

/// A key pair. Its `Debug` form does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct AwsCredentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, ...)", self.access_key_id)
    }
}
