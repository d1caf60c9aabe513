//! `gristmill status` and `gristmill stop`: one job of a running service.

use crate::output::{say, say_all};
use crate::{
    args::{ForgetArgs, StatusArgs, StopArgs},
    attach::Stack,
    failure::Failure,
    skipped,
};
use gristmill_client::Folders;
use gristmill_model::wire::{Call, EpochMode, JobState, JobStatus, JobView, RefusalKind, Reply};
use gristmill_ports::{CallError, call_with_retry};
use serde_json::json;
use std::time::Duration;

/// How long the service may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

pub async fn status(StatusArgs { job: args, skipped }: StatusArgs) -> Result<(), Failure> {
    let stack = Stack::running(&args.service).await?;
    let status = match call(&stack, &Call::Status { job: args.job.clone() }).await? {
        Reply::Status(status) => status,
        other => return Err(unexpected(&other)),
    };
    if skipped {
        let report = skipped::Report::read(&stack, &args.job).await?;
        let report = report.in_words_of(&stack.folders().await);
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
    let now_ms = stack.ports.clock.now_ms();
    let status = in_words(status, &stack.folders().await);
    match args.json {
        true => say!("{}", as_json(&status)),
        false => say_all!("{}", as_text(&status, now_ms)),
    }
    Ok(())
}

/// With the paths of `folders` in place of their buckets.
fn in_words(mut status: JobStatus, folders: &Folders) -> JobStatus {
    status.trouble = status.trouble.map(|trouble| folders.in_words(&trouble));
    if let JobState::Failed { error } = &mut status.job.state {
        *error = folders.in_words(error);
    }
    status
}

pub async fn stop(StopArgs { job: args }: StopArgs) -> Result<(), Failure> {
    let stack = Stack::running(&args.service).await?;
    match call(&stack, &Call::Stop { job: args.job.clone() }).await? {
        Reply::Job(view) if args.json => {
            say!("{}", json!({ "job": view.job, "state": word(&view.state) }))
        }
        Reply::Job(view) => say!("job {} is {}", view.job, state(&view)),
        Reply::Applied if args.json => {
            say!("{}", json!({ "job": args.job, "state": "stopped" }))
        }
        Reply::Applied => say!("job {} is stopped", args.job),
        other => return Err(unexpected(&other)),
    }
    Ok(())
}

pub async fn forget(ForgetArgs { job: args }: ForgetArgs) -> Result<(), Failure> {
    let stack = Stack::running(&args.service).await?;
    let (mut deleted_items, mut deleted_objects) = (0, 0);
    // A large job takes several calls.
    loop {
        match call(&stack, &Call::Forget { job: args.job.clone() }).await? {
            Reply::Forgotten { items, objects, all } => {
                deleted_items += items;
                deleted_objects += objects;
                if all {
                    break;
                }
                eprintln!("{deleted_items} items deleted so far");
            }
            other => return Err(unexpected(&other)),
        }
    }
    let job = &args.job;
    match args.json {
        true => {
            say!("{}", json!({ "job": job, "items": deleted_items, "objects": deleted_objects }))
        }
        false => say!(
            "job {job} is forgotten: {deleted_items} items and {deleted_objects} objects deleted; the name is free"
        ),
    }
    Ok(())
}

pub async fn call(stack: &Stack, call: &Call) -> Result<Reply, Failure> {
    let answer = call_with_retry(&*stack.ports.coordinator, &*stack.ports.clock, call, PATIENCE);
    answer.await.map_err(|error| match &error {
        CallError::Refused(refusal) if refusal.kind == RefusalKind::NotFound => {
            Failure::usage(error)
        }
        _ => Failure::failed(error),
    })
}

pub fn unexpected(reply: &Reply) -> Failure {
    Failure::failed(format!("the coordinator's answer does not fit: {reply:?}"))
}

fn word(state: &JobState) -> &'static str {
    match state {
        JobState::Indexing => "indexing",
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Stopped => "stopped",
        JobState::Failed { .. } => "failed",
    }
}

fn state(view: &JobView) -> String {
    match &view.state {
        JobState::Failed { error } => format!("failed: {error}"),
        state => word(state).to_owned(),
    }
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
        "delivered": { "epoch": delivered.0, "position": delivered.1 },
        "durable": { "epoch": durable.0, "g": durable.1 },
        "heartbeat_ms": status.heartbeat_ms,
        "splits_ready": status.ready,
        "splits_claimable": status.claimable,
        "files": job.n_files,
        "files_indexed": status.indexed_files,
        "trouble": status.trouble,
        "workers": { "active": status.active_workers, "outstanding": scale.outstanding.len(), "wanted": job.spec.workers },
        "scaling": scale.log,
        "modes": job.caching.as_ref().map(|caching| &caching.modes),
    })
}

/// How far a restart need not go back; `durable` is the next batch it needs, epochs counted from 0.
fn safe(durable: (u32, u64), epochs: u32) -> String {
    match durable {
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
                (delivered.0 + 1).min(job.spec.epochs),
                job.spec.epochs,
                if delivered.0 < job.spec.epochs { delivered.1 } else { plan.n_splits },
                plan.n_splits,
                safe(*durable, job.spec.epochs),
            );
            text += &format!("splits    {} ready, {} to claim\n", status.ready, status.claimable);
        }
        None => text += &format!("indexed   {} of {} files\n", status.indexed_files, job.n_files),
    }
    text += &format!(
        "workers   {} at work, {} started, {} wanted\n",
        status.active_workers,
        scale.outstanding.len(),
        job.spec.workers
    );
    if let Some(trouble) = &status.trouble {
        text += &format!("trouble   {trouble}\n");
    }
    text += &match status.heartbeat_ms {
        0 => "trainer   not heard of yet\n".to_owned(),
        at_ms => format!("trainer   last heard of {} s ago\n", now_ms.saturating_sub(at_ms) / 1000),
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
