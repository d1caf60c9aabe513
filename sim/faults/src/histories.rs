//! Random histories of one trainer and the server that it reads from: hellos, valid and invalid acknowledgements,
//! departures, crashes and restarts of both. The trainer's checkpoints must contain every batch once, or it must have
//! been refused with a reason.

use crate::{
    Fault, FaultPlan, Kind, Process, SimClock, VirtualTime, World,
    cloud::{BUCKET, Cloud},
    objects::Store,
    scenario::{BatchName, Scenario},
    trainer::REGISTER_PATIENCE,
    verdict::HINDRANCES,
};
use gristmill_client::{
    Fetcher, FetcherConfig, FetcherPorts,
    cursor::{CursorStore, Identity, Saved},
    server::{Server, Visitor},
};
use gristmill_model::Visitation;
use gristmill_model::wire::Register;
use gristmill_runner::Compute;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    sync::mpsc,
};

/// A history that has not ended after this time never will.
const LONGEST: Duration = Duration::from_secs(4 * 3600);
/// Time without a frame after which a trainer assumes that the server is dead.
const SILENCE: Duration = Duration::from_secs(900);

/// Result of one history.
#[derive(Debug, Clone, Default)]
pub struct History {
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
pub fn history(seed: u64) -> io::Result<History> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scenario = loop {
        let drawn = Scenario::draw(&mut random);
        let is_fit = drawn.visitation == Visitation::ExactlyOnce && !drawn.killer;
        // Without a batch the job ends before its trainer has anything to keep.
        if is_fit && drawn.left_out() < drawn.visits().count() {
            break drawn;
        }
    };
    // Faults that kill workers may end a job, which other tests cover.
    let plan = match random.bool() {
        true => FaultPlan::none(),
        false => FaultPlan::draw(&mut random).without(&[
            Fault::WorkerDies,
            Fault::TrainerDies,
            Fault::Frozen,
        ]),
    };
    let time = Arc::new(VirtualTime::default());
    let runtime = time.runtime()?;
    let world = World::new(Arc::clone(&time), random.u64(..), plan, None, false);
    let trainer = runtime.block_on(live(&world, &scenario))?;
    drop(runtime);
    let batches = trainer.kept().len();
    let mut history = trainer.came_to;
    history.violations.extend(world.tally().violations);
    history.batches = batches;
    Ok(history)
}

/// Channel for new connections, while a server is listening.
type Desk = Arc<Mutex<Option<mpsc::Sender<Visitor<DuplexStream>>>>>;

/// A state file in memory, which may get lost.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Option<Saved>>>);

impl CursorStore for Kept {
    fn load(&mut self) -> io::Result<Option<Saved>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn save(&mut self, saved: &Saved) -> io::Result<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved.clone());
        Ok(())
    }

    fn name(&self) -> Option<String> {
        Some("the state".to_owned())
    }
}

async fn live(world: &Arc<World>, scenario: &Scenario) -> io::Result<Trainer> {
    let name = |text: &str| text.parse().map_err(|_| io::Error::other("a bad name"));
    let job = "job".parse().map_err(|_| io::Error::other("a bad name"))?;
    let cloud = Cloud::new(world, Store::new(name("sim")?, job, scenario.clone()));
    let register = scenario.prepare(&cloud).await.map_err(io::Error::other)?;
    tokio::spawn(Arc::clone(&cloud).upkeep());
    let (desk, done) = (Desk::default(), Arc::new(AtomicBool::new(false)));
    let serving = serve(Arc::clone(&cloud), register, Arc::clone(&desk), Arc::clone(&done));
    let mut trainer = Trainer::new(world, desk);
    tokio::select! {
        biased;
        (deaths, given_up) = async { tokio::join!(serving, trainer.train(&done)).0 } => {
            (trainer.came_to.deaths, trainer.came_to.given_up) = (deaths, given_up);
        }
        () = world.time.sleep(LONGEST) => world.violated("the history does not end"),
    }
    trainer.check(scenario);
    Ok(trainer)
}

/// Serves until the job is over, dying occasionally, sometimes with its state. Returns the number of deaths, and the reason
/// if the job was given up.
async fn serve(
    cloud: Arc<Cloud>,
    register: Register,
    desk: Desk,
    done: Arc<AtomicBool>,
) -> (u32, Option<String>) {
    let (world, kept, mut deaths) = (Arc::clone(&cloud.world), Kept::default(), 0);
    let mut given_up = None;
    while !done.load(Ordering::Relaxed) {
        if world.below(4) == 0 {
            *kept.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let process = Process::new(&world, Kind::Trainer);
        let life = process.run(serve_once(&cloud, &process, &register, &desk, kept.clone()));
        // Later servers live longer, so that the history ends.
        let span = world.between_ms(500, 30_000 * (1 + u64::from(deaths)));
        tokio::select! {
            biased;
            lived = life => match lived {
                Some(Ok(())) => done.store(true, Ordering::Relaxed),
                Some(Err(error)) => {
                    world.event(format_args!("a server ends: {error}"));
                    // No progress for longer than the service tolerates.
                    let words = ["workers die whatever they do", "given up after"];
                    if world.count(&HINDRANCES) > 0 && words.iter().any(|why| error.contains(why)) {
                        given_up = Some(error);
                        done.store(true, Ordering::Relaxed);
                    }
                }
                None => {}
            },
            () = world.time.sleep(span) => {
                process.kill();
                deaths += 1;
            }
        }
        *desk.lock().unwrap_or_else(PoisonError::into_inner) = None;
        world.time.sleep(world.between_ms(100, 3_000)).await;
    }
    (deaths, given_up)
}

async fn serve_once(
    cloud: &Arc<Cloud>,
    process: &Process,
    register: &Register,
    desk: &Desk,
    mut kept: Kept,
) -> Result<(), String> {
    let ports = FetcherPorts {
        coordinator: cloud.link(process),
        objects: cloud.objects(process),
        clock: Arc::new(SimClock(process.clone())),
        compute: Compute::Inline,
        operators: Arc::default(),
    };
    let view =
        Fetcher::register(&ports, (&cloud.store.ns, BUCKET), register.clone(), REGISTER_PATIENCE)
            .await;
    let view = view.map_err(|error| error.to_string())?;
    let at =
        Server::position(&mut kept, &Identity::of(&view)).map_err(|error| error.to_string())?;
    let config = FetcherConfig {
        local_workers: register.spec.local_workers,
        resume: (at.epoch, at.g),
        ..FetcherConfig::new(cloud.store.ns.clone(), BUCKET.to_owned(), register.job.clone())
    };
    let fetcher = Fetcher::open(ports, config).await.map_err(|error| error.to_string())?;
    let server = Server::new(fetcher, kept, at).map_err(|error| error.to_string())?;
    let (sender, visitors) = mpsc::channel(1);
    *desk.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    server.serve(visitors).await.map_err(|error| error.to_string())
}

/// A trainer with its memory and its checkpoints.
struct Trainer {
    world: Arc<World>,
    desk: Desk,
    /// Checkpoints that it may resume from, oldest first, each with the next batch; it is at the last one.
    checkpoints: Vec<(BatchName, BTreeMap<BatchName, blake3::Hash>)>,
    came_to: History,
}

/// How a connection ended.
enum Left {
    /// The connection broke, or the trainer closed it.
    Gone,
    Refused(String),
    Ended,
}

impl Trainer {
    fn new(world: &Arc<World>, desk: Desk) -> Self {
        Self {
            world: Arc::clone(world),
            desk,
            checkpoints: vec![((0, 0), BTreeMap::new())],
            came_to: History::default(),
        }
    }

    async fn train(&mut self, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            self.world.time.sleep(self.world.between_ms(1, 1_000)).await;
            let sender = self.desk.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Some(sender) = sender else { continue };
            let (mine, theirs) = duplex(1 << 12);
            if sender.try_send(theirs.into()).is_err() {
                continue;
            }
            self.came_to.visits += 1;
            self.visit(mine).await;
        }
    }

    async fn visit(&mut self, mut stream: DuplexStream) {
        let Some((b"GMBH", _, hello)) = self.frame(&mut stream).await else { return };
        let Ok(names) = serde_json::from_slice::<serde_json::Value>(&hello) else {
            return self.world.violated("a hello cannot be read");
        };
        let last = self.checkpoints.len() - 1;
        let behind = match self.world.below(10) {
            0 => self.world.below(last as u64 + 1) as usize,
            _ => last,
        };
        let at = self.checkpoints[behind].0;
        let wrong = match self.world.below(12) {
            0 => return,
            1 => Some(bytes_of_hello(&names, "another", at)),
            2 => Some(bytes_of_hello(&names, "job", (at.0 + 50, 0))),
            3 => Some(bytes_of_hello(&names, "job", (at.0, at.1 + 10_000))),
            4 => Some(bytes_of_ack(at)),
            _ => None,
        };
        if let Some(wrong) = wrong {
            let _ = stream.write_all(&wrong).await;
            match self.frame(&mut stream).await {
                Some((b"GMBX", ..)) => self.came_to.refusals += 1,
                Some(_) => self.world.violated("a wrong hello was answered with batches"),
                None => {}
            }
            return;
        }
        if stream.write_all(&bytes_of_hello(&names, "job", at)).await.is_err() {
            return;
        }
        match self.take(&mut stream, behind).await {
            Left::Gone | Left::Ended => {}
            Left::Refused(why) => {
                self.came_to.refusals += 1;
                // An older checkpoint may have expired; the last one never has.
                if behind == last && why.contains("collected") {
                    self.world.violated(format_args!("a trainer at its last checkpoint: {why}"));
                }
            }
        }
    }

    /// Trains on the batches after checkpoint `from`, the one it loaded.
    async fn take(&mut self, stream: &mut DuplexStream, from: usize) -> Left {
        let (mut next, mut memory) = self.checkpoints[from].clone();
        let mut let_in = false;
        for _ in 0..=self.world.below(40) {
            let (magic, name, payload) = match self.frame(stream).await {
                None => return Left::Gone,
                Some((magic, name, payload)) => (magic, name, payload),
            };
            if magic != b"GMBX" && !let_in {
                // The trainer has gone back: later batches are trained on again.
                let_in = true;
                self.checkpoints.truncate(from + 1);
            }
            match magic {
                b"GMBX" => return Left::Refused(String::from_utf8_lossy(&payload).into_owned()),
                b"GMBE" => {
                    self.save(next, &memory);
                    if let Some((&last, _)) = memory.last_key_value() {
                        let _ = stream.write_all(&bytes_of_ack(last)).await;
                    }
                    // Until the server has confirmed it, the trainer may start over.
                    self.frame(stream).await;
                    return Left::Ended;
                }
                _ => {}
            }
            if name != next && name != (next.0 + 1, 0) {
                self.world.violated(format_args!("batch {name:?} came where {next:?} was due"));
            }
            if memory.insert(name, blake3::hash(&payload)).is_some() {
                self.world.violated(format_args!("batch {name:?} came twice"));
            }
            next = (name.0, name.1 + 1);
            let said = match self.world.below(20) {
                0 => return Left::Gone,
                1 => bytes_of_ack((7, 999)),
                2 => bytes_of_ack((u32::MAX, u64::MAX)),
                3 => bytes_of_ack((name.0, name.1 + 40)),
                // Saved, but died before the acknowledgement.
                4 => {
                    self.save(next, &memory);
                    return Left::Gone;
                }
                5..10 => {
                    self.save(next, &memory);
                    bytes_of_ack(name)
                }
                _ => continue,
            };
            if stream.write_all(&said).await.is_err() {
                return Left::Gone;
            }
        }
        Left::Gone
    }

    /// Content of the last checkpoint: the job may be closed while the trainer is away.
    fn kept(&self) -> &BTreeMap<BatchName, blake3::Hash> {
        &self.checkpoints[self.checkpoints.len() - 1].1
    }

    fn save(&mut self, next: BatchName, memory: &BTreeMap<BatchName, blake3::Hash>) {
        self.checkpoints.push((next, memory.clone()));
    }

    /// The next frame; `None` if the server is gone.
    async fn frame(
        &self,
        stream: &mut DuplexStream,
    ) -> Option<(&'static [u8; 4], BatchName, Vec<u8>)> {
        let reading = async {
            let mut magic = [0; 4];
            stream.read_exact(&mut magic).await.ok()?;
            let epoch = stream.read_u32_le().await.ok()?;
            let g = stream.read_u64_le().await.ok()?;
            let length = stream.read_u64_le().await.ok()?;
            let mut payload = vec![0; usize::try_from(length).ok()?];
            stream.read_exact(&mut payload).await.ok()?;
            let known = [b"GMBH", b"GMB1", b"GMBE", b"GMBX"];
            Some((known.into_iter().find(|known| **known == magic)?, (epoch, g), payload))
        };
        tokio::select! {
            biased;
            frame = reading => frame,
            () = self.world.time.sleep(SILENCE) => None,
        }
    }

    /// Checks that every record of every epoch was trained on once: batches are consecutive and complete.
    fn check(&mut self, scenario: &Scenario) {
        let mut next = (0, 0);
        for &name in self.kept().keys() {
            if name != next && name != (next.0 + 1, 0) {
                self.world.violated(format_args!("of what is kept, {next:?} is missing"));
            }
            next = (name.0, name.1 + 1);
        }
        let visits = scenario.visits().count() as u64;
        let left_out = scenario.left_out() as u64;
        let batches = (visits - left_out).div_ceil(u64::from(scenario.batch_size));
        let all = batches as usize * scenario.epochs as usize;
        let had = self.kept().len();
        if had != all && self.came_to.given_up.is_none() {
            self.world.violated(format_args!("{had} batches are kept and not {all}"));
        }
    }
}

fn bytes_of_ack((epoch, g): BatchName) -> Vec<u8> {
    [&b"GMA1"[..], &epoch.to_le_bytes(), &g.to_le_bytes()].concat()
}

fn bytes_of_hello(names: &serde_json::Value, job: &str, (epoch, g): BatchName) -> Vec<u8> {
    let text = serde_json::json!({
        "job": job, "dataset": names["dataset"], "fingerprint": names["fingerprint"],
        "epoch": epoch, "g": g,
    })
    .to_string();
    [&b"GMAH"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}
