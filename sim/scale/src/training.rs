//! A job from its registration to its end: data, workers and trainer.

use crate::{
    deployment::{BUCKET, DATA, SimulatedDeployment},
    figures::ScaleFigures,
    platform::UrlCoordinator,
};
use gristmill_model::InvocationId;
use gristmill_model::wire::{
    Dataset, DescribeCall, IdleReason, JobSettings, JobSpec, LeaveCall, RegisterCall, ReleaseCall,
    SourceFile,
};
use gristmill_ports::{Coordinator, ObjectPath, ObjectStore as _, call_with_retry};
use gristmill_runner::{
    ComputeMode, JobContext, LeaseError, ObjectSink, Runner, RunnerConfig, WorkerStopReason,
};
use gristmill_stream::{Fetcher, FetcherConfig, FetcherPorts, PrefetchMemory, StreamDelivery};
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use std::{sync::Arc, time::Duration};

/// Latencies of the object store for workers.
const GET: Duration = Duration::from_millis(20);
const PUT: Duration = Duration::from_millis(60);
/// Latency for the trainer's host: low, so that it is never the limit.
const TRAINER_GET: Duration = Duration::from_micros(200);
/// All workers start within this time.
const STAGGER: Duration = Duration::from_millis(2_500);
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

/// Why a simulation could not be run to its end.
pub type BoxedError = Box<dyn std::error::Error>;

/// Records committed splits, which begin and end the measured part.
pub fn committed(figures: &mut ScaleFigures, deployment: &SimulatedDeployment, splits: u64) {
    let total = f64::from(deployment.setting.splits);
    figures.committed += splits;
    if figures.is_measuring() {
        figures.measured += splits;
    }
    let part = figures.committed as f64 / total;
    // A stack is measured once all workers run that can.
    let is_ready = deployment.stack.is_none() || figures.all_started.is_some();
    if figures.began.is_none() && part >= FROM && is_ready {
        begin(figures, deployment);
    } else if figures.is_measuring() && part >= TO {
        figures.ended = Some(deployment.now());
    }
}

/// Begins the measured part.
pub fn begin(figures: &mut ScaleFigures, deployment: &SimulatedDeployment) {
    figures.began = Some(deployment.now());
    deployment.items.forget_demand();
}

/// Ports of the trainer's fetcher.
pub fn ports(deployment: &Arc<SimulatedDeployment>) -> FetcherPorts {
    FetcherPorts {
        coordinator: link(deployment),
        objects: deployment.objects(TRAINER_GET, PUT),
        clock: deployment.clock(),
        compute: ComputeMode::Inline,
        operators: Arc::new(gristmill_operators::registry().clone()),
    }
}

/// The options of the trainer's fetcher.
pub fn fetcher_config(deployment: &SimulatedDeployment) -> FetcherConfig {
    FetcherConfig {
        prefetch: PrefetchMemory::Bytes(64 << 20),
        patience: Duration::from_secs(600),
        ..FetcherConfig::new(deployment.ns.clone(), BUCKET.to_owned(), deployment.job.clone())
    }
}

fn link(deployment: &Arc<SimulatedDeployment>) -> Arc<dyn Coordinator> {
    Arc::new(UrlCoordinator(Arc::clone(deployment)))
}

/// The loop of one worker.
pub fn runner(deployment: &Arc<SimulatedDeployment>) -> Arc<Runner> {
    Arc::new(Runner {
        coordinator: link(deployment),
        objects: deployment.objects(GET, PUT),
        clock: deployment.clock(),
        compute: ComputeMode::Modelled(deployment.setting.split),
        operators: Arc::new(gristmill_operators::registry().clone()),
        config: RunnerConfig {
            ns: deployment.ns.clone(),
            bucket: BUCKET.to_owned(),
            local: false,
            shape: None,
        },
    })
}

/// Stores a dataset of one record for each batch, and registers its job.
pub async fn register(deployment: &Arc<SimulatedDeployment>) -> Result<(), BoxedError> {
    let setting = &deployment.setting;
    let records = u64::from(setting.splits) * u64::from(setting.split_batches);
    let mut value = 0;
    for file in 0..setting.files {
        let (mut bytes, to) = (Vec::new(), records * u64::from(file + 1));
        let mut writer = RecordWriter::new(&mut bytes);
        while value < to / u64::from(setting.files) {
            writer.write(&TfExample::default().with_int("value", value as i64))?;
            value += 1;
        }
        writer.finish()?;
        let path = ObjectPath::new(DATA, format!("{file:07}"));
        deployment.objects.put_if_absent(&path, bytes.into(), "data").await?;
    }
    let listed = deployment.objects.list(DATA, "").await?;
    let files = listed.into_iter().map(|o| SourceFile::new(o.key, o.size, o.etag)).collect();
    let spec = JobSpec {
        seed: 7,
        settings: JobSettings {
            split_batches: Some(setting.split_batches),
            ..JobSettings::default()
        },
        workers: setting.workers,
        ..JobSpec::new(gristmill_operators::parse(PIPELINE)?.canonical_json())
    };
    let dataset = Dataset::one(DATA, files);
    let register = RegisterCall::new(deployment.job.clone(), spec, dataset);
    let (ports, patience) = (ports(deployment), Duration::from_secs(120));
    Fetcher::register(&ports, &deployment.ns, BUCKET, register, patience).await?;
    Ok(())
}

/// One place for a worker: runs one invocation after the other, each until it dies, its time is
/// over or there is nothing to do.
pub async fn worker(deployment: Arc<SimulatedDeployment>, number: u32, context: JobContext) {
    let runner = runner(&deployment);
    let context = context.for_runner(Arc::clone(&runner));
    deployment.time.sleep(STAGGER.mul_f64(deployment.uniform())).await;
    // Invocations of a job that has run for a while end at different times.
    let mut deadline_ms =
        runner.clock.now_ms() + (LIFE_MS as f64 * (0.3 + 0.7 * deployment.uniform())) as u64;
    for life in 0_u32.. {
        if deadline_ms < runner.clock.now_ms() + LEAST_LIFE_MS {
            deadline_ms = runner.clock.now_ms() + LIFE_MS;
        }
        let invocation = InvocationId(format!("{number:08x}-0000-4000-8000-{life:012x}"));
        match live(&deployment, &context, &invocation, deadline_ms).await {
            Some(Ok(WorkerStopReason::Idle(IdleReason::JobEnded))) => return,
            Some(Ok(WorkerStopReason::Idle(_))) => {
                deployment.time.sleep(IDLE.mul_f64(0.5 + 0.5 * deployment.uniform())).await;
            }
            Some(Ok(WorkerStopReason::OutOfTime)) => deadline_ms = 0,
            Some(Err(error)) => {
                deployment.trouble(&format!("worker: {error}"));
                deployment.time.sleep(IDLE).await;
            }
            None => {
                tokio::spawn(report_death(
                    Arc::clone(&deployment),
                    Arc::clone(&runner),
                    invocation,
                    number,
                ));
                deployment.time.sleep(REPLACED).await;
                deadline_ms = 0;
            }
        }
    }
}

/// Works until the worker ends; `None` if it is killed.
async fn live(
    deployment: &Arc<SimulatedDeployment>,
    context: &JobContext,
    invocation: &InvocationId,
    deadline_ms: u64,
) -> Option<Result<WorkerStopReason, LeaseError>> {
    let (runner, job) = (Arc::clone(&context.runner), deployment.job.clone());
    let sink = ObjectSink { runner, job };
    let work = context.work(invocation, deadline_ms, &sink);
    let Some(mean) = deployment.setting.die else { return Some(work.await) };
    let dies = mean.mul_f64(-(1.0 - deployment.uniform()).ln());
    tokio::select! {
        biased;
        ended = work => Some(ended),
        () = deployment.time.sleep(dies) => {
            deployment.figures().deaths += 1;
            None
        }
    }
}

async fn report_death(
    deployment: Arc<SimulatedDeployment>,
    runner: Arc<Runner>,
    invocation: InvocationId,
    number: u32,
) {
    if deployment.setting.unreported {
        return;
    }
    deployment.pause(REPORTED).await;
    let (job, worker) = (deployment.job.clone(), Some(number));
    let (blameless, expired, error) = (false, false, String::new());
    let call = ReleaseCall { job, invocation, worker, blameless, expired, error };
    let sent = call_with_retry(&*runner.coordinator, &*runner.clock, call, RELEASE_PATIENCE).await;
    if let Err(error) = sent {
        deployment.trouble(&format!("a death was not reported: {error}"));
    }
}

/// Notes how many workers run, of which one has just begun.
pub fn note_running(deployment: &SimulatedDeployment, running: u32) {
    let runnable = deployment.setting.runnable();
    let mut figures = deployment.figures();
    figures.surplus += u32::from(running > deployment.setting.workers);
    if figures.all_started.is_none() && u64::from(running) * 100 >= u64::from(runnable) * 99 {
        figures.all_started = Some(deployment.now());
    }
}

/// A worker that the scaler invoked.
pub async fn invoked_worker(deployment: Arc<SimulatedDeployment>, number: u32) {
    {
        let mut figures = deployment.figures();
        figures.started += 1;
        if deployment.stack.is_none() && figures.started == deployment.setting.workers {
            figures.all_started = Some(deployment.now());
        }
    }
    let runner = runner(&deployment);
    let Some(context) = deployment.context.get().cloned() else { return };
    let context = context.for_runner(Arc::clone(&runner));
    let described = DescribeCall::new(deployment.job.clone());
    let _ = call_with_retry(&*runner.coordinator, &*runner.clock, described, LEAVE_PATIENCE).await;
    let invocation = InvocationId::new(number, "0000-4000-8000-000000000000");
    let deadline_ms = runner.clock.now_ms() + LIFE_MS;
    match live(&deployment, &context, &invocation, deadline_ms).await {
        None => return report_death(deployment, runner, invocation, number).await,
        Some(Ok(_)) => {}
        Some(Err(error)) => deployment.trouble(&format!("worker: {error}")),
    }
    leave(&deployment, &runner, number).await;
}

/// Reports that a worker leaves. Returns whether the report was accepted.
pub async fn leave(deployment: &SimulatedDeployment, runner: &Runner, worker: u32) -> bool {
    let call = LeaveCall { job: deployment.job.clone(), worker, error: None, said: None };
    let sent = call_with_retry(&*runner.coordinator, &*runner.clock, call, LEAVE_PATIENCE).await;
    if let Err(error) = &sent {
        deployment.trouble(&format!("leave: {error}"));
    }
    sent.is_ok()
}

/// Trains until the job is done or `most` batches are delivered; returns how many were. A trainer that
/// keeps checkpoints makes one every four batches a worker.
pub async fn train(
    deployment: &Arc<SimulatedDeployment>,
    most: u64,
    keeps: bool,
) -> Result<u64, BoxedError> {
    let mut fetcher = Fetcher::start(ports(deployment), fetcher_config(deployment)).await?;
    let every = (u64::from(deployment.setting.workers) * 4).max(32);
    let mut delivered = 0;
    while delivered < most {
        match fetcher.next().await? {
            StreamDelivery::Batch(batch) => {
                delivered += 1;
                if keeps && batch.batch_index % every == every - 1 {
                    fetcher.checkpointed(batch.cursor());
                }
            }
            StreamDelivery::EpochEnd(_) | StreamDelivery::OfOthers { .. } => {}
            StreamDelivery::End => {
                fetcher.checkpointed_epochs(1);
                fetcher.finish().await?;
                break;
            }
        }
    }
    Ok(delivered)
}
