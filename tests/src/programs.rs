//! Starting our programs.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

/// A directory of its own for one test, with a home in it: tests share no cache.
pub struct TestDir(tempfile::TempDir);

impl TestDir {
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix("gristmill-test-").tempdir()?))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn isolate(&self, command: &mut Command) {
        command.env("HOME", self.0.path());
        command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    }

    /// `gristmill` with these arguments.
    pub fn gristmill<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(gristmill());
        command.args(args);
        self.isolate(&mut command);
        command
    }

    /// `gristmill-fetcher` with these arguments.
    pub fn fetcher<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(gristmill_fetcher());
        command.args(args);
        self.isolate(&mut command);
        command
    }
}

/// The `gristmill` program, built with the profile of these tests.
pub fn gristmill() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build("gristmill"))
}

/// The `gristmill-fetcher` program.
pub fn gristmill_fetcher() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build("gristmill-fetcher"))
}

/// Builds a program into the target directory these tests run from. Cargo does not build programs of
/// other packages for a test; where they are fresh this takes a moment.
fn build(package: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let profile_dir = test.ancestors().nth(2).unwrap_or(Path::new("."));
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", profile, "--package", package])
        .arg("--target-dir")
        .arg(profile_dir.parent().unwrap_or(Path::new(".")))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "{package} cannot be built");
    profile_dir.join(package)
}

/// Runs a command to its end; its last line of standard output is JSON.
pub fn run_json(command: &mut Command) -> Result<Value> {
    let output = command.stdin(Stdio::null()).output().context("the program cannot be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?} ended with {}: {errors}", command, output.status);
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().last().context("nothing on standard output")?;
    serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))
}

/// A program that runs beside the test and is killed with it.
pub struct Background {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Background {
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// The next line of its standard output.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => bail!("the program ended early"),
            _ => Ok(line),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGINT, as Ctrl-C; returns its exit code.
    pub fn interrupt(&mut self) -> Result<Option<i32>> {
        let pid = self.pid().to_string();
        ensure!(Command::new("kill").args(["-INT", &pid]).status()?.success(), "no such process");
        Ok(self.child.wait()?.code())
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<Option<i32>> {
        Ok(self.child.wait()?.code())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
