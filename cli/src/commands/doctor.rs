//! `gristmill doctor`: checks the service before training. Probes everything at once, then decides,
//! and prints one line per check.

mod probing;
mod verdicts;

use crate::output::say;
use gristmill_client::{ProgramFailure, ServiceOptions};
use serde::Serialize;
use serde_json::json;

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
    let address = text.strip_prefix("s3://").filter(|rest| !rest.is_empty() && !rest.starts_with('/'));
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
        let findings = probing::probe(&self.service, self.data.as_ref()).await?;
        let checks = verdicts::judge(&findings, self.workers);
        let failed = checks.iter().filter(|check| check.verdict == DoctorCheckStatus::Fail).count();
        if self.json { say!("{}", json!({ "checks": checks, "ok": failed == 0 })) } else { checks.iter().for_each(|check| say!("{}", as_line(check))) }
        match failed {
            0 => Ok(()),
            failed => Err(ProgramFailure::failed(format!("{failed} of {} checks failed", checks.len()))),
        }
    }
}

fn as_line(check: &DoctorCheck) -> String {
    let DoctorCheck { name, verdict, found, advice } = check;
    let line = format!("{:<5} {name:<12} {found}", <&str>::from(*verdict));
    if advice.is_empty() { line } else { format!("{line}; {advice}") }
}
