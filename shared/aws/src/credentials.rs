//! Credentials for requests that this crate signs itself, cached until they are about to expire.

use aws_credential_types::provider::{
    ProvideCredentials, SharedCredentialsProvider, error::CredentialsError,
};
use aws_smithy_runtime_api::client::identity::Identity;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// Credentials are renewed this long before they expire: longer than any call takes.
const EXPIRY_BUFFER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct CredentialsCache {
    provider: Option<SharedCredentialsProvider>,
    cached: Mutex<Option<Identity>>,
}

impl CredentialsCache {
    pub fn new(provider: Option<SharedCredentialsProvider>) -> Self {
        Self { provider, cached: Mutex::default() }
    }

    /// Credentials for signing. Concurrent callers share one load.
    pub async fn identity(&self) -> Result<Identity, CredentialsError> {
        let mut cached = self.cached.lock().await;
        let horizon = SystemTime::now() + EXPIRY_BUFFER;
        match &*cached {
            Some(identity) if identity.expiration().is_none_or(|end| end > horizon) => {
                Ok(identity.clone())
            }
            _ => {
                let none = || CredentialsError::not_loaded("no provider");
                let credentials = self.provider.as_ref().ok_or_else(none)?.provide_credentials();
                let identity = Identity::from(credentials.await?);
                *cached = Some(identity.clone());
                Ok(identity)
            }
        }
    }

    /// Discards the cached credentials after the service refused them.
    pub async fn forget(&self) {
        self.cached.lock().await.take();
    }
}
