//! The address of a service, which its successor on the same state directory takes over.

use gristmill_host::{HostError, read_private, write_private};
use gristmill_ports::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How clients reached the service that ran before on a state directory: they find its successor there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServiceAddress {
    pub token: String,
    pub port: Option<u16>,
}

const ADDRESS_FILE: &str = "address.json";

impl ServiceAddress {
    pub fn read(dir: &Path) -> Option<Self> {
        /// Far longer than any.
        const MAX_BYTES: u64 = 4 << 10;
        serde_json::from_slice(&read_private(&dir.join(ADDRESS_FILE), MAX_BYTES).ok()?).ok()
    }

    pub fn write(&self, dir: &Path) -> Result<(), HostError> {
        let path = dir.join(ADDRESS_FILE);
        let text = serde_json::to_vec(self).map_err(std::io::Error::from);
        text.and_then(|text| write_private(&path, &text)).map_err(HostError::at(&path))
    }
}

pub(crate) fn new_token() -> String {
    format!("{}{}", SystemClock.nonce(), SystemClock.nonce())
}
