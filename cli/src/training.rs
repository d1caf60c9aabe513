//! A whole training run with a synthetic trainer, for `demo`, `run` and `bench`.

use crate::{output::StandardOutput, program, service::open};
use gristmill_client::{
    AuthoredPipeline, DatasetLocation, JobConfig, JobHandle, JobOptions, ProgramFailure,
    ReportOptions, ServiceBackend, ServiceConnection, ServiceLauncher, ServiceOptions,
    interruption,
    report::{ResourceUsage, RunReport},
    start_own,
};
use gristmill_model::Visitation;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::replicas::RankReplicas;
use gristmill_stream::waiting::while_saying;
use gristmill_synthetic::DatasetSpec;
use gristmill_trainer_sim::{
    BatchFileSink, ChaosTarget, OpenedSteps, ProcessKiller, RunningFetchers, SyntheticTraining,
    parse_duration, refuse_shares,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The demo's pipeline: ResNet training on ImageNet.
pub const RESNET: &str = include_str!("../../examples/resnet50.yaml");

const MAX_RANKS: u32 = 1_024;
/// How long a service may not answer the request to stop a job whose run failed.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Options of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct TrainOptions {
    #[command(flatten)]
    pub service: ServiceOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub training: SyntheticTraining,
    #[command(flatten)]
    pub report: ReportOptions,
    /// Kill processes at random while training
    #[arg(long, value_enum)]
    pub chaos: Option<ChaosTarget>,
    /// Mean time between two kills
    #[arg(long, default_value = "300ms", value_parser = parse_duration)]
    pub chaos_interval: Duration,
    /// Start a service that ends with this process, unless another one is named
    #[arg(skip)]
    pub own_service: bool,
}

impl TrainOptions {
    /// Why one machine does not train so, if it does not.
    fn refusal(&self) -> Option<String> {
        let SyntheticTraining { hosts, .. } = &self.training;
        let counts = || self.training.runs().map(|(ranks, _)| ranks);
        if counts().any(|ranks| ranks.get() > MAX_RANKS) {
            return Some(format!("at most {MAX_RANKS} ranks train on one machine"));
        }
        let undivided = |(ranks, replicas): (_, RankReplicas)| replicas.refusal(ranks);
        if let Some(why) = self.training.runs().find_map(undivided) {
            return Some(why);
        }
        if hosts.is_none() && self.chaos == Some(ChaosTarget::Fetchers) {
            let why =
                "--chaos kill-fetchers needs fetchers in processes of their own: give --hosts";
            return Some(why.to_owned());
        }
        let uneven = hosts.and_then(|hosts| counts().find_map(|ranks| refuse_shares(ranks, hosts)));
        let needed = Visitation::ExactlyOnce;
        let loses = !self.training.is_one_rank() && self.job.settings.visitation != needed;
        if uneven.is_some() || !loses {
            return uneven;
        }
        let why = "a run resumes at a checkpoint";
        Some(format!("--ranks, --hosts and --resize need --visitation {needed}: {why}"))
    }
}

impl Default for TrainOptions {
    /// The defaults of the flags.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Defaults {
            #[command(flatten)]
            options: TrainOptions,
        }
        <Defaults as clap::Parser>::parse_from([""]).options
    }
}

/// Runs the pipeline with its operators in the order that costs less, and prints the report.
pub async fn train(
    options: &TrainOptions,
    prefix: &str,
    authored: AuthoredPipeline,
    source: DatasetLocation,
) -> Result<(), ProgramFailure> {
    let authored = authored.shaped(&source, &options.job).await?;
    let ordered = authored.ordered(&source, &options.job.order).await?;
    if ordered.is_changed() {
        gristmill_client::complain!(
            "operators are reordered to reduce cost; `gristmill explain` shows how"
        );
    }
    let report = measured(options, prefix, &ordered.authored, source).await?;
    // A failure to write is noted and reported at the end: see `output::check`.
    let _ = report.print("gristmill", options.report.json, &mut StandardOutput);
    report.check()
}

/// Runs the pipeline as written, and returns its measurements.
pub async fn measured(
    options: &TrainOptions,
    prefix: &str,
    authored: &AuthoredPipeline,
    source: DatasetLocation,
) -> Result<RunReport, ProgramFailure> {
    let began = Instant::now();
    options.job.check().map_err(ProgramFailure::usage)?;
    if let Some(why) = options.refusal() {
        return Err(ProgramFailure::usage(why));
    }
    let sink = options.training.sink.as_deref().map(BatchFileSink::open).transpose()?;
    let launcher = options.training.hosts.map(|_| program::launcher()).transpose()?;
    options.report.report.as_deref().map(RunReport::check_page).transpose()?;
    let (service, _dir) = open_service(options).await?;
    let folders = source.folders();
    let config = JobConfig {
        name_prefix: prefix.to_owned(),
        ..JobConfig::new(authored.clone(), source, options.job.clone())
    };
    let outcome = tokio::select! {
        outcome = train_on(&service, options, config, sink, launcher, began) => {
            outcome.map_err(|failure| failure.in_words(&folders))
        }
        failure = service.given_up(options.training.stream.patience) => Err(failure),
        by = interruption() => Err(ProgramFailure::Interrupted(by)),
    };
    service.close().await;
    outcome
}

/// The service of a run, and the directory of its state if it is removed at the end.
async fn open_service(
    options: &TrainOptions,
) -> Result<(ServiceConnection, Option<TempDir>), ProgramFailure> {
    let ServiceOptions { backend, endpoint, state_dir } = &options.service;
    let is_named = *backend == ServiceBackend::Aws || endpoint.is_some() || state_dir.is_some();
    let crashes = options.chaos == Some(ChaosTarget::Coordinator);
    if crashes && is_named {
        return Err(ProgramFailure::usage(
            "--chaos kill-coordinator kills a service of its own: leave out --endpoint, --state-dir and --backend",
        ));
    }
    if is_named || !crashes && !options.own_service {
        return Ok((open(&options.service).await?, None));
    }
    let launcher = program::launcher()?;
    // A service that is killed finds its state when it starts again.
    let dir = crashes.then(|| tempfile::Builder::new().prefix("gristmill-").tempdir());
    let dir = dir.transpose().map_err(ProgramFailure::failed)?;
    let path = dir.as_ref().map(TempDir::path);
    Ok((start_own(&launcher, path, program::operators()).await?, dir))
}

async fn train_on(
    service: &ServiceConnection,
    options: &TrainOptions,
    config: JobConfig,
    sink: Option<BatchFileSink>,
    launcher: Option<ServiceLauncher>,
    began: Instant,
) -> Result<RunReport, ProgramFailure> {
    let fetchers = RunningFetchers::default();
    let starting = async {
        let before = ResourceUsage::now(service).await;
        let job = service.submit(config, options.training.stream.patience).await?;
        if !job.left_out.is_empty() {
            gristmill_client::complain!("{}", job.left_out);
        }
        // A named job goes on where it was paused.
        let from = match options.job.job {
            Some(_) => job.status(options.training.stream.patience).await?.durable,
            None => Cursor::default(),
        };
        let epochs = job.view.spec.epochs;
        if from >= Cursor::start_of(epochs) {
            let job = &job.view.job;
            gristmill_client::complain!(
                "job {job} has delivered its {epochs} epochs: `--epochs` with a larger number reads on"
            );
        }
        let opened = options.training.open(&job, from, launcher, &fetchers).await?;
        Ok::<(ResourceUsage, JobHandle, OpenedSteps), ProgramFailure>((before, job, opened))
    };
    let say = |what: &str| gristmill_client::complain!("waiting for {what}");
    let (before, job, opened) =
        while_saying(starting, || Some(service.link.waiting()), say).await?;
    let chaos =
        ProcessKiller::new(service, options.chaos, options.chaos_interval, fetchers.clone());
    let trained = chaos.run_beside(options.training.train(opened, &job, sink, began)).await;
    let (observed, ranks) = match trained {
        Ok(trained) => trained,
        Err(failure) => {
            // A named job is paused: another run may have taken it over, or goes on with it. Best effort: the failure that
            // led here is the one to report.
            if options.job.job.is_none() {
                let _ = job.stop(STOP_TIMEOUT).await;
            }
            return Err(failure);
        }
    };
    let mut report = RunReport::new(&job, observed, &before).await?;
    (report.kills, report.ranks, report.hosts) = (chaos.kills(), ranks, options.training.hosts);
    let SyntheticTraining { step_time, step_cores, .. } = options.training;
    let cores = available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    report.predict(step_time, cores, step_cores);
    if let Some(path) = &options.report.report {
        report.write_page(path)?;
        gristmill_client::complain!("wrote {}", path.display());
    }
    Ok(report)
}

/// Generates a dataset once per machine, or finds it; returns its directory. Ctrl-C removes an
/// unfinished one.
pub async fn make_dataset(spec: DatasetSpec) -> Result<PathBuf, ProgramFailure> {
    let dir = gristmill_synthetic::default_dir(&spec)
        .map_err(|error| ProgramFailure::usage(format!("{error:#}")))?;
    make_dataset_in(dir, spec).await
}

/// As [`make_dataset`], in a directory of the caller's choice.
pub async fn make_dataset_in(dir: PathBuf, spec: DatasetSpec) -> Result<PathBuf, ProgramFailure> {
    let stop = Arc::new(AtomicBool::new(false));
    let (making, stopped) = (dir.clone(), Arc::clone(&stop));
    let mut made = tokio::task::spawn_blocking(move || make_unless(&making, &spec, &stopped));
    tokio::select! {
        made = &mut made => {
            let made = made.map_err(ProgramFailure::failed)?;
            made.map_err(|error| ProgramFailure::failed(format!("{error:#}")))?;
            Ok(dir)
        }
        by = interruption() => {
            stop.store(true, Ordering::Relaxed);
            // It ends with an error that reports the interruption, once the unfinished files are
            // removed.
            let _ = made.await;
            Err(ProgramFailure::Interrupted(by))
        }
    }
}

fn make_unless(dir: &Path, spec: &DatasetSpec, stop: &AtomicBool) -> anyhow::Result<()> {
    let bar = ProgressBar::new(spec.records);
    if let Ok(style) =
        ProgressStyle::with_template("making records {bar:40} {pos}/{len} ({eta} left)")
    {
        bar.set_style(style);
    }
    let made = gristmill_synthetic::ensure(dir, spec, &|done, _| {
        bar.set_position(done);
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    made
}
