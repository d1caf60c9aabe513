//! A job whose target falls: how soon the superfluous workers are gone, and that nothing is lost.

use crate::{
    FaultPlan, FaultScenario, FaultSimulation, ProcessKind, SimProcess, SimulationCounts,
    cloud::SimCloud, objects::SharedObjects, run::run_job, trainer::DeliveryLog,
};
use gristmill_model::wire::{DescribeCall, GivenOptions, JobSpec, RegisterCall, ScaleState};
use gristmill_model::{WorkerRemoval, stored::keys};
use gristmill_ports::{ItemKey, Table as _, WriteOutcome};
use gristmill_runner::ComputeMode;
use gristmill_virtual_time::VirtualTime;
use std::{io, sync::Arc, time::Duration};

const STEP: Duration = Duration::from_millis(10);
/// The scaler's policy decides nothing before.
const UNDECIDED: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(120);

/// Result of one simulation.
#[derive(Debug, Clone)]
pub struct RemovalOutcome {
    /// Time from the new target until no more workers were left.
    pub took: Duration,
    /// The least number of workers in the seconds after that.
    pub least: u32,
    /// Splits that were begun again meanwhile.
    pub again: u64,
    pub counts: SimulationCounts,
    pub batches: usize,
}

/// Runs a job of `from` workers that take `split_ms` for a split, of which only `to` are wanted after some seconds.
pub fn simulate_removal(
    from: u32,
    to: u32,
    split_ms: u64,
    removal: WorkerRemoval,
) -> io::Result<RemovalOutcome> {
    let scenario = FaultScenario::for_removal(from, removal);
    let mut plan = FaultPlan::none();
    plan.memory.compute = ComputeMode::Modelled(Duration::from_millis(split_ms));
    let time = Arc::new(VirtualTime::default());
    let runtime = time.runtime()?;
    let sim = FaultSimulation::new(Arc::clone(&time), 0, plan, None, false);
    let log = Arc::new(DeliveryLog::default());
    let job = "job".parse().map_err(io::Error::other)?;
    let ns = "sim".parse().map_err(io::Error::other)?;
    let cloud = SimCloud::new(&sim, SharedObjects::new(ns, job, scenario.clone()));
    let both = async { tokio::join!(run_job(&cloud, &log, &scenario), lower(&cloud, from, to)) };
    let (ended, lowered) = runtime.block_on(both);
    ended?;
    let (took, least, again) = lowered?;
    drop(runtime);
    let batches = log.delivered().batches.len();
    Ok(RemovalOutcome { took, least, again, counts: sim.counts(), batches })
}

async fn lower(cloud: &Arc<SimCloud>, from: u32, to: u32) -> io::Result<(Duration, u32, u64)> {
    let time = &cloud.sim.time;
    time.sleep(UNDECIDED).await;
    hold(cloud, from, |workers| workers == from).await?;
    time.sleep(UNDECIDED / 2).await;
    let again_before = cloud.sim.counts().computed_again;
    limit(cloud, to).await?;
    let took = hold(cloud, to, |workers| workers <= to).await?;
    let (mut least, until) = (u32::MAX, time.now() + UNDECIDED);
    hold(cloud, to, |workers| {
        least = least.min(workers);
        time.now() >= until
    })
    .await?;
    Ok((took, least, cloud.sim.counts().computed_again - again_before))
}

/// Lowers the most workers that the job may have, as a program that joins it with `--max-workers`.
async fn limit(cloud: &Arc<SimCloud>, workers: u32) -> io::Result<()> {
    let (process, job) = (SimProcess::new(&cloud.sim, ProcessKind::Observer), &cloud.store.job);
    let refused = |refusal| io::Error::other(format!("{refusal:?}"));
    let view = cloud.ask(&process, DescribeCall::new(job.clone())).await.map_err(refused)?;
    let given = GivenOptions::only(["max-workers".to_owned()]);
    let join = RegisterCall::join(job.clone(), JobSpec { workers, ..view.spec }, given);
    cloud.ask(&process, join).await.map(drop).map_err(refused)
}

/// Holds the target, on which the policy may decide otherwise, until the number of workers is right. Returns how long
/// that took.
async fn hold(
    cloud: &SimCloud,
    target: u32,
    mut is_met: impl FnMut(u32) -> bool,
) -> io::Result<Duration> {
    let time = &cloud.sim.time;
    let began = time.now();
    loop {
        set_target(cloud, target).await?;
        if is_met(cloud.workers()) {
            return Ok(time.now() - began);
        }
        if time.now() - began > LONGEST {
            return Err(io::Error::other(format!("{} workers are left", cloud.workers())));
        }
        time.sleep(STEP).await;
    }
}

fn scale_key(cloud: &SimCloud) -> ItemKey {
    let store = &cloud.store;
    ItemKey { pk: keys::job_partition(&store.ns, &store.job), sk: keys::SCALE.into() }
}

/// The scaler's item, and its version.
async fn read_scale(cloud: &SimCloud) -> io::Result<(u64, ScaleState)> {
    let table = cloud.table(&SimProcess::new(&cloud.sim, ProcessKind::Observer));
    let read = table.read(&[scale_key(cloud)]).await.map_err(io::Error::other)?;
    let item = read.into_iter().next().flatten();
    let version = item.as_ref().map_or(0, |item| item.version);
    let state = item.and_then(|item| serde_json::from_slice(&item.body).ok());
    Ok((version, state.unwrap_or_default()))
}

/// Writes the scaler's target, as its policy does.
async fn set_target(cloud: &SimCloud, target: u32) -> io::Result<()> {
    let table = cloud.table(&SimProcess::new(&cloud.sim, ProcessKind::Observer));
    let key = scale_key(cloud);
    loop {
        let (version, state) = read_scale(cloud).await?;
        if state.target == target {
            return Ok(());
        }
        let state = ScaleState { target, ..state };
        let body = serde_json::to_vec(&state)?.into();
        let written = table.write(&key, version, body, None).await.map_err(io::Error::other)?;
        if written == WriteOutcome::Written {
            return Ok(());
        }
    }
}
