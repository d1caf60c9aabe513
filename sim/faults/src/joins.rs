//! Programs that join the job for a moment, and change its options.

use crate::{FaultKind, ProcessKind, SimProcess, cloud::SimCloud, trainer::DeliveryLog};
use gristmill_model::wire::{GivenOptions, JobSpec, RegisterCall};
use gristmill_model::{Compression, ErrorPolicy, Nonce, Sharding, SkipLimit};
use std::{future::pending, sync::Arc};

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
    match sim.below(4) {
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
        // No record of these simulations is bad, but a split may kill its workers.
        _ if !cloud.store.has_poison() => {
            let policies = [ErrorPolicy::Fail, ErrorPolicy::Skip, ErrorPolicy::Quarantine];
            spec.settings.on_error = policies[sim.below(3) as usize];
            Some(("on-error", spec))
        }
        _ => None,
    }
}
