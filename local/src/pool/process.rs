//! One worker process, the events it works on, and the bounded log of all of them.

use super::WorkerProgram;
use gristmill_host::{WorkerAnswer, WorkerOrder, open_private};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

/// Time for a process that has closed a pipe to end, and for its last words.
const END_TIME: Duration = Duration::from_secs(1);
/// Longer lines are no answers.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a process's last words.
const LAST_WORDS_BYTES: usize = 400;

/// Why an event failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerProcessError {
    /// The process is gone.
    #[error("{0}")]
    Died(String),
    /// The process goes on.
    #[error("{0}")]
    Failed(String),
}

/// A worker process; dropping it kills it.
pub(super) struct WorkerProcess {
    child: Child,
    pub pid: u32,
    /// The line before the first order.
    greeting: String,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: JoinHandle<()>,
    last_words: Arc<Mutex<Vec<u8>>>,
}

impl WorkerProcess {
    /// Starts a process, gives it `setup`, and keeps its standard error in `log`.
    pub fn start(program: &WorkerProgram, setup: &str, log: &Arc<LogFile>) -> io::Result<Self> {
        let mut command = Command::new(&program.program);
        command.args(&program.args).kill_on_drop(true);
        // Ctrl-C reaches the service alone, which then ends its workers.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take(), child.id());
        let (Some(orders), Some(answers), Some(errors), Some(pid)) = pipes else {
            return Err(io::Error::other("it was started without pipes"));
        };
        let last_words = Arc::default();
        let log = tokio::spawn(keep_log(errors, Arc::clone(log), Arc::clone(&last_words)));
        let (greeting, answers) = (format!("{setup}\n"), BufReader::new(answers));
        Ok(Self { child, pid, greeting, orders, answers, log, last_words })
    }

    /// Works for `order`, for at most `limit`. `tell` gets what hinders the worker.
    pub async fn run(
        &mut self,
        order: &WorkerOrder,
        limit: Duration,
        tell: impl Fn(Option<String>),
    ) -> Result<(), WorkerProcessError> {
        let order = serde_json::to_string(order);
        let order = order.map_err(|error| WorkerProcessError::Failed(error.to_string()))?;
        let lines = format!("{}{order}\n", std::mem::take(&mut self.greeting));
        let working = async {
            self.orders.write_all(lines.as_bytes()).await.ok()?;
            loop {
                match self.answer().await? {
                    Some(WorkerAnswer::Trouble(trouble)) => tell(trouble),
                    Some(answer) => return Some(answer),
                    None => {}
                }
            }
        };
        match tokio::time::timeout(limit, working).await {
            Ok(Some(WorkerAnswer::Failed(error))) => Err(WorkerProcessError::Failed(error)),
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(WorkerProcessError::Died(self.how_it_ended().await)),
            Err(_) => {
                // It is killed when it is dropped.
                let seconds = limit.as_secs();
                Err(WorkerProcessError::Died(format!("the worker took longer than {seconds} s")))
            }
        }
    }

    /// The next line, if it is an answer: a user's operator may print. None at the end.
    async fn answer(&mut self) -> Option<Option<WorkerAnswer>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.answers).take(ANSWER_BYTES_MAX);
        match limited.read_until(b'\n', &mut line).await {
            Ok(1..) => Some(serde_json::from_slice(&line).ok()),
            Ok(0) | Err(_) => None,
        }
    }

    /// Resolves once the process has ended.
    pub async fn wait_for_end(&mut self) {
        // An error means that there is no such process.
        let _ = self.child.wait().await;
    }

    async fn how_it_ended(&mut self) -> String {
        let status = match tokio::time::timeout(END_TIME, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            _ => "it closed a pipe".to_owned(),
        };
        // Not for ever: a process that it started may have its standard error too.
        let _ = tokio::time::timeout(END_TIME, &mut self.log).await;
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let words = String::from_utf8_lossy(&words);
        match words.lines().rfind(|line| !line.trim().is_empty()) {
            Some(last) => format!("the worker died ({status}): {}", last.trim()),
            None => format!("the worker died ({status})"),
        }
    }
}

/// Appends what a process says to the log, and keeps the end of it.
async fn keep_log(mut errors: ChildStderr, log: Arc<LogFile>, last_words: Arc<Mutex<Vec<u8>>>) {
    let mut text = vec![0; 8 << 10];
    while let Ok(bytes @ 1..) = errors.read(&mut text).await {
        log.append(&text[..bytes]);
        let mut last = last_words.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend_from_slice(&text[..bytes]);
        let excess = last.len().saturating_sub(LAST_WORDS_BYTES);
        last.drain(..excess);
    }
}

/// Most bytes of one file; there are two.
pub(crate) const FILE_BYTES_MAX: u64 = 4 << 20;

/// A log that several processes write to.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    open: Mutex<Option<(File, u64)>>,
}

impl LogFile {
    /// A log at `path`, which the first line creates.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::default() }
    }

    /// Appends `text`. A log that cannot be written, as on a full disk, must not stop the work.
    pub fn append(&self, text: &[u8]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if self.try_append(&mut open, text).is_err() {
            *open = None;
        }
    }

    fn try_append(&self, open: &mut Option<(File, u64)>, text: &[u8]) -> io::Result<()> {
        if open.as_ref().is_some_and(|(_, bytes)| *bytes >= FILE_BYTES_MAX) {
            *open = None;
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        if open.is_none() {
            let file = open_private(&self.path, File::options().append(true).create(true))?;
            let bytes = file.metadata()?.len();
            *open = Some((file, bytes));
        }
        let Some((file, bytes)) = open else { return Ok(()) };
        *bytes += text.len() as u64;
        file.write_all(text)
    }
}

#[cfg(test)]
mod log_file_tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_keeps_its_latest_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.log");
        let log = LogFile::new(path.clone());
        let line = vec![b'x'; 1 << 16];
        for _ in 0..300 {
            log.append(&line);
        }
        log.append(b"last\n");
        let files: Vec<u64> = fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(files.len(), 2);
        assert!(
            files.iter().all(|bytes| *bytes <= FILE_BYTES_MAX + line.len() as u64),
            "{files:?}"
        );
        assert!(fs::read(path).unwrap().ends_with(b"last\n"));
    }
}
