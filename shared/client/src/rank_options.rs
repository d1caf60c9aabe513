//! Options about the ranks of a run.

use crate::{JobHandle, ProgramFailure, read_user_text};
use clap::Args;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::replicas::RankReplicas;
use gristmill_model::splits::run::TrainingRun;
use gristmill_model::{Checkpoint, RunToken};
use gristmill_pipeline::Pipeline;
use gristmill_stream::ServedRanks;
use std::{num::NonZeroU32, path::Path};

/// Most bytes of a checkpoint's file.
const MAX_CHECKPOINT_BYTES: u64 = 4 << 10;
/// Most ranks of a run: a larger number is a mistake.
const MAX_RANKS: u32 = 1 << 20;

/// The last batches of an epoch, if they are fewer than the ranks.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct TailOption {
    /// Last batches of an epoch that are fewer than the ranks: drop, repeat or uneven
    ///
    /// drop: no rank gets them. repeat: ranks that would have none get one of the others, marked as a repeat. uneven:
    /// the last ranks get none, for evaluation. Default: drop if the pipeline drops its remainder, else repeat.
    #[arg(long, value_name = "TAIL")]
    pub tail: Option<TailPolicy>,
}

impl TailOption {
    /// The treatment in a run of `pipeline`.
    pub fn resolve(self, pipeline: &Pipeline) -> TailPolicy {
        self.tail.unwrap_or(TailPolicy::default_for(pipeline.drop_remainder()))
    }
}

/// Ranks that take the same batches.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ReplicaOption {
    /// Ranks that take the same batches, as tensor-, pipeline- and context-parallel peers do: R, or AxB
    ///
    /// R neighbouring ranks take the same batch: with 2, ranks 0 and 1, 2 and 3, and so on. In a mesh with the data
    /// dimension elsewhere, the number of ranks before and after that dimension: 2x4 for pipeline 2, data, tensor 4.
    /// Ranks are counted as launchers count them, replicas included. Default: 1.
    #[arg(long, value_name = "R")]
    pub replicas: Option<RankReplicas>,
}

impl ReplicaOption {
    /// The replicas among `ranks` ranks, which they must divide.
    pub fn resolve(self, ranks: NonZeroU32) -> Result<RankReplicas, ProgramFailure> {
        let replicas = self.replicas.unwrap_or_default();
        let refusal = replicas.refusal(ranks).map(|why| format!("--replicas {replicas}: {why}"));
        refusal.map_or(Ok(replicas), |why| Err(ProgramFailure::Usage(why)))
    }
}

/// The ranks of a training run that one process serves.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Several ranks")]
pub struct RankOptions {
    /// Serve these ranks of a training run, such as 8-15: every rank connects to --socket by itself
    ///
    /// Each step of the run gives every rank one batch. The fetchers of all hosts share one job: start one on each
    /// host, with the host's ranks, the same --of and the same --run. docs/training.md describes checkpoints, and
    /// what happens when a rank, a fetcher or a host fails.
    #[arg(long, value_name = "A-B", value_parser = parse_range, requires = "of")]
    pub ranks: Option<RankRange>,
    /// Number of ranks of the run, on all hosts together
    #[arg(long, value_name = "C", requires = "ranks")]
    pub of: Option<NonZeroU32>,
    /// Name of the run: the same on all hosts, and another whenever all ranks start again
    ///
    /// Default: torchrun's run id and restart count, else Slurm's job, step and restart count.
    #[arg(long, value_name = "NAME", requires = "ranks")]
    pub run: Option<String>,
    /// Checkpoint that a new run begins at, a file or the text itself; default: that of the ranks
    #[arg(long, value_name = "CHECKPOINT", requires = "ranks")]
    pub resume: Option<String>,
    #[command(flatten)]
    pub replicas: ReplicaOption,
    #[command(flatten)]
    pub tail: TailOption,
}

impl RankOptions {
    /// The ranks of a run of `job` to serve, of which nobody knows yet whether it has begun; none to serve one trainer of
    /// all batches.
    pub fn own(&self, job: &JobHandle) -> Result<Option<ServedRanks>, ProgramFailure> {
        let Some((range, count)) = self.range()? else { return Ok(None) };
        let tail = self.tail.resolve(&job.pipeline().map_err(ProgramFailure::failed)?);
        let replicas = self.replicas.resolve(count)?;
        let ranks = RunRanks { replicas, ..RunRanks::new(count, Cursor::default(), tail) };
        let run = TrainingRun { token: self.token()?, ranks, epochs: job.epochs };
        Ok(Some(ServedRanks { range, ..ServedRanks::all(run) }))
    }

    /// The ranks to serve, and the number of all ranks; none to serve one trainer of all batches, for which --tail and
    /// --replicas are errors.
    pub fn range(&self) -> Result<Option<(RankRange, NonZeroU32)>, ProgramFailure> {
        let (Some(range), Some(of)) = (self.ranks, self.of) else {
            return match (self.tail.tail, self.replicas.replicas) {
                (Some(_), _) => Err(ProgramFailure::usage(
                    "--tail is about several ranks: give --ranks and --of",
                )),
                (None, Some(_)) => Err(ProgramFailure::usage(
                    "--replicas is about several ranks: give --ranks and --of",
                )),
                (None, None) => Ok(None),
            };
        };
        if of.get() > MAX_RANKS {
            return Err(ProgramFailure::Usage(format!(
                "--of {of}: {MAX_RANKS} ranks are the most"
            )));
        }
        if range.end() > of.get() {
            let last = range.end() - 1;
            return Err(ProgramFailure::Usage(format!(
                "--ranks names rank {last}, and --of {of} has ranks 0 to {}: give --of the number of ranks on all \
                 hosts together",
                of.get() - 1
            )));
        }
        self.replicas.resolve(of)?;
        Ok(Some((range, of)))
    }

    /// The token of the run.
    pub fn token(&self) -> Result<RunToken, ProgramFailure> {
        self.token_by(|name| std::env::var(name).ok())
    }

    /// The token of the run. `variable` reads the environment.
    fn token_by(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<RunToken, ProgramFailure> {
        let name = self.run.clone().or_else(|| name_of_launcher(variable));
        let name = name.filter(|name| !name.trim().is_empty()).ok_or_else(|| {
            ProgramFailure::usage(
                "--run names this run of the training program: give all hosts the same name, and another one \
                 whenever all ranks start again (torchrun and Slurm name it in the environment)",
            )
        })?;
        Ok(RunToken::from_name(&name))
    }

    /// The checkpoint that the run begins at.
    pub fn checkpoint(&self) -> Result<Option<Checkpoint>, ProgramFailure> {
        let Some(resume) = &self.resume else { return Ok(None) };
        let named = |why: String| ProgramFailure::Usage(format!("--resume {resume}: {why}"));
        let text = if resume.trim_start().starts_with('{') {
            resume.clone()
        } else {
            read_user_text(Path::new(resume), MAX_CHECKPOINT_BYTES).map_err(named)?
        };
        let parsed = text.parse::<Checkpoint>();
        parsed.map(Some).map_err(|error| ProgramFailure::Usage(format!("--resume: {error}")))
    }
}

/// The name of the run by torchrun's or Slurm's variables.
fn name_of_launcher(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let restarts = |name: &str| set(name).unwrap_or_else(|| "0".to_owned());
    if let Some(run) = set("TORCHELASTIC_RUN_ID").filter(|run| run != "none") {
        return Some(format!("torchrun {run} {}", restarts("TORCHELASTIC_RESTART_COUNT")));
    }
    let (job, step) = (set("SLURM_JOB_ID")?, set("SLURM_STEP_ID")?);
    Some(format!("slurm {job}.{step} {}", restarts("SLURM_RESTART_COUNT")))
}

/// Reads `8-15` or `3`.
fn parse_range(text: &str) -> Result<RankRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parsed = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
    let range = parsed.and_then(|(first, last)| {
        let count = last.checked_sub(first)?.checked_add(1)?;
        first.checked_add(count)?;
        Some(RankRange { first, count: NonZeroU32::new(count)? })
    });
    range.ok_or_else(|| "give the first and the last rank, such as 8-15, or one rank".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn ranks_are_a_range_within_the_run() {
        assert_eq!(parse_range("8-15"), Ok(RankRange { first: 8, count: count(8) }));
        assert_eq!(parse_range("3"), Ok(RankRange { first: 3, count: count(1) }));
        for text in ["", "-", "8-", "-8", "8-7", "a-b", "0-4294967295", "4294967295"] {
            assert!(parse_range(text).is_err(), "{text}");
        }
        let options = |ranks, of| RankOptions {
            ranks: Some(parse_range(ranks).unwrap()),
            of: Some(count(of)),
            ..RankOptions::default()
        };
        assert!(options("2-3", 4).range().is_ok_and(|own| own.is_some()));
        let why = options("2-4", 4).range().unwrap_err().to_string();
        assert!(why.contains("--ranks names rank 4, and --of 4 has ranks 0 to 3"), "{why}");
        assert!(RankOptions::default().range().is_ok_and(|own| own.is_none()));
    }

    #[test]
    fn replicas_are_part_of_all_ranks() {
        let replicas = |text: &str| ReplicaOption { replicas: Some(text.parse().unwrap()) };
        let options = |text| RankOptions {
            ranks: Some(parse_range("2-3").unwrap()),
            of: Some(count(8)),
            replicas: replicas(text),
            ..RankOptions::default()
        };
        assert!(options("2x2").range().is_ok_and(|own| own.is_some()));
        let why = options("3").range().unwrap_err().to_string();
        assert!(why.contains("--replicas 3: 8 ranks are no multiple of 3 replicas"), "{why}");
        let alone = RankOptions { replicas: replicas("2"), ..RankOptions::default() };
        let why = alone.range().unwrap_err().to_string();
        assert!(why.contains("--replicas is about several ranks"), "{why}");
    }

    #[test]
    fn a_run_is_named_by_the_user_or_the_launcher() {
        let named = |run: Option<&str>, variables: &[(&str, &str)]| {
            let options = RankOptions { run: run.map(str::to_owned), ..RankOptions::default() };
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            options.token_by(|name| find(name).map(|(_, value)| (*value).to_owned())).ok()
        };
        let torch = [("TORCHELASTIC_RUN_ID", "r"), ("TORCHELASTIC_RESTART_COUNT", "2")];
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")];
        assert_eq!(named(Some("a"), &torch), Some(RunToken::from_name("a")));
        assert_eq!(named(None, &torch), Some(RunToken::from_name("torchrun r 2")));
        assert_eq!(named(None, &slurm), Some(RunToken::from_name("slurm 7.0 0")));
        assert_eq!(named(None, &[("TORCHELASTIC_RUN_ID", "none")]), None);
        assert_eq!(named(Some(" "), &torch), None);
        assert_eq!(named(None, &slurm[..1]), None);
    }

    #[test]
    fn a_checkpoint_is_a_text_or_a_file_of_one() {
        let options = |resume: &str| RankOptions {
            resume: Some(resume.to_owned()),
            ..RankOptions::default()
        };
        let fingerprint = "0".repeat(64);
        let text = format!(
            r#"{{"job":"j","fingerprint":"{fingerprint}","seed":0,"split_batches":1,"epoch":1,"g":8}}"#
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        std::fs::write(&path, format!("{text}\n")).unwrap();
        for resume in [&*text, path.to_str().unwrap()] {
            let read = options(resume).checkpoint().unwrap().unwrap();
            assert_eq!((read.epoch, read.batch_index), (1, 8));
        }
        let why = options("missing.json").checkpoint().unwrap_err().to_string();
        assert!(why.starts_with("--resume missing.json: "), "{why}");
        assert!(options("{}").checkpoint().unwrap_err().to_string().contains("not a checkpoint"));
        assert!(RankOptions::default().checkpoint().unwrap().is_none());
    }
}
