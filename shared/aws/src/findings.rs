//! Answers to queries about a deployment.

use std::{env, fmt, fs, time::Duration};

/// Deadline of one query, including its second try.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Failure of a query, by the conclusion that it allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No server answers.
    #[error("{0}")]
    Unreachable(String),
    /// The keys are invalid.
    #[error("{0}")]
    KeysRefused(String),
    /// The keys are valid but lack permission.
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    Other(String),
}

/// Identity of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    pub account: String,
    pub arn: String,
}

/// Permissions of a trainer on a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRights {
    pub list: Result<(), ProbeError>,
    pub get_chunks: Result<(), ProbeError>,
    pub put_indices: Result<(), ProbeError>,
}

/// A deployed function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeployedFunction {
    /// `Active` when it can be invoked.
    pub state: String,
    /// Architecture in Rust's terms: `aarch64` or `x86_64`.
    pub architecture: String,
    /// Reserved concurrency, if any.
    pub reserved: Result<Option<u32>, ProbeError>,
}

/// Concurrent executions of an account in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyQuota {
    pub limit: u32,
    /// Concurrency that no function has reserved.
    pub unreserved: u32,
}

/// An object of a dataset that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadableObject {
    pub key: String,
    /// Region of its bucket, if the server reports it.
    pub region: Option<String>,
}

/// A server of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceResponder {
    /// Scheme, host and port.
    pub address: String,
    /// Lead of its clock over ours in seconds; `None` if it sent no date.
    pub ahead_s: Option<i64>,
    /// Its `Server` header.
    pub server: Option<String>,
}

const VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html>
const AMAZON: &str = "Amazon EC2";
/// Variables of containers and functions, whose machines hide their firmware.
const OF_AWS: [&str; 2] = ["AWS_EXECUTION_ENV", "ECS_CONTAINER_METADATA_URI_V4"];

/// A finding about a machine outside AWS, and the advice.
pub const OUTSIDE_AWS: (&str, &str) = (
    "this machine is not in AWS, which bills what it receives (about $0.09 a GB)",
    "train in the stack's region, compress, or use smaller dtypes",
);

/// Whether this machine is in AWS; none if it does not say.
pub fn is_on_aws() -> Option<bool> {
    let runs_in_aws = OF_AWS.iter().any(|name| env::var_os(name).is_some());
    judge(runs_in_aws, fs::read_to_string(VENDOR).ok().as_deref())
}

fn judge(runs_in_aws: bool, vendor: Option<&str>) -> Option<bool> {
    match vendor.map(str::trim) {
        _ if runs_in_aws => Some(true),
        None | Some("") => None,
        // Instances of before 2017.
        Some("Xen") => None,
        Some(vendor) => Some(vendor == AMAZON),
    }
}

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

#[cfg(test)]
mod machine_tests {
    use super::*;

    #[test]
    fn the_vendor_of_the_firmware_says_where_a_machine_is() {
        for (vendor, expected) in [
            (Some("Amazon EC2\n"), Some(true)),
            (Some("QEMU\n"), Some(false)),
            (Some("Xen\n"), None),
            (Some("\n"), None),
            (None, None),
        ] {
            assert_eq!(judge(false, vendor), expected, "{vendor:?}");
            assert_eq!(judge(true, vendor), Some(true), "{vendor:?}");
        }
    }
}
