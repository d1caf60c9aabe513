//! A job from its registration to its end: data, workers and trainer.

use crate::{
    figures::Figures,
    platform::Link,
    world::{BUCKET, DATA, World},
};
use gristmill_client::{Delivery, Fetcher, FetcherConfig, FetcherPorts};
use gristmill_model::InvocationId;
use gristmill_model::wire::{
    Dataset, Describe, IdleReason, JobSpec, Leave, Register, Release, SourceFile,
};
use gristmill_pipeline::Pipeline;
use gristmill_ports::{Coordinator, ObjectPath, Objects as _, call_with_retry};
use gristmill_runner::{Compute, Ended, JobContext, ObjectSink, RunError, Runner, RunnerConfig};
use gristmill_synthetic::tfrecord::{Example, RecordWriter};
use std::{sync::Arc, time::Duration};

/// Latencies of the object store for workers.
const GET: Duration = Duration::from_millis(20);
const PUT: Duration = Duration::from_millis(60);
/// Latency for the trainer's host: low, so that it is never the limit.
const TRAINER_GET: Duration = Duration::from_micros(200);
/// All workers start within this time.
const STAGGER: Duration = Duration::from_millis(2_500);
/// Time limit of an invocation.
const LIFE_MS: u64 = 900_000;
/// Invocations with less remaining time are not started.
const LEAST_LIFE_MS: u64 = 10_000;
/// Longest absence of a worker that found nothing to do.
const IDLE: Duration = Duration::from_millis(1_000);
/// Time until the platform reports a death, and until another worker replaces it.
const REPORTED: Duration = Duration::from_millis(500);
const REPLACED: Duration = Duration::from_millis(1_000);
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
const RELEASE_PATIENCE: Duration = Duration::from_secs(60);
/// Measured part of the job.
const FROM: f64 = 0.3;
const TO: f64 = 0.9;
const PIPELINE: &str = "source: { tfrecord: x, features: { value: { key: value, dtype: i64 } } }\nops: [batch: { size: 1 }]\n";

pub type Failure = Box<dyn std::error::Error>;

/// Records committed splits, which begin and end the measured part.
pub fn committed(figures: &mut Figures, world: &World, splits: u64) {
    let total = f64::from(world.setting.splits);
    figures.committed += splits;
    if figures.is_measuring() {
        figures.measured += splits;
    }
    let part = figures.committed as f64 / total;
    if figures.began.is_none() && part >= FROM {
        begin(figures, world);
    } else if figures.is_measuring() && part >= TO {
        figures.ended = Some(world.now());
    }
}

pub fn begin(figures: &mut Figures, world: &World) {
    figures.began = Some(world.now());
    world.store().forget();
}

/// Ports of the trainer's fetcher.
pub fn ports(world: &Arc<World>) -> FetcherPorts {
    FetcherPorts {
        coordinator: link(world),
        objects: world.objects(TRAINER_GET, PUT),
        clock: world.clock(),
        compute: Compute::Inline,
        operators: Arc::default(),
    }
}

pub fn fetcher_config(world: &World) -> FetcherConfig {
    FetcherConfig {
        prefetch_bytes: 64 << 20,
        patience: Duration::from_secs(600),
        ..FetcherConfig::new(world.ns.clone(), BUCKET.to_owned(), world.job.clone())
    }
}

fn link(world: &Arc<World>) -> Arc<dyn Coordinator> {
    Arc::new(Link(Arc::clone(world)))
}

pub fn runner(world: &Arc<World>) -> Runner {
    Runner {
        coordinator: link(world),
        objects: world.objects(GET, PUT),
        clock: world.clock(),
        compute: Compute::Modelled(world.setting.split),
        operators: Arc::default(),
        config: RunnerConfig {
            ns: world.ns.clone(),
            bucket: BUCKET.to_owned(),
            local: false,
            shape: None,
        },
    }
}

/// Stores a dataset of one record for each split, and registers its job.
pub async fn register(world: &Arc<World>) -> Result<(), Failure> {
    let setting = &world.setting;
    let mut value = 0;
    for file in 0..setting.files {
        let (mut bytes, to) = (Vec::new(), u64::from(setting.splits) * u64::from(file + 1));
        let mut writer = RecordWriter::new(&mut bytes);
        while value < to / u64::from(setting.files) {
            writer.write(&Example::default().with_int("value", value as i64))?;
            value += 1;
        }
        writer.finish()?;
        let path = ObjectPath::new(DATA, format!("{file:07}"));
        world.objects.put_if_absent(&path, bytes.into(), "data").await?;
    }
    let listed = world.objects.list(DATA, "").await?;
    let file = |object: gristmill_ports::ObjectInfo| SourceFile {
        key: object.key,
        size: object.size,
        etag: object.etag,
    };
    let files = listed.into_iter().map(file).collect();
    let spec = JobSpec {
        seed: 7,
        split_batches: Some(1),
        workers: setting.workers,
        ..JobSpec::new(Pipeline::parse(PIPELINE)?.canonical_json())
    };
    let dataset = Dataset::one(DATA, files);
    let register = Register::new(world.job.clone(), spec, dataset);
    Fetcher::register(&ports(world), (&world.ns, BUCKET), register, Duration::from_secs(120))
        .await?;
    Ok(())
}

/// One place for a worker: invocation after invocation, each until it dies, its time is over or there is
/// nothing to do.
pub async fn worker(world: Arc<World>, number: u32, context: JobContext) {
    let runner = runner(&world);
    world.time.sleep(STAGGER.mul_f64(world.uniform())).await;
    // Invocations of a job that has run for a while end at different times.
    let mut deadline_ms =
        runner.clock.now_ms() + (LIFE_MS as f64 * (0.3 + 0.7 * world.uniform())) as u64;
    for life in 0_u32.. {
        if deadline_ms < runner.clock.now_ms() + LEAST_LIFE_MS {
            deadline_ms = runner.clock.now_ms() + LIFE_MS;
        }
        let invocation = InvocationId(format!("{number:08x}-0000-4000-8000-{life:012x}"));
        match live(&world, &runner, &context, &invocation, deadline_ms).await {
            Some(Ok(Ended::Idle(IdleReason::JobEnded))) => return,
            Some(Ok(Ended::Idle(_))) => {
                world.time.sleep(IDLE.mul_f64(0.5 + 0.5 * world.uniform())).await;
            }
            Some(Ok(Ended::OutOfTime)) => deadline_ms = 0,
            Some(Err(error)) => {
                world.meter.trouble(&format!("worker: {error}"));
                world.time.sleep(IDLE).await;
            }
            None => {
                tokio::spawn(report_death(Arc::clone(&world), runner.clone(), invocation, number));
                world.time.sleep(REPLACED).await;
                deadline_ms = 0;
            }
        }
    }
}

/// Works until the worker ends, or is killed: none.
async fn live(
    world: &Arc<World>,
    runner: &Runner,
    context: &JobContext,
    invocation: &InvocationId,
    deadline_ms: u64,
) -> Option<Result<Ended, RunError>> {
    let sink = ObjectSink { runner: runner.clone(), job: world.job.clone() };
    let work = runner.work(context, invocation, deadline_ms, &sink);
    let Some(mean) = world.setting.die else { return Some(work.await) };
    let dies = mean.mul_f64(-(1.0 - world.uniform()).ln());
    tokio::select! {
        biased;
        ended = work => Some(ended),
        () = world.time.sleep(dies) => {
            world.meter.figures().deaths += 1;
            None
        }
    }
}

/// The platform reports a worker that was killed.
async fn report_death(world: Arc<World>, runner: Runner, invocation: InvocationId, number: u32) {
    if world.setting.unreported {
        return;
    }
    world.pause(REPORTED).await;
    let (job, worker) = (world.job.clone(), Some(number));
    let call = Release { job, invocation, worker, blameless: false, error: String::new() };
    let sent = call_with_retry(&*runner.coordinator, &*runner.clock, call, RELEASE_PATIENCE).await;
    if let Err(error) = sent {
        world.meter.trouble(&format!("a death was not reported: {error}"));
    }
}

/// A worker that the scaler invoked.
pub async fn invoked_worker(world: Arc<World>, number: u32) {
    {
        let mut figures = world.meter.figures();
        figures.started += 1;
        if figures.started == world.setting.workers {
            figures.all_started = Some(world.now());
        }
    }
    let runner = runner(&world);
    let Some(context) = world.context.get().cloned() else { return };
    let described = Describe { job: world.job.clone() };
    let _ = call_with_retry(&*runner.coordinator, &*runner.clock, described, LEAVE_PATIENCE).await;
    let invocation = InvocationId(format!("{number:08x}-0000-4000-8000-000000000000"));
    let deadline_ms = runner.clock.now_ms() + LIFE_MS;
    match live(&world, &runner, &context, &invocation, deadline_ms).await {
        None => return report_death(world, runner, invocation, number).await,
        Some(Ok(_)) => {}
        Some(Err(error)) => world.meter.trouble(&format!("worker: {error}")),
    }
    leave(&world, &runner, number).await;
}

/// Reports that a worker leaves. Returns whether the report was accepted.
pub async fn leave(world: &World, runner: &Runner, worker: u32) -> bool {
    let call = Leave { job: world.job.clone(), worker, error: None };
    let sent = call_with_retry(&*runner.coordinator, &*runner.clock, call, LEAVE_PATIENCE).await;
    if let Err(error) = &sent {
        world.meter.trouble(&format!("leave: {error}"));
    }
    sent.is_ok()
}

/// Trains until the job is done or `most` batches are delivered; returns how many were. A trainer that
/// keeps checkpoints makes one every four batches a worker.
pub async fn train(world: &Arc<World>, most: u64, keeps: bool) -> Result<u64, Failure> {
    let mut fetcher = Fetcher::start(ports(world), fetcher_config(world)).await?;
    let every = (u64::from(world.setting.workers) * 4).max(32);
    let mut delivered = 0;
    while delivered < most {
        match fetcher.next().await? {
            Delivery::Batch(batch) => {
                delivered += 1;
                if keeps && batch.g % every == every - 1 {
                    fetcher.checkpointed(batch.epoch, batch.g);
                }
            }
            Delivery::EpochEnd(_) => {}
            Delivery::End => {
                fetcher.checkpointed_epochs(1);
                fetcher.finish().await?;
                break;
            }
        }
    }
    Ok(delivered)
}
