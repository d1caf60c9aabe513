//! `gristmill status`: the state of one job of a running service.

use crate::{
    commands::ps::in_words as disk_in_words,
    output::{say, say_all},
    service::{NamedJobArgs, call, job_state_word, open_existing, state},
};
use gristmill_client::{ProgramFailure, printable, report::SkippedRecords};
use gristmill_model::{
    Checkpoint,
    splits::{Cursor, ReaderProgress, ranks::RunRanks, run::TrainingRun},
    wire::{
        EpochCacheMode, JobState, JobStatus, OptionChange, ReaderStatus, RunStatus, ScaleDecision,
        SpendingLedger, StatusCall,
    },
};
use gristmill_policy::scaling::PolicyName;
use gristmill_stream::FolderBuckets;
use serde_json::json;
use std::collections::BTreeMap;

/// Report the state of a job of a running service
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill status j1 --state-dir state\n  gristmill status j1 --skipped --backend aws\n  gristmill status j1 --checkpoint"
)]
pub struct StatusArgs {
    #[command(flatten)]
    pub job: NamedJobArgs,
    /// List the records that were left out, and why
    #[arg(long)]
    pub skipped: bool,
    /// Print the last durable checkpoint alone, as one line of JSON
    #[arg(long, conflicts_with = "skipped")]
    pub checkpoint: bool,
}

impl StatusArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let Self { job: args, skipped, checkpoint } = self;
        let service = open_existing(&args.service).await?;
        let status = call(&service, StatusCall { job: args.job.clone() }).await?;
        if checkpoint {
            say!("{}", Checkpoint::new(&status.job, status.durable));
            return Ok(());
        }
        if skipped {
            let report = SkippedRecords::read(&service, &args.job).await?;
            let report = report.in_words_of(&service.folders().await);
            if args.json {
                say!(
                    "{}",
                    json!({
                        "job": args.job,
                        "skipped": report.as_json(),
                        "quarantine": report.quarantine_json(),
                    })
                )
            } else {
                say_all!("{}", report.as_text(usize::MAX));
                say!("job {}: {} records were reported as left out", args.job, report.len());
            }
            return Ok(());
        }
        let now_ms = service.ports.clock.now_ms();
        let status = in_words(status, &service.folders().await);
        let disk = match &service.local {
            Some(local) => local.calls.disk().await.ok(),
            None => None,
        };
        if args.json {
            let mut json = as_json(&status);
            json["disk"] = json!(disk);
            say!("{json}");
            return Ok(());
        }
        let disk =
            disk.map_or(String::new(), |disk| format!("disk      {}\n", disk_in_words(disk)));
        say_all!("{}{disk}", as_text(&status, now_ms));
        Ok(())
    }
}

/// The status with the paths of `folders` in place of their buckets.
fn in_words(mut status: JobStatus, folders: &FolderBuckets) -> JobStatus {
    status.trouble = status.trouble.map(|trouble| printable(&folders.in_words(&trouble)));
    if let JobState::Failed { error, .. } = &mut status.job.state {
        *error = printable(&folders.in_words(error));
    }
    status
}

fn as_json(status: &JobStatus) -> serde_json::Value {
    let JobStatus { job, delivered, durable, scale, .. } = status;
    let error = match &job.state {
        JobState::Failed { error, .. } => Some(error),
        _ => None,
    };
    json!({
        "job": job.job,
        "state": job_state_word(&job.state),
        "error": error,
        "epochs": job.spec.epochs,
        "splits_per_epoch": job.plan.map(|plan| plan.n_splits),
        "delivered": delivered,
        "durable": durable,
        "heartbeat_ms": status.heartbeat_ms,
        "splits_ready": status.ready,
        "splits_claimable": status.claimable,
        "files": job.n_files,
        "files_indexed": status.indexed_files,
        "trouble": status.trouble,
        "workers": { "active": status.active_workers, "outstanding": scale.outstanding.len(), "desired": desired(status) },
        "policy": job.spec.policy,
        "budget_usd": job.spec.budget.map(|budget| budget.cap_usd()),
        "spent_usd": scale.spending.as_ref().map(SpendingLedger::spent_usd),
        "options": job.spec.options().collect::<BTreeMap<_, _>>(),
        "changes": job.changes.iter().map(change_json).collect::<Vec<_>>(),
        "scaling": scale.log,
        "run": status.run.as_ref().map(run_json),
        "modes": job.caching.as_ref().map(|caching| &caching.modes),
    })
}

/// The workers that the job should have: as many as the user set, or as the scaler decided last.
fn desired(JobStatus { job, scale, .. }: &JobStatus) -> u32 {
    let most = job.spec.most_workers();
    if job.spec.autoscale { scale.target.min(most) } else { most }
}

fn change_json(
    OptionChange { option, from, to, since, at_ms, .. }: &OptionChange,
) -> serde_json::Value {
    let since = json!(since);
    json!({ "option": option, "from": from, "to": to, "since": since, "at_ms": at_ms })
}

fn run_json(RunStatus { run, readers, uncovered, .. }: &RunStatus) -> serde_json::Value {
    let TrainingRun { ranks: RunRanks { count, from, tail, replicas }, epochs, .. } = *run;
    let reader = |reader: &ReaderStatus| {
        let ReaderProgress { ranks, delivered, durable, .. } = reader.progress;
        json!({
            "ranks": { "first": ranks.first, "count": ranks.count },
            "delivered": delivered,
            "durable": durable,
            "lag_batches": reader.lag_batches,
            "silent_ms": reader.silent_ms,
        })
    };
    json!({
        "token": run.token,
        "ranks": count,
        "replicas": replicas,
        "from": from,
        "tail": tail,
        "epochs": epochs,
        "readers": readers.iter().map(reader).collect::<Vec<_>>(),
        "waits_for": uncovered,
    })
}

/// The lines that describe the current run, its readers, and what it waits for.
fn run_text(RunStatus { run, readers, uncovered, .. }: &RunStatus) -> String {
    let mut text = format!("run       {run}\n");
    for ReaderStatus { progress, lag_batches, silent_ms } in readers {
        text += &format!(
            "reader    {}: {lag_batches} batches behind, last reported {} s ago\n",
            progress.ranks,
            silent_ms / 1_000
        );
    }
    if let Some(uncovered) = uncovered {
        text += &format!("waits     {uncovered}\n");
    }
    text
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
        desired(status)
    );
    if let Some(policy) =
        job.spec.policy.as_ref().filter(|policy| **policy != *PolicyName::default().as_str())
    {
        text += &format!("policy    {policy}\n");
    }
    if let Some(budget) = job.spec.budget {
        let spent = scale.spending.as_ref().map_or(0.0, SpendingLedger::spent_usd);
        text += &format!("spent     ${spent:.4} of ${}\n", budget.cap_usd());
    }
    if let Some(trouble) = &status.trouble {
        text += &format!("trouble   {trouble}\n");
    }
    text += &match status.heartbeat_ms {
        0 => "trainer   has not reported yet\n".to_owned(),
        at_ms => format!("trainer   last reported {} s ago\n", now_ms.saturating_sub(at_ms) / 1000),
    };
    if let Some(run) = &status.run {
        text += &run_text(run);
    }
    for EpochCacheMode { from, mode, reason, .. } in job.caching.iter().flat_map(|c| &c.modes) {
        text += &format!("mode      from epoch {}: {mode} ({reason})\n", from + 1);
    }
    for OptionChange { option, from, to, since, .. } in job.changes.iter().rev().take(3).rev() {
        text += &format!("changed   {option}: {from}, then {to} from {since} on\n");
    }
    for ScaleDecision { batch, workers, local, reason } in scale.log.iter().rev().take(3).rev() {
        let local = local.map_or_else(String::new, |local| format!(" and {local} local ones"));
        text += &format!("scaling   batch {batch}: {workers} workers{local} ({reason})\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::RunToken;
    use gristmill_model::splits::ranks::TailPolicy;
    use gristmill_model::splits::{SplitPlace, readers::RankRange, run::TrainingRun};
    use std::num::NonZeroU32;

    fn run() -> RunStatus {
        let of = |count| NonZeroU32::new(count).unwrap();
        let ranks = RunRanks::new(of(8), Cursor::new(0, 0), TailPolicy::Drop);
        let progress = ReaderProgress {
            generation: 1,
            reader: 2,
            ranks: RankRange { first: 4, count: of(4) },
            delivered: SplitPlace::new(0, 3),
            durable: Cursor::new(0, 12),
            durable_place: SplitPlace::new(0, 3),
            ended: None,
            heartbeat_ms: 5,
            local_workers: 0,
        };
        let reader = ReaderStatus { progress, lag_batches: 40, silent_ms: 12_900 };
        let uncovered = Some("rank 0 of 8 has no reader yet".to_owned());
        let run = TrainingRun { token: RunToken::from_name("t"), ranks, epochs: None };
        RunStatus { run, readers: vec![reader], uncovered, ended: None }
    }

    #[test]
    fn the_workers_that_are_wanted_are_as_many_as_were_decided() {
        let status = |autoscale: bool| -> JobStatus {
            let spec = json!({
                "pipeline": "", "seed": 0, "epochs": 1, "on_error": "fail", "numerics": "",
                "split_batches": null, "local_workers": 0, "max_skipped": "0",
                "workers": 100, "autoscale": autoscale,
            });
            let job = json!({
                "job": "j", "spec": spec, "dataset_version": "0".repeat(64), "n_files": 1, "state": "running",
            });
            let status = json!({
                "job": job, "delivered": SplitPlace::default(), "durable": Cursor::default(),
                "heartbeat_ms": 0, "ready": 0, "claimable": 0, "active_workers": 0, "indexed_files": 0,
                "scale": { "target": 3, "next_worker": 0, "outstanding": [], "log": [] },
            });
            serde_json::from_value(status).unwrap()
        };
        assert_eq!((desired(&status(true)), desired(&status(false))), (3, 100));
        assert!(as_text(&status(true), 0).contains("0 started, 3 desired"));
        assert_eq!(as_json(&status(true))["workers"]["desired"], 3);
    }

    #[test]
    fn each_reader_has_its_ranks_its_lag_and_its_silence() {
        assert_eq!(
            run_text(&run()),
            "run       8 ranks from batch 0 of epoch 0 with tail drop\n\
             reader    ranks 4-7: 40 batches behind, last reported 12 s ago\n\
             waits     rank 0 of 8 has no reader yet\n"
        );
        let json = run_json(&run());
        assert_eq!(json["readers"][0]["ranks"], json!({ "first": 4, "count": 4 }));
        assert_eq!((&json["ranks"], &json["tail"]), (&json!(8), &json!("drop")));
        assert_eq!(json["readers"][0]["silent_ms"], 12_900);
        assert_eq!(json["waits_for"], "rank 0 of 8 has no reader yet");
    }
}
