//! Verdicts: turns findings into one line per check. Pure, so that tests can cover setups that
//! nobody has.

use super::{DatasetPrefix, DoctorCheck, DoctorCheckStatus, ProbeFindings};
use crate::commands::ps::in_words;
use gristmill_aws::{BucketRights, ConcurrencyQuota, DeployedFunction, OUTSIDE_AWS, ProbeError};
use gristmill_client::{NUMERICS, ServiceBackend};
use gristmill_model::{limits::url_requests_per_s, wire::RefusalKind};
use gristmill_policy::plan::deployment::{coordinator_concurrency, requests_per_s};
use gristmill_ports::CallError;

/// Clocks this far apart are reported; signatures are refused from 5 minutes.
const SKEW_WARN_S: i64 = 60;
const SKEW_FAIL_S: i64 = 240;
const ATTACH_POLICY: &str = "attach the stack's TrainerPolicy (its output TrainerPolicyArn) to the role these keys belong to";

/// All checks, in the order in which to correct them.
pub fn judge(findings: &ProbeFindings, workers: u32) -> Vec<DoctorCheck> {
    if findings.backend == Some(ServiceBackend::Local) {
        return vec![
            settings(findings).named("service"),
            coordinator(findings).named("coordinator"),
            table(findings).named("table"),
            disk(findings).named("disk"),
        ];
    }
    let mut checks = vec![
        settings(findings).named("settings"),
        keys(findings).named("credentials"),
        platform(findings).named("platform"),
        clock(findings).named("clock"),
        region(findings).named("region"),
        bucket(findings).named("bucket"),
        permissions(findings).named("permissions"),
        coordinator(findings).named("coordinator"),
        table(findings).named("table"),
        functions(findings).named("functions"),
        concurrency(findings, workers).named("concurrency"),
        calls(findings, workers).named("calls"),
        gateway(findings).named("gateway"),
    ];
    checks.extend(dataset(findings).map(|dataset| dataset.named("dataset")));
    checks
}

/// Checks that a service on this machine can store objects.
fn disk(findings: &ProbeFindings) -> Verdict {
    let Some(Ok(status)) = &findings.service else { return skip(not_asked(findings)) };
    match (&status.trouble, findings.disk) {
        (Some(trouble), _) => {
            let (found, advice) = trouble.split_once(": ").unwrap_or((trouble, "free some space"));
            fail(found, advice)
        }
        (None, Some(disk)) => ok(format!("{} in use", in_words(disk))),
        (None, None) => skip("the service does not say"),
    }
}

struct Verdict(DoctorCheckStatus, String, String);

impl Verdict {
    fn named(self, name: &'static str) -> DoctorCheck {
        let Self(verdict, found, advice) = self;
        DoctorCheck { name, verdict, found, advice }
    }
}

fn fail(found: impl ToString, advice: &str) -> Verdict {
    Verdict(DoctorCheckStatus::Fail, found.to_string(), advice.to_owned())
}

fn warn(found: impl ToString, advice: &str) -> Verdict {
    Verdict(DoctorCheckStatus::Warn, found.to_string(), advice.to_owned())
}

fn ok(found: impl ToString) -> Verdict {
    Verdict(DoctorCheckStatus::Ok, found.to_string(), String::new())
}

fn skip(why: impl ToString) -> Verdict {
    by_hand(why, "")
}

/// Skips what a person can look up as `advice` says.
fn by_hand(why: impl ToString, advice: &str) -> Verdict {
    Verdict(DoctorCheckStatus::Skip, why.to_string(), advice.to_owned())
}

/// The message of an error, without the coordinator's name, which the check has already.
fn said(error: &CallError) -> &str {
    match error {
        CallError::Unavailable(text)
        | CallError::Throttled(text)
        | CallError::Denied(text)
        | CallError::Rejected(text) => text,
        CallError::Refused(refusal) => &refusal.message,
    }
}

/// The reason why dependent checks were skipped.
fn not_asked(findings: &ProbeFindings) -> &'static str {
    match findings {
        ProbeFindings { service: Some(Err(_)), .. } => "not asked: the service does not answer",
        ProbeFindings { backend: Some(ServiceBackend::Local), .. } => {
            "not asked: there is no service"
        }
        ProbeFindings { keys: Some(Err(_)), .. } => "not asked: there are no credentials",
        _ => "not asked: settings are missing",
    }
}

/// Checks the variables on AWS, or that the local service is there.
fn settings(findings: &ProbeFindings) -> Verdict {
    if !findings.wrong.is_empty() {
        let advice = match findings.backend {
            Some(ServiceBackend::Local) => "start one with `gristmill up`, or name its --state-dir",
            _ => {
                "scripts/deploy prints them; they are outputs of the stack: BucketName, \
                 CoordinatorUrl, Namespace, and the region it is in"
            }
        };
        return fail(findings.wrong.join(", "), advice);
    }
    match &findings.service {
        Some(Err(error)) => fail(
            format!("{}: {}", findings.named, said(error)),
            "if the process is gone, start it again: `gristmill up` with the same --state-dir",
        ),
        _ => ok(&findings.named),
    }
}

fn keys(findings: &ProbeFindings) -> Verdict {
    let id = match &findings.keys {
        None => return skip(not_asked(findings)),
        Some(Err(why)) => {
            let advice = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or train \
                          on a host that has a role";
            return fail(format!("none found: {why}"), advice);
        }
        Some(Ok(id)) => id,
    };
    let renew = "use keys of the stack's account that have not expired";
    match &findings.caller {
        Some(Ok(caller)) => ok(format!("{id}: {}", caller.arn)),
        Some(Err(ProbeError::KeysRefused(text))) => fail(format!("{id}: {text}"), renew),
        // The coordinator checks signatures as well.
        asked => match (&findings.coordinator, asked) {
            (Some(Ok(_) | Err(CallError::Refused(_))), _) => {
                ok(format!("{id}, accepted by the coordinator"))
            }
            (_, Some(Err(trouble))) => {
                let advice =
                    "check that STS is reachable; the other checks show whether it matters";
                warn(format!("{id} is not confirmed: {trouble}"), advice)
            }
            (_, _) => skip(format!("{id}: the coordinator confirms nothing")),
        },
    }
}

/// Checks whether this is AWS, and whether all services agree on that.
fn platform(findings: &ProbeFindings) -> Verdict {
    let servers: Vec<&str> =
        findings.responders.values().filter_map(|responder| responder.server.as_deref()).collect();
    let answers = match servers.first() {
        Some(server) => format!(", which answers as {server}"),
        None => String::new(),
    };
    let overrides: Vec<String> =
        findings.overrides.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let overrides = overrides.join(" ");
    let url = findings.coordinator_url.as_deref().unwrap_or_default();
    match (findings.overrides.is_empty(), findings.url_region.is_some()) {
        (true, true) => ok(format!("AWS{answers}")),
        (true, false) if url.is_empty() => skip(not_asked(findings)),
        (true, false) => warn(
            format!("AWS{answers}, but the coordinator is at {url}"),
            "set GRISTMILL_COORDINATOR_URL to the function URL of the stack, or AWS_ENDPOINT_URL \
             to the emulator",
        ),
        (false, true) => warn(
            format!("{overrides}{answers}, but the coordinator is on AWS"),
            "unset AWS_ENDPOINT_URL and its like, or set GRISTMILL_COORDINATOR_URL to the emulator's",
        ),
        (false, false)
            if findings.responders.values().any(|responder| responder.ahead_s.is_some()) =>
        {
            ok(format!("an emulator: {overrides}{answers}"))
        }
        (false, false) => skip(format!("not AWS, and no service answers: {overrides}")),
    }
}

fn clock(findings: &ProbeFindings) -> Verdict {
    let responders = findings
        .responders
        .values()
        .filter_map(|responder| Some((responder.ahead_s?, &responder.address)));
    let Some((ahead_s, address)) = responders.max_by_key(|(ahead_s, _)| ahead_s.abs()) else {
        return skip("no answer had the time");
    };
    let found = match ahead_s {
        -1..=1 => format!("as that of {address}"),
        2.. => format!("{ahead_s} s behind that of {address}"),
        _ => format!("{} s ahead of that of {address}", -ahead_s),
    };
    let advice = "set this machine's clock (NTP): signatures are refused from 5 minutes";
    match ahead_s.abs() {
        apart if apart > SKEW_FAIL_S => fail(found, advice),
        apart if apart > SKEW_WARN_S => warn(found, advice),
        _ => ok(found),
    }
}

fn bucket(findings: &ProbeFindings) -> Verdict {
    match &findings.bucket {
        None => skip(not_asked(findings)),
        Some(Ok(_)) => ok("reachable"),
        Some(Err(trouble)) => fail(trouble, remedy(trouble)),
    }
}

fn remedy(trouble: &ProbeError) -> &'static str {
    match trouble {
        ProbeError::Unreachable(_) => {
            "check that a service listens there: AWS_REGION, AWS_ENDPOINT_URL and the network"
        }
        ProbeError::KeysRefused(_) => "see the line of the credentials",
        ProbeError::Denied(_) => ATTACH_POLICY,
        ProbeError::Missing(_) => "set GRISTMILL_BUCKET to the stack's output BucketName",
        ProbeError::Other(_) => {
            "try again, and check that AWS_ENDPOINT_URL names the right service"
        }
    }
}

/// Checks the permissions of the trainer's policy, as far as they were tried.
fn permissions(findings: &ProbeFindings) -> Verdict {
    let Some(BucketRights { list, get_chunks, put_indices }) = &findings.rights else {
        return skip(not_asked(findings));
    };
    let rights =
        [("list the bucket", list), ("get chunks", get_chunks), ("put indices", put_indices)];
    let denied = rights.iter().filter(|(_, right)| matches!(right, Err(ProbeError::Denied(_))));
    let denied: Vec<&str> = denied.map(|(what, _)| *what).collect();
    let unknown = rights.iter().find_map(|(_, right)| right.as_ref().err());
    match (denied.as_slice(), unknown) {
        ([], None) => ok("to list the bucket, get chunks and put indices"),
        // Only workers beside the trainer index files.
        (["put indices"], _) => warn("may not put indices, as --local-workers do", ATTACH_POLICY),
        ([], Some(trouble)) => skip(format!("not all could be tried: {trouble}")),
        (denied, _) => {
            let found = format!("may not {}", denied.join(", "));
            fail(found, ATTACH_POLICY)
        }
    }
}

/// Checks address, signature, namespace and protocol version, all with one call.
fn coordinator(findings: &ProbeFindings) -> Verdict {
    let Some(answer) = &findings.coordinator else { return skip(not_asked(findings)) };
    let refusal = match answer {
        Err(CallError::Refused(refusal)) => refusal,
        Ok(reply) => {
            let advice = "check that GRISTMILL_COORDINATOR_URL is the one of the stack";
            return fail(format!("answers otherwise: {reply:?}"), advice);
        }
        Err(error @ CallError::Unavailable(_)) => {
            let advice = match findings.backend {
                Some(ServiceBackend::Local) => {
                    "end it with `gristmill ps --stop`, and start it again"
                }
                _ => {
                    "check GRISTMILL_COORDINATOR_URL against the stack's output CoordinatorUrl, and \
                     the network; then the coordinator's log"
                }
            };
            return fail(said(error), advice);
        }
        Err(error @ CallError::Throttled(_)) => {
            let advice = "other calls use up the coordinator's concurrency: end jobs, or deploy with more \
                          CoordinatorConcurrency";
            return fail(said(error), advice);
        }
        Err(error @ (CallError::Denied(_) | CallError::Rejected(_))) => {
            let advice =
                "check that the URL is the stack's, and that the role has its TrainerPolicy";
            return fail(said(error), advice);
        }
    };
    if refusal.kind == RefusalKind::NotFound || is_of_table(refusal.kind) {
        let url = findings.coordinator_url.as_deref().unwrap_or_default();
        return ok(format!("{url} answers"));
    }
    let advice = "set GRISTMILL_NAMESPACE and GRISTMILL_COORDINATOR_URL of one stack, and use one \
                  release of gristmill throughout";
    fail(refusal, advice)
}

fn is_of_table(kind: RefusalKind) -> bool {
    matches!(kind, RefusalKind::TableUnavailable | RefusalKind::TableRejected)
}

/// Checks the table through the coordinator's answer: nobody else has access to it.
fn table(findings: &ProbeFindings) -> Verdict {
    match &findings.coordinator {
        Some(Err(CallError::Refused(refusal))) if refusal.kind == RefusalKind::NotFound => {
            ok("read by the coordinator")
        }
        Some(Err(CallError::Refused(refusal))) if is_of_table(refusal.kind) => {
            let found = refusal.message.strip_prefix("table: ").unwrap_or(&refusal.message);
            let advice = match findings.backend {
                Some(ServiceBackend::Local) => "start the service again",
                _ => "its name is the stack's output TableName; the coordinator's log says more",
            };
            fail(found, advice)
        }
        None => skip(not_asked(findings)),
        Some(_) => skip("not known: only the coordinator reports it"),
    }
}

/// Checks that everything is in one region: bytes between regions are billed, and slower.
fn region(findings: &ProbeFindings) -> Verdict {
    let Some(client) = &findings.region else { return skip(not_asked(findings)) };
    let bucket = match &findings.bucket {
        Some(Ok(region)) => region.as_deref(),
        _ => None,
    };
    let coordinator = findings.url_region.as_deref();
    if let Some(bucket) = bucket.filter(|bucket| bucket != client) {
        let found = format!("requests go to {client}, the bucket is in {bucket}");
        let advice = format!("train in {bucket}: bytes between regions are slower, and billed");
        return warn(found, &advice);
    }
    if let Some(coordinator) = coordinator.filter(|coordinator| coordinator != client) {
        let found = format!("requests go to {client}, the coordinator is in {coordinator}");
        let advice = format!("set AWS_REGION={coordinator}, and the bucket of that stack");
        return warn(found, &advice);
    }
    match (bucket, coordinator) {
        (None, None) => ok(format!("{client}; bucket and coordinator report none")),
        (Some(_), None) => ok(format!("{client}, as the bucket")),
        (None, Some(_)) => ok(format!("{client}, as the coordinator")),
        (Some(_), Some(_)) => ok(format!("{client}, as bucket and coordinator")),
    }
}

/// Checks that the functions exist, and compute as this machine does.
fn functions(findings: &ProbeFindings) -> Verdict {
    let asked = [("worker", &findings.worker), ("scaler", &findings.scaler)];
    let asked: Vec<_> =
        asked.iter().filter_map(|(name, found)| Some((*name, found.as_ref()?))).collect();
    let mut said = Vec::new();
    let mut unknown = Vec::new();
    for (name, found) in &asked {
        match found {
            Ok(function) if !is_usable(&function.state) => {
                let found = format!("the {name} is {}", function.state);
                return fail(found, "wait for it, or deploy the stack again");
            }
            Ok(function) if *name == "worker" && !is_of_this_class(function) => {
                return warn(
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
                return fail(text, advice);
            }
            Err(trouble) => unknown.push(trouble.to_string()),
        }
    }
    match (said.is_empty(), unknown.is_empty()) {
        (true, true) if !may_ask(findings) => skip(not_asked(findings)),
        (true, true) => by_hand(
            "GRISTMILL_WORKER_FUNCTION and GRISTMILL_SCALER_FUNCTION are not set",
            "set them to the stack's outputs WorkerFunctionName and ScalerFunctionName to check \
             the functions",
        ),
        (true, false) => skip(unknown.join(", ")),
        (false, _) => ok(said.join(", ")),
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
fn concurrency(findings: &ProbeFindings, workers: u32) -> Verdict {
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
        (None, None) => return skip(not_asked(findings)),
    };
    match room {
        Err(ProbeError::Unreachable(text) | ProbeError::KeysRefused(text)) => {
            skip(format!("not known: {text}"))
        }
        Err(trouble) => {
            by_hand(format!("not known: {trouble}"), "by hand: aws lambda get-account-settings")
        }
        Ok((0, found)) => fail(
            format!("no worker may run: {found}"),
            "set the parameter WorkerConcurrency to 0 (nothing reserved) or above",
        ),
        Ok((room, found)) if room < workers => warn(
            format!("{found}, and --workers asks for {workers}"),
            "fewer --workers, a larger WorkerConcurrency, or ask AWS for a larger quota",
        ),
        Ok((_, found)) => ok(format!("{found}, and --workers asks for {workers}")),
    }
}

/// Checks that the coordinator's URL serves the calls of `workers`.
fn calls(findings: &ProbeFindings, workers: u32) -> Verdict {
    let reserved = match &findings.coordinator_function {
        None if may_ask(findings) => {
            return skip("not known: GRISTMILL_WORKER_FUNCTION is not set");
        }
        None => return skip(not_asked(findings)),
        Some(Err(trouble) | Ok(DeployedFunction { reserved: Err(trouble), .. })) => {
            return skip(format!("not known: {trouble}"));
        }
        Some(Ok(DeployedFunction { reserved: Ok(reserved), .. })) => *reserved,
    };
    let Some(reserved) = reserved else {
        return ok("no concurrency is reserved for the coordinator, and no limit set");
    };
    let (needed, served) = (requests_per_s(workers), url_requests_per_s(reserved));
    let found = format!(
        "the coordinator serves {served} requests a second; {workers} workers send up to {needed}"
    );
    if served >= needed {
        return ok(found);
    }
    let reserved = coordinator_concurrency(workers);
    let advice = format!("deploy with --set CoordinatorConcurrency={reserved}");
    warn(found, &advice)
}

fn dataset(findings: &ProbeFindings) -> Option<Verdict> {
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
                trouble => remedy(trouble),
            };
            return Some(fail(trouble, advice));
        }
    };
    let found = format!("s3://{bucket}/{} is readable", object.key);
    let stack = findings.url_region.as_deref().or(findings.region.as_deref());
    Some(match (&object.region, stack) {
        (Some(region), Some(stack)) if region != stack => warn(
            format!("{found}, in {region}; workers are in {stack}"),
            &format!(
                "deploy to {region}, or copy it (aws s3 sync s3://{bucket}/{prefix} ..): workers \
                 pay for bytes from another region in each epoch that is not cached"
            ),
        ),
        _ => ok(format!("{found} with these keys; workers read it with their own role")),
    })
}

/// Advises on the gateway endpoint for S3: without one, a trainer in a VPC pays NAT for every byte.
/// Looking takes a permission that trainers do not have.
fn gateway(findings: &ProbeFindings) -> Verdict {
    let region = findings.region.as_deref().unwrap_or("REGION");
    match &findings.vpc {
        Some(vpc) => by_hand(
            format!(
                "this machine is in {vpc}: without a gateway endpoint, traffic from S3 is billed \
                 for NAT"
            ),
            &format!(
                "by hand: aws ec2 describe-vpc-endpoints --filters Name=vpc-id,Values={vpc} \
                 Name=service-name,Values=com.amazonaws.{region}.s3"
            ),
        ),
        None if !may_ask(findings) => skip(not_asked(findings)),
        None if !findings.overrides.is_empty() => skip("not asked: not all of this is AWS"),
        None if findings.is_on_aws == Some(false) => {
            let (found, advice) = OUTSIDE_AWS;
            warn(found, advice)
        }
        None => skip("not an EC2 instance: traffic from S3 passes no NAT gateway of a VPC"),
    }
}

#[cfg(test)]
mod tests;
