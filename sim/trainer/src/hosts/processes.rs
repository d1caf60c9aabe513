//! The fetcher processes, one a host: started, watched, killed on purpose, and ended with the run.

use super::HostedRun;
use gristmill_client::{JobHandle, ProgramFailure, ServiceLauncher, StreamOptions};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    ffi::OsString,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::Command,
    sync::mpsc,
    task::JoinSet,
};

/// Most bytes of a socket's path, without the name of the socket.
const MAX_FOLDER_BYTES: usize = 90;
/// Last lines of a process's standard error that are kept, and most bytes of one.
const KEPT_LINES: usize = 5;
const MAX_LINE_BYTES: usize = 500;

/// How the life of a host's fetcher went so far.
#[derive(Debug, Default)]
pub struct FetcherHistory {
    /// Whether it has handed out a step since it started last.
    has_served: AtomicBool,
    /// Whether its predecessor was killed before it had.
    was_killed_early: AtomicBool,
    has_ended: AtomicBool,
}

impl FetcherHistory {
    /// The fetcher has handed out a step.
    pub fn served(&self) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    /// Whether the fetcher has ended well.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Whether it may be killed. One that starts may be, but not its successor too: killed at that pace, no fetcher
    /// would ever serve.
    fn may_be_killed(&self) -> bool {
        let has_served = self.has_served.swap(false, Ordering::Relaxed);
        let was_killed_early = self.was_killed_early.swap(!has_served, Ordering::Relaxed);
        has_served || !was_killed_early
    }
}

/// A running fetcher, and the way to kill it.
type Victim = (Arc<FetcherHistory>, mpsc::Sender<()>);

/// The fetchers of the present run, for those who kill them.
#[derive(Debug, Clone, Default)]
pub struct RunningFetchers {
    running: Arc<Mutex<Vec<Victim>>>,
    kills: Arc<AtomicU64>,
}

impl RunningFetchers {
    /// Kills the fetcher at `share` of all, from 0 to below 1, if it may be killed.
    pub fn kill(&self, share: f64) {
        let running = self.running.lock();
        let at = (share * running.len() as f64) as usize;
        if let Some((life, kill)) = running.get(at)
            && life.may_be_killed()
        {
            // One that has ended meanwhile, or is being killed, needs no other.
            let _ = kill.try_send(());
        }
    }

    /// Fetchers killed so far.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Spares all from now on.
    pub fn spare(&self) {
        self.running.lock().clear();
    }
}

/// The settings that all fetchers of a job share.
pub struct FetcherProgram {
    launcher: ServiceLauncher,
    /// The arguments that name service and job.
    args: Vec<OsString>,
}

impl FetcherProgram {
    /// The program that `launcher` starts, as a fetcher of `job`.
    pub fn new(launcher: ServiceLauncher, job: &JobHandle, stream: &StreamOptions) -> Self {
        let service = match &job.service.local {
            Some(local) => format!("--endpoint={}", local.calls.endpoint()),
            None => "--backend=aws".to_owned(),
        };
        let mut args = vec!["fetcher".to_owned(), "--attended".to_owned(), service];
        args.push(format!("--job={}", job.view.job));
        args.push(format!("--patience={}s", stream.patience.as_secs().max(1)));
        let local_workers = Some(job.local_workers).filter(|count| *count > 0);
        args.extend(local_workers.map(|count| format!("--local-workers={count}")));
        args.extend(job.epochs.map(|epochs| format!("--epochs={epochs}")));
        args.extend(stream.prefetch_mib.map(|mib| format!("--prefetch-mib={mib}")));
        Self { launcher, args: args.into_iter().map(OsString::from).collect() }
    }

    fn command(&self, run: &HostedRun, host: u32, socket: &std::path::Path) -> Command {
        let mut command = Command::new(&self.launcher.program);
        command.args(&self.launcher.args).args(&self.args).args(run.flags(host));
        command.arg("--socket").arg(socket);
        // Ctrl-C reaches only this process, which then ends the fetchers.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

/// The fetchers of one run. Dropping it kills them.
pub struct FetcherProcesses {
    dir: TempDir,
    lives: Vec<Arc<FetcherHistory>>,
    tasks: JoinSet<Result<(), ProgramFailure>>,
    victims: RunningFetchers,
}

impl FetcherProcesses {
    /// Starts a fetcher for each host of `run`.
    pub fn start(
        program: &Arc<FetcherProgram>,
        run: &HostedRun,
        victims: &RunningFetchers,
    ) -> Result<Self, ProgramFailure> {
        let dir = private_folder().map_err(|error| {
            let why = format!("no folder can be made for the sockets of fetchers: {error}");
            ProgramFailure::failed(why)
        })?;
        let mut hosts =
            Self { dir, lives: Vec::new(), tasks: JoinSet::new(), victims: victims.clone() };
        for host in 0..run.hosts.get() {
            let (life, (kill, kills)) = (Arc::new(FetcherHistory::default()), mpsc::channel(1));
            victims.running.lock().push((Arc::clone(&life), kill));
            hosts.lives.push(Arc::clone(&life));
            let (program, run, victims) = (Arc::clone(program), run.clone(), victims.clone());
            let socket = hosts.socket(host);
            let command = move || program.command(&run, host, &socket);
            hosts.tasks.spawn(keep(command, life, kills, victims));
        }
        Ok(hosts)
    }

    /// The socket of a host.
    pub fn socket(&self, host: u32) -> PathBuf {
        self.dir.path().join(format!("{host}.sock"))
    }

    /// The life of a host's fetcher.
    pub fn life(&self, host: u32) -> Arc<FetcherHistory> {
        self.lives.get(host as usize).cloned().unwrap_or_default()
    }

    /// Resolves once a fetcher ends that should not have. Cancel safe.
    pub async fn failed(&mut self) -> ProgramFailure {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => return failure,
                Err(error) => return ProgramFailure::failed(error),
            }
        }
        std::future::pending().await
    }

    /// Waits until all have ended by themselves. Fails if one ended that should not have.
    pub async fn ended(mut self) -> Result<(), ProgramFailure> {
        self.victims.spare();
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(ProgramFailure::failed)??;
        }
        Ok(())
    }

    /// Kills all: their hosts are gone.
    pub async fn kill(mut self) {
        self.victims.spare();
        self.tasks.shutdown().await;
    }
}

impl Drop for FetcherProcesses {
    fn drop(&mut self) {
        self.victims.spare();
    }
}

/// Keeps one fetcher running until it ends by itself, or a request to kill is the last.
async fn keep(
    command: impl Fn() -> Command,
    life: Arc<FetcherHistory>,
    mut kills: mpsc::Receiver<()>,
    victims: RunningFetchers,
) -> Result<(), ProgramFailure> {
    loop {
        let mut child = command().spawn().map_err(|error| {
            ProgramFailure::failed(format!("a fetcher cannot be started: {error}"))
        })?;
        let errors = child.stderr.take().map(|stderr| tokio::spawn(last_lines(stderr)));
        // It ends when this closes.
        let _attended = child.stdin.take();
        let status = tokio::select! {
            status = child.wait() => status.map_err(ProgramFailure::failed)?,
            Some(()) = kills.recv() => {
                // It may have ended by itself meanwhile, which is as good.
                child.kill().await.map_err(|error| {
                    ProgramFailure::failed(format!("a fetcher cannot be killed: {error}"))
                })?;
                victims.kills.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        if status.success() {
            life.has_ended.store(true, Ordering::Release);
            return Ok(());
        }
        let errors = match errors {
            Some(errors) => errors.await.unwrap_or_default(),
            None => String::new(),
        };
        return Err(ProgramFailure::failed(match errors.as_str() {
            "" => format!("a fetcher ended with {status} and said nothing"),
            errors => format!("a fetcher ended with {status}: {errors}"),
        }));
    }
}

/// The last lines of a process's standard error, joined.
async fn last_lines(stderr: impl AsyncRead + Unpin) -> String {
    let mut lines = VecDeque::new();
    let mut reader = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(mut line)) = reader.next_segment().await {
        line.truncate(MAX_LINE_BYTES);
        lines.push_back(String::from_utf8_lossy(&line).into_owned());
        if lines.len() > KEPT_LINES {
            lines.pop_front();
        }
    }
    Vec::from(lines).join("; ")
}

/// A folder for sockets, its owner's alone, whose path leaves room for their names.
fn private_folder() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("gristmill-hosts-");
    let dir = builder.tempdir()?;
    if dir.path().as_os_str().len() > MAX_FOLDER_BYTES {
        builder.tempdir_in("/tmp")
    } else {
        Ok(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetcher_is_killed_at_most_once_before_it_serves() {
        let life = FetcherHistory::default();
        assert!(life.may_be_killed(), "one that starts");
        assert!(!life.may_be_killed(), "its successor");
        assert!(!life.may_be_killed());
        life.served();
        assert!(life.may_be_killed());
        assert!(life.may_be_killed(), "one that starts");
        assert!(!life.may_be_killed());
    }

    #[tokio::test]
    async fn the_last_lines_of_an_error_are_kept() {
        let text = (0..20).map(|line| format!("line {line}\n")).collect::<String>();
        let kept = last_lines(text.as_bytes()).await;
        assert_eq!(kept, "line 15; line 16; line 17; line 18; line 19");
        assert_eq!(last_lines(&b""[..]).await, "");
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    #[tokio::test]
    async fn a_process_that_fails_is_named_with_what_it_said() {
        let (_kill, kills) = mpsc::channel(1);
        let life = Arc::new(FetcherHistory::default());
        let command = || shell("echo no such job >&2; exit 3");
        let failed =
            keep(command, Arc::clone(&life), kills, RunningFetchers::default()).await.unwrap_err();
        assert_eq!(failed.to_string(), "a fetcher ended with exit status: 3: no such job");
        assert!(!life.has_ended());
    }

    #[tokio::test]
    async fn a_killed_process_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("starts");
        let (kill, kills) = mpsc::channel(1);
        let (life, victims) = (Arc::new(FetcherHistory::default()), RunningFetchers::default());
        // The first waits for its end, the second finds that there was one before.
        let script = format!("test -e {0} && exit 0; touch {0}; sleep 600", file.display());
        let kept =
            tokio::spawn(keep(move || shell(&script), Arc::clone(&life), kills, victims.clone()));
        while !file.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        kill.send(()).await.unwrap();
        kept.await.unwrap().unwrap();
        assert_eq!((victims.kills(), life.has_ended()), (1, true));
    }
}
