//! Further jobs of a simulation: a concurrent one over the same data and cache, or a later one under the same name, while
//! calls and reports of the first still arrive.

use crate::{ProcessKind, SimProcess, cloud::SimCloud, scenario::FaultScenario};
use gristmill_model::wire::{ForgetCall, RegisterCall, StopCall};
use std::{sync::Arc, time::Duration};

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
