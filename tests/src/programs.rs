//! Starts our programs.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

/// Holds the sockets of a test's services.
const RUN: &str = "run";

/// A directory for one test, including a home: tests share no cache.
pub struct TestDir {
    dir: tempfile::TempDir,
    gristmill: PathBuf,
}

impl TestDir {
    /// For tests of the program `gristmill`; `gristmill-fetcher` lies beside it.
    pub fn new(gristmill: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("gristmill-test-").tempdir()?;
        fs::create_dir(dir.path().join(RUN))?;
        Ok(Self { dir, gristmill: gristmill.into() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the numbers 0 to 999 into the files of `data`, and `p.yaml`, a pipeline of 125 batches over them.
    pub fn write_numbers(&self) -> Result<()> {
        fs::create_dir(self.path("data"))?;
        let numbers: Vec<i64> = (0..1000).collect();
        for (i, part) in numbers.chunks(97).enumerate() {
            let lines: String = part.iter().map(|n| format!("{{\"id\": {n}}}\n")).collect();
            fs::write(self.path("data").join(format!("part-{i}.jsonl")), lines)?;
        }
        let pipeline = "source: { jsonl: data, features: { id: { dtype: i64 } } }\nops: [batch: { size: 8 }]\n";
        Ok(fs::write(self.path("p.yaml"), pipeline)?)
    }

    /// `gristmill` with these arguments.
    pub fn gristmill<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        self.program(&self.gristmill, args)
    }

    /// `gristmill-fetcher` with these arguments.
    pub fn fetcher<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let program = self.gristmill.with_file_name("gristmill-fetcher");
        assert!(program.exists(), "build it first: cargo build --release --workspace");
        self.program(&program, args)
    }

    /// Another program with these arguments.
    pub fn program<S: AsRef<std::ffi::OsStr>>(&self, program: &Path, args: &[S]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env("HOME", self.dir.path());
        command.env_remove("XDG_CACHE_HOME").env("XDG_RUNTIME_DIR", self.path(RUN));
        command
    }
}

/// Fails with the reason where the example trainer cannot run.
pub fn ensure_python() -> Result<()> {
    let found = Command::new("python3").arg("--version").output();
    ensure!(found.is_ok_and(|output| output.status.success()), "this test needs python3");
    Ok(())
}

/// Every file below `dir`; links are files.
pub fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut ahead) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = ahead.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                ahead.push(entry.path())
            } else {
                found.push(entry.path())
            }
        }
    }
    Ok(found)
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

/// A program that is killed at the end of the test.
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

    /// Waits until it has ended.
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
