//! A job whose target falls: how soon the superfluous workers are gone, and that nothing is lost.

use crate::{
    FaultPlan, FaultScenario, FaultSimulation, ProcessKind, SimProcess, SimulationCounts,
    cloud::SimCloud, objects::SharedObjects, run::run_job, trainer::DeliveryLog,
};
use gristmill_model::{WorkerRemoval, stored::keys, wire::ScaleState};
use gristmill_ports::{ItemKey, Table as _, WriteOutcome};
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
    let scenario = FaultScenario::for_removal(from, split_ms, removal);
    let time = Arc::new(VirtualTime::default());
    let runtime = time.runtime()?;
    let sim = FaultSimulation::new(Arc::clone(&time), 0, FaultPlan::none(), None, false);
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
    set_target(cloud, from).await?;
    wait_for(cloud, |workers| workers == from).await?;
    time.sleep(UNDECIDED / 2).await;
    let again_before = cloud.sim.counts().computed_again;
    set_target(cloud, to).await?;
    let took = wait_for(cloud, |workers| workers <= to).await?;
    let (mut least, until) = (u32::MAX, time.now() + UNDECIDED);
    while time.now() < until {
        least = least.min(cloud.workers());
        time.sleep(STEP).await;
    }
    Ok((took, least, cloud.sim.counts().computed_again - again_before))
}

async fn wait_for(cloud: &SimCloud, is_met: impl Fn(u32) -> bool) -> io::Result<Duration> {
    let time = &cloud.sim.time;
    let began = time.now();
    while !is_met(cloud.workers()) {
        if time.now() - began > LONGEST {
            return Err(io::Error::other(format!("{} workers are left", cloud.workers())));
        }
        time.sleep(STEP).await;
    }
    Ok(time.now() - began)
}

/// Writes the scaler's target, as its policy does.
async fn set_target(cloud: &SimCloud, target: u32) -> io::Result<()> {
    let process = SimProcess::new(&cloud.sim, ProcessKind::Observer);
    let (table, store) = (cloud.table(&process), &cloud.store);
    let key = ItemKey { pk: keys::job_partition(&store.ns, &store.job), sk: keys::SCALE.into() };
    loop {
        let read = table.read(std::slice::from_ref(&key)).await.map_err(io::Error::other)?;
        let item = read.into_iter().next().flatten();
        let version = item.as_ref().map_or(0, |item| item.version);
        let state = item.and_then(|item| serde_json::from_slice::<ScaleState>(&item.body).ok());
        let state = ScaleState { target, ..state.unwrap_or_default() };
        let body = serde_json::to_vec(&state)?.into();
        let written = table.write(&key, version, body, None).await.map_err(io::Error::other)?;
        if written == WriteOutcome::Written {
            return Ok(());
        }
    }
}
