//! Random histories of one trainer and the server that it reads from: hellos, valid and invalid acknowledgements,
//! departures, crashes and restarts of both. The trainer's checkpoints must contain every batch once, or it must have
//! been refused with a reason.

mod trainer;

use crate::{
    FaultKind, FaultPlan, FaultSimulation, ProcessKind, SimProcess,
    cloud::SimCloud,
    host::{HostFetcher, TrainerHost},
    objects::SharedObjects,
    scenario::FaultScenario,
    trainer::DeliveryLog,
    verdict::HINDRANCES,
};
use gristmill_model::Visitation;
use gristmill_virtual_time::VirtualTime;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use trainer::HistoryTrainer;

/// A history that has not ended after this time never will.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// Most records of a history: its trainer begins anew hundreds of times, each time with another kept batch.
const MOST_RECORDS: usize = 200;

/// Result of one history.
#[derive(Debug, Clone, Default)]
pub struct HistoryOutcome {
    pub violations: Vec<String>,
    pub batches: usize,
    pub visits: u32,
    /// Number of times that the trainer was refused, and that its server died.
    pub refusals: u32,
    pub deaths: u32,
    /// Reason why the job was given up, if faults caused that.
    pub given_up: Option<String>,
}

/// Runs the history of `seed` to its end.
///
/// # Errors
/// The runtime cannot be created, or the scenario is impossible.
pub fn history(seed: u64) -> io::Result<HistoryOutcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scenario = loop {
        let drawn = FaultScenario::draw(&mut random);
        let is_fit = drawn.visitation == Visitation::ExactlyOnce
            && !drawn.poison
            && drawn.visits().count() <= MOST_RECORDS;
        // Without a batch the job ends before its trainer has anything to keep.
        if is_fit && drawn.left_out() < drawn.visits().count() {
            break drawn;
        }
    };
    // Faults that kill workers may end a job, which other tests cover.
    let plan = if random.bool() {
        FaultPlan::none()
    } else {
        FaultPlan::draw(&mut random).without(&[
            FaultKind::WorkerDies,
            FaultKind::TrainerDies,
            FaultKind::Frozen,
        ])
    };
    let time = Arc::new(VirtualTime::default());
    let runtime = time.runtime()?;
    let sim = FaultSimulation::new(Arc::clone(&time), random.u64(..), plan, None, false);
    let trainer = runtime.block_on(run(&sim, &scenario))?;
    drop(runtime);
    let batches = trainer.kept().len();
    let mut history = trainer.history;
    history.violations.extend(sim.tally().violations);
    history.batches = batches;
    Ok(history)
}

async fn run(sim: &Arc<FaultSimulation>, scenario: &FaultScenario) -> io::Result<HistoryTrainer> {
    let name = |text: &str| text.parse().map_err(|_| io::Error::other("a bad name"));
    let job = "job".parse().map_err(|_| io::Error::other("a bad name"))?;
    let cloud = SimCloud::new(sim, SharedObjects::new(name("sim")?, job, scenario.clone()));
    let register = scenario.prepare(&cloud).await.map_err(io::Error::other)?;
    tokio::spawn(Arc::clone(&cloud).upkeep());
    let (host, done) = (TrainerHost::new(sim, 0, true), Arc::new(AtomicBool::new(false)));
    let log = Arc::new(DeliveryLog::default());
    let serving = HostFetcher {
        cloud: Arc::clone(&cloud),
        run: None,
        host: Arc::clone(&host),
        log,
        register,
        is_old: false,
    };
    let serving = serve(serving, Arc::clone(&done));
    let mut trainer = HistoryTrainer::new(sim, host);
    tokio::select! {
        biased;
        (deaths, given_up) = async { tokio::join!(serving, trainer.train(&done)).0 } => {
            (trainer.history.deaths, trainer.history.given_up) = (deaths, given_up);
        }
        () = sim.time.sleep(LONGEST) => sim.violated("the history does not end"),
    }
    trainer.check(scenario);
    Ok(trainer)
}

/// Serves until the job is over, dying occasionally, sometimes with its state. Returns the number of deaths, and the reason
/// if the job was given up.
async fn serve(serving: HostFetcher, done: Arc<AtomicBool>) -> (u32, Option<String>) {
    let (sim, mut deaths) = (Arc::clone(&serving.cloud.sim), 0);
    let mut given_up = None;
    while !done.load(Ordering::Relaxed) {
        if sim.below(4) == 0 {
            serving.host.lose_file();
        }
        let process = SimProcess::new(&sim, ProcessKind::Trainer);
        let life = process.run(serving.run_once(&process, false));
        // Later servers live longer, so that the history ends.
        let span = sim.between_ms(500, 30_000 * (1 + u64::from(deaths)));
        tokio::select! {
            biased;
            end = life => match end {
                Some(Ok(())) => done.store(true, Ordering::Relaxed),
                Some(Err(error)) => {
                    let error = error.to_string();
                    sim.event(format_args!("a server ends: {error}"));
                    // No progress for longer than the service tolerates.
                    let words = ["workers died or could not start within", "given up after"];
                    if sim.count(&HINDRANCES) > 0 && words.iter().any(|why| error.contains(why)) {
                        given_up = Some(error);
                        done.store(true, Ordering::Relaxed);
                    }
                }
                None => {}
            },
            () = sim.time.sleep(span) => {
                process.kill();
                deaths += 1;
            }
        }
        serving.host.close();
        sim.time.sleep(sim.between_ms(100, 3_000)).await;
    }
    (deaths, given_up)
}
