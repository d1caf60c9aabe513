//! Further jobs of a simulation: a concurrent one over the same data and cache, or a later one under the same name, while
//! calls and reports of the first still arrive.

use crate::{Kind, Process, cloud::Cloud, scenario::Scenario};
use gristmill_model::wire::{Forget, Register, Stop};
use std::{sync::Arc, time::Duration};

/// Duration of renewed faults while a job is being forgotten.
const UNDER_FIRE: Duration = Duration::from_secs(20);
/// Tries to free a name.
const TRIES: u32 = 60;

/// Jobs of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    Alone,
    /// Two concurrent jobs.
    Beside,
    /// Two consecutive jobs under one name.
    Again,
}

impl Company {
    pub fn draw(random: &mut fastrand::Rng, scenario: &Scenario) -> Self {
        match random.u8(0..10) {
            _ if scenario.killer || scenario.is_long() => Self::Alone,
            0 => Self::Beside,
            1 => Self::Again,
            _ => Self::Alone,
        }
    }
}

/// Forgets the ended job while coordinators die, and registers another under its name. Returns whether that
/// succeeded.
pub async fn take_name(cloud: &Arc<Cloud>, register: Register) -> bool {
    let world = &cloud.world;
    world.fire_again(UNDER_FIRE);
    for _ in 0..TRIES {
        world.time.sleep(world.between_ms(100, 2_000)).await;
        let process = Process::new(world, Kind::Coordinator);
        let job = cloud.store.job.clone();
        let _ = process.run(cloud.ask(&process, Forget { job: job.clone() })).await;
        let process = Process::new(world, Kind::Observer);
        match cloud.ask(&process, register.clone()).await {
            Ok(_) => return true,
            // A late call of the first job has registered it again.
            Err(_) => drop(cloud.ask(&process, Stop { job }).await),
        }
    }
    world.violated("a name is not free, though its job was forgotten again and again");
    false
}
