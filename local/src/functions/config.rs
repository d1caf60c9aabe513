//! Configuration of a host.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Credentials, LocalError};

use super::admin::AdminHooks;

/// One function: a binary that speaks the Lambda Runtime API.
#[derive(Debug)]
pub struct FunctionConfig {
    /// Name for invocations: letters, digits, `-` and `_`, at most 64.
    pub name: String,
    /// Version reported by invocations; also accepted as a qualifier.
    pub version: String,
    /// The binary.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables; they override those that Lambda sets.
    pub env: BTreeMap<String, String>,
    /// Whether its `AWS_*` variables are inherited from this process, so that it can reach the same AWS account. The
    /// host's keys and region are then under `GRISTMILL_LOCAL_*`.
    pub ambient: bool,
    /// Memory size reported to the function; not enforced.
    pub memory_mb: u32,
    /// Longer invocations are killed with their environment.
    pub timeout: Duration,
    /// Most concurrent invocations; without it only the account's limit applies.
    pub reserved_concurrency: Option<u32>,
    /// Function URL of its own, if any.
    pub url: Option<UrlConfig>,
    /// Function that receives reports of asynchronous invocations that failed permanently.
    pub on_failure: Option<String>,
    /// Longest wait of an asynchronous event.
    pub max_event_age: Duration,
    /// Retries of a failed asynchronous event.
    pub retry_attempts: u32,
}

impl FunctionConfig {
    /// A function with no arguments, no URL, no retries and limits for long work: 1,769 MB (one vCPU), 15 minutes.
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
    /// Listener; any loopback port when absent.
    pub listener: Option<TcpListener>,
    /// Access control.
    pub auth: UrlAuth,
}

/// Access control of a function URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UrlAuth {
    /// Requests signed with the host's keys for the service `lambda`.
    #[default]
    AwsIam,
    /// No authentication.
    None,
}

/// Asynchronous invocations at a fixed rate.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// Interval between events; the first is sent after one interval.
    pub every: Duration,
    /// Function to invoke.
    pub function: String,
    /// The event, JSON.
    pub payload: bytes::Bytes,
}

/// Configuration of a [`super::FunctionHost`].
#[derive(Debug)]
pub struct HostConfig {
    /// Keys that callers sign with; every function receives them too.
    pub credentials: Credentials,
    /// The region in ARNs, signatures and the functions' environment.
    pub region: String,
    /// The account in ARNs.
    pub account_id: String,
    /// Functions to run.
    pub functions: Vec<FunctionConfig>,
    /// Listener of the Invoke API; any loopback port when absent.
    pub listener: Option<TcpListener>,
    /// Output of functions goes to `<log_dir>/<name>.log`; it is discarded when absent.
    pub log_dir: Option<PathBuf>,
    /// Directory that keeps accepted events until they end, for the next host on the same directory. Without it they
    /// are lost with the host.
    pub event_dir: Option<PathBuf>,
    /// Most concurrent invocations of all functions.
    pub account_concurrency: u32,
    /// Idle time after which a warm environment is ended.
    pub idle_timeout: Duration,
    /// Time limit for a new environment to request its first event.
    pub init_timeout: Duration,
    /// Delay before a failed asynchronous event is retried, doubled each time.
    pub retry_delay: Duration,
    /// Stops (SIGSTOP) environments between invocations, as Lambda freezes them.
    pub freeze: bool,
    /// Events at a fixed rate.
    pub schedules: Vec<Schedule>,
    /// Handlers of the admin routes.
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

    /// Concurrency reserved by functions.
    pub(super) fn reserved(&self) -> u32 {
        let reserved = self.functions.iter().filter_map(|function| function.reserved_concurrency);
        reserved.fold(0, u32::saturating_add)
    }

    /// # Errors
    /// [`LocalError::Config`] naming the first invalid setting.
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
