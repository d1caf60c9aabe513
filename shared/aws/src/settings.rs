//! Settings of a process from its environment: the names of its stack's parts.

use gristmill_model::Namespace;
use gristmill_ports::without_feature;
use std::num::NonZeroU32;

const NAMESPACE: &str = "GRISTMILL_NAMESPACE";
const TABLE: &str = "GRISTMILL_TABLE";
const BUCKET: &str = "GRISTMILL_BUCKET";
const COORDINATOR_URL: &str = "GRISTMILL_COORDINATOR_URL";
const WORKER_FUNCTION: &str = "GRISTMILL_WORKER_FUNCTION";
const SCALER_FUNCTION: &str = "GRISTMILL_SCALER_FUNCTION";
const RETENTION_DAYS: &str = "GRISTMILL_RETENTION_DAYS";
const CACHE_GIB: &str = "GRISTMILL_CACHE_GIB";
const MAX_WORKERS: &str = "GRISTMILL_MAX_WORKERS";
const PRIVATE_SOURCES: &str = "GRISTMILL_PRIVATE_SOURCES";
const METRICS: &str = "GRISTMILL_METRICS";
/// CloudWatch's embedded metric format, the only supported one.
const EMF: &str = "emf";
/// Set by the platform for every function, in MB.
const FUNCTION_MEMORY: &str = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";
const DEFAULT_NAMESPACE: &str = "default";

/// An invalid or missing setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} is not set: set it in the environment of this process")]
    Missing(&'static str),
    #[error("{name} is {value:?}: {reason}")]
    Invalid { name: &'static str, value: String, reason: String },
    /// The program was built without the SDK.
    #[error("{}", without_feature("aws"))]
    NotBuilt,
}

/// Whether this program was built with the SDK.
pub fn is_built() -> Result<(), SettingsError> {
    if cfg!(feature = "sdk") { Ok(()) } else { Err(SettingsError::NotBuilt) }
}

impl SettingsError {
    pub(crate) fn invalid(name: &'static str, value: &str, reason: impl ToString) -> Self {
        let value = value.chars().take(200).collect();
        Self::Invalid { name, value, reason: reason.to_string() }
    }
}

/// Names of the parts of one stack. Each process uses only some of them, so a missing one is an error only when it
/// is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackSettings {
    pub ns: Namespace,
    pub table: Option<String>,
    pub bucket: Option<String>,
    pub coordinator_url: Option<String>,
    pub worker_function: Option<String>,
    pub scaler_function: Option<String>,
    /// Days after which a job with a silent trainer is abandoned; `None`: the coordinator's default.
    pub retention_days: Option<NonZeroU32>,
    /// Cache capacity in GiB; `None`: the coordinator's default.
    pub cache_gib: Option<NonZeroU32>,
    /// Most workers of a job for which the account has concurrency beside coordinator and scaler; `None`: unknown.
    pub max_workers: Option<NonZeroU32>,
    /// Whether workers may also read from web servers in private networks.
    pub private_sources: bool,
    /// Whether functions print metrics.
    pub metrics: bool,
}

impl StackSettings {
    /// Reads the environment of this process, as [`Self::from_lookup`] does.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from_lookup(variable)
    }

    /// Reads the `GRISTMILL_*` variables through `lookup`; an empty value counts as absent.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let get = |name| lookup(name).filter(|value| !value.is_empty());
        let ns = get(NAMESPACE).unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Self {
            ns: ns.parse().map_err(|error| SettingsError::invalid(NAMESPACE, &ns, error))?,
            table: get(TABLE),
            bucket: get(BUCKET),
            coordinator_url: get(COORDINATOR_URL),
            worker_function: get(WORKER_FUNCTION),
            scaler_function: get(SCALER_FUNCTION),
            retention_days: whole(
                RETENTION_DAYS,
                get(RETENTION_DAYS),
                "name a number of days, at least 1",
            )?,
            cache_gib: whole(CACHE_GIB, get(CACHE_GIB), "name a number of GiB, at least 1")?,
            max_workers: match get(MAX_WORKERS).as_deref() {
                // Template parameter without a value.
                Some("0") => None,
                _ => whole(MAX_WORKERS, get(MAX_WORKERS), "name a number of workers")?,
            },
            private_sources: match get(PRIVATE_SOURCES).as_deref() {
                None | Some("false") => false,
                Some("true") => true,
                Some(other) => {
                    let reason = "say true or false";
                    return Err(SettingsError::invalid(PRIVATE_SOURCES, other, reason));
                }
            },
            metrics: match get(METRICS).as_deref() {
                None => false,
                Some(EMF) => true,
                Some(other) => {
                    return Err(SettingsError::invalid(METRICS, other, "only emf is known"));
                }
            },
        })
    }

    /// Name of the DynamoDB table.
    pub fn table(&self) -> Result<&str, SettingsError> {
        self.table.as_deref().ok_or(SettingsError::Missing(TABLE))
    }

    /// Name of the bucket for chunks and indices.
    pub fn bucket(&self) -> Result<&str, SettingsError> {
        self.bucket.as_deref().ok_or(SettingsError::Missing(BUCKET))
    }

    /// Function URL of the coordinator.
    pub fn coordinator_url(&self) -> Result<&str, SettingsError> {
        self.coordinator_url.as_deref().ok_or(SettingsError::Missing(COORDINATOR_URL))
    }

    /// Name or ARN of the worker function.
    pub fn worker_function(&self) -> Result<&str, SettingsError> {
        self.worker_function.as_deref().ok_or(SettingsError::Missing(WORKER_FUNCTION))
    }

    /// Name or ARN of the scaler function.
    pub fn scaler_function(&self) -> Result<&str, SettingsError> {
        self.scaler_function.as_deref().ok_or(SettingsError::Missing(SCALER_FUNCTION))
    }
}

/// Memory of this function in MB; `None` outside a function.
pub fn function_memory_mb() -> Option<u32> {
    variable(FUNCTION_MEMORY)?.parse().ok()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn whole(
    name: &'static str,
    text: Option<String>,
    advice: &str,
) -> Result<Option<NonZeroU32>, SettingsError> {
    let parse =
        |text: String| text.parse().map_err(|_| SettingsError::invalid(name, &text, advice));
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_settings_fail_only_when_asked_for() {
        let settings = StackSettings::from_lookup(|_| None).unwrap();
        assert_eq!(settings.ns.as_str(), "default");
        let message = settings.table().unwrap_err().to_string();
        assert!(message.contains("GRISTMILL_TABLE"), "{message}");
    }

    #[test]
    fn every_variable_is_read() {
        let settings = StackSettings::from_lookup(|name| match name {
            NAMESPACE => Some("team-a".to_owned()),
            RETENTION_DAYS | CACHE_GIB | MAX_WORKERS => Some("30".to_owned()),
            PRIVATE_SOURCES => Some("true".to_owned()),
            METRICS => Some(EMF.to_owned()),
            SCALER_FUNCTION => None,
            name => Some(name.to_lowercase()),
        });
        let read = StackSettings {
            ns: "team-a".parse().unwrap(),
            table: Some("gristmill_table".to_owned()),
            bucket: Some("gristmill_bucket".to_owned()),
            coordinator_url: Some("gristmill_coordinator_url".to_owned()),
            worker_function: Some("gristmill_worker_function".to_owned()),
            scaler_function: None,
            retention_days: NonZeroU32::new(30),
            cache_gib: NonZeroU32::new(30),
            max_workers: NonZeroU32::new(30),
            private_sources: true,
            metrics: true,
        };
        assert_eq!(settings, Ok(read));
    }

    #[test]
    fn no_most_workers_are_said_with_a_zero() {
        let lookup = |value: &'static str| {
            StackSettings::from_lookup(move |name| (name == MAX_WORKERS).then(|| value.to_owned()))
        };
        assert_eq!(lookup("0").unwrap().max_workers, None);
        assert_eq!(lookup("7").unwrap().max_workers, NonZeroU32::new(7));
        assert!(lookup("many").unwrap_err().to_string().contains(MAX_WORKERS));
    }

    #[test]
    fn metrics_have_one_format() {
        let error = StackSettings::from_lookup(|name| (name == METRICS).then(|| "on".to_owned()));
        let message = error.unwrap_err().to_string();
        assert!(message.contains(METRICS) && message.contains("emf"), "{message}");
    }

    #[test]
    fn a_bad_namespace_is_named() {
        let error =
            StackSettings::from_lookup(|name| (name == NAMESPACE).then(|| "A b".to_owned()));
        let message = error.unwrap_err().to_string();
        assert!(message.contains(NAMESPACE) && message.contains("A b"), "{message}");
    }
}
