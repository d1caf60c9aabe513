//! A host of a training program: its fetcher, which restarts after every death, and the socket to
//! which its ranks connect.

use super::run::Run;
use crate::{
    Fault, Kind, Mutant, Process, Simulation,
    cloud::{BUCKET, Cloud},
    trainer::{Log, check_emptied, fetcher_of},
    verdict::{Fate, judge},
};
use gristmill_client::{
    FetchError, Fetcher, FetcherConfig, OwnRanks,
    cursor::{CursorStore, Saved},
    server::{
        ServeError, Visitor,
        ranks::{Beginning, RankServer},
    },
};
use gristmill_model::splits::ranks::{Ranks, Tail};
use gristmill_model::splits::{Cursor, readers::RankRange, run::TrainingRun};
use gristmill_model::wire::{JobView, Register, Status};
use gristmill_model::{Checkpoint, CheckpointError};
use gristmill_ports::call_with_retry;
use std::{
    io,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{io::DuplexStream, sync::mpsc};

/// Buffer between a fetcher and a rank.
const PIPE_BYTES: usize = 4 << 10;

/// The machine of some ranks of a run.
pub struct RankHost {
    pub index: u32,
    /// The position that a fetcher here has kept.
    file: Mutex<Option<Saved>>,
    /// Channel for new connections, while a fetcher listens.
    socket: Mutex<Option<mpsc::Sender<Visitor<DuplexStream>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RankHost {
    pub fn new(index: u32) -> Arc<Self> {
        Arc::new(Self { index, file: Mutex::default(), socket: Mutex::default() })
    }

    /// Connects to the fetcher; none if there is none.
    pub async fn connect(&self) -> Option<DuplexStream> {
        let visitors = lock(&self.socket).clone()?;
        let (mine, stream) = tokio::io::duplex(PIPE_BYTES);
        visitors.send(Visitor { stream, seat: None }).await.ok()?;
        Some(mine)
    }
}

/// The state file as a fetcher uses it.
struct StateFile {
    host: Arc<RankHost>,
    process: Process,
}

impl CursorStore for StateFile {
    fn load(&mut self) -> io::Result<Option<Saved>> {
        Ok(lock(&self.host.file).clone())
    }

    fn save(&mut self, saved: &Saved) -> io::Result<()> {
        let sim = self.process.sim();
        // The file is replaced atomically: a process that dies meanwhile leaves the old or the new one.
        let dies = sim.happens(Fault::DiesSaving);
        if dies {
            self.process.kill();
        }
        if !dies || sim.below(2) > 0 {
            *lock(&self.host.file) = Some(saved.clone());
        }
        Ok(())
    }

    fn name(&self) -> Option<String> {
        Some("state file simulated".to_owned())
    }
}

/// One host's fetcher, as a launcher keeps it running.
pub struct Serving {
    pub cloud: Arc<Cloud>,
    pub run: Arc<Run>,
    pub host: Arc<RankHost>,
    pub log: Arc<Log>,
    pub register: Register,
    /// Whether the run was superseded when this fetcher started.
    pub is_old: bool,
}

impl Serving {
    fn sim(&self) -> &Arc<Simulation> {
        &self.cloud.sim
    }

    /// Serves until all is delivered, restarting the fetcher after every death.
    pub async fn serve(&self) {
        let sim = self.sim();
        while !self.log.is_given_up() && !sim.is_violated() {
            let process = Process::new(sim, Kind::Fetcher);
            sim.event(format_args!("the fetcher of host {} starts", self.host.index));
            let _end = process.ends_with();
            let lived = process.run(self.run_once(&process)).await;
            *lock(&self.host.socket) = None;
            let is_done = match lived {
                Some(Ok(())) => true,
                Some(Err(error)) => {
                    sim.event(format_args!(
                        "the fetcher of host {} ends: {error}",
                        self.host.index
                    ));
                    self.has_ended(&process, &error)
                }
                None => false,
            };
            if is_done {
                return self.run.host_is_done();
            }
            if sim.happens(Fault::DiskLost) {
                *lock(&self.host.file) = None;
            }
            sim.time.sleep(sim.between_ms(100, 5_000)).await;
        }
    }

    /// Judges the end of a fetcher that did not die. Returns whether the job is done.
    fn has_ended(&self, process: &Process, error: &ServeError) -> bool {
        let sim = self.sim();
        match error {
            ServeError::Over(why) | ServeError::Fetch(FetchError::Refused(why))
                if why.contains("is done: all its batches") =>
            {
                true
            }
            ServeError::Fetch(FetchError::Fenced(_)) if self.is_old => false,
            ServeError::Fetch(FetchError::Fenced(why)) => {
                sim.violated(format_args!("a fetcher of the current run was fenced: {why}"));
                false
            }
            ServeError::Fetch(error) => {
                let accepted = process.generation().is_some();
                if let Fate::GivenUp = judge(sim, error, &self.register.spec, (accepted, false)) {
                    self.log.give_up();
                }
                false
            }
            ServeError::State(why) | ServeError::Over(why) => {
                sim.violated(format_args!("its own state file: {why}"));
                false
            }
            ServeError::Io(error) => {
                sim.violated(format_args!("a fetcher ended: {error}"));
                false
            }
        }
    }

    async fn run_once(&self, process: &Process) -> Result<(), ServeError> {
        let Self { cloud, run, host, register, .. } = self;
        let (ports, config) = fetcher_of(cloud, process, register);
        let (ns, patience) = (&cloud.store.ns, config.patience);
        let view = Fetcher::register(&ports, (ns, BUCKET), register.clone(), patience).await?;
        let resume = run.resume.as_deref().filter(|_| run.tells_fetchers);
        let resume = resume.map(|text| checkpoint(text, &view)).transpose().map_err(refused)?;
        let mut file = StateFile { host: Arc::clone(host), process: process.clone() };
        let kept = file.load()?.map(|saved| saved.cursor);
        let status = Status { job: register.job.clone() };
        let status = call_with_retry(&*ports.coordinator, &*ports.clock, status, patience);
        let status = status.await.map_err(FetchError::from)?;
        let (token, count) = (run.token(), run.ranks().count);
        let (beginning, from) =
            Beginning::of(&status, (token, self.range(), count), (resume, kept))
                .map_err(refused)?;
        let ranks = Ranks { count, from, tail: self.tail() };
        let run = TrainingRun { token, ranks };
        let own = OwnRanks { run, range: self.range(), is_successor: beginning.is_successor() };
        let config = FetcherConfig { own: Some(own), resume: beginning.known(), ..config };
        let fetcher = Fetcher::open(ports, config).await?;
        let mut server = RankServer::new(fetcher, file, beginning)?;
        let (sender, visitors) = mpsc::channel(1);
        *lock(&host.socket) = Some(sender);
        server.serve(visitors).await?;
        check_emptied(cloud, server.fetcher());
        Ok(())
    }

    /// The ranks of this host.
    fn range(&self) -> RankRange {
        let count = self.run.per_host();
        let first = self.host.index * count;
        RankRange { first, count: NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN) }
    }

    /// The treatment of the last batches that this host's fetcher believes in.
    fn tail(&self) -> Tail {
        match self.sim().mutant {
            Some(Mutant::TailPerRank) if !self.host.index.is_multiple_of(2) => Tail::Uneven,
            Some(Mutant::TailPerRank) => Tail::Drop,
            _ => self.run.ranks().tail,
        }
    }
}

fn checkpoint(text: &str, job: &JobView) -> Result<Cursor, String> {
    let checkpoint: Checkpoint =
        text.parse().map_err(|error: CheckpointError| error.to_string())?;
    checkpoint.cursor_in(job).map_err(|error| error.to_string())
}

fn refused(why: String) -> ServeError {
    ServeError::Fetch(FetchError::Refused(why))
}
