//! A host of a training program: its fetcher, which restarts after every death, and the socket to which its ranks, or
//! its only trainer and other clients, connect.

use crate::{
    FaultKind, FaultSimulation, Mutant, ProcessKind, SimProcess,
    checks::{TrainerEnd, judge},
    cloud::{BUCKET, SimCloud},
    ranked::LaunchedRun,
    trainer::{DeliveryLog, check_emptied, fetcher_of},
};
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::{Cursor, readers::RankRange, run::TrainingRun};
use gristmill_model::wire::{JobStatus, JobView, RegisterCall, StatusCall};
use gristmill_model::{Checkpoint, CheckpointError};
use gristmill_ports::call_with_retry;
use gristmill_serve::{
    ConnectedClient, RankServer, ServeError, StartCandidates,
    cursor::{CursorStore, SavedCursor, StreamIdentity},
    kept,
};
use gristmill_stream::{FetchError, Fetcher, FetcherConfig, ServedRanks};
use parking_lot::Mutex;
use std::{io, num::NonZeroU32, sync::Arc};
use tokio::{io::DuplexStream, sync::mpsc};

/// Buffer between a fetcher and a client.
const PIPE_BYTES: usize = 4 << 10;

/// The machine of some ranks.
pub struct TrainerHost {
    sim: Arc<FaultSimulation>,
    pub index: u32,
    /// Whether its trainers keep checkpoints of their own, and may go back to an older one.
    pub trainer_keeps: bool,
    /// The state file as found by a restart: unreadable, absent, or its content.
    file: Mutex<Result<Option<SavedCursor>, String>>,
    /// The job's own file, while another one has replaced it.
    mistaken: Mutex<Option<Option<SavedCursor>>>,
    /// Channel for new connections, while a fetcher listens.
    socket: Mutex<Option<mpsc::Sender<ConnectedClient<DuplexStream>>>>,
}

impl TrainerHost {
    /// The host with this index of a run. Without `trainer_keeps` a file of its fetcher keeps the checkpoint.
    pub fn new(sim: &Arc<FaultSimulation>, index: u32, trainer_keeps: bool) -> Arc<Self> {
        Arc::new(Self {
            sim: Arc::clone(sim),
            index,
            trainer_keeps,
            file: Mutex::new(Ok(None)),
            mistaken: Mutex::default(),
            socket: Mutex::default(),
        })
    }

    /// Connects to the fetcher; none if there is none.
    pub async fn connect(&self) -> Option<DuplexStream> {
        let visitors = self.socket.lock().clone()?;
        let (mine, stream) = tokio::io::duplex(PIPE_BYTES);
        visitors.send(ConnectedClient::from(stream)).await.ok()?;
        Some(mine)
    }

    /// Nobody listens any more.
    pub fn close(&self) {
        *self.socket.lock() = None;
    }

    /// The disk of the host is lost.
    pub fn lose_file(&self) {
        *self.file.lock() = Ok(None);
    }

    /// Whether the state file's position is at least `next`.
    pub fn has_kept(&self, next: Cursor) -> bool {
        matches!(&*self.file.lock(), Ok(Some(saved)) if saved.cursor >= next)
    }

    /// Replaces the state file by one of another job, of another run under this name, or an invalid one, as a user's
    /// mistake.
    fn mistake_file(&self, identity: &StreamIdentity) {
        self.correct();
        let mut file = self.file.lock();
        let own = file.clone().unwrap_or_default();
        let Cursor { epoch, batch_index } =
            own.as_ref().map_or_else(Cursor::default, |own| own.cursor);
        let other = |job: &str, fingerprint: &str, batch_index| {
            let (job, fingerprint) = (job.to_owned(), fingerprint.to_owned());
            let identity = StreamIdentity { job, fingerprint, ..identity.clone() };
            let split_batches = own.as_ref().map_or(0, |own| own.split_batches);
            Ok(Some(SavedCursor { identity, split_batches, cursor: Cursor { epoch, batch_index } }))
        };
        let ahead = batch_index + 1 + self.sim.below(3);
        *file = match self.sim.below(4) {
            0 => other("another", &identity.fingerprint, 60),
            1 => other("another", &identity.fingerprint, ahead),
            2 => other(&identity.job, "another", ahead),
            _ => Err("not a state file".to_owned()),
        };
        *self.mistaken.lock() = Some(own);
    }

    /// Undoes [`TrainerHost::mistake_file`]. Returns whether there was anything to undo.
    fn correct(&self) -> bool {
        let own = self.mistaken.lock().take();
        own.map(|own| *self.file.lock() = Ok(own)).is_some()
    }
}

struct StateFile {
    host: Arc<TrainerHost>,
    process: SimProcess,
    served: StreamIdentity,
    /// Saved position that the mutant has not made durable.
    unsynced: Option<SavedCursor>,
}

impl CursorStore for StateFile {
    fn load(&mut self) -> io::Result<Option<SavedCursor>> {
        let saved = self.host.file.lock().clone().map_err(io::Error::other)?;
        Ok(match self.host.sim.mutant {
            Some(Mutant::TakesAnyState) => {
                saved.map(|saved| SavedCursor { identity: self.served.clone(), ..saved })
            }
            _ => saved,
        })
    }

    fn save(&mut self, saved: &SavedCursor) -> io::Result<()> {
        let sim = &self.host.sim;
        if sim.happens(FaultKind::DiskFull) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "simulated: no space"));
        }
        // The file is replaced atomically: a process that dies meanwhile leaves the old or the new one.
        let dies = sim.happens(FaultKind::DiesSaving);
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
            *self.host.file.lock() = Ok(Some(durable));
        }
        Ok(())
    }

    fn name(&self) -> Option<String> {
        Some("state file simulated".to_owned())
    }
}

/// Whether an error says that nothing is left of the job.
pub fn is_done(why: &str) -> bool {
    why.contains("is done: all its batches")
}

/// One host's fetcher, as a launcher keeps it running.
pub struct HostFetcher {
    pub cloud: Arc<SimCloud>,
    /// The run whose ranks it serves; none of a trainer that names none.
    pub run: Option<Arc<LaunchedRun>>,
    pub host: Arc<TrainerHost>,
    pub log: Arc<DeliveryLog>,
    pub register: RegisterCall,
    /// Whether the run was superseded when this fetcher started.
    pub is_old: bool,
}

impl HostFetcher {
    fn sim(&self) -> &Arc<FaultSimulation> {
        &self.cloud.sim
    }

    /// Serves until all is delivered, restarting the fetcher after every death.
    pub async fn serve(&self) {
        let (sim, log, host) = (self.sim(), &self.log, &self.host);
        while !log.is_done() && !log.is_given_up() && !sim.is_violated() {
            let process = SimProcess::new(sim, ProcessKind::Fetcher);
            self.cloud.deployed.host_starts(&process).await;
            sim.event(format_args!("the fetcher of host {} starts", host.index));
            let _end = process.ends_with();
            let mistakes = sim.happens(FaultKind::WrongState);
            let lived = process.run(self.run_once(&process, mistakes)).await;
            host.close();
            let is_done = match lived {
                Some(Ok(())) => true,
                Some(Err(error)) => {
                    sim.event(format_args!("the fetcher of host {} ends: {error}", host.index));
                    self.has_ended(&process, &error)
                }
                None => false,
            };
            match &self.run {
                Some(run) if is_done => return run.host_is_done(),
                None if is_done => return log.finish(),
                _ => {}
            }
            // A trainer without a run may have left it to the file where it is.
            if self.run.is_some() && sim.happens(FaultKind::DiskLost) {
                host.lose_file();
            }
            sim.time.sleep(sim.between_ms(100, 5_000)).await;
        }
    }

    /// Judges the end of a fetcher that did not die. Returns whether the job is done.
    fn has_ended(&self, process: &SimProcess, error: &ServeError) -> bool {
        let sim = self.sim();
        let accepted = process.generation().is_some();
        match error {
            ServeError::Over(why) | ServeError::Fetch(FetchError::Refused(why)) if is_done(why) => {
                return true;
            }
            ServeError::Io(error) if error.kind() == io::ErrorKind::StorageFull => {}
            // The user sees the error, and corrects the file.
            ServeError::State(_) | ServeError::Io(_) | ServeError::Over(_)
                if self.host.correct() => {}
            ServeError::State(why) | ServeError::Over(why) => {
                sim.violated(format_args!("its own state file: {why}"));
            }
            ServeError::Io(error) => sim.violated(format_args!("a fetcher ended: {error}")),
            ServeError::Fetch(FetchError::Fenced(_)) if self.is_old => {}
            ServeError::Fetch(FetchError::Fenced(why)) if self.run.is_some() || accepted => {
                sim.violated(format_args!("a fetcher that nobody replaced was fenced: {why}"));
            }
            ServeError::Fetch(error) => {
                if let TrainerEnd::GivenUp = judge(sim, error, &self.register.spec, accepted, false)
                {
                    self.log.give_up();
                }
            }
        }
        false
    }

    /// One life of the fetcher; before it, a user `mistakes` the state file.
    pub async fn run_once(&self, process: &SimProcess, mistakes: bool) -> Result<(), ServeError> {
        let Self { cloud, host, register, .. } = self;
        let (ports, config) = fetcher_of(cloud, process, register);
        let (ns, patience) = (&cloud.store.ns, config.patience);
        let view =
            Fetcher::register(&ports, ns, BUCKET, self.sim().budget.given(register), patience)
                .await?;
        let identity = StreamIdentity::from_view(&view);
        if mistakes {
            host.mistake_file(&identity);
        }
        let (host, process) = (Arc::clone(host), process.clone());
        let mut file = StateFile { host, process, served: identity.clone(), unsynced: None };
        let kept = kept(&mut file, &identity)?;
        if !self.host.trainer_keeps {
            cloud.store.runs.check_kept(self.sim(), view.registered_ms, kept);
        }
        let status = StatusCall { job: register.job.clone() };
        let status = call_with_retry(&*ports.coordinator, &*ports.clock, status, patience);
        let status = status.await.map_err(FetchError::from)?;
        let (own, beginning) = match &self.run {
            Some(run) => self.beginning(run, &view, &status, kept)?,
            None => (None, StartCandidates::from_job_status(&status, kept)),
        };
        let config = FetcherConfig { own, resume: beginning.known(), ..config };
        let fetcher = Fetcher::open(ports, config).await?;
        let mut server = RankServer::new(fetcher, Box::new(file), beginning)?;
        let (sender, visitors) = mpsc::channel(1);
        *self.host.socket.lock() = Some(sender);
        server.serve(visitors).await?;
        check_emptied(cloud, server.fetcher());
        Ok(())
    }

    /// The ranks of this host in `run`, and where they begin.
    fn beginning(
        &self,
        run: &LaunchedRun,
        view: &JobView,
        status: &JobStatus,
        kept: Option<Cursor>,
    ) -> Result<(Option<ServedRanks>, StartCandidates), ServeError> {
        let resume = run.resume.as_deref().filter(|_| run.tells_fetchers);
        let resume = resume.map(|text| checkpoint(text, view)).transpose().map_err(refused)?;
        let (first, each) = (self.host.index * run.per_host(), run.per_host());
        let range = RankRange { first, count: NonZeroU32::new(each).unwrap_or(NonZeroU32::MIN) };
        let ranks = RunRanks { from: Cursor::default(), tail: self.tail(run), ..run.ranks() };
        let of = TrainingRun { token: run.token(), ranks, epochs: None };
        let local_workers = self.register.spec.settings.local_workers;
        let own = ServedRanks { range, local_workers, ..ServedRanks::all(of) };
        let (beginning, own) =
            StartCandidates::from_run_status(status, own, resume, kept).map_err(refused)?;
        Ok((Some(own), beginning))
    }

    /// The treatment of the last batches that this host's fetcher believes in.
    fn tail(&self, run: &LaunchedRun) -> TailPolicy {
        match self.sim().mutant {
            Some(Mutant::TailPerRank) if !self.host.index.is_multiple_of(2) => TailPolicy::Uneven,
            Some(Mutant::TailPerRank) => TailPolicy::Drop,
            _ => run.ranks().tail,
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
