//! The trainer's side as shipped: a fetcher's server that keeps its trainer's position in a file, trainers that connect
//! to it, and other clients.

use crate::{
    Fault, Kind, Mutant, Process, Simulation,
    client::{Client, Ending},
    cloud::{BUCKET, Cloud},
    scenario::BatchName,
    trainer::{Log, check_emptied, fetcher_of},
    verdict::{Fate, judge},
};
use gristmill_client::{
    FetchError, Fetcher, FetcherConfig,
    cursor::{CursorStore, Identity, Saved},
    server::{ServeError, Server, Visitor},
};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::Register;
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::DuplexStream,
    sync::{Semaphore, mpsc},
};

/// Buffer between a fetcher and its trainer.
const PIPE_BYTES: usize = 4 << 10;
/// Time that a client waits for the previous one to leave.
const SEAT_PATIENCE: Duration = Duration::from_secs(3);

/// The trainer's machine.
pub struct Host {
    sim: Arc<Simulation>,
    /// The state file as found by a restart: unreadable, absent, or its content.
    file: Mutex<Result<Option<Saved>, String>>,
    /// The job's own file, while another one has replaced it.
    mistaken: Mutex<Option<Option<Saved>>>,
    /// Channel for new connections, while a fetcher listens.
    socket: Mutex<Option<mpsc::Sender<Visitor<DuplexStream>>>>,
    seat: Arc<Semaphore>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    pub fn new(sim: &Arc<Simulation>) -> Arc<Self> {
        Arc::new(Self {
            sim: Arc::clone(sim),
            file: Mutex::new(Ok(None)),
            mistaken: Mutex::default(),
            socket: Mutex::default(),
            seat: Arc::new(Semaphore::new(1)),
        })
    }

    /// Connects to the fetcher; `None` if there is none, or it serves another client.
    pub async fn connect(&self) -> Option<DuplexStream> {
        let visitors = lock(&self.socket).clone()?;
        let seat = tokio::select! {
            biased;
            seat = Arc::clone(&self.seat).acquire_owned() => seat.ok()?,
            () = self.sim.time.sleep(SEAT_PATIENCE) => return None,
        };
        let (mine, stream) = tokio::io::duplex(PIPE_BYTES);
        visitors.send(Visitor { stream, seat: Some(seat) }).await.ok()?;
        Some(mine)
    }

    /// Whether the state file's position is at least `next`.
    fn has_kept(&self, next: BatchName) -> bool {
        let file = lock(&self.file);
        let cursor = file.as_ref().ok().and_then(Option::as_ref).map(|saved| saved.cursor);
        cursor.is_some_and(|cursor| (cursor.epoch, cursor.batch_index) >= next)
    }

    /// Replaces the state file by one of another job, of another run under this name, or an invalid one, as a user's
    /// mistake.
    fn mistake_file(&self, identity: &Identity) {
        self.correct();
        let mut file = lock(&self.file);
        let own = file.clone().unwrap_or_default();
        let Cursor { epoch, batch_index } =
            own.as_ref().map_or_else(Cursor::default, |own| own.cursor);
        let other = |job: &str, fingerprint: &str, batch_index| {
            let (job, fingerprint) = (job.to_owned(), fingerprint.to_owned());
            let identity = Identity { job, fingerprint, ..identity.clone() };
            Ok(Some(Saved { identity, cursor: Cursor { epoch, batch_index } }))
        };
        let ahead = batch_index + 1 + self.sim.below(3);
        *file = match self.sim.below(4) {
            0 => other("another", &identity.fingerprint, 60),
            1 => other("another", &identity.fingerprint, ahead),
            2 => other(&identity.job, "another", ahead),
            _ => Err("not a state file".to_owned()),
        };
        *lock(&self.mistaken) = Some(own);
    }

    /// Undoes [`Host::mistake_file`]. Returns whether there was anything to undo.
    fn correct(&self) -> bool {
        let own = lock(&self.mistaken).take();
        own.map(|own| *lock(&self.file) = Ok(own)).is_some()
    }
}

/// The state file as used by a fetcher.
struct StateFile {
    host: Arc<Host>,
    process: Process,
    served: Option<Identity>,
    /// Saved position that the mutant has not made durable.
    unsynced: Option<Saved>,
}

impl CursorStore for StateFile {
    fn load(&mut self) -> io::Result<Option<Saved>> {
        let saved = lock(&self.host.file).clone().map_err(io::Error::other)?;
        Ok(match (self.host.sim.mutant, &self.served) {
            (Some(Mutant::TakesAnyState), Some(served)) => {
                saved.map(|saved| Saved { identity: served.clone(), ..saved })
            }
            _ => saved,
        })
    }

    fn save(&mut self, saved: &Saved) -> io::Result<()> {
        let sim = &self.host.sim;
        if sim.happens(Fault::DiskFull) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "simulated: no space"));
        }
        // The file is replaced atomically: a process that dies meanwhile leaves the old or the new one.
        let dies = sim.happens(Fault::DiesSaving);
        if dies {
            self.process.kill();
        }
        if dies && sim.below(2) == 0 {
            return Ok(());
        }
        let durable = match sim.mutant {
            Some(Mutant::SavesUnsynced) => self.unsynced.replace(saved.clone()),
            _ => Some(saved.clone()),
        };
        sim.event(format_args!("saved {}", saved.cursor));
        if let Some(durable) = durable {
            *lock(&self.host.file) = Ok(Some(durable));
        }
        Ok(())
    }

    fn name(&self) -> Option<String> {
        Some("state file simulated".to_owned())
    }
}

/// Serves the job until everything is delivered, restarting after every death.
pub async fn serve(cloud: Arc<Cloud>, host: Arc<Host>, log: Arc<Log>, register: Register) {
    let sim = Arc::clone(&cloud.sim);
    while !log.is_done() && !log.is_given_up() && !sim.is_violated() {
        let process = Process::new(&sim, Kind::Fetcher);
        sim.event(format_args!("a fetcher starts"));
        let mistakes = sim.happens(Fault::WrongState);
        let life = run_once(&cloud, &process, &host, &register, mistakes);
        let lived = process.run(life).await;
        *lock(&host.socket) = None;
        match lived {
            Some(Ok(())) => log.finish(),
            Some(Err(error)) => {
                sim.event(format_args!("a fetcher ends: {error}"));
                ended(&cloud, &process, &host, &log, &register, &error);
            }
            None => {}
        }
        sim.time.sleep(sim.between_ms(100, 5_000)).await;
    }
}

/// Whether an error says that nothing is left of the job.
fn is_done(why: &str) -> bool {
    why.contains("is done: all its batches")
}

/// Judges the end of a fetcher that did not die.
fn ended(
    cloud: &Cloud,
    process: &Process,
    host: &Host,
    log: &Log,
    register: &Register,
    error: &ServeError,
) {
    let sim = &cloud.sim;
    match error {
        ServeError::Io(error) if error.kind() == io::ErrorKind::StorageFull => {}
        // The user sees the error, and corrects the file.
        ServeError::State(_) | ServeError::Io(_) if host.correct() => {}
        ServeError::State(why) => sim.violated(format_args!("its own state file: {why}")),
        ServeError::Io(error) => sim.violated(format_args!("a fetcher ended: {error}")),
        ServeError::Fetch(FetchError::Fenced(why)) if process.generation().is_some() => {
            sim.violated(format_args!("the only fetcher was fenced: {why}"));
        }
        // The previous fetcher died between closing the job and its own end.
        ServeError::Over(why) if why.contains("is done: all its batches") => log.finish(),
        ServeError::Over(_) if host.correct() => {}
        ServeError::Over(why) => sim.violated(format_args!("its own state file: {why}")),
        ServeError::Fetch(FetchError::Refused(why)) if is_done(why) => log.finish(),
        ServeError::Fetch(error) => {
            let accepted = process.generation().is_some();
            match judge(sim, error, &register.spec, (accepted, false)) {
                Fate::GivenUp => log.give_up(),
                Fate::Broken | Fate::Superseded | Fate::Again => {}
            }
        }
    }
}

async fn run_once(
    cloud: &Arc<Cloud>,
    process: &Process,
    host: &Arc<Host>,
    register: &Register,
    mistakes: bool,
) -> Result<(), ServeError> {
    let (ports, config) = fetcher_of(cloud, process, register);
    let view =
        Fetcher::register(&ports, (&cloud.store.ns, BUCKET), register.clone(), config.patience)
            .await?;
    let identity = Identity::of(&view);
    if mistakes {
        host.mistake_file(&identity);
    }
    let (host, process) = (Arc::clone(host), process.clone());
    let served = Some(identity.clone());
    let mut file = StateFile { host: Arc::clone(&host), process, served, unsynced: None };
    let cursor = Server::position(&mut file, &identity)?;
    let config = FetcherConfig { resume: cursor, ..config };
    let fetcher = Fetcher::open(ports, config).await?;
    let mut server = Server::new(fetcher, file, cursor)?;
    let (sender, visitors) = mpsc::channel(1);
    *lock(&host.socket) = Some(sender);
    server.serve(visitors).await?;
    check_emptied(cloud, server.fetcher());
    Ok(())
}

/// Trains over the connection until the job is done, resuming after every death.
pub async fn train(cloud: Arc<Cloud>, host: Arc<Host>, log: Arc<Log>, register: Register) {
    let sim = Arc::clone(&cloud.sim);
    // Whether it keeps checkpoints, or leaves that to the fetcher.
    let keeps = sim.below(3) > 0;
    while !log.is_done() && !log.is_given_up() && !sim.is_violated() {
        let process = Process::new(&sim, Kind::Trainer);
        let client = Client { cloud: &cloud, host: &host, log: &log, keeps, process: &process };
        match process.run(client.train(&register)).await {
            // The job is finished unless its fetcher still waits for the last acknowledgement, or the table has lost it.
            Some(Ending::Ended(last))
                if host.has_kept(last) && sim.count(&[Fault::WritesLost]) == 0 =>
            {
                return;
            }
            Some(Ending::Ended(_)) => {}
            Some(Ending::Refused(why)) if is_done(&why) => return log.finish(),
            Some(Ending::Refused(why)) => sim.event(format_args!("a trainer is refused: {why}")),
            Some(Ending::Nothing) | None => {}
        }
        sim.time.sleep(sim.between_ms(100, 5_000)).await;
    }
}

/// Connects malicious and faulty clients.
pub async fn disturb(cloud: Arc<Cloud>, host: Arc<Host>, log: Arc<Log>, register: Register) {
    let sim = Arc::clone(&cloud.sim);
    while !log.is_done() && !log.is_given_up() {
        sim.time.sleep(sim.between_ms(100, 20_000)).await;
        if !sim.happens(Fault::WrongClient) {
            continue;
        }
        let process = Process::new(&sim, Kind::Observer);
        let client =
            Client { cloud: &cloud, host: &host, log: &log, keeps: false, process: &process };
        for _ in 0..=sim.below(8) {
            client.disturb(&register).await;
        }
    }
}
