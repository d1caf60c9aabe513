//! `gristmill doctor`: checks the service before training. Probes everything at once, then decides,
//! and prints one line per check.

mod checks;

use crate::output::say;
use gristmill_aws::{
    Aws, BucketRights, CallerIdentity, ConcurrencyQuota, DeployedFunction, DeploymentProbes,
    HttpCoordinator, PROBE_DEADLINE, ProbeError, ReadableObject, ServiceResponder, SettingsError,
    StackSettings, is_on_aws,
};
use gristmill_client::{
    AttachError, NamedService, ProgramFailure, ServiceBackend, ServiceFile, ServiceOptions,
};
use gristmill_host::{DiskUse, HostServiceClient, ServiceStatus};
use gristmill_model::wire::{AnyReply, StatusCall};
use gristmill_ports::{CallError, Coordinator};
use serde::Serialize;
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

/// Check the setup before training, and print how to fix each problem
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 nothing failed, 1 something did, 2 bad usage.\n\nExamples:\n  gristmill doctor --backend aws --workers 32 --data s3://my-datasets/train\n  gristmill doctor --state-dir state"
)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Workers that the job will use
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub workers: u32,
    /// Also read this dataset on S3: s3://bucket/prefix
    #[arg(long, value_name = "SOURCE", value_parser = parse_dataset)]
    pub data: Option<DatasetPrefix>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A dataset to read: the part of a bucket before the first wildcard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetPrefix {
    pub bucket: String,
    pub prefix: String,
}

fn parse_dataset(text: &str) -> Result<DatasetPrefix, String> {
    let address =
        text.strip_prefix("s3://").filter(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let address = address.ok_or("name a dataset on S3: s3://bucket/prefix")?;
    let (bucket, pattern) = address.split_once('/').unwrap_or((address, ""));
    let prefix = pattern.split(['*', '?', '[', '{']).next().unwrap_or_default();
    Ok(DatasetPrefix { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum DoctorCheckStatus {
    Ok,
    /// Training works, but slower or dearer than it could.
    Warn,
    /// Training does not work.
    Fail,
    /// Not checked.
    Skip,
}

impl From<DoctorCheckStatus> for &'static str {
    fn from(verdict: DoctorCheckStatus) -> Self {
        match verdict {
            DoctorCheckStatus::Ok => "ok",
            DoctorCheckStatus::Warn => "warn",
            DoctorCheckStatus::Fail => "FAIL",
            DoctorCheckStatus::Skip => "skip",
        }
    }
}

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorCheck {
    pub name: &'static str,
    pub verdict: DoctorCheckStatus,
    pub found: String,
    /// Advice; empty if nothing is to be done.
    pub advice: String,
}

impl DoctorArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let findings = probe(&self.service, self.data.as_ref()).await?;
        let checks = checks::judge(&findings, self.workers);
        let failed = checks.iter().filter(|check| check.verdict == DoctorCheckStatus::Fail).count();
        if self.json {
            say!("{}", json!({ "checks": checks, "ok": failed == 0 }))
        } else {
            checks.iter().for_each(|check| say!("{}", as_line(check)))
        }
        match failed {
            0 => Ok(()),
            failed => {
                Err(ProgramFailure::failed(format!("{failed} of {} checks failed", checks.len())))
            }
        }
    }
}

fn as_line(check: &DoctorCheck) -> String {
    let DoctorCheck { name, verdict, found, advice } = check;
    let line = format!("{:<5} {name:<12} {found}", <&str>::from(*verdict));
    if advice.is_empty() { line } else { format!("{line}; {advice}") }
}

/// A name that no job has: the coordinator answers that it is not found.
const NO_SUCH_JOB: &str = "gristmill-doctor";
/// Timeout for keys and region, which may have to come from a metadata service that is not there.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(10);

/// Findings. `None` means not asked, because a setting is missing.
#[derive(Debug, Default)]
pub struct ProbeFindings {
    pub backend: Option<ServiceBackend>,
    /// The services that the settings name, for messages.
    pub named: String,
    /// Settings that are missing or wrong.
    pub wrong: Vec<String>,
    /// The state of a service on this machine.
    pub service: Option<Result<ServiceStatus, CallError>>,
    pub disk: Option<DiskUse>,
    /// Identifier of the keys.
    pub keys: Option<Result<String, String>>,
    pub caller: Option<Result<CallerIdentity, ProbeError>>,
    pub region: Option<String>,
    pub url_region: Option<String>,
    /// The bucket's region.
    pub bucket: Option<Result<Option<String>, ProbeError>>,
    pub rights: Option<BucketRights>,
    pub coordinator_url: Option<String>,
    pub coordinator: Option<Result<AnyReply, CallError>>,
    /// The dataset that was named, and an object of it.
    pub dataset: Option<(DatasetPrefix, Result<ReadableObject, ProbeError>)>,
    pub coordinator_function: Option<Result<DeployedFunction, ProbeError>>,
    pub worker: Option<Result<DeployedFunction, ProbeError>>,
    pub scaler: Option<Result<DeployedFunction, ProbeError>>,
    pub quota: Option<Result<ConcurrencyQuota, ProbeError>>,
    pub responders: BTreeMap<&'static str, ServiceResponder>,
    /// `AWS_ENDPOINT_URL` and similar variables.
    pub overrides: Vec<(String, String)>,
    pub vpc: Option<String>,
    /// Whether this machine is in AWS, if it says so.
    pub is_on_aws: Option<bool>,
}

/// Probes the service that the arguments name, and a dataset.
pub async fn probe(
    options: &ServiceOptions,
    data: Option<&DatasetPrefix>,
) -> Result<ProbeFindings, ProgramFailure> {
    let found = match options.target()? {
        NamedService::Deployed => return Ok(probe_deployed(data).await),
        NamedService::Local(_) if data.is_some() => {
            return Err(ProgramFailure::usage(
                "--data needs --backend aws: a local service reads as you do",
            ));
        }
        NamedService::Local(found) => found,
    };
    match found {
        Ok(file) => probe_local(&file).await,
        Err(error @ AttachError::NotAnEndpoint(_)) => Err(ProgramFailure::usage(error)),
        Err(error) => {
            let wrong = match error {
                AttachError::Unknown(endpoint) => format!("no service of yours at {endpoint}"),
                AttachError::Ended(dir) => format!("no service runs on {}", dir.display()),
                error => error.to_string(),
            };
            let backend = Some(ServiceBackend::Local);
            Ok(ProbeFindings { backend, wrong: vec![wrong], ..ProbeFindings::default() })
        }
    }
}

async fn probe_deployed(data: Option<&DatasetPrefix>) -> ProbeFindings {
    let overrides = std::env::vars()
        .filter(|(name, value)| name.starts_with("AWS_ENDPOINT_URL") && !value.is_empty());
    let mut findings = ProbeFindings {
        backend: Some(ServiceBackend::Aws),
        overrides: overrides.collect(),
        is_on_aws: is_on_aws(),
        ..ProbeFindings::default()
    };
    let settings = match StackSettings::from_env() {
        Ok(settings) => settings,
        Err(error) => {
            findings.wrong.push(wrong(&error));
            return findings;
        }
    };
    findings.named = format!("namespace {}", settings.ns);
    note(&mut findings, "bucket", settings.bucket());
    let url = note(&mut findings, "coordinator", settings.coordinator_url());
    let aws = match tokio::time::timeout(CONFIG_TIMEOUT, Aws::from_env()).await {
        Ok(Ok(aws)) => aws,
        Ok(Err(error)) => {
            findings.wrong.push(wrong(&error));
            return findings;
        }
        Err(_) => {
            findings.wrong.push(
                "AWS_REGION is not set, and the AWS configuration names no \
                                 region"
                    .to_owned(),
            );
            return findings;
        }
    };
    let probes = aws.probes();
    findings.region = Some(probes.region());
    let keys = probes.keys().await;
    let has_keys = keys.is_ok();
    findings.keys = Some(keys);
    if !has_keys {
        return findings;
    }
    let coordinator = match url.as_ref().map(|url| aws.coordinator(url, settings.ns.clone())) {
        Some(Ok(coordinator)) => Some(coordinator),
        Some(Err(error)) => {
            findings.wrong.push(wrong(&error));
            None
        }
        None => None,
    };
    findings.url_region = coordinator.as_ref().and_then(|c| c.url_region()).map(str::to_owned);
    findings.coordinator_url = url;
    ask_all(findings, &settings, &probes, coordinator.as_ref(), data).await
}

/// Asks all services at once.
async fn ask_all(
    mut findings: ProbeFindings,
    settings: &StackSettings,
    probes: &DeploymentProbes,
    coordinator: Option<&HttpCoordinator>,
    data: Option<&DatasetPrefix>,
) -> ProbeFindings {
    let (bucket, ns) = (settings.bucket.as_deref(), &settings.ns);
    let on_aws = findings.overrides.is_empty();
    let function = async |name: Option<&str>| Some(probes.function(name?).await);
    let coordinator_function = settings.worker_function.as_deref().and_then(coordinator_of);
    let dataset = async |DatasetPrefix { bucket, prefix }: &DatasetPrefix| {
        probes.dataset(bucket, prefix).await
    };
    let (bucket, rights, answer, caller, dataset, called, worker, scaler, quota, vpc) = tokio::join!(
        async { Some(probes.bucket_region(bucket?).await) },
        async { Some(probes.bucket_rights(bucket?, ns).await) },
        async { Some(ask_for_job(coordinator?).await) },
        probes.caller(),
        async { Some((data?.clone(), dataset(data?).await)) },
        function(coordinator_function.as_deref()),
        function(settings.worker_function.as_deref()),
        function(settings.scaler_function.as_deref()),
        probes.quota(),
        async { if on_aws { probes.vpc().await } else { None } },
    );
    findings.responders = probes.responders();
    ProbeFindings {
        bucket,
        rights,
        coordinator: answer,
        coordinator_function: called,
        caller: Some(caller),
        dataset,
        worker,
        scaler,
        quota: Some(quota),
        vpc,
        ..findings
    }
}

/// Name of the coordinator's function in the stack of a worker's function, by name or ARN.
fn coordinator_of(worker: &str) -> Option<String> {
    let (stack, version) = worker.rsplit_once("-worker")?;
    let is_version = version.is_empty() || version.starts_with(':');
    is_version.then(|| format!("{stack}-coordinator"))
}

/// Records a setting, or that it is missing.
fn note(
    findings: &mut ProbeFindings,
    what: &str,
    setting: Result<&str, SettingsError>,
) -> Option<String> {
    match setting {
        Ok(value) => {
            findings.named += &format!(", {what} {value}");
            Some(value.to_owned())
        }
        Err(error) => {
            findings.wrong.push(wrong(&error));
            None
        }
    }
}

/// The error without its advice, which is the same for all settings.
fn wrong(error: &SettingsError) -> String {
    match error {
        SettingsError::Missing(name) => format!("{name} is not set"),
        error => error.to_string(),
    }
}

async fn probe_local(file: &ServiceFile) -> Result<ProbeFindings, ProgramFailure> {
    let calls = HostServiceClient::new(file);
    let mut findings = ProbeFindings {
        backend: Some(ServiceBackend::Local),
        named: format!(
            "{}, process {}, state in {}",
            file.endpoint,
            file.pid,
            file.state_dir.display()
        ),
        coordinator_url: Some(file.endpoint.clone()),
        ..ProbeFindings::default()
    };
    let status = in_time(&file.endpoint, calls.status()).await;
    if status.is_ok() {
        findings.coordinator = Some(ask_for_job(&calls).await);
        findings.disk = calls.disk().await.ok();
    }
    findings.service = Some(status);
    Ok(findings)
}

async fn ask_for_job(coordinator: &dyn Coordinator) -> Result<AnyReply, CallError> {
    let job = NO_SUCH_JOB.parse().map_err(|error| CallError::Rejected(format!("{error}")))?;
    in_time("the coordinator", coordinator.exchange(&StatusCall { job }.into())).await
}

async fn in_time<T>(
    who: &str,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(PROBE_DEADLINE, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let text = format!("{who}: no answer within {} s", PROBE_DEADLINE.as_secs());
            Err(CallError::Unavailable(text))
        }
    }
}
