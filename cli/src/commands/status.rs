//! `gristmill status`: the state of one job of a running service.

use crate::{
    coordinator::call,
    jobs::{OneJob, state, word},
    output::{say, say_all},
};
use gristmill_client::{Failure, Folders, report::SkippedRecords};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::{EpochMode, JobState, JobStatus, Status};
use gristmill_policy::scaling::PolicyName;
use serde_json::json;

/// Report the state of a job of a running service
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill status j1 --state-dir state\n  gristmill status j1 --skipped --backend aws"
)]
pub struct Args {
    #[command(flatten)]
    pub job: OneJob,
    /// List the records that were left out, and why
    #[arg(long)]
    pub skipped: bool,
}

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        status(self).await
    }
}

async fn status(Args { job: args, skipped }: Args) -> Result<(), Failure> {
    let service = args.connect().await?;
    let status = call(&service, Status { job: args.job.clone() }).await?;
    if skipped {
        let report = SkippedRecords::read(&service, &args.job).await?;
        let report = report.in_words_of(&service.folders().await);
        match args.json {
            true => say!(
                "{}",
                json!({
                    "job": args.job,
                    "skipped": report.as_json(),
                    "quarantine": report.quarantine_json(),
                })
            ),
            false => {
                say_all!("{}", report.as_text(usize::MAX));
                say!("job {}: {} records were reported as left out", args.job, report.len());
            }
        }
        return Ok(());
    }
    let now_ms = service.ports.clock.now_ms();
    let status = in_words(status, &service.folders().await);
    match args.json {
        true => say!("{}", as_json(&status)),
        false => say_all!("{}", as_text(&status, now_ms)),
    }
    Ok(())
}

/// The status with the paths of `folders` in place of their buckets.
fn in_words(mut status: JobStatus, folders: &Folders) -> JobStatus {
    status.trouble = status.trouble.map(|trouble| folders.in_words(&trouble));
    if let JobState::Failed { error } = &mut status.job.state {
        *error = folders.in_words(error);
    }
    status
}

fn as_json(status: &JobStatus) -> serde_json::Value {
    let JobStatus { job, delivered, durable, scale, .. } = status;
    let error = match &job.state {
        JobState::Failed { error } => Some(error),
        _ => None,
    };
    json!({
        "job": job.job,
        "state": word(&job.state),
        "error": error,
        "epochs": job.spec.epochs,
        "splits_per_epoch": job.plan.map(|plan| plan.n_splits),
        "delivered": { "epoch": delivered.epoch, "position": delivered.position },
        "durable": { "epoch": durable.epoch, "batch_index": durable.batch_index },
        "heartbeat_ms": status.heartbeat_ms,
        "splits_ready": status.ready,
        "splits_claimable": status.claimable,
        "files": job.n_files,
        "files_indexed": status.indexed_files,
        "trouble": status.trouble,
        "workers": { "active": status.active_workers, "outstanding": scale.outstanding.len(), "desired": job.spec.workers },
        "policy": job.spec.policy,
        "scaling": scale.log,
        "modes": job.caching.as_ref().map(|caching| &caching.modes),
    })
}

/// The point before which no restart goes back; `durable` is the next batch it needs, with epochs
/// counted from 0.
fn safe(durable: Cursor, epochs: u32) -> String {
    match (durable.epoch, durable.batch_index) {
        (0, 0) => "no batch is acknowledged yet".to_owned(),
        (epoch, _) if epoch >= epochs => "every batch is acknowledged".to_owned(),
        (epoch, 0) => format!("every batch of epoch {epoch} is acknowledged"),
        (epoch, g) => format!("{g} batches of epoch {} are acknowledged", epoch + 1),
    }
}

fn as_text(status: &JobStatus, now_ms: u64) -> String {
    let JobStatus { job, delivered, durable, scale, .. } = status;
    let mut text = format!("job       {}: {}\n", job.job, state(job));
    match job.plan {
        Some(plan) => {
            text += &format!(
                "progress  epoch {} of {}, split {} of {}; {}\n",
                (delivered.epoch + 1).min(job.spec.epochs),
                job.spec.epochs,
                if delivered.epoch < job.spec.epochs { delivered.position } else { plan.n_splits },
                plan.n_splits,
                safe(*durable, job.spec.epochs),
            );
            text += &format!("splits    {} ready, {} to claim\n", status.ready, status.claimable);
        }
        None => text += &format!("indexed   {} of {} files\n", status.indexed_files, job.n_files),
    }
    text += &format!(
        "workers   {} at work, {} started, {} desired\n",
        status.active_workers,
        scale.outstanding.len(),
        job.spec.workers
    );
    if let Some(policy) = job.spec.policy.as_ref().filter(|policy| **policy != *PolicyName::default().as_str()) {
        text += &format!("policy    {policy}\n");
    }
    if let Some(trouble) = &status.trouble {
        text += &format!("trouble   {trouble}\n");
    }
    text += &match status.heartbeat_ms {
        0 => "trainer   has not reported yet\n".to_owned(),
        at_ms => format!("trainer   last reported {} s ago\n", now_ms.saturating_sub(at_ms) / 1000),
    };
    for EpochMode { from, mode, reason, .. } in job.caching.iter().flat_map(|c| &c.modes) {
        text += &format!("mode      from epoch {}: {mode} ({reason})\n", from + 1);
    }
    for decision in scale.log.iter().rev().take(3).rev() {
        text += &format!(
            "scaling   batch {}: {} workers ({})\n",
            decision.batch, decision.workers, decision.reason
        );
    }
    text
}
