//! Waiting for the runtime's tasks while Python handles signals.
#![allow(unsafe_code, reason = "the compiler cannot show that futures which borrow are Send")]

use crate::{errors, log};
use gristmill_stream::waiting::{WaitReason, WaitReportLimiter};
use pyo3::prelude::*;
use std::{
    mem::ManuallyDrop,
    ops::Deref,
    process,
    sync::OnceLock,
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Python handles signals this often during a wait.
const SLICE: Duration = Duration::from_millis(50);
/// Threads of tasks: downloads, checksums and joins of batches.
const THREADS: usize = 2;

struct Tasks {
    runtime: Runtime,
    /// The process that started the threads: a fork has none of them.
    pid: u32,
}

static TASKS: OnceLock<Tasks> = OnceLock::new();

/// The threads that run tasks. They never take Python's lock.
///
/// # Errors
/// This process is a fork of the one that started them, or they cannot be started.
pub fn runtime(py: Python<'_>) -> PyResult<&'static Runtime> {
    let tasks = match TASKS.get() {
        Some(tasks) => tasks,
        None => {
            let made = Builder::new_multi_thread()
                .worker_threads(THREADS)
                .thread_name("gristmill")
                .enable_all()
                .build();
            let runtime =
                made.map_err(|why| errors::error(py, "Error", format!("no threads: {why}")))?;
            TASKS.get_or_init(|| Tasks { runtime, pid: process::id() })
        }
    };
    if is_fork() {
        Err(errors::error(
            py,
            "Error",
            "gristmill was used before this process was forked, and its threads are not here: use a loader in one \
             process alone, or start processes with the method `spawn`",
        ))
    } else {
        Ok(&tasks.runtime)
    }
}

/// Whether this process is a fork of the one that started the threads.
pub fn is_fork() -> bool {
    TASKS.get().is_some_and(|tasks| tasks.pid != process::id())
}

/// Makes the runtime that of this thread, if there is one.
pub fn entered() -> Option<EnterGuard<'static>> {
    TASKS.get().map(|tasks| tasks.runtime.enter())
}

/// Ends calls that were given it, from any thread.
#[pyclass(frozen, name = "Interrupt", module = "gristmill._native")]
#[derive(Default)]
pub struct PyInterrupt(CancellationToken);

#[pymethods]
impl PyInterrupt {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn set(&self) {
        self.0.cancel();
    }
}

/// A value with connections or child processes. A fork leaves them to the process that made them.
pub struct ProcessLocal<T>(ManuallyDrop<T>);

impl<T> ProcessLocal<T> {
    /// Keeps `value` for this process alone.
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for ProcessLocal<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if !is_fork() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

/// A future of ours, or its output, that this thread alone uses.
struct OnThisThread<T>(T);

// SAFETY: `Python::detach` asks for it to keep Python's objects out; no future of this crate holds any. The closure runs on
// the thread that calls it, so nothing is sent.
unsafe impl<T> Send for OnThisThread<T> {}

impl<T> OnThisThread<T> {
    fn into_inner(self) -> T {
        self.0
    }
}

/// As [`wait`], and ends with `interrupt`.
pub fn until<T>(
    py: Python<'_>,
    interrupt: Option<&PyInterrupt>,
    work: impl Future<Output = T>,
    waiting: impl Fn() -> Option<WaitReason>,
) -> PyResult<T> {
    let done = match interrupt {
        Some(PyInterrupt(token)) => wait(py, token.run_until_cancelled(work), waiting)?,
        None => Some(wait(py, work, waiting)?),
    };
    done.ok_or_else(|| {
        let why = "the loader was closed, or its state was changed, while it started";
        errors::error(py, "Error", why)
    })
}

/// As [`until`], for work that goes on while a signal handler runs: it holds what the handler may need.
pub fn apart<T: Send + 'static>(
    py: Python<'_>,
    interrupt: Option<&PyInterrupt>,
    work: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let task = AbortOnDropHandle::new(runtime(py)?.spawn(work));
    let done = until(py, interrupt, task, || None)?;
    done.map_err(|why| errors::error(py, "Error", format!("a task broke off: {why}")))
}

/// Runs `work` to its end. Meanwhile handles signals, and logs what a long wait waits for.
///
/// # Errors
/// The exception of a signal's handler, such as `KeyboardInterrupt`; `work` is dropped then.
pub fn wait<T>(
    py: Python<'_>,
    work: impl Future<Output = T>,
    waiting: impl Fn() -> Option<WaitReason>,
) -> PyResult<T> {
    let runtime = runtime(py)?;
    let (mut pace, began) = (WaitReportLimiter::default(), Instant::now());
    let mut work = std::pin::pin!(work);
    loop {
        let sliced = OnThisThread(async { tokio::time::timeout(SLICE, work.as_mut()).await });
        let OnThisThread(done) = py.detach(|| OnThisThread(runtime.block_on(sliced.into_inner())));
        log::hand_over(py)?;
        if let Ok(done) = done {
            return Ok(done);
        }
        py.check_signals()?;
        match waiting() {
            Some(waiting) if pace.is_due(began.elapsed(), &waiting) => {
                log::say(py, "WARNING", &format!("waiting for {}", waiting.text))?;
            }
            Some(_) => {}
            None => pace.rest(),
        }
    }
}
