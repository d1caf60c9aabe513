//! `gristmill-fetcher`: the trainer's side of a job as a program of its own, over [`gristmill_client`] and [`gristmill_serve`].
//!
//! A program with operators of one's own calls [`main_with`]. A program that has this one as a command calls
//! [`run_with`].

#![deny(clippy::print_stderr)]

use clap::Parser;
use gristmill_client::{
    JobConfig, JobHandle, JobOptions, ProgramFailure, RankOptions, ReportOptions, ResumeError,
    ServiceConnection, ServiceOptions, StreamOptions, connect, interruption, log_to_stderr,
    report::{ResourceUsage, RunReport},
    return_large_buffers, survive_size_limits,
};
use gristmill_model::{Checkpoint, JobName, splits::Cursor};
use gristmill_pipeline::OperatorRegistry;
use gristmill_serve::{
    ConnectedClient, RankServer, ServeError, ServerActivity, StartCandidates,
    cursor::{CursorFile, CursorStore, NoCursorStore, SavedCursor, StreamIdentity},
    error_frame, kept,
};
use gristmill_stream::waiting::{WaitExplainer, WaitReason, while_saying};
use std::{
    cell::RefCell,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

/// Clients beside one for each rank: those that are refused with the reason.
const MORE_CLIENTS: usize = 8;

/// Events that go to standard error.
pub const LOG: &str =
    "warn,gristmill_client=info,gristmill_fetcher=info,gristmill_serve=info,gristmill_stream=info";

/// Runs this process as `gristmill-fetcher`, with operators of users beside ours.
pub fn main_with(operators: OperatorRegistry) -> ExitCode {
    // Before there are other threads.
    return_large_buffers();
    log_to_stderr(LOG);
    serve(operators)
}

#[tokio::main]
async fn serve(operators: OperatorRegistry) -> ExitCode {
    survive_size_limits();
    match run_with(FetcherOptions::parse(), Arc::new(operators)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(line) = failure.line() {
                gristmill_client::complain!("gristmill-fetcher: {line}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Serves the job that `options` name, until it is delivered, or Ctrl-C or SIGTERM.
pub async fn run_with(
    options: FetcherOptions,
    operators: Arc<OperatorRegistry>,
) -> Result<(), ProgramFailure> {
    tokio::select! {
        outcome = run(options, operators) => outcome,
        ended = interruption() => {
            gristmill_client::complain!("gristmill-fetcher: {ended}; the job continues when a fetcher is started \
                       again");
            Err(ProgramFailure::Reported(ended.exit_code()))
        }
    }
}

async fn run(
    options: FetcherOptions,
    operators: Arc<OperatorRegistry>,
) -> Result<(), ProgramFailure> {
    options.check()?;
    options.report.report.as_deref().map(RunReport::check_page).transpose()?;
    let service = connect(&options.service, operators).await?;
    tokio::select! {
        served = serve_job(&options, &service) => served,
        failure = service.given_up(options.stream.patience) => Err(failure),
    }
}

/// A stream that is open, and what serves it.
struct Serving {
    job: JobHandle,
    server: RankServer,
    /// The socket, and most clients of it.
    socket: Option<(FetcherSocket, usize)>,
    watcher: WaitExplainer,
    before: ResourceUsage,
}

async fn serve_job(
    options: &FetcherOptions,
    service: &ServiceConnection,
) -> Result<(), ProgramFailure> {
    let link = &service.link;
    let starting = start(options, service);
    let Serving { job, mut server, socket, watcher, before } =
        while_saying(starting, || Some(link.waiting()), say).await?;
    let known = RefCell::new((server.activity(), Instant::now()));
    let waiting = || {
        let (activity, since) = &mut *known.borrow_mut();
        // Another wait than the one before.
        if activity.has_changed().is_ok_and(|changed| changed) {
            activity.mark_unchanged();
            *since = Instant::now();
            return None;
        }
        let activity = activity.borrow();
        waiting(&activity, since.elapsed().as_secs(), link.or(watcher.waiting()), options)
    };
    let serving = async {
        let Some((socket, clients)) = &socket else {
            // The other end never says anything.
            let (silent, _end) = tokio::io::duplex(1);
            return server.write_all(tokio::io::join(silent, tokio::io::stdout())).await;
        };
        let (visitors, arriving) = tokio::sync::mpsc::channel(1);
        tokio::select! {
            served = server.serve(arriving) => served,
            () = socket.accept(visitors, *clients) => Ok(()),
        }
    };
    while_saying(serving, waiting, say).await.map_err(failure_of)?;
    drop(socket);
    report(options, &job, server, &before).await
}

/// Prints and writes what the run came to, if anybody asked.
async fn report(
    options: &FetcherOptions,
    job: &JobHandle,
    server: RankServer,
    before: &ResourceUsage,
) -> Result<(), ProgramFailure> {
    let counts = server.counts();
    let Some(observed) = server.into_observed() else { return Ok(()) };
    let mut report = RunReport::new(job, observed, before).await?;
    report.ranks = counts.ranks;
    if let Some(path) = &options.report.report {
        report.write_page(path)?;
        gristmill_client::complain!("wrote {}", path.display());
    }
    let printed = if options.is_stdout() {
        report.print("gristmill-fetcher", false, &mut std::io::stderr())
    } else {
        report.print("gristmill-fetcher", options.report.json, &mut std::io::stdout().lock())
    };
    printed.map_err(|error| {
        ProgramFailure::failed(format!("the report cannot be printed: {error}"))
    })?;
    report.check()
}

fn say(what: &str) {
    gristmill_client::complain!("gristmill-fetcher: waiting for {what}");
}

/// The wait to report after `seconds` of it: none while the ranks work.
fn waiting(
    activity: &ServerActivity,
    seconds: u64,
    waiting: WaitReason,
    options: &FetcherOptions,
) -> Option<WaitReason> {
    let or_fault =
        |text: String| if waiting.is_fault { waiting.clone() } else { WaitReason::patiently(text) };
    let socket = options.socket.display();
    let has_ranks = options.ranks.ranks.is_some();
    let who = |ranks: &[u32]| if has_ranks { named(ranks) } else { "the trainer".to_owned() };
    match activity {
        ServerActivity::Absent(_) if !has_ranks => {
            Some(or_fault(format!("a trainer to connect to {socket}")))
        }
        ServerActivity::Absent(ranks) => {
            Some(or_fault(format!("{} to connect to {socket}", who(ranks))))
        }
        ServerActivity::Slow(ranks) => Some(or_fault(format!(
            "{} to take a batch: {} taken none for {seconds} s, and the others wait",
            who(ranks),
            if ranks.len() == 1 { "it has" } else { "they have" }
        ))),
        ServerActivity::LastAck(ranks) => {
            Some(or_fault(format!("{} to acknowledge the last batch", who(ranks))))
        }
        ServerActivity::Fetching => Some(waiting),
        ServerActivity::Closing if !has_ranks => {
            Some(or_fault("the service to close the job".to_owned()))
        }
        ServerActivity::Closing => Some(or_fault(
            "the other fetchers of the run to finish, and the service to close the job".to_owned(),
        )),
        ServerActivity::Training | ServerActivity::Over => None,
    }
}

/// Ranks by name, such as `ranks 1, 2 and 5`.
fn named(ranks: &[u32]) -> String {
    /// Ranks that are named before the rest is counted.
    const MOST: usize = 8;
    let numbers: Vec<_> = ranks.iter().take(MOST).map(u32::to_string).collect();
    match (numbers.split_last(), ranks.len()) {
        (Some((only, [])), 1) => format!("rank {only}"),
        (Some((last, first)), ..=MOST) => format!("ranks {} and {last}", first.join(", ")),
        (_, count) => format!("ranks {} and {} more", numbers.join(", "), count - numbers.len()),
    }
}

/// Joins or starts the job, and opens its stream where its ranks begin.
async fn start(
    options: &FetcherOptions,
    service: &ServiceConnection,
) -> Result<Serving, ProgramFailure> {
    let began = Instant::now();
    let ranks = options.ranks.range()?;
    let checkpoint = options.ranks.checkpoint()?;
    let (mut cursors, saved) = open_state(options)?;
    // Before anything is started: what cannot be served should not begin.
    if !options.is_stdout() {
        FetcherSocket::check(&options.socket).map_err(ProgramFailure::usage)?;
    }
    let before = ResourceUsage::now(service).await;
    let of_checkpoint = checkpoint.as_ref().map(|checkpoint| checkpoint.split_batches);
    let splits = of_checkpoint.or(saved.as_ref().map(|saved| saved.split_batches));
    let job = open_job(options, service, splits).await?;
    let view = match saved {
        Some(_) => job.divided(options.stream.patience).await?,
        None => job.view.clone(),
    };
    let kept = kept(&mut *cursors, &StreamIdentity::from_view(&view)).map_err(failure_of)?;
    let clients = 2 * ranks.map_or(1, |(range, _)| range.count.get() as usize) + MORE_CLIENTS;
    let socket = if options.is_stdout() {
        None
    } else {
        Some((FetcherSocket::bind(&options.socket).map_err(ProgramFailure::usage)?, clients))
    };
    let resume = match &checkpoint {
        Some(checkpoint) => Some(place_of(&job, checkpoint, options).await?),
        None => None,
    };
    let status = job.status(options.stream.patience).await?;
    let (own, beginning) = match options.ranks.own(&job)? {
        None => (None, StartCandidates::from_job_status(&status, kept)),
        Some(own) => {
            let begins = StartCandidates::from_run_status(&status, own, resume, kept);
            let (beginning, own) = begins.map_err(ProgramFailure::Usage)?;
            (Some(own), beginning)
        }
    };
    let fetcher = job.open_for(own, beginning.known(), &options.stream).await?;
    let watcher = fetcher.watcher();
    let mut server = RankServer::new(fetcher, cursors, beginning)?;
    if options.report.json || options.report.report.is_some() {
        let mut observer = job.observe(server.fetcher(), began).await;
        observer.is_part = own.is_some_and(|own| !own.are_all());
        server.observed_by(observer);
    }
    if socket.is_some() {
        let at = options.socket.display();
        let whom = ranks.map_or("a trainer".to_owned(), |(range, of)| format!("{range} of {of}"));
        tracing::info!(job = %job.view.job, "serving {whom} at {at}, from {}", beginning.known());
    }
    Ok(Serving { job, server, socket, watcher, before })
}

/// The place of the checkpoint that `--resume` names.
async fn place_of(
    job: &JobHandle,
    checkpoint: &Checkpoint,
    options: &FetcherOptions,
) -> Result<Cursor, ProgramFailure> {
    let place = job.place_of(checkpoint, options.stream.patience).await;
    place.map_err(|error| match error {
        ResumeError::Checkpoint(error) => ProgramFailure::Usage(format!("--resume: {error}")),
        ResumeError::Fetch(error) => error.into(),
    })
}

/// The job that the options name: started, if they name a pipeline.
async fn open_job(
    options: &FetcherOptions,
    service: &ServiceConnection,
    split_batches: Option<u32>,
) -> Result<JobHandle, ProgramFailure> {
    let patience = options.stream.patience;
    let Some(path) = &options.pipeline else {
        let joined = service.join(options.name()?, &options.job, patience).await;
        return joined.map_err(|failure| match failure {
            ProgramFailure::Usage(why) if why.starts_with("there is no job") => {
                ProgramFailure::Usage(format!("{why}; give --pipeline to start it"))
            }
            failure => failure,
        });
    };
    let own = options.job.clone().resuming(split_batches);
    let config = JobConfig::read(path, own, service).await?;
    let job = service.submit(config, patience).await?;
    if !job.left_out.is_empty() {
        tracing::warn!("{}", job.left_out);
    }
    Ok(job)
}

/// The state file, which must be of this job, and what it holds.
fn open_state(
    options: &FetcherOptions,
) -> Result<(Box<dyn CursorStore>, Option<SavedCursor>), ProgramFailure> {
    let Some(path) = &options.state else { return Ok((Box::new(NoCursorStore), None)) };
    let mut file = CursorFile::open(path).map_err(ProgramFailure::usage)?;
    let job = options.name()?.to_string();
    // Before anything is started: the rest is known once the job is.
    let saved = file.load().map_err(ProgramFailure::usage)?;
    if let Some(SavedCursor { identity, .. }) = &saved
        && let Some(why) = identity
            .mismatch(&StreamIdentity { job, ..identity.clone() }, &file.name().unwrap_or_default())
    {
        return Err(ProgramFailure::Usage(why));
    }
    Ok((Box::new(file), saved))
}

fn failure_of(error: ServeError) -> ProgramFailure {
    match error {
        ServeError::State(why) => ProgramFailure::Usage(why),
        ServeError::Fetch(error) => error.into(),
        error => ProgramFailure::failed(error),
    }
}

/// Serve the batches of a gristmill job to a training loop.
///
/// Joins the named job, or starts it if --pipeline is given. docs/training.md describes frames and
/// acknowledgements; examples/train.py reads them with only numpy.
#[derive(Debug, Parser)]
#[command(
    name = "gristmill-fetcher", version, max_term_width = 100,
    // A fetcher serves a job that has a name, and reads data for a pipeline only.
    mut_arg("job", |arg| arg.required(true)),
    mut_arg("data", |arg| arg.requires("pipeline")),
)]
pub struct FetcherOptions {
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Unix socket to serve, readable by its owner only; `-` writes frames to standard output
    #[arg(long, default_value = "gristmill.sock")]
    pub socket: PathBuf,
    /// File that keeps the position: a restart continues after the last acknowledged batch
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Pipeline file, to start the job if it does not exist
    #[arg(long, value_name = "FILE")]
    pub pipeline: Option<PathBuf>,
    #[command(flatten)]
    pub ranks: RankOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub stream: StreamOptions,
    #[command(flatten)]
    pub report: ReportOptions,
}

impl FetcherOptions {
    /// The job's name.
    pub fn name(&self) -> Result<&JobName, ProgramFailure> {
        self.job.job.as_ref().ok_or_else(|| ProgramFailure::usage("--job names the job to serve"))
    }

    /// Whether frames go to standard output.
    pub fn is_stdout(&self) -> bool {
        self.socket.as_os_str() == "-"
    }

    /// Refuses combinations that cannot work.
    pub fn check(&self) -> Result<(), ProgramFailure> {
        if self.is_stdout() && self.report.json {
            return Err(ProgramFailure::usage(
                "--socket - writes frames to standard output, which --json needs: name a socket",
            ));
        }
        if self.ranks.range()?.is_some() {
            if self.is_stdout() {
                return Err(ProgramFailure::usage(
                    "--ranks needs a socket, to which each rank connects by itself: give --socket PATH",
                ));
            }
            self.ranks.token()?;
        }
        Ok(())
    }
}

/// How long a client waits for another to leave: one that reconnects may overtake its own end.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Rest after a connection could not be accepted: there may be no room for another for a while.
const REST: Duration = Duration::from_millis(100);

/// Most bytes of a socket's path, which ends with one of zero.
const MAX_PATH_BYTES: usize = 107;

/// A socket that is listened at; dropping it removes it.
pub struct FetcherSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: what is at `path` later may be somebody else's.
    id: Option<(u64, u64)>,
}

impl FetcherSocket {
    /// Makes sure that `path` can be listened at. A socket left by a server that died goes.
    ///
    /// # Errors
    /// Another process serves it, or something else than a socket is there: that is left alone.
    pub fn check(path: &Path) -> io::Result<()> {
        let failed = |what: String| Err(at_path(path, &what));
        let bytes = path.as_os_str().len();
        if bytes > MAX_PATH_BYTES {
            return failed(format!(
                "its path has {bytes} bytes, and that of a socket {MAX_PATH_BYTES} at most: name a shorter --socket"
            ));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return failed(format!("the directory {} does not exist", folder.display()));
        }
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return failed(error.to_string()),
            Ok(there) if !there.file_type().is_socket() => {
                return failed("it exists and is not a socket: name another --socket".to_owned());
            }
            Ok(_) => {}
        }
        match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|error| at_path(path, &error.to_string()))
            }
            // It has gone meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => failed(error.to_string()),
            Ok(_) => failed("another process serves it".to_owned()),
        }
    }

    /// Listens at `path`, for its owner only.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Self::check(path)?;
        // Nobody else may connect, not even before a mode could be set.
        let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(mask);
        let listener = bound.map_err(|error| at_path(path, &error.to_string()))?;
        Ok(Self { listener, path: path.to_owned(), id: id_at(path) })
    }

    /// Passes trainers that connect to a server, at most `clients` at a time; returns when the server is gone.
    pub async fn accept(
        &self,
        visitors: mpsc::Sender<ConnectedClient<UnixStream>>,
        clients: usize,
    ) {
        let permit = Arc::new(Semaphore::new(clients));
        let mut waiting = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        waiting.spawn(offer(stream, Arc::clone(&permit), clients, visitors.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connecting trainer now");
                        tokio::time::sleep(REST).await;
                    }
                },
                Some(_) = waiting.join_next() => {}
                () = visitors.closed() => return,
            }
        }
    }
}

impl Drop for FetcherSocket {
    /// A socket left behind would look like a server that hangs.
    fn drop(&mut self) {
        if self.id.is_some() && id_at(&self.path) == self.id {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn at_path(path: &Path, what: &str) -> io::Error {
    io::Error::other(format!("cannot listen at {}: {what}", path.display()))
}

fn id_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

async fn offer(
    mut stream: UnixStream,
    permit: Arc<Semaphore>,
    clients: usize,
    visitors: mpsc::Sender<ConnectedClient<UnixStream>>,
) {
    match tokio::time::timeout(PERMIT_TIMEOUT, permit.acquire_owned()).await {
        Ok(Ok(permit)) => {
            // A server that is done has nothing for anybody.
            let _ = visitors.send(ConnectedClient::new(stream, permit)).await;
        }
        Ok(Err(_)) => {}
        Err(_) => {
            let why = format!("{clients} clients are connected to this fetcher, which is the most");
            // It may have left.
            let _ = stream.write_all(&error_frame(&why)).await;
        }
    }
}

#[cfg(test)]
mod program_tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn ranks_are_named_and_counted() {
        assert_eq!(named(&[3]), "rank 3");
        assert_eq!(named(&[2, 3]), "ranks 2 and 3");
        assert_eq!(named(&[1, 2, 5]), "ranks 1, 2 and 5");
        let many: Vec<u32> = (0..12).collect();
        assert_eq!(named(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }

    #[test]
    fn the_command_line_is_consistent() {
        FetcherOptions::command().debug_assert();
    }

    #[test]
    fn a_job_has_a_name_and_data_a_pipeline() {
        let parse = |words: &str| {
            let words = format!("gristmill-fetcher {words}");
            FetcherOptions::command().try_get_matches_from(words.split_whitespace())
        };
        assert!(parse("--job j --state-dir s").is_ok());
        assert!(parse("--state-dir s").is_err());
        assert!(parse("--job j --data d").is_err());
        assert!(
            parse("--job j --pipeline p --data d --workers auto --report r.html --json").is_ok()
        );
    }
}

#[cfg(test)]
mod socket_tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let _runtime = runtime();
        let _guard = _runtime.enter();
        fs::write(path("model.pt"), "weights").unwrap();
        let refused = FetcherSocket::bind(&path("model.pt")).err().unwrap().to_string();
        assert!(refused.contains("model.pt") && refused.contains("not a socket"), "{refused}");
        assert_eq!(fs::read(path("model.pt")).unwrap(), b"weights");

        let refused = FetcherSocket::bind(&path(&"s".repeat(120))).err().unwrap().to_string();
        assert!(refused.contains("107 at most: name a shorter"), "{refused}");

        drop(std::os::unix::net::UnixListener::bind(path("dead")).unwrap());
        let socket = FetcherSocket::bind(&path("dead")).unwrap();
        let mode = fs::metadata(path("dead")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            FetcherSocket::bind(&path("dead"))
                .err()
                .unwrap()
                .to_string()
                .contains("another process")
        );
        drop(socket);
        assert!(!path("dead").exists());
        // A file that another process has put there since is kept.
        let socket = FetcherSocket::bind(&path("taken")).unwrap();
        fs::remove_file(path("taken")).unwrap();
        fs::write(path("taken"), "mine").unwrap();
        drop(socket);
        assert!(path("taken").exists());
    }
}
