//! Whether this machine is in AWS, by what its firmware and its environment say.

use std::{env, fs};

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

#[cfg(test)]
mod tests {
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
