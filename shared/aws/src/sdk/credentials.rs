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
    /// Credentials of `provider`; none for requests without a signature.
    pub fn new(provider: Option<SharedCredentialsProvider>) -> Self {
        Self { provider, cached: Mutex::default() }
    }

    /// Credentials for signing. Concurrent callers share one load.
    pub async fn identity(&self) -> Result<Identity, CredentialsError> {
        let mut cached = self.cached.lock().await;
        let lasts = |identity: &&Identity, until: SystemTime| {
            identity.expiration().is_none_or(|end| end > until)
        };
        let now = SystemTime::now();
        if let Some(identity) = cached.as_ref().filter(|found| lasts(found, now + EXPIRY_BUFFER)) {
            return Ok(identity.clone());
        }
        let none = || CredentialsError::not_loaded("no provider");
        let provider = self.provider.as_ref().ok_or_else(none)?;
        match provider.provide_credentials().await {
            Ok(credentials) => Ok(cached.insert(credentials.into()).clone()),
            // The next call renews them again.
            Err(error) => cached.clone().filter(|found| lasts(&found, now)).ok_or(error),
        }
    }

    /// Discards the cached credentials after the service refused them.
    pub async fn forget(&self) {
        self.cached.lock().await.take();
    }
}

#[cfg(test)]
mod tests;
