//! Programs beside the first job: a concurrent job over the same data and cache, or a later one under the same name, while
//! calls and reports of the first still arrive; joiners that change its options; the removal of all cached data.

use crate::{
    FaultKind, FaultSimulation, ProcessKind, SimProcess,
    cloud::{BUCKET, SimCloud},
    scenario::FaultScenario,
    trainer::DeliveryLog,
};
use gristmill_model::{
    Compression, ErrorPolicy, Fingerprint, Nonce, Sharding, SkipLimit, WorkerRemoval,
    stored::keys,
    wire::{
        CacheListCall, CacheListReply, CacheRemoveCall, ForgetCall, GivenOptions, JobSpec,
        RegisterCall, StopCall,
    },
};
use gristmill_ports::ObjectStore as _;
use std::{future::pending, sync::Arc, time::Duration};

/// Duration of renewed faults while a job is being forgotten.
const RENEWED_FAULTS: Duration = Duration::from_secs(20);
/// Tries to free a name.
const TRIES: u32 = 60;

/// Jobs of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobArrangement {
    One,
    /// Two concurrent jobs.
    Concurrent,
    /// Two consecutive jobs under one name.
    SameName,
    /// One, whose trainer has several ranks.
    OfRanks,
}

impl JobArrangement {
    /// A draw; a long job, or one with a poisonous split, is alone.
    pub fn draw(random: &mut fastrand::Rng, scenario: &FaultScenario) -> Self {
        match random.u8(0..10) {
            _ if scenario.poison || scenario.is_long() => Self::One,
            0 => Self::Concurrent,
            1 => Self::SameName,
            _ => Self::One,
        }
    }
}

/// Forgets the ended job while coordinators die, and registers another under its name. Returns whether that
/// succeeded.
pub async fn reuse_name(cloud: &Arc<SimCloud>, register: RegisterCall) -> bool {
    let sim = &cloud.sim;
    let register = sim.budget.given(&register);
    sim.resume_faults(RENEWED_FAULTS);
    for _ in 0..TRIES {
        sim.time.sleep(sim.between_ms(100, 2_000)).await;
        let process = SimProcess::new(sim, ProcessKind::Coordinator);
        let job = cloud.store.job.clone();
        let _ = process.run(cloud.ask(&process, ForgetCall { job: job.clone() })).await;
        let process = SimProcess::new(sim, ProcessKind::Observer);
        match cloud.ask(&process, register.clone()).await {
            Ok(_) => return true,
            // A late call of the first job has registered it again.
            Err(_) => drop(cloud.ask(&process, StopCall { job }).await),
        }
    }
    sim.violated("a name is not free, though its job was forgotten again and again");
    false
}

/// Numbers of workers that a joiner asks for; the largest would spread the bundles over more partitions.
const WORKERS: [u32; 5] = [1, 2, 8, 64, 600];

/// Joins the job again and again, each time with another option. Never returns.
pub async fn change_options(cloud: &Arc<SimCloud>, log: &DeliveryLog, register: &RegisterCall) {
    let sim = &cloud.sim;
    while !log.is_done() && !log.is_given_up() {
        sim.time.sleep(sim.between_ms(1_000, 60_000)).await;
        if !sim.happens(FaultKind::OptionChanged) {
            continue;
        }
        let Some((option, spec)) = changed(cloud, &register.spec) else { continue };
        sim.event(format_args!("a joiner gives another --{option}"));
        let given = GivenOptions::only([option.to_owned()]);
        let nonce = Some(Nonce(sim.below(u64::MAX).to_be_bytes()));
        let join =
            RegisterCall { nonce, ..RegisterCall::join(cloud.store.job.clone(), spec, given) };
        let process = SimProcess::new(sim, ProcessKind::Observer);
        // It may be lost, or arrive twice; the service may not know the job now.
        let _ = process.run(cloud.link(&process).call(join)).await;
    }
    pending().await
}

/// An option and a specification that has another value of it, if the job may have one.
fn changed(cloud: &SimCloud, spec: &JobSpec) -> Option<(&'static str, JobSpec)> {
    let sim = &cloud.sim;
    let mut spec = spec.clone();
    match sim.below(5) {
        0 if spec.settings.sharding == Sharding::Dynamic && spec.workers > 0 => {
            spec.workers = WORKERS[sim.below(WORKERS.len() as u64) as usize];
            Some(("workers", spec))
        }
        1 => {
            spec.compress = [Compression::None, Compression::Zstd][sim.below(2) as usize];
            Some(("compress", spec))
        }
        2 => {
            spec.settings.max_skipped = SkipLimit::Records(u64::MAX - sim.below(9));
            Some(("max-skipped", spec))
        }
        // Local workers then leave, and come back when the scaler does not decide any more.
        3 if spec.auto_placement => {
            spec.auto_placement = sim.below(2) > 0;
            Some(("placement", spec))
        }
        4 => {
            spec.settings.removal =
                [WorkerRemoval::Split, WorkerRemoval::Now][sim.below(2) as usize];
            Some(("removal", spec))
        }
        // No record of these simulations is bad, but a split may kill its workers.
        _ if !cloud.store.scenario.poison => {
            let policies = [ErrorPolicy::Fail, ErrorPolicy::Skip, ErrorPolicy::Quarantine];
            spec.settings.on_error = policies[sim.below(3) as usize];
            Some(("on-error", spec))
        }
        _ => None,
    }
}

/// Duration of renewed faults after the job is done.
const REMOVAL_FAULTS: Duration = Duration::from_secs(60);
/// Tries without faults.
const REMOVAL_TRIES: u32 = 20;

/// Removes everything cached: first under faults, so that coordinators die between any two steps, then without. Checks
/// that nothing is left.
pub async fn remove_all(cloud: &Arc<SimCloud>) {
    let sim = &cloud.sim;
    sim.resume_faults(REMOVAL_FAULTS);
    let until = sim.time.now() + REMOVAL_FAULTS;
    while sim.time.now() < until {
        sim.time.sleep(sim.between_ms(10, 5_000)).await;
        let process = SimProcess::new(sim, ProcessKind::Trainer);
        let _ = process.run(remove_some(cloud, &process)).await;
    }
    let process = SimProcess::new(sim, ProcessKind::Observer);
    for _ in 0..REMOVAL_TRIES {
        sim.time.sleep(Duration::from_secs(5)).await;
        if remove_some(cloud, &process).await == Some(0) {
            break;
        }
    }
    check_empty(sim, cloud).await;
}

/// Requests the removal of everything listed. Returns the number of entries, if known.
async fn remove_some(cloud: &Arc<SimCloud>, process: &SimProcess) -> Option<usize> {
    let link = cloud.link(process);
    let Ok(CacheListReply { entries, .. }) = link.call(CacheListCall {}).await else { return None };
    let found: Vec<Fingerprint> = entries.iter().map(|listed| listed.entry.fingerprint).collect();
    for &fingerprint in &found {
        // Repeated until it is known to be done, with a limit.
        for _ in 0..3 {
            match link.call(CacheRemoveCall { fingerprint }).await {
                Err(error) if error.is_passing() => {}
                _ => break,
            }
        }
    }
    Some(found.len())
}

/// Checks that published cache data is completely gone: entry, objects, and the mark of the removal.
async fn check_empty(sim: &FaultSimulation, cloud: &SimCloud) {
    let ns = &cloud.store.ns;
    let listed = cloud.store.memory.list(BUCKET, &keys::cache_prefix(ns)).await.unwrap_or_default();
    let cache_prefixes = cloud.store.published.lock();
    let left = listed.iter().filter(|object| {
        object.key.starts_with(&keys::cache_entries(ns))
            || cache_prefixes
                .iter()
                .any(|cache_prefix| object.key.starts_with(cache_prefix.as_str()))
    });
    if let Some(object) = left.into_iter().next() {
        sim.violated(format_args!("{} is left of what was removed from the cache", object.key));
    }
}
