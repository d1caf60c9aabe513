//! Other jobs of a world: one at the same time, over the same data and the same cache, or one under a name
//! that is used again while calls and reports of the first still come in.

use crate::{Kind, Process, cloud::Cloud, scenario::Scenario};
use gristmill_model::wire::{Call, Register, Reply};
use std::{sync::Arc, time::Duration};

/// How long things go wrong once more while a job is forgotten.
const UNDER_FIRE: Duration = Duration::from_secs(20);
/// Tries at freeing a name.
const TRIES: u32 = 60;

/// Which jobs a world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    Alone,
    /// Two at a time.
    Beside,
    /// Two, one after the other, under one name.
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

/// Has the job forgotten that has ended, while coordinators die on the way, and another registered under its
/// name; whether that succeeded.
pub async fn take_name(cloud: &Arc<Cloud>, register: Register) -> bool {
    let world = &cloud.world;
    world.fire_again(UNDER_FIRE);
    for _ in 0..TRIES {
        world.time.sleep(world.between_ms(100, 2_000)).await;
        let process = Process::new(world, Kind::Coordinator);
        let job = cloud.store.job.clone();
        let _ = process.run(cloud.ask(&process, Call::Forget { job: job.clone() })).await;
        let process = Process::new(world, Kind::Observer);
        match cloud.ask(&process, Call::Register(register.clone())).await {
            Reply::Job(_) => return true,
            // A call of the first job that came late has registered that anew.
            _ => drop(cloud.ask(&process, Call::Stop { job }).await),
        }
    }
    world.violated("a name is not free, though its job was forgotten again and again");
    false
}
