//! Random histories of one trainer and the server that it reads from: hellos, valid and invalid acknowledgements,
//! departures, crashes and restarts of both. The trainer's checkpoints must contain every batch once, or it must have
//! been refused with a reason.

use crate::{
    FaultKind, FaultPlan, FaultSimulation, ProcessKind, SimProcess,
    checks::GIVEN_UP,
    client::{ReceivedFrame, identity, receive, send_ack, send_hello, set_place},
    cloud::SimCloud,
    host::{HostFetcher, TrainerHost},
    objects::SharedObjects,
    scenario::FaultScenario,
    trainer::DeliveryLog,
};
use gristmill_model::{Visitation, splits::Cursor};
use gristmill_virtual_time::VirtualTime;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::io::DuplexStream;

/// A history that has not ended after this time never will.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// Most records of a history: its trainer begins anew hundreds of times, each time with another kept batch.
const MOST_RECORDS: usize = 200;

/// Result of one history.
#[derive(Debug, Clone, Default)]
pub struct HistoryOutcome {
    pub violations: Vec<String>,
    /// Number of times that the trainer was refused, and that its server died.
    pub refusals: u32,
    pub deaths: u32,
    /// Reason why the job was given up, if faults caused that.
    pub given_up: Option<String>,
}

/// Runs the history of `seed` to its end.
pub fn history(seed: u64) -> io::Result<HistoryOutcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scenario = loop {
        let drawn = FaultScenario::draw(&mut random);
        let is_fit = drawn.visitation == Visitation::ExactlyOnce
            && !drawn.poison
            && drawn.visits().count() <= MOST_RECORDS;
        // Without a batch the job ends before its trainer has anything to keep.
        if is_fit && drawn.remainder_records() < drawn.visits().count() {
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
    let mut history = trainer.history;
    history.violations.extend(sim.counts().violations);
    Ok(history)
}

async fn run(sim: &Arc<FaultSimulation>, scenario: &FaultScenario) -> io::Result<HistoryTrainer> {
    let ns = "sim".parse().map_err(io::Error::other)?;
    let job = "job".parse().map_err(io::Error::other)?;
    let cloud = SimCloud::new(sim, SharedObjects::new(ns, job, scenario.clone()));
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
                    let is_hindered = sim.count_of(FaultKind::hinders) > 0;
                    if is_hindered && GIVEN_UP.iter().any(|why| error.contains(why)) {
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

/// Time without a frame after which a trainer assumes that the server is dead.
const SILENCE: Duration = Duration::from_secs(900);

/// A trainer with its memory and its checkpoints.
struct HistoryTrainer {
    sim: Arc<FaultSimulation>,
    host: Arc<TrainerHost>,
    /// Checkpoints that it may resume from, oldest first, each with the next batch; it is at the last one.
    checkpoints: Vec<(Cursor, BTreeMap<Cursor, blake3::Hash>)>,
    pub history: HistoryOutcome,
}

enum VisitEnd {
    /// The connection broke, or the trainer closed it.
    Gone,
    Refused(String),
    Ended,
}

impl HistoryTrainer {
    fn new(sim: &Arc<FaultSimulation>, host: Arc<TrainerHost>) -> Self {
        Self {
            sim: Arc::clone(sim),
            host,
            checkpoints: vec![(Cursor::default(), BTreeMap::new())],
            history: HistoryOutcome::default(),
        }
    }

    async fn train(&mut self, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            self.sim.time.sleep(self.sim.between_ms(1, 1_000)).await;
            let Some(mine) = self.host.connect().await else { continue };
            self.visit(mine).await;
        }
    }

    async fn visit(&mut self, mut stream: DuplexStream) {
        let greeting = self.frame(&mut stream).await.filter(|frame| &frame.magic == b"GMBH");
        let Some(greeting) = greeting else { return };
        let Some(names) = identity(&greeting) else {
            return self.sim.violated("a hello cannot be read");
        };
        let last = self.checkpoints.len() - 1;
        let behind = match self.sim.below(10) {
            0 => self.sim.below(last as u64 + 1) as usize,
            _ => last,
        };
        let at = self.checkpoints[behind].0;
        let hello = |at: Cursor| {
            let mut hello = names.clone();
            set_place(&mut hello, at);
            hello
        };
        let mut of_another = hello(at);
        of_another["job"] = "another".into();
        let wrong = match self.sim.below(12) {
            0 => return,
            1 => Some(of_another),
            2 => Some(hello(Cursor::start_of(at.epoch + 50))),
            3 => Some(hello(Cursor::new(at.epoch, at.batch_index + 10_000))),
            4 => None,
            _ => {
                if send_hello(&mut stream, b"GMAH", &hello(at)).await.is_some() {
                    self.train_on(&mut stream, behind, last).await;
                }
                return;
            }
        };
        let _ = match wrong {
            Some(hello) => send_hello(&mut stream, b"GMAH", &hello).await,
            None => send_ack(&mut stream, b"GMA1", at).await,
        };
        match self.frame(&mut stream).await {
            Some(ReceivedFrame { magic, .. }) if &magic == b"GMBX" => self.history.refusals += 1,
            Some(ReceivedFrame { magic, at: name, .. }) => {
                let magic = String::from_utf8_lossy(&magic);
                self.sim.violated(format_args!(
                    "a wrong message at {at} was answered with {magic} {name}"
                ));
            }
            None => {}
        }
    }

    /// Trains on the batches after checkpoint `behind`, and judges a refusal; `last` is the newest.
    async fn train_on(&mut self, stream: &mut DuplexStream, behind: usize, last: usize) {
        match self.take(stream, behind).await {
            VisitEnd::Gone | VisitEnd::Ended => {}
            VisitEnd::Refused(why) => {
                self.history.refusals += 1;
                // An older checkpoint may have expired; the last one never has.
                if behind == last && why.contains("collected") {
                    self.sim.violated(format_args!("a trainer at its last checkpoint: {why}"));
                }
            }
        }
    }

    /// Trains on the batches after checkpoint `from`, the one it loaded.
    async fn take(&mut self, stream: &mut DuplexStream, from: usize) -> VisitEnd {
        let (mut next, mut memory) = self.checkpoints[from].clone();
        let mut accepted = false;
        for _ in 0..=self.sim.below(40) {
            let Some(ReceivedFrame { magic, at: name, payload }) = self.frame(stream).await else {
                return VisitEnd::Gone;
            };
            if &magic != b"GMBX" && !accepted {
                // The trainer has gone back: later batches are trained on again.
                accepted = true;
                self.checkpoints.truncate(from + 1);
            }
            match &magic {
                b"GMBX" => {
                    return VisitEnd::Refused(String::from_utf8_lossy(&payload).into_owned());
                }
                b"GMBE" => {
                    self.save(next, &memory);
                    if let Some((&last, _)) = memory.last_key_value() {
                        let _ = send_ack(stream, b"GMA1", last).await;
                    }
                    // Until the server has confirmed it, the trainer may start over.
                    self.frame(stream).await;
                    return VisitEnd::Ended;
                }
                _ => {}
            }
            if name != next && name != Cursor::start_of(next.epoch + 1) {
                self.sim.violated(format_args!("{name} came where {next} was due"));
            }
            if memory.insert(name, blake3::hash(&payload)).is_some() {
                self.sim.violated(format_args!("{name} came twice"));
            }
            next = name.next();
            let said = match self.sim.below(20) {
                0 => return VisitEnd::Gone,
                1 => Cursor::new(7, 999),
                2 => Cursor::new(u32::MAX, u64::MAX),
                3 => Cursor::new(name.epoch, name.batch_index + 40),
                // Saved, but died before the acknowledgement.
                4 => {
                    self.save(next, &memory);
                    return VisitEnd::Gone;
                }
                5..10 => {
                    self.save(next, &memory);
                    name
                }
                _ => continue,
            };
            if send_ack(stream, b"GMA1", said).await.is_none() {
                return VisitEnd::Gone;
            }
        }
        VisitEnd::Gone
    }

    /// Content of the last checkpoint: the job may be closed while the trainer is away.
    fn kept(&self) -> &BTreeMap<Cursor, blake3::Hash> {
        &self.checkpoints[self.checkpoints.len() - 1].1
    }

    fn save(&mut self, next: Cursor, memory: &BTreeMap<Cursor, blake3::Hash>) {
        self.checkpoints.push((next, memory.clone()));
    }

    /// The next frame; `None` if the server is gone.
    async fn frame(&self, stream: &mut DuplexStream) -> Option<ReceivedFrame> {
        tokio::select! {
            biased;
            frame = receive(stream) => frame,
            () = self.sim.time.sleep(SILENCE) => None,
        }
    }

    /// Checks that every record of every epoch was trained on once: batches are consecutive and complete.
    fn check(&mut self, scenario: &FaultScenario) {
        let mut next = Cursor::default();
        for &name in self.kept().keys() {
            if name != next && name != Cursor::start_of(next.epoch + 1) {
                self.sim.violated(format_args!("of what is kept, {next} is missing"));
            }
            next = name.next();
        }
        let visits = scenario.visits().count() as u64;
        let left_out = scenario.remainder_records() as u64;
        let batches = (visits - left_out).div_ceil(u64::from(scenario.batch_size));
        let all = batches as usize * scenario.epochs as usize;
        let had = self.kept().len();
        if had != all && self.history.given_up.is_none() {
            self.sim.violated(format_args!("{had} batches are kept and not {all}"));
        }
    }
}
