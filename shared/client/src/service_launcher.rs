//! Services on this machine that a client starts: one that all processes of its user share, or one of its own.

use crate::{ProgramFailure, ServiceConnection};
use gristmill_host::{
    ClientLock, HostError, HostServiceClient, ServiceFile, ServiceStatus, StartLock, checked,
    credentials_id, default_state_dir, is_alive, state_of_before,
};
use gristmill_model::Fingerprint;
use gristmill_model::wire::SpokenVersions;
use gristmill_pipeline::OperatorRegistry;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// How long the service may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a service that has just started may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);
/// How long the service may take to end before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The program `gristmill`, which runs a service as `gristmill up`.
#[derive(Debug, Clone)]
pub struct ServiceLauncher {
    pub program: PathBuf,
    /// Arguments before `up`.
    pub args: Vec<OsString>,
}

impl ServiceLauncher {
    /// This process's own program.
    pub fn current() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, args: Vec::new() })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).args(args).stdout(Stdio::piped());
        command
    }
}

/// The line that a service prints for its owner if it cannot start.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartRefusal {
    /// Exit code of the owner.
    pub code: u8,
    pub failed: String,
}

/// A client's hold on a service of this machine.
pub(crate) enum ServiceHold {
    /// The service runs at least as long as the lock is held.
    Shared {
        _lock: ClientLock,
    },
    Own(Box<ChildService>),
}

/// A service that ends with this process.
pub(crate) struct ChildService {
    launcher: ServiceLauncher,
    /// The directory on which it starts again after a crash; none if it keeps nothing.
    state_dir: Option<PathBuf>,
    child: Child,
    /// Closing it ends the service, as does the end of this process.
    stdin: ChildStdin,
}

/// Connects to the service on `state_dir`, or to the one that all processes of this user share. Starts it if it does not
/// run: it belongs to no process, and ends soon after its last client.
pub async fn start_local(
    launcher: &ServiceLauncher,
    state_dir: Option<&Path>,
    operators: Arc<OperatorRegistry>,
) -> Result<ServiceConnection, ProgramFailure> {
    let dir = match state_dir {
        Some(dir) => checked(dir).map_err(|error| match error {
            HostError::Full(_) => ProgramFailure::failed(error),
            error => ProgramFailure::usage(error),
        })?,
        None => shared_dir(launcher, &operators).map_err(ProgramFailure::failed)?,
    };
    let mut lock = ClientLock::take(&dir).await.map_err(ProgramFailure::failed)?;
    if let Some(running) = answering(&dir).await?
        && let Some(why) = running.unfit(&credentials_id())
    {
        replace(&running, why, &lock).await?;
        drop(lock);
        lock = ClientLock::take(&dir).await.map_err(ProgramFailure::failed)?;
    }
    let file = match answering(&dir).await? {
        Some(running) => running.file,
        None => {
            let _start = StartLock::take(&dir).await.map_err(ProgramFailure::failed)?;
            match answering(&dir).await? {
                Some(running) => running.file,
                None => launch(launcher, &dir).await?,
            }
        }
    };
    ServiceConnection::from_file(file, operators, ServiceHold::Shared { _lock: lock })
}

/// Starts a service that ends with this process. It keeps nothing, or its state in `state_dir`.
pub async fn start_own(
    launcher: &ServiceLauncher,
    state_dir: Option<&Path>,
    operators: Arc<OperatorRegistry>,
) -> Result<ServiceConnection, ProgramFailure> {
    let (own, file) = ChildService::start(launcher.clone(), state_dir.map(Path::to_owned)).await?;
    ServiceConnection::from_file(file, operators, ServiceHold::Own(Box::new(own)))
}

impl ServiceConnection {
    /// Ends a service of this process; any other is left to its other clients.
    pub async fn close(&self) {
        if let Some(ServiceHold::Own(own)) = self.held.lock().await.take() {
            own.end().await;
        }
    }

    /// Kills a service of this process that keeps its state, and starts it again. Returns whether there is one.
    pub async fn crash(&self) -> Result<bool, ProgramFailure> {
        let mut held = self.held.lock().await;
        match held.take() {
            Some(ServiceHold::Own(mut own)) if own.state_dir.is_some() => {
                own.child.kill().await.map_err(ProgramFailure::failed)?;
                let ChildService { launcher, state_dir, .. } = *own;
                let (own, _) = ChildService::start(launcher, state_dir).await?;
                *held = Some(ServiceHold::Own(Box::new(own)));
                Ok(true)
            }
            other => {
                *held = other;
                Ok(false)
            }
        }
    }
}

impl ChildService {
    async fn start(
        launcher: ServiceLauncher,
        state_dir: Option<PathBuf>,
    ) -> Result<(Self, ServiceFile), ProgramFailure> {
        let mut command = launcher.command(&["up", "--json", "--attended"]);
        match &state_dir {
            Some(dir) => command.arg("--state-dir").arg(dir),
            None => command.arg("--ephemeral"),
        };
        // Its own process group: Ctrl-C reaches only this process, which then ends the service cleanly.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::piped());
        let mut child = spawn(&launcher, &mut command)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProgramFailure::failed("the local service was started without pipes"));
        };
        let file = ready(stdout).await?;
        Ok((Self { launcher, state_dir, child, stdin }, file))
    }

    async fn end(self) {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        if tokio::time::timeout(END_TIMEOUT, child.wait()).await.is_err() {
            // The exit code means nothing, because it was killed here.
            let _ = child.kill().await;
        }
    }
}

/// The directory of the service that all processes of this user share whose workers know the same operators. Removes the
/// directory of versions before, unless one uses it.
fn shared_dir(
    launcher: &ServiceLauncher,
    operators: &OperatorRegistry,
) -> Result<PathBuf, HostError> {
    let is_plain = operators.names().eq(gristmill_operators::registry().names());
    let program = launcher.program.as_os_str().as_encoded_bytes();
    let kind = Fingerprint::from_content("gristmill program v1", program).to_string();
    let dir = default_state_dir(if is_plain { "" } else { &kind[..8] })?;
    if let Some(before) = state_of_before(&dir)
        && let Ok(lock) = std::fs::File::open(before.join("run.lock"))
        && lock.try_lock().is_ok()
        && let Err(error) = std::fs::remove_dir_all(&before)
    {
        tracing::warn!(%error, "{} of an earlier version could not be removed", before.display());
    }
    Ok(dir)
}

/// A service that answers, and what it says of itself.
struct RunningService {
    file: ServiceFile,
    status: ServiceStatus,
}

/// Why a running service does not suit a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnfitService {
    /// No version of the protocol is spoken by both.
    OtherVersion,
    /// Its workers lack the credentials of the client.
    OtherCredentials,
}

impl RunningService {
    /// Why it does not suit a client with these credentials. A service of another release suits that speaks a version of
    /// the protocol which this one speaks.
    fn unfit(&self, credentials: &str) -> Option<UnfitService> {
        if self.status.spoken.common(SpokenVersions::BUILD).is_none() {
            return Some(UnfitService::OtherVersion);
        }
        let has_other = self.file.credentials.as_ref().is_some_and(|own| own != credentials);
        has_other.then_some(UnfitService::OtherCredentials)
    }
}

/// The service that runs on `dir`, once it answers; none if there is none.
async fn answering(dir: &Path) -> Result<Option<RunningService>, ProgramFailure> {
    let began = Instant::now();
    loop {
        if !is_alive(dir) {
            return Ok(None);
        }
        let answers = match ServiceFile::from_state_dir(dir) {
            Ok(file) => HostServiceClient::new(&file)
                .status()
                .await
                .map(|status| RunningService { file, status })
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match answers {
            Ok(running) => return Ok(Some(running)),
            Err(error) if began.elapsed() > ANSWER_TIMEOUT => {
                return Err(ProgramFailure::failed(format!(
                    "the service on {} does not answer: {error}: end it with `gristmill ps --stop`",
                    dir.display()
                )));
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Ends a service that does not suit this process, unless others use it.
async fn replace(
    RunningService { file, status }: &RunningService,
    why: UnfitService,
    lock: &ClientLock,
) -> Result<(), ProgramFailure> {
    let dir = file.state_dir.display();
    if !lock.hold_alone() {
        if why == UnfitService::OtherVersion {
            let (own, version) = (SpokenVersions::BUILD, env!("CARGO_PKG_VERSION"));
            return Err(ProgramFailure::failed(format!(
                "the service on {dir} is in use and runs gristmill {} with protocol version {}; this is gristmill \
                 {version} with {own}: wait until its other programs have ended, or name another --state-dir",
                status.version, status.spoken
            )));
        }
        tracing::warn!(
            "the service on {dir} is in use and was started with other credentials (AWS_*, \
             GRISTMILL_WEB_AUTHORIZATION): its workers do not have those of this process; name another --state-dir if \
             they need them"
        );
        return Ok(());
    }
    // It may have ended by itself.
    let _ = HostServiceClient::new(file).stop().await;
    let began = Instant::now();
    while is_alive(&file.state_dir) {
        if began.elapsed() > END_TIMEOUT {
            return Err(ProgramFailure::failed(format!(
                "the service on {dir} does not end: end it with `gristmill ps --stop`"
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Starts the service on `dir`, which outlives this process if others use it.
async fn launch(launcher: &ServiceLauncher, dir: &Path) -> Result<ServiceFile, ProgramFailure> {
    let mut command = launcher.command(&["up", "--json", "--shared"]);
    command.arg("--state-dir").arg(dir).stdin(Stdio::null()).stderr(Stdio::null());
    // Its own process group: Ctrl-C concerns this process, and not others that use the service.
    command.process_group(0);
    let mut starting = Starting(Some(spawn(launcher, &mut command)?));
    let stdout = starting.0.as_mut().and_then(|child| child.stdout.take());
    let stdout = stdout
        .ok_or_else(|| ProgramFailure::failed("the local service was started without pipes"))?;
    let file = ready(stdout).await?;
    // From now on it ends by itself.
    starting.0.take();
    Ok(file)
}

/// A service that does not accept calls yet: nobody else knows it, so it is killed with the wait for it.
struct Starting(Option<Child>);

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.start_kill();
        }
    }
}

fn spawn(launcher: &ServiceLauncher, command: &mut Command) -> Result<Child, ProgramFailure> {
    let cannot = |error: io::Error| {
        ProgramFailure::failed(format!("cannot start {}: {error}", launcher.program.display()))
    };
    command.spawn().map_err(cannot)
}

/// Waits for the line that says that a service is ready, or why it is not.
async fn ready(stdout: ChildStdout) -> Result<ServiceFile, ProgramFailure> {
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout);
    let ready = tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut line)).await;
    let ready: Option<serde_json::Value> = match ready {
        Ok(Ok(n)) if n > 0 => serde_json::from_str(&line).ok(),
        _ => None,
    };
    let dir = ready.as_ref().and_then(|ready| ready.get("state_dir")?.as_str());
    match dir {
        Some(dir) => ServiceFile::from_state_dir(Path::new(dir)).map_err(ProgramFailure::failed),
        None => Err(match serde_json::from_str(&line) {
            Ok(StartRefusal { code: 2, failed }) => ProgramFailure::Usage(failed),
            Ok(StartRefusal { failed, .. }) => ProgramFailure::Failed(failed),
            Err(_) => ProgramFailure::failed("the local service did not start"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(oldest: u32, newest: u32, credentials: Option<&str>) -> RunningService {
        let file = ServiceFile {
            endpoint: "unix:/nowhere".to_owned(),
            token: String::new(),
            state_dir: PathBuf::new(),
            namespace: "n".parse().unwrap(),
            bucket: String::new(),
            version: String::new(),
            pid: 0,
            s3: None,
            credentials: credentials.map(str::to_owned),
        };
        let spoken = SpokenVersions { oldest, newest };
        RunningService { file, status: ServiceStatus { spoken, ..ServiceStatus::default() } }
    }

    #[test]
    fn a_service_of_another_release_suits_if_it_speaks_a_common_version() {
        for (oldest, newest) in [(1, 2), (2, 2), (2, 3), (3, 4)] {
            assert_eq!(running(oldest, newest, Some("own")).unfit("own"), None);
            let other = running(oldest, newest, Some("other")).unfit("own");
            assert_eq!(other, Some(UnfitService::OtherCredentials));
        }
        for (oldest, newest) in [(0, 1), (4, 5)] {
            let other = running(oldest, newest, None).unfit("own");
            assert_eq!(other, Some(UnfitService::OtherVersion));
        }
        assert_eq!(running(2, 3, None).unfit("own"), None, "a person started it");
        let unsaid: ServiceStatus = serde_json::from_str(r#"{"version":"0.1.0"}"#).unwrap();
        assert_eq!(unsaid.spoken, SpokenVersions::only(2), "releases before did not say it");
    }
}
