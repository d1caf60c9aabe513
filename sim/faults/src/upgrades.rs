//! Upgrades in mid-job whose steps a test chooses.

use crate::{cloud::SimCloud, trainer::DeliveryLog};
use std::{sync::Arc, time::Duration};

/// The order in which stack and hosts of trainers are replaced by the next release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeOrder {
    StackFirst,
    TrainerFirst,
    /// Stack, then hosts; then both back, in the reverse order.
    RolledBack,
}

/// The state of the job meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeMoment {
    /// Its trainer trains.
    JobRuns,
    /// It has no trainer.
    JobWaits,
    /// Its trainer or its workers read the cache.
    CacheIsRead,
}

/// An upgrade of stack and hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpgradePlan {
    pub order: UpgradeOrder,
    pub moment: UpgradeMoment,
}

/// One replacement.
#[derive(Debug, Clone, Copy)]
enum Step {
    Stack,
    Hosts,
}

impl UpgradeOrder {
    fn steps(self) -> &'static [Step] {
        match self {
            Self::StackFirst => &[Step::Stack, Step::Hosts],
            Self::TrainerFirst => &[Step::Hosts, Step::Stack],
            Self::RolledBack => &[Step::Stack, Step::Hosts, Step::Hosts, Step::Stack],
        }
    }
}

/// Batches and reads of the cache before the upgrade begins.
const BATCHES_BEFORE: usize = 20;
const READS_BEFORE: u64 = 5;
/// Pause after each step.
const APART: Duration = Duration::from_secs(5);
/// How long a job waits for its trainer, before the upgrade and after it.
const WAITS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// Performs the upgrade of this simulation, if it has one.
pub async fn perform(cloud: &Arc<SimCloud>, log: &DeliveryLog) {
    let sim = &cloud.sim;
    let Some(UpgradePlan { order, moment }) = sim.plan.upgrade else { return };
    loop {
        let is_due = match moment {
            UpgradeMoment::JobRuns | UpgradeMoment::JobWaits => {
                log.delivered().batches.len() >= BATCHES_BEFORE
            }
            UpgradeMoment::CacheIsRead => sim.tally().cache_reads >= READS_BEFORE,
        };
        if is_due {
            break;
        }
        sim.time.sleep(LOOK).await;
    }
    let waits = moment == UpgradeMoment::JobWaits;
    if waits {
        // No batch comes meanwhile.
        sim.unsettled_for(2 * WAITS + 2 * APART * order.steps().len() as u32);
        cloud.deployed.stop_hosts();
        sim.time.sleep(WAITS).await;
    }
    for step in order.steps() {
        match step {
            Step::Stack => {
                cloud.deployed.replace_stack(sim);
                sim.time.sleep(APART).await;
                cloud.deployed.replace_scaler();
            }
            Step::Hosts => cloud.deployed.replace_hosts(sim),
        }
        sim.time.sleep(APART).await;
    }
    sim.note_upgraded(log.delivered().batches.len());
    if waits {
        sim.time.sleep(WAITS).await;
        cloud.deployed.start_hosts();
    }
}
