//! Checks of a deployment that a local service does not need: regions, versions of functions,
//! quotas, networks.

use super::{DoctorCheck, ProbeFindings, DoctorCheckStatus, line, not_asked, ok, skip};
use crate::commands::doctor::DatasetPrefix;
use gristmill_aws::{DeployedFunction, OUTSIDE_AWS, ConcurrencyQuota, ProbeError};
use gristmill_client::NUMERICS;
use gristmill_policy::plan::deployment::{
    coordinator_concurrency, requests_per_s, url_requests_per_s,
};

/// Checks that everything is in one region: bytes between regions are billed, and slower.
pub fn region(findings: &ProbeFindings) -> DoctorCheck {
    const NAME: &str = "region";
    let Some(client) = &findings.region else { return skip(NAME, not_asked(findings)) };
    let bucket = match &findings.bucket {
        Some(Ok(region)) => region.as_deref(),
        _ => None,
    };
    let coordinator = findings.url_region.as_deref();
    if let Some(bucket) = bucket.filter(|bucket| bucket != client) {
        let found = format!("requests go to {client}, the bucket is in {bucket}");
        let advice = format!("train in {bucket}: bytes between regions are slower, and billed");
        return line(NAME, DoctorCheckStatus::Warn, found, &advice);
    }
    if let Some(coordinator) = coordinator.filter(|coordinator| coordinator != client) {
        let found = format!("requests go to {client}, the coordinator is in {coordinator}");
        let advice = format!("set AWS_REGION={coordinator}, and the bucket of that stack");
        return line(NAME, DoctorCheckStatus::Warn, found, &advice);
    }
    match (bucket, coordinator) {
        (None, None) => ok(NAME, format!("{client}; bucket and coordinator report none")),
        (Some(_), None) => ok(NAME, format!("{client}, as the bucket")),
        (None, Some(_)) => ok(NAME, format!("{client}, as the coordinator")),
        (Some(_), Some(_)) => ok(NAME, format!("{client}, as bucket and coordinator")),
    }
}

/// Checks that the functions exist, and compute as this machine does.
pub fn functions(findings: &ProbeFindings) -> DoctorCheck {
    const NAME: &str = "functions";
    let asked = [("worker", &findings.worker), ("scaler", &findings.scaler)];
    let asked: Vec<_> =
        asked.iter().filter_map(|(name, found)| Some((*name, found.as_ref()?))).collect();
    let mut said = Vec::new();
    let mut unknown = Vec::new();
    for (name, found) in &asked {
        match found {
            Ok(function) if !is_usable(&function.state) => {
                let found = format!("the {name} is {}", function.state);
                return line(NAME, DoctorCheckStatus::Fail, found, "wait for it, or deploy the stack again");
            }
            Ok(function) if *name == "worker" && !is_of_this_class(function) => {
                return line(
                    NAME,
                    DoctorCheckStatus::Warn,
                    format!("the worker is for {}, this machine is not", function.architecture),
                    "to train with --local-workers beside it, deploy for this machine's processor \
                     (scripts/deploy, with --x86 or without): a job never mixes two",
                );
            }
            Ok(function) => {
                said.push(format!("{name} {} for {}", function.state, function.architecture));
            }
            Err(ProbeError::Missing(text)) => {
                let advice = "deploy the stack again, or set GRISTMILL_WORKER_FUNCTION and \
                              GRISTMILL_SCALER_FUNCTION to its outputs";
                return line(NAME, DoctorCheckStatus::Fail, text, advice);
            }
            Err(trouble) => unknown.push(trouble.to_string()),
        }
    }
    match (said.is_empty(), unknown.is_empty()) {
        (true, true) if !may_ask(findings) => skip(NAME, not_asked(findings)),
        (true, true) => line(
            NAME,
            DoctorCheckStatus::Skip,
            "GRISTMILL_WORKER_FUNCTION and GRISTMILL_SCALER_FUNCTION are not set",
            "set them to the stack's outputs WorkerFunctionName and ScalerFunctionName to check \
             the functions",
        ),
        (true, false) => skip(NAME, unknown.join(", ")),
        (false, _) => ok(NAME, said.join(", ")),
    }
}

fn may_ask(findings: &ProbeFindings) -> bool {
    matches!(findings.keys, Some(Ok(_)))
}

/// Lambda makes a function inactive after weeks without a call, and activates it at the next.
fn is_usable(state: &str) -> bool {
    matches!(state, "Active" | "Inactive")
}

fn is_of_this_class(function: &DeployedFunction) -> bool {
    NUMERICS.split('/').next() == Some(function.architecture.as_str())
}

/// Concurrency that workers leave to coordinator and scaler when none is reserved.
const HEADROOM: u32 = 3;

/// Checks that `workers` may run at a time.
pub fn concurrency(findings: &ProbeFindings, workers: u32) -> DoctorCheck {
    const NAME: &str = "concurrency";
    let reserved = match &findings.worker {
        Some(Ok(DeployedFunction { reserved: Ok(reserved), .. })) => *reserved,
        _ => None,
    };
    let room = match (reserved, &findings.quota) {
        (Some(reserved), Some(Ok(ConcurrencyQuota { limit, unreserved }))) => Ok((
            reserved,
            format!(
                "the account runs {limit} at a time, {} of them reserved: {reserved} for the worker",
                limit.saturating_sub(*unreserved)
            ),
        )),
        (Some(reserved), _) => Ok((reserved, format!("{reserved} reserved for the worker"))),
        (None, Some(Ok(ConcurrencyQuota { limit, unreserved }))) => {
            let taken = limit.saturating_sub(*unreserved);
            // Reserved concurrency may belong to coordinator and scaler, or to other functions.
            let room = match taken {
                0 => unreserved.saturating_sub(HEADROOM),
                _ => *unreserved,
            };
            Ok((
                room,
                format!(
                    "the account runs {limit} at a time, {taken} of them reserved: {room} workers \
                     can run"
                ),
            ))
        }
        (None, Some(Err(trouble))) => Err(trouble),
        (None, None) => return skip(NAME, not_asked(findings)),
    };
    match room {
        Err(ProbeError::Unreachable(text) | ProbeError::KeysRefused(text)) => {
            skip(NAME, format!("not known: {text}"))
        }
        Err(trouble) => line(
            NAME,
            DoctorCheckStatus::Skip,
            format!("not known: {trouble}"),
            "by hand: aws lambda get-account-settings",
        ),
        Ok((0, found)) => line(
            NAME,
            DoctorCheckStatus::Fail,
            format!("no worker may run: {found}"),
            "set the parameter WorkerConcurrency to 0 (nothing reserved) or above",
        ),
        Ok((room, found)) if room < workers => line(
            NAME,
            DoctorCheckStatus::Warn,
            format!("{found}, and --workers asks for {workers}"),
            "fewer --workers, a larger WorkerConcurrency, or ask AWS for a larger quota",
        ),
        Ok((_, found)) => ok(NAME, format!("{found}, and --workers asks for {workers}")),
    }
}

/// Checks that the coordinator's URL serves the calls of `workers`.
pub fn calls(findings: &ProbeFindings, workers: u32) -> DoctorCheck {
    const NAME: &str = "calls";
    let reserved = match &findings.coordinator_function {
        None if may_ask(findings) => {
            return skip(NAME, "not known: GRISTMILL_WORKER_FUNCTION is not set");
        }
        None => return skip(NAME, not_asked(findings)),
        Some(Err(trouble) | Ok(DeployedFunction { reserved: Err(trouble), .. })) => {
            return skip(NAME, format!("not known: {trouble}"));
        }
        Some(Ok(DeployedFunction { reserved: Ok(reserved), .. })) => *reserved,
    };
    let Some(reserved) = reserved else {
        return ok(NAME, "no concurrency is reserved for the coordinator, and no limit set");
    };
    let (needed, served) = (requests_per_s(workers), url_requests_per_s(reserved));
    let found = format!(
        "the coordinator serves {served} requests a second; {workers} workers send up to {needed}"
    );
    if served >= needed {
        return ok(NAME, found);
    }
    let reserved = coordinator_concurrency(workers);
    let advice = format!("deploy with --set CoordinatorConcurrency={reserved}");
    line(NAME, DoctorCheckStatus::Warn, found, &advice)
}

/// Checks that these keys read the dataset that was named.
pub fn dataset(findings: &ProbeFindings) -> Option<DoctorCheck> {
    const NAME: &str = "dataset";
    let (DatasetPrefix { bucket, prefix }, read) = findings.dataset.as_ref()?;
    let object = match read {
        Ok(object) => object,
        Err(trouble) => {
            let advice = match trouble {
                ProbeError::Denied(text) if text.contains("InvalidObjectState") => {
                    "it is archived: aws s3api restore-object, or name other files"
                }
                ProbeError::Denied(_) => {
                    "deploy with --dataset (and --dataset-key, if it is encrypted with a key), and \
                     attach TrainerPolicy; a bucket of another account must also allow it; \
                     requester-pays buckets are not supported"
                }
                ProbeError::Missing(_) => "check bucket and prefix",
                trouble => super::remedy(trouble),
            };
            return Some(line(NAME, DoctorCheckStatus::Fail, trouble, advice));
        }
    };
    let found = format!("s3://{bucket}/{} is readable", object.key);
    let stack = findings.url_region.as_deref().or(findings.region.as_deref());
    Some(match (&object.region, stack) {
        (Some(region), Some(stack)) if region != stack => line(
            NAME,
            DoctorCheckStatus::Warn,
            format!("{found}, in {region}; workers are in {stack}"),
            &format!(
                "deploy to {region}, or copy it (aws s3 sync s3://{bucket}/{prefix} ..): workers \
                 pay for bytes from another region in each epoch that is not cached"
            ),
        ),
        _ => ok(NAME, format!("{found} with these keys; workers read it with their own role")),
    })
}

/// Advises on the gateway endpoint for S3: without one, a trainer in a VPC pays NAT for every byte.
/// Looking takes a permission that trainers do not have.
pub fn gateway(findings: &ProbeFindings) -> DoctorCheck {
    const NAME: &str = "gateway";
    let region = findings.region.as_deref().unwrap_or("REGION");
    match &findings.vpc {
        Some(vpc) => line(
            NAME,
            DoctorCheckStatus::Skip,
            format!(
                "this machine is in {vpc}: without a gateway endpoint, traffic from S3 is billed \
                 for NAT"
            ),
            &format!(
                "by hand: aws ec2 describe-vpc-endpoints --filters Name=vpc-id,Values={vpc} \
                 Name=service-name,Values=com.amazonaws.{region}.s3"
            ),
        ),
        None if !may_ask(findings) => skip(NAME, not_asked(findings)),
        None if !findings.overrides.is_empty() => skip(NAME, "not asked: not all of this is AWS"),
        None if findings.is_on_aws == Some(false) => {
            let (found, advice) = OUTSIDE_AWS;
            line(NAME, DoctorCheckStatus::Warn, found, advice)
        }
        None => skip(NAME, "not an EC2 instance: traffic from S3 passes no NAT gateway of a VPC"),
    }
}
