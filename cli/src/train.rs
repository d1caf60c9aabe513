//! `gristmill demo` and `gristmill run`: a whole training run with a synthetic trainer.

mod chaos;
mod measure;
mod progress;
mod recount;
mod report;
mod sink;
mod timeline;
mod trainer;

pub use progress::{make_dataset, make_dataset_in};
pub use report::Report;

use crate::{
    args::{DemoArgs, RunArgs, TrainArgs, Workers},
    attach::Stack,
    buckets::Division,
    failure::Failure,
    job, skipped,
};
use gristmill_client::{
    Authored, Fetcher, FetcherConfig, Listing, Source, signals::interruption, waiting::while_saying,
};
use gristmill_model::Sharding;
use gristmill_model::wire::{Call, JobStatus, JobView, Plan, Reply};
use gristmill_pipeline::{
    Pipeline,
    passes::{Change, Measured, Optimised, optimise},
};
use gristmill_synthetic::DatasetSpec;
use measure::Usage;
use progress::Progress;
use std::{path::Path, time::Instant};

/// What the demo runs: the ImageNet training pipeline everybody knows.
pub const RESNET: &str = include_str!("../../examples/resnet50.yaml");

pub async fn demo(args: DemoArgs) -> Result<(), Failure> {
    let pipeline = match &args.pipeline {
        Some(path) => job::read_pipeline(path)?,
        None => Pipeline::parse(RESNET).map_err(Failure::failed)?.into(),
    };
    let source = match (&args.train.data, &args.pipeline) {
        (Some(data), _) => parse_source(data, Path::new("."))?,
        // What is generated is one dataset.
        (None, Some(path)) if pipeline.pipeline.source().is_zip() => own(&pipeline, path)?,
        (None, _) => generated(&args).await?,
    };
    train(&args.train, "demo", pipeline, source).await
}

pub async fn run(args: RunArgs) -> Result<(), Failure> {
    let pipeline = job::read_pipeline(&args.pipeline)?;
    let source = match &args.train.data {
        Some(data) => parse_source(data, Path::new("."))?,
        None => own(&pipeline, &args.pipeline)?,
    };
    train(&args.train, "run", pipeline, source).await
}

/// Where the pipeline in the file `path` says that its data lies.
pub fn own(authored: &Authored, path: &Path) -> Result<Source, Failure> {
    let base = path.parent().unwrap_or(Path::new("."));
    Source::parse_all(&authored.pipeline.source_paths(), base).map_err(Failure::usage)
}

pub fn parse_source(text: &str, base: &Path) -> Result<Source, Failure> {
    Source::parse(text, base).map_err(Failure::usage)
}

/// The demo's dataset.
async fn generated(args: &DemoArgs) -> Result<Source, Failure> {
    let dir = make_dataset(DatasetSpec::images(args.images, args.train.seed)).await?;
    Ok(Source::Local { root: dir, patterns: vec!["train-*".to_owned()] })
}

async fn train(
    args: &TrainArgs,
    prefix: &str,
    authored: Authored,
    source: Source,
) -> Result<(), Failure> {
    if args.workers == Workers::Fixed(0) && args.local_workers == 0 {
        return Err(Failure::usage("nobody would work: give --workers or --local-workers"));
    }
    if args.workers == Workers::Auto && args.sharding == Sharding::Off {
        return Err(Failure::usage(
            "`--sharding off` visits the dataset once for each worker, and `--workers auto` does not \
             say how many those are: write `--workers N`",
        ));
    }
    let Authored { pipeline, assets } = authored;
    let pipeline = match args.batch_size {
        Some(size) => pipeline.with_batch_size(size).map_err(Failure::usage)?,
        None => pipeline,
    };
    let pipeline = optimised(&pipeline);
    let report = measured(args, prefix, &Authored { pipeline, assets }, source).await?;
    report.print(args.json);
    report.verdict()
}

/// The pipeline as it is run.
pub fn optimised(pipeline: &Pipeline) -> Pipeline {
    let Optimised { pipeline, notes } = optimise(pipeline, &Measured::new());
    if notes.iter().any(|note| !matches!(note.change, Change::Refused { .. })) {
        eprintln!("operators run in a cheaper order than written; `gristmill explain` says which");
    }
    pipeline
}

/// A whole run, and what it came to.
pub async fn measured(
    args: &TrainArgs,
    prefix: &str,
    authored: &Authored,
    source: Source,
) -> Result<Report, Failure> {
    let started = Instant::now();
    let sink = args.sink.as_deref().map(sink::Sink::open).transpose()?;
    args.report.as_deref().map(check_report).transpose()?;
    let stack = Stack::open(args).await?;
    let folders = source.folders();
    let trouble = stack.local.as_ref().map(|local| async || local.admin.trouble().await.ok());
    let outcome = tokio::select! {
        outcome = train_on(&stack, args, prefix, authored, source, sink, started) => {
            outcome.map_err(|Failure { code, message }| Failure {
                code,
                message: folders.in_words(&message),
            })
        }
        why = gristmill_client::give_up(trouble, &stack.link, args.patience) => Err(Failure::failed(why)),
        by = interruption() => Err(Failure::interrupted(by)),
    };
    stack.close().await;
    outcome
}

/// Whether a report may be written to `path`: it is too late to find out when training has ended.
fn check_report(path: &Path) -> Result<(), Failure> {
    let cannot =
        |why: &str| Failure::usage(format!("--report {} cannot be written: {why}", path.display()));
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (path.is_dir(), dir.is_dir()) {
        (true, _) => Err(cannot("it is a directory")),
        (false, true) => Ok(()),
        (false, false) => Err(cannot("its directory is not there")),
    }
}

async fn train_on(
    stack: &Stack,
    args: &TrainArgs,
    prefix: &str,
    authored: &Authored,
    source: Source,
    sink: Option<sink::Sink>,
    started: Instant,
) -> Result<Report, Failure> {
    let pipeline = &authored.pipeline;
    let starting = async {
        let before = Usage::now(stack).await;
        let Listing { dataset, left_out: files } =
            job::dataset(stack, pipeline, source.clone()).await?;
        let view = job::register(stack, args, prefix, authored, dataset).await?;
        let config = FetcherConfig {
            local_workers: args.local_workers,
            prefetch_bytes: args.prefetch_mib << 20,
            patience: args.patience,
            folders: source.folders(),
            ..FetcherConfig::new(stack.ns.clone(), stack.bucket.clone(), view.job.clone())
        };
        let fetcher = Fetcher::start(stack.ports.clone(), config).await.map_err(Failure::failed)?;
        Ok::<_, Failure>((before, view, fetcher, files))
    };
    let say = |what: &str| eprintln!("waiting for {what}");
    let (before, view, fetcher, files) =
        while_saying(starting, || Some(stack.link.waiting()), say).await?;
    let chaos = chaos::Killer::new(stack, args);
    let progress = Progress::new(&view, args.epochs);
    let trainer = trainer::Trainer::new(args, pipeline, sink, progress, started);
    // The killer ends with the training it disturbs.
    let trained = tokio::select! {
        trained = trainer.train(fetcher, stack) => trained,
        never = chaos.run() => match never {},
    };
    let trained = match trained {
        Ok(trained) => trained,
        Err(failure) => {
            discard(stack, &view.job).await;
            return Err(failure);
        }
    };
    let usage = Usage::now(stack).await.since(&before);
    let left_out = match trained.epochs.iter().any(|epoch| epoch.skipped > 0) {
        true => skipped::Report::read(stack, &view.job).await?.in_words_of(&source.folders()),
        false => skipped::Report::default(),
    };
    let call = Call::Status { job: view.job.clone() };
    let JobStatus { profile, job: known, .. } = match crate::status::call(stack, &call).await? {
        Reply::Status(status) => status,
        other => return Err(crate::status::unexpected(&other)),
    };
    if let Some(why) =
        known.plan.and_then(|plan| division(args, &known, plan).idle_buckets(pipeline))
    {
        eprintln!("{why}");
    }
    let stalls = trained.epochs.iter().map(|epoch| timeline::stalls(args, epoch, &profile));
    let stalls = stalls.collect();
    if let Some(path) = &args.report {
        let known = (&view, source.to_string());
        let timeline = timeline::timeline(args, pipeline, (known.0, &known.1), &trained, &profile);
        std::fs::write(path, gristmill_report::render(&timeline)).map_err(|error| {
            Failure::failed(format!("the report cannot be written to {}: {error}", path.display()))
        })?;
        eprintln!("wrote {}", path.display());
    }
    let report = Report::new(args, &view.job, trained, usage, chaos.kills(), left_out, stalls);
    Ok(report.of_files(files))
}

/// How the dataset of `job` was divided.
fn division(args: &TrainArgs, job: &JobView, plan: Plan) -> Division {
    Division {
        records: plan.records / u64::from(plan.copies.max(1)),
        files: u64::from(job.n_files),
        split_records: u64::from(plan.split_records),
        is_told: args.split_batches.is_some(),
    }
}

/// Stops a job that nobody will finish, so that workers do not go on for it.
async fn discard(stack: &Stack, job: &gristmill_model::JobName) {
    let call = Call::Stop { job: job.clone() };
    // Best effort: the failure that led here is the one to report.
    let _ = stack.ports.coordinator.call(&call).await;
}
