//! What a host runs, as data the caller decides.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Credentials, LocalError};

use super::admin::AdminHooks;

/// One function: a binary that speaks the Lambda Runtime API.
#[derive(Debug)]
pub struct FunctionConfig {
    /// The name it is invoked by: letters, digits, `-` and `_`, at most 64.
    pub name: String,
    /// The version invocations report as executed; also accepted as a qualifier.
    pub version: String,
    /// The binary.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables beside those Lambda sets; these win.
    pub env: BTreeMap<String, String>,
    /// Its `AWS_*` variables are those of this process, so that it reaches what whoever started the host reaches; the
    /// host's keys and region are under `GRISTMILL_LOCAL_*`.
    pub ambient: bool,
    /// Told to the function; the host does not enforce it.
    pub memory_mb: u32,
    /// An invocation that takes longer is killed with its environment.
    pub timeout: Duration,
    /// The most invocations at a time; the account's limit alone when absent.
    pub reserved_concurrency: Option<u32>,
    /// Serve the function over HTTP of its own.
    pub url: Option<UrlConfig>,
    /// The function told of asynchronous invocations that failed for good.
    pub on_failure: Option<String>,
    /// How long an asynchronous event may wait to be run.
    pub max_event_age: Duration,
    /// How often a failed asynchronous event is run again.
    pub retry_attempts: u32,
}

impl FunctionConfig {
    /// A function with no arguments, no URL, no retries and room for long work: 1,769 MB (one vCPU), 15 minutes.
    #[must_use]
    pub fn new(name: impl Into<String>, command: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            version: "$LATEST".into(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            ambient: false,
            memory_mb: 1769,
            timeout: Duration::from_secs(15 * 60),
            reserved_concurrency: None,
            url: None,
            on_failure: None,
            max_event_age: Duration::from_secs(60),
            retry_attempts: 0,
        }
    }
}

/// A function URL.
#[derive(Debug, Default)]
pub struct UrlConfig {
    /// Where to listen; any loopback port when absent.
    pub listener: Option<TcpListener>,
    /// Who may call.
    pub auth: UrlAuth,
}

/// Who may call a function URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UrlAuth {
    /// Requests signed with the host's keys for the service `lambda`.
    #[default]
    AwsIam,
    /// Anybody who reaches the port.
    None,
}

/// An asynchronous invocation at a fixed rate.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// The time between two events; the first comes after one.
    pub every: Duration,
    /// The function invoked.
    pub function: String,
    /// The event, JSON.
    pub payload: bytes::Bytes,
}

/// How to start a [`super::FunctionHost`].
#[derive(Debug)]
pub struct HostConfig {
    /// The keys callers sign with; also given to every function.
    pub credentials: Credentials,
    /// The region in ARNs, signatures and the functions' environment.
    pub region: String,
    /// The account in ARNs.
    pub account_id: String,
    /// What to run.
    pub functions: Vec<FunctionConfig>,
    /// Where the Invoke API listens; any loopback port when absent.
    pub listener: Option<TcpListener>,
    /// Output of functions goes to `<log_dir>/<name>.log`; it is discarded when absent.
    pub log_dir: Option<PathBuf>,
    /// Accepted events are kept here until they end, for the next host on the same folder; they are lost with the
    /// host when absent.
    pub event_dir: Option<PathBuf>,
    /// The most invocations at a time over all functions.
    pub account_concurrency: u32,
    /// A warm environment unused for this long is ended.
    pub idle_timeout: Duration,
    /// The time a new environment has to ask for its first event.
    pub init_timeout: Duration,
    /// The wait before a failed asynchronous event runs again, doubled each time.
    pub retry_delay: Duration,
    /// Stop (SIGSTOP) environments between invocations, as Lambda freezes them.
    pub freeze: bool,
    /// Events at a fixed rate.
    pub schedules: Vec<Schedule>,
    /// What the admin routes answer with.
    pub admin: AdminHooks,
}

impl HostConfig {
    /// Lambda's defaults: 1,000 concurrent, 10 s to initialise, a minute before a retry; idle for a minute.
    #[must_use]
    pub fn new(credentials: Credentials, functions: Vec<FunctionConfig>) -> Self {
        Self {
            credentials,
            region: "us-east-1".into(),
            account_id: "000000000000".into(),
            functions,
            listener: None,
            log_dir: None,
            event_dir: None,
            account_concurrency: 1000,
            idle_timeout: Duration::from_secs(60),
            init_timeout: Duration::from_secs(10),
            retry_delay: Duration::from_secs(60),
            freeze: false,
            schedules: Vec::new(),
            admin: AdminHooks::default(),
        }
    }

    /// Of the account's concurrency, what functions have reserved for themselves.
    pub(super) fn reserved(&self) -> u32 {
        let reserved = self.functions.iter().filter_map(|function| function.reserved_concurrency);
        reserved.fold(0, u32::saturating_add)
    }

    /// # Errors
    /// [`LocalError::Config`] naming the first thing that cannot work.
    pub(super) fn validate(&self) -> Result<(), LocalError> {
        let (reserved, account) = (self.reserved(), self.account_concurrency);
        if reserved > account {
            return Err(LocalError::Config(format!(
                "functions reserve {reserved} of the account's concurrency, which is {account}"
            )));
        }
        let known = |name: &str| self.functions.iter().filter(|f| f.name == name).count();
        for function in &self.functions {
            let name = &function.name;
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || name.len() > 64 || !name.chars().all(legal) {
                return Err(LocalError::Config(format!(
                    "function name {name:?}: use 1 to 64 letters, digits, '-' or '_'"
                )));
            }
            if known(name) > 1 {
                return Err(LocalError::Config(format!("function {name:?} is configured twice")));
            }
            if let Some(target) = &function.on_failure
                && known(target) == 0
            {
                return Err(LocalError::Config(format!(
                    "function {name:?}: its failure destination {target:?} is not configured"
                )));
            }
            if function.timeout.is_zero() {
                return Err(LocalError::Config(format!("function {name:?}: its timeout is zero")));
            }
        }
        for schedule in &self.schedules {
            if known(&schedule.function) == 0 || schedule.every.is_zero() {
                return Err(LocalError::Config(format!(
                    "schedule of {:?}: name a configured function and a time above zero",
                    schedule.function
                )));
            }
        }
        Ok(())
    }
}
