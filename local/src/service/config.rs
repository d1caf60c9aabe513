//! Configuration of a service, and the addresses that result from it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Credentials;
use crate::functions::Schedule;

/// Configuration of a [`Service`](crate::Service).
#[derive(Debug)]
pub struct ServiceConfig {
    /// State directory; created if missing, readable by its owner only.
    pub state_dir: PathBuf,
    /// Region of all services.
    pub region: String,
    /// Keys; by default those of the state directory, or new random ones.
    pub credentials: Option<Credentials>,
    /// Ports; 0 selects that of the state directory, or any free one.
    pub ports: Ports,
    /// Whether the table and accepted events are kept in files, so that jobs survive a restart or a kill; else in memory,
    /// which is faster. Objects are always files. Nothing is synced to disk: a power cut may lose recent writes.
    pub durable: bool,
    /// Table created at start.
    pub table: String,
    /// Bucket created at start.
    pub bucket: String,
    /// External services that replace stand-ins; their table and bucket are created by the caller.
    pub others: Others,
    /// Directories mounted as read-only buckets, in addition to those of the state directory.
    pub mounts: Vec<Mount>,
    /// Function whose URL is [`Endpoints::coordinator_url`].
    pub url_function: String,
    /// Most concurrent invocations of all functions.
    pub account_concurrency: u32,
    /// Idle time after which a warm environment is ended.
    pub idle_timeout: Duration,
    /// Stops environments between invocations, as Lambda does.
    pub freeze: bool,
    /// Events at a fixed rate.
    pub schedules: Vec<Schedule>,
}

impl ServiceConfig {
    /// Defaults: `us-east-1`, any ports, durable, table and bucket `gristmill`, URL function `coordinator`.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            region: "us-east-1".into(),
            credentials: None,
            ports: Ports::default(),
            durable: true,
            table: "gristmill".into(),
            bucket: "gristmill".into(),
            others: Others::default(),
            mounts: Vec::new(),
            url_function: "coordinator".into(),
            account_concurrency: 1000,
            idle_timeout: Duration::from_secs(60),
            freeze: false,
            schedules: Vec::new(),
        }
    }
}

/// The loopback ports of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Invoke API and admin routes.
    pub lambda: u16,
    /// Objects.
    pub s3: u16,
    /// The table.
    pub dynamodb: u16,
    /// The function URL.
    pub coordinator: u16,
}

/// Endpoints of external services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// Object store.
    pub s3: Option<String>,
    /// Table.
    pub dynamodb: Option<String>,
}

/// Endpoints of a [`Service`](crate::Service).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// For `aws-sdk-lambda`, and the admin routes.
    pub lambda: String,
    /// For `aws-sdk-s3`, with path-style addressing.
    pub s3: String,
    /// Object store of [`ServiceConfig::mounts`], served by this service even if objects are external.
    pub folders: String,
    /// For `aws-sdk-dynamodb`.
    pub dynamodb: String,
    /// The function URL of [`ServiceConfig::url_function`].
    pub coordinator_url: String,
}

/// A directory mounted as a read-only bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The bucket's name.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
}
