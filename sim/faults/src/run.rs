//! Runs one simulation from its seed to its end.

use crate::{
    FaultKind, FaultPlan, FaultSimulation, Mutant, SimulationCounts,
    checks::{has_ended, watch},
    client,
    cloud::SimCloud,
    faults::SmallRates,
    host::{HostFetcher, TrainerHost},
    jobs::{JobArrangement, change_options, remove_all, reuse_name},
    objects::SharedObjects,
    ranked::RunLauncher,
    releases::{UpgradePlan, perform_upgrade},
    scenario::{CachePosition, ExpectedBatches, FaultScenario},
    trainer::{DeliveryLog, train, train_second},
};
use gristmill_model::{JobName, Visitation, splits::Cursor, wire::RegisterCall};
use gristmill_virtual_time::VirtualTime;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    io,
    sync::{Arc, LazyLock},
    time::Duration,
};

/// A job that has not ended by then never will: faults end after ten minutes.
const LONGEST: Duration = Duration::from_secs(3 * 3600);
/// Time for repeated calls and reports to arrive.
const AFTERMATH: Duration = Duration::from_secs(7 * 3600);

/// Result of one simulation.
#[derive(Debug, Clone)]
pub struct SimulationOutcome {
    pub seed: u64,
    pub scenario: FaultScenario,
    pub counts: SimulationCounts,
    /// Time at which the job was done.
    pub took: Duration,
    pub batches: usize,
    pub replays: u64,
    /// Whether the job failed with an error, for a split that seemed to kill its workers.
    pub given_up: bool,
}

/// Runs the simulation of `seed`, with the bug `mutant` if given. Fails if the same job fails without faults.
pub fn simulate(seed: u64, mutant: Option<Mutant>, verbose: bool) -> io::Result<SimulationOutcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scenario = FaultScenario::draw(&mut random);
    let plan = FaultPlan::draw(&mut random);
    scenario.served |= mutant.is_some_and(Mutant::is_of_serving) && scenario.may_be_served();
    let plan = fitted(plan, &scenario, seed, mutant);
    let jobs = JobArrangement::draw(&mut random, &scenario);
    let expected = match jobs {
        JobArrangement::One | JobArrangement::OfRanks => vec![expectation(&scenario)?],
        JobArrangement::Concurrent | JobArrangement::SameName => {
            vec![expectation(&scenario)?, expectation(&scenario.other())?]
        }
    };
    run(random.u64(..), &scenario, jobs, plan, mutant, &expected, verbose)
        .map(|(outcome, _)| SimulationOutcome { seed, ..outcome })
}

/// `plan` with small limits, releases and the faults that `mutant` needs, and without those that `scenario` does not
/// stand. Limits and releases have sources of their own, apart from that of other faults.
fn fitted(
    mut plan: FaultPlan,
    scenario: &FaultScenario,
    seed: u64,
    mutant: Option<Mutant>,
) -> FaultPlan {
    plan.rates = SmallRates::draw(&mut fastrand::Rng::with_seed(seed ^ 0x6c69_6d69_7473));
    plan.draw_releases(&mut fastrand::Rng::with_seed(seed ^ 0x7265_6c65_6173_6573));
    plan = plan.with(mutant.map_or(&[], Mutant::needs));
    if mutant.is_some_and(Mutant::is_of_memory) {
        plan.memory = plan.memory.tightest();
    }
    if scenario.poison {
        // Other deaths could incriminate its split.
        plan = plan.without(&[FaultKind::WorkerDies, FaultKind::Frozen, FaultKind::ServiceDown]);
    }
    if scenario.poison || scenario.visitation != Visitation::ExactlyOnce {
        // Deaths that are forgotten incriminate nobody. What was acknowledged stays, where it says what is not visited again.
        plan = plan.without(&[FaultKind::WritesLost]);
    }
    let mut random = fastrand::Rng::with_seed(seed ^ 0x6275_6467_6574);
    plan = plan.draw_budget(&mut random);
    while mutant.is_some_and(Mutant::is_of_budgets) && plan.budget.is_none() {
        plan = plan.draw_budget(&mut random);
    }
    if scenario.is_long() {
        // So that much work is left when the faults end.
        plan.until = plan.until.min(Duration::from_secs(20 + seed % 40));
    }
    plan
}

/// As [`simulate`], with a trainer of several ranks.
pub fn simulate_ranks(
    seed: u64,
    mutant: Option<Mutant>,
    verbose: bool,
) -> io::Result<SimulationOutcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scenario = FaultScenario::draw_for_ranks(&mut random);
    let mut plan = FaultPlan::draw(&mut random);
    plan.draw_ranks(&mut random);
    let plan = fitted(plan, &scenario, seed, mutant);
    let expected = [expectation(&scenario)?];
    run(random.u64(..), &scenario, JobArrangement::OfRanks, plan, mutant, &expected, verbose)
        .map(|(outcome, _)| SimulationOutcome { seed, ..outcome })
}

/// The delivery of a run of `scenario` without faults, which is determined once.
fn expectation(scenario: &FaultScenario) -> io::Result<Arc<ExpectedBatches>> {
    static KNOWN: LazyLock<Mutex<HashMap<FaultScenario, Arc<ExpectedBatches>>>> =
        LazyLock::new(Mutex::default);
    if let Some(expected) = KNOWN.lock().get(scenario) {
        return Ok(Arc::clone(expected));
    }
    let (outcome, delivered) =
        run(0, scenario, JobArrangement::One, FaultPlan::none(), None, &[], false)?;
    if !outcome.counts.violations.is_empty() {
        let what = outcome.counts.violations.join("; ");
        return Err(io::Error::other(format!("undisturbed, {scenario:?}: {what}")));
    }
    let expected = Arc::new(delivered);
    KNOWN.lock().insert(scenario.clone(), Arc::clone(&expected));
    Ok(expected)
}

/// Runs an epoch of `splits` splits whose only fault is its trainer's death near the end.
pub fn simulate_large(splits: u32) -> io::Result<SimulationOutcome> {
    run(0, &FaultScenario::large(splits), JobArrangement::One, FaultPlan::none(), None, &[], false)
        .map(|(outcome, _)| outcome)
}

/// Runs a job of `seed` with only `faults`, for the first ten minutes.
pub fn simulate_only(seed: u64, faults: &[FaultKind]) -> io::Result<SimulationOutcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let drawn = FaultScenario::draw(&mut random);
    let scenario = FaultScenario { poison: false, ..drawn };
    let plan = FaultPlan::only(faults, Duration::from_secs(600));
    let expected = [expectation(&scenario)?];
    run(random.u64(..), &scenario, JobArrangement::One, plan, None, &expected, false)
        .map(|(outcome, _)| SimulationOutcome { seed, ..outcome })
}

/// Runs a job whose only fault is an upgrade in mid-job.
pub fn simulate_upgrade(
    scenario: &FaultScenario,
    upgrade: UpgradePlan,
    mutant: Option<Mutant>,
) -> io::Result<SimulationOutcome> {
    let expected = [expectation(scenario)?];
    let plan = FaultPlan::upgrading(upgrade);
    run(0, scenario, JobArrangement::One, plan, mutant, &expected, false)
        .map(|(outcome, _)| outcome)
}

fn run(
    seed: u64,
    scenario: &FaultScenario,
    jobs: JobArrangement,
    plan: FaultPlan,
    mutant: Option<Mutant>,
    expected: &[Arc<ExpectedBatches>],
    verbose: bool,
) -> io::Result<(SimulationOutcome, ExpectedBatches)> {
    let time = Arc::new(VirtualTime::default());
    let runtime = time.runtime()?;
    let sim = FaultSimulation::new(Arc::clone(&time), seed, plan, mutant, verbose);
    let logs = [Arc::new(DeliveryLog::default()), Arc::new(DeliveryLog::default())];
    let took = runtime.block_on(run_jobs(&sim, &logs, (scenario, jobs), expected))?;
    // Tasks that still wait end with the runtime.
    drop(runtime);
    for (log, expected) in logs.iter().zip(expected) {
        let whole = log.is_done() && !sim.is_violated();
        // Ranks may leave out the last batches of an epoch, which their run knows.
        let visitation = match jobs {
            JobArrangement::OfRanks => Visitation::ZeroOnceOrMore,
            _ => scenario.visitation,
        };
        if whole && !expected.allows(&log.delivered(), visitation) {
            sim.violated("invariant 8: the batches are not those of an undisturbed run");
        }
    }
    let (log, delivered) = (&logs[0], logs[0].delivered());
    let outcome = SimulationOutcome {
        seed,
        scenario: scenario.clone(),
        counts: sim.counts(),
        took,
        batches: delivered.batches.len(),
        replays: log.replays(),
        given_up: log.is_given_up(),
    };
    Ok((outcome, delivered))
}

async fn run_jobs(
    sim: &Arc<FaultSimulation>,
    logs: &[Arc<DeliveryLog>; 2],
    (scenario, jobs): (&FaultScenario, JobArrangement),
    expected: &[Arc<ExpectedBatches>],
) -> io::Result<Duration> {
    let job: JobName = "job".parse().map_err(io::Error::other)?;
    let beside: JobName = "other".parse().map_err(io::Error::other)?;
    let ns = "sim".parse().map_err(io::Error::other)?;
    let cloud = SimCloud::new(sim, SharedObjects::new(ns, job.clone(), scenario.clone()));
    tokio::spawn(Arc::clone(&cloud).upkeep());
    if sim.mutant == Some(Mutant::CollectsEarly) {
        tokio::spawn(Arc::clone(&cloud).collect_early());
    }
    let (upgraded, log) = (Arc::clone(&cloud), Arc::clone(&logs[0]));
    tokio::spawn(async move {
        let cloud = upgraded;
        tokio::join!(cloud.deployed.replace_at_times(&cloud.sim), perform_upgrade(&cloud, &log));
    });
    let mut clouds = vec![Arc::clone(&cloud)];
    match jobs {
        JobArrangement::One => tokio::select! {
            biased;
            ended = run_job(&cloud, &logs[0], scenario) => ended?,
            () = cloud.cut_power() => {}
        },
        JobArrangement::OfRanks => run_ranked(&cloud, &logs[0], scenario, expected).await?,
        JobArrangement::Concurrent => {
            clouds[0] = cloud.with_job(job, scenario.clone(), true);
            let (other, shared) = (scenario.other(), Arc::clone(&clouds[0]));
            let second = cloud.with_job(beside, other.clone(), true);
            clouds.push(Arc::clone(&second));
            let both = tokio::join!(
                run_job(&shared, &logs[0], scenario),
                run_job(&second, &logs[1], &other)
            );
            both.0.and(both.1)?;
        }
        JobArrangement::SameName => {
            run_job(&cloud, &logs[0], scenario).await?;
            let (log, other) = (&logs[0], scenario.other());
            if !sim.is_violated() && (log.is_done() || log.is_given_up()) {
                let again = cloud.with_job(job, other.clone(), false);
                let register = other.prepare(&again).await.map_err(io::Error::other)?;
                if reuse_name(&again, register).await {
                    run_job(&again, &logs[1], &other).await?;
                }
                clouds = vec![again];
            }
        }
    }
    let took = sim.time.now();
    if sim.is_violated() || logs.iter().any(|log| log.is_given_up()) {
        return Ok(took);
    }
    sim.time.sleep(AFTERMATH).await;
    for cloud in &clouds {
        // Nobody comes back to say that all is delivered, if the table has lost that.
        if sim.count(&[FaultKind::WritesLost]) == 0 && !has_ended(cloud).await {
            sim.violated("invariant 16: all is delivered, and the job counts as living");
        }
    }
    // Objects of a cache prefix whose job the table has lost are named nowhere, and stay.
    let is_whole = sim.count(&[FaultKind::WritesLost]) == 0;
    if scenario.cached != CachePosition::Nowhere && is_whole && !sim.is_violated() {
        remove_all(&clouds[0]).await;
    }
    Ok(took)
}

async fn run_ranked(
    cloud: &Arc<SimCloud>,
    log: &Arc<DeliveryLog>,
    scenario: &FaultScenario,
    expected: &[Arc<ExpectedBatches>],
) -> io::Result<()> {
    let register = scenario.prepare(cloud).await.map_err(io::Error::other)?;
    let end = Cursor::start_of(register.spec.epochs);
    let expected = expected.first().cloned().unwrap_or_default();
    let launcher =
        RunLauncher { cloud: Arc::clone(cloud), log: Arc::clone(log), register, expected };
    until_end(cloud, log, &launcher.register, launcher.train()).await;
    if log.is_done() && log.latest() != end {
        cloud.sim.violated("the job is done before all ranks have trained to its end");
    }
    Ok(())
}

/// Runs one job from its registration to its end, and checks the result.
pub(crate) async fn run_job(
    cloud: &Arc<SimCloud>,
    log: &Arc<DeliveryLog>,
    scenario: &FaultScenario,
) -> io::Result<()> {
    let register = scenario.prepare(cloud).await.map_err(io::Error::other)?;
    let trained = async {
        if scenario.served {
            train_served(cloud, log, &register).await
        } else {
            let second = train_second(cloud, log, &register);
            tokio::join!(train(cloud, log, &register), second);
        }
    };
    until_end(cloud, log, &register, trained).await;
    if log.is_done() && !cloud.sim.is_violated() {
        log.check_visits(&cloud.sim, scenario);
    }
    Ok(())
}

/// Waits until the job has ended, makes no progress, or takes too long.
async fn until_end(
    cloud: &Arc<SimCloud>,
    log: &DeliveryLog,
    register: &RegisterCall,
    trained: impl Future<Output = ()>,
) {
    let sim = &cloud.sim;
    tokio::select! {
        biased;
        () = trained => {}
        () = watch(cloud, log) => {}
        () = change_options(cloud, log, register) => {}
        () = sim.time.sleep(LONGEST) => sim.violated("invariant 16: the job does not end"),
    }
    if !sim.is_violated() && !log.is_given_up() && !log.is_done() {
        sim.violated("invariant 16: no trainer is left and the job is not done");
    }
}

async fn train_served(cloud: &Arc<SimCloud>, log: &Arc<DeliveryLog>, register: &RegisterCall) {
    let sim = &cloud.sim;
    let host = TrainerHost::new(sim, 0, sim.below(3) > 0);
    let second = async {
        sim.time.sleep(sim.between_ms(100, 30_000)).await;
        if sim.happens(FaultKind::SecondClient) {
            client::train(cloud, &host, log, register).await;
        }
    };
    let first = client::train(cloud, &host, log, register);
    let disturbed = client::disturb(cloud, &host, log, register);
    let serving = HostFetcher {
        cloud: Arc::clone(cloud),
        run: None,
        host: Arc::clone(&host),
        log: Arc::clone(log),
        register: register.clone(),
        is_old: false,
    };
    tokio::select! {
        biased;
        () = serving.serve() => {}
        ((), (), ()) = async { tokio::join!(first, second, disturbed) } => {}
    }
}
