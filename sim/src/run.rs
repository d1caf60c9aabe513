//! One world from its seed to its end.

use crate::{
    Fault, FaultPlan, Mutant, Tally, VirtualTime, World,
    cloud::Cloud,
    objects::Store,
    progress::{has_ended, watch},
    remover::remove_all,
    scenario::{Cached, Expected, Scenario, expected, remember},
    serving::{self, Host},
    trainer::{Log, train, train_second},
};
use gristmill_protocol::Register;
use std::{io, sync::Arc, time::Duration};

/// A job that is not done by now never will be: faults end after ten minutes.
const LONGEST: Duration = Duration::from_secs(3 * 3600);
/// Repeated calls and reports come in until then.
const AFTERMATH: Duration = Duration::from_secs(7 * 3600);

/// What became of one world.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    pub scenario: Scenario,
    pub tally: Tally,
    /// When the job was done.
    pub took: Duration,
    pub batches: usize,
    pub replays: u64,
    /// The job failed loudly, for a split that seemed to kill its workers.
    pub given_up: bool,
}

/// Runs the world of `seed` to its end, making `mutant`'s mistake if one is named.
///
/// # Errors
/// The runtime cannot be made, or an undisturbed run of the same job fails.
pub fn simulate(seed: u64, mutant: Option<Mutant>, verbose: bool) -> io::Result<Outcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scenario = Scenario::draw(&mut random);
    let mut plan = FaultPlan::draw(&mut random);
    if scenario.killer {
        // What dies of something else could look as if its split had killed it.
        plan = plan.without(&[Fault::WorkerDies, Fault::Frozen]);
    }
    if scenario.is_long() {
        // So that much is left to do when all is well again.
        plan.until = plan.until.min(Duration::from_secs(20 + seed % 40));
    }
    let expected = match expected(&scenario) {
        Some(expected) => expected,
        None => {
            let undisturbed = run(0, &scenario, FaultPlan::none(), None, None, false)?;
            if !undisturbed.0.tally.violations.is_empty() {
                let what = undisturbed.0.tally.violations.join("; ");
                return Err(io::Error::other(format!("undisturbed, {scenario:?}: {what}")));
            }
            let expected = Arc::new(undisturbed.1);
            remember(&scenario, Arc::clone(&expected));
            expected
        }
    };
    run(random.u64(..), &scenario, plan, mutant, Some(&expected), verbose)
        .map(|(outcome, _)| Outcome { seed, ..outcome })
}

/// Runs an epoch of `splits` splits in which nothing goes wrong but that its trainer dies near the end.
///
/// # Errors
/// The runtime cannot be made.
pub fn simulate_large(splits: u32) -> io::Result<Outcome> {
    run(0, &Scenario::large(splits), FaultPlan::none(), None, None, false)
        .map(|(outcome, _)| outcome)
}

fn run(
    seed: u64,
    scenario: &Scenario,
    plan: FaultPlan,
    mutant: Option<Mutant>,
    expected: Option<&Expected>,
    verbose: bool,
) -> io::Result<(Outcome, Expected)> {
    let time = Arc::new(VirtualTime::default());
    let runtime = time.runtime()?;
    let world = World::new(Arc::clone(&time), seed, plan, mutant, verbose);
    let log = Arc::new(Log::default());
    let took = runtime.block_on(live(&world, &log, scenario))?;
    // What still waits goes with the runtime.
    drop(runtime);
    let delivered = log.delivered();
    let whole = !log.is_given_up() && !world.is_violated();
    if whole && expected.is_some_and(|expected| !expected.allows(&delivered, scenario.visitation)) {
        world.violated("invariant 8: the batches are not those of an undisturbed run");
    }
    let outcome = Outcome {
        seed,
        scenario: scenario.clone(),
        tally: world.tally(),
        took,
        batches: delivered.batches.len(),
        replays: log.replays(),
        given_up: log.is_given_up(),
    };
    Ok((outcome, delivered))
}

async fn live(world: &Arc<World>, log: &Arc<Log>, scenario: &Scenario) -> io::Result<Duration> {
    let name = |text: &str| text.parse().map_err(|_| io::Error::other("a bad name"));
    let job = "job".parse().map_err(|_| io::Error::other("a bad name"))?;
    let cloud = Cloud::new(world, Store::new(name("sim")?, job, scenario.clone()));
    let register = scenario.prepare(&cloud).await.map_err(io::Error::other)?;
    tokio::spawn(Arc::clone(&cloud).upkeep());
    if world.mutant == Some(Mutant::CollectsEarly) {
        tokio::spawn(Arc::clone(&cloud).collect_early());
    }
    let trained = async {
        match scenario.served {
            true => train_served(&cloud, log, register).await,
            false => {
                let second = train_second(Arc::clone(&cloud), Arc::clone(log), register.clone());
                tokio::join!(train(Arc::clone(&cloud), Arc::clone(log), register), second);
            }
        }
    };
    tokio::select! {
        biased;
        () = trained => {}
        () = watch(&cloud, log) => {}
        () = world.time.sleep(LONGEST) => world.violated("invariant 16: the job does not end"),
    }
    let took = world.time.now();
    if world.is_violated() || log.is_given_up() {
        return Ok(took);
    }
    if !log.is_done() {
        world.violated("invariant 16: no trainer is left and the job is not done");
    }
    log.check_visits(world, scenario);
    world.time.sleep(AFTERMATH).await;
    if !has_ended(&cloud).await {
        world.violated("invariant 16: all is delivered, and the job counts as living");
    }
    if scenario.cached != Cached::Nowhere && !world.is_violated() {
        remove_all(&cloud).await;
    }
    Ok(took)
}

/// The same by the program that trainers connect to.
async fn train_served(cloud: &Arc<Cloud>, log: &Arc<Log>, register: Register) {
    let host = Host::new(&cloud.world);
    let with = || (Arc::clone(cloud), Arc::clone(&host), Arc::clone(log), register.clone());
    let begin = |(cloud, host, log, register)| serving::train(cloud, host, log, register);
    let second = async {
        let world = &cloud.world;
        world.time.sleep(world.between_ms(100, 30_000)).await;
        if world.happens(Fault::SecondClient) {
            begin(with()).await;
        }
    };
    let disturbed = {
        let (cloud, host, log, register) = with();
        serving::disturb(cloud, host, log, register)
    };
    let (cloud, host, log, register) = with();
    let served = serving::serve(cloud, host, log, register);
    tokio::select! {
        biased;
        () = served => {}
        ((), (), ()) = async { tokio::join!(begin(with()), second, disturbed) } => {}
    }
}
