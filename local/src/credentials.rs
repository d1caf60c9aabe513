//! The key pair accepted by all stand-ins of one service.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{LocalError, ids};

/// An access key and its secret. `Debug` shows the access key only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Identifies the key in a signature; not a secret.
    pub access_key_id: String,
    /// Signs requests.
    pub secret_access_key: String,
}

impl Credentials {
    /// A random pair in AWS's format.
    ///
    /// # Errors
    /// [`LocalError::System`] when the system has no random bytes.
    pub fn random() -> Result<Self, LocalError> {
        let system = |source| LocalError::System { what: "the key generator", source };
        let key: [u8; 8] = ids::random().map_err(system)?;
        let secret: [u8; 20] = ids::random().map_err(system)?;
        Ok(Self {
            access_key_id: format!("AKIA{}", ids::hex(&key).to_uppercase()),
            secret_access_key: ids::hex(&secret),
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}
