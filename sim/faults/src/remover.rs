//! Removes all cached data under faults, and checks that nothing is left.

use crate::{
    FaultSimulation, ProcessKind, SimProcess,
    cloud::{BUCKET, SimCloud},
};
use gristmill_model::Fingerprint;
use gristmill_model::stored::keys;
use gristmill_model::wire::{CacheListCall, CacheListReply, CacheRemoveCall};
use gristmill_ports::ObjectStore as _;
use std::{sync::Arc, time::Duration};

/// Duration of renewed faults after the job is done.
const RENEWED_FAULTS: Duration = Duration::from_secs(60);
/// Tries without faults.
const TRIES: u32 = 20;

/// Removes everything cached: first under faults, so that coordinators die between any two steps, then without. Checks
/// that nothing is left.
pub async fn remove_all(cloud: &Arc<SimCloud>) {
    let sim = &cloud.sim;
    sim.resume_faults(RENEWED_FAULTS);
    let until = sim.time.now() + RENEWED_FAULTS;
    while sim.time.now() < until {
        sim.time.sleep(sim.between_ms(10, 5_000)).await;
        let process = SimProcess::new(sim, ProcessKind::Trainer);
        let _ = process.run(remove_some(cloud, &process)).await;
    }
    let process = SimProcess::new(sim, ProcessKind::Observer);
    for _ in 0..TRIES {
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
    let shelves = cloud.store.published.lock();
    let left = listed.iter().filter(|object| {
        object.key.starts_with(&keys::cache_entries(ns))
            || shelves.iter().any(|shelf| object.key.starts_with(shelf.as_str()))
    });
    if let Some(object) = left.into_iter().next() {
        sim.violated(format_args!("{} is left of what was removed from the cache", object.key));
    }
}
