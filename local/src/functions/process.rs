//! A child process of the host. It cannot outlive the host, and signals cannot race with its end.
//!
//! A thread per child starts it and waits for it. The parent-death signal needs this: Linux sends it when the *thread*
//! that forked ends, so that thread must live as long as the child.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use super::lock;

/// Waiting threads need little stack.
const STACK_BYTES: usize = 128 * 1024;

/// Exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    /// Waiting for the process failed.
    Unknown,
}

impl Exit {
    /// Lambda's wording.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Code(0) | Self::Unknown => "Runtime exited without providing a reason".into(),
            Self::Code(code) => format!("Runtime exited with error: exit status {code}"),
            Self::Signal(signal) => {
                let name = match signal {
                    4 => "illegal instruction",
                    6 => "aborted",
                    7 => "bus error",
                    8 => "floating point exception",
                    9 => "killed",
                    11 => "segmentation fault",
                    15 => "terminated",
                    other => return format!("Runtime exited with error: signal: {other}"),
                };
                format!("Runtime exited with error: signal: {name}")
            }
        }
    }
}

/// A process and its descendants, as one process group.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// False once reaped: from then on the pid may be reused.
    alive: Mutex<bool>,
    exited_cpu_ms: AtomicU64,
}

/// Starts `command` in its own process group. The receiver gets its exit status after it was reaped.
///
/// # Errors
/// Error of the system on starting the thread or the process.
pub(crate) async fn spawn(command: Command) -> io::Result<(Arc<Process>, oneshot::Receiver<Exit>)> {
    let (started_tx, started_rx) = oneshot::channel();
    let (exit_tx, exit_rx) = oneshot::channel();
    std::thread::Builder::new().name("environment".into()).stack_size(STACK_BYTES).spawn(
        move || match start(command) {
            Ok(process) => {
                let _ = started_tx.send(Ok(Arc::clone(&process)));
                let exit = process.wait();
                let _ = exit_tx.send(exit);
            }
            Err(error) => drop(started_tx.send(Err(error))),
        },
    )?;
    let process = started_rx.await.map_err(|_| io::Error::other("the starting thread ended"))??;
    Ok((process, exit_rx))
}

fn start(mut command: Command) -> io::Result<Arc<Process>> {
    // Its own group: Ctrl-C in the terminal reaches only the host, which then ends its children in order.
    command.process_group(0);
    die_with_parent(&mut command);
    let child = command.spawn()?;
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the system gave no usable process id"))?;
    // Dropping `child` neither kills nor reaps: `wait` below does.
    Ok(Arc::new(Process { pid, alive: Mutex::new(true), exited_cpu_ms: AtomicU64::new(0) }))
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes two system calls
    // (prctl, getppid) and neither allocates nor locks. Without it a host killed by SIGKILL would leave its functions.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the call above took effect.
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            Ok(())
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Kills the whole group. Returns whether it was alive.
    pub(crate) fn kill(&self) -> bool {
        self.signal(Signal::KILL)
    }

    /// Stops the group.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a stopped group.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) -> bool {
        let alive = lock(&self.alive);
        *alive && kill_process_group(self.pid, signal).is_ok()
    }

    /// User and system CPU time so far, in milliseconds, with the kernel's resolution (10 ms).
    pub(crate) fn cpu_ms(&self) -> u64 {
        let alive = lock(&self.alive);
        if *alive { read_cpu_ms(self.pid()) } else { self.exited_cpu_ms.load(Relaxed) }
    }

    /// Peak resident set so far, in bytes; 0 after it ended.
    pub(crate) fn peak_rss_bytes(&self) -> u64 {
        let alive = lock(&self.alive);
        if *alive { read_peak_rss_bytes(self.pid()) } else { 0 }
    }

    /// Blocks until the process ends, records its figures, kills the rest of its group and reaps it.
    fn wait(&self) -> Exit {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = loop {
            match waitid(WaitId::Pid(self.pid), peek) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.ok().flatten(),
            }
        };
        let mut alive = lock(&self.alive);
        // Until it is reaped the pid is not reused: figures and group are still its own.
        self.exited_cpu_ms.store(read_cpu_ms(self.pid()), Relaxed);
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
        *alive = false;
        match status {
            Some(status) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Unknown,
            },
            None => Exit::Unknown,
        }
    }
}

/// `utime + stime` of `/proc/<pid>/stat`; 0 without that file.
fn read_cpu_ms(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    // The name in parentheses may contain anything, so fields are counted from its end.
    let Some((_, fields)) = stat.rsplit_once(')') else { return 0 };
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    ticks.saturating_mul(1000) / hertz
}

/// `VmHWM` of `/proc/<pid>/status`. Not `ru_maxrss`, which starts at the size of the process that forked.
fn read_peak_rss_bytes(pid: u32) -> u64 {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}
