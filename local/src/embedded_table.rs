//! The table of one machine: an embedded store behind the port `Table`.
//!
//! One thread writes. Writes that wait share one commit, which is synced before they are answered: an answered write
//! outlives a killed process and a power cut. Reads run on the caller's thread, which takes microseconds.

mod store;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome};
use store::{ItemStore, ItemWrite};
use tokio::sync::oneshot;

/// Jobs that share one commit, at most.
const GROUP_JOBS: usize = 256;

type Answer<T> = oneshot::Sender<Result<T, TableError>>;

enum Job {
    Write(ItemWrite, Answer<WriteOutcome>),
    Sweep { now_s: u64, limit: usize, answer: Answer<usize> },
}

/// A table in a file of this machine, for one process at a time. After an error of the disk the calls that failed answer
/// [`TableError::Unavailable`], and the next one opens the file again.
pub struct EmbeddedTable {
    jobs: Option<Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    store: Arc<ItemStore>,
    /// Released last.
    _lock: File,
}

impl EmbeddedTable {
    /// Opens the table in `dir`; creates both if they are absent. Blocks: it reads the whole file.
    ///
    /// # Errors
    /// [`TableError::Rejected`] if another process has it open, or it is damaged; [`TableError::Unavailable`] for
    /// errors of the disk.
    pub fn open(dir: &Path) -> Result<Self, TableError> {
        let (lock, store) = ItemStore::in_directory(dir)?;
        let store = Arc::new(store);
        let (jobs, received) = channel();
        let of_writer = Arc::clone(&store);
        let writer = std::thread::Builder::new()
            .name("table-writer".to_owned())
            .spawn(move || serve(&of_writer, &received))
            .map_err(|error| TableError::Unavailable(format!("no thread for it: {error}")))?;
        Ok(Self { jobs: Some(jobs), writer: Some(writer), store, _lock: lock })
    }

    /// Removes items that have expired at `now_s` (Unix time), and returns how many. One call looks at `limit` items,
    /// the next goes on from there, and after the last item comes the first.
    pub async fn sweep(&self, now_s: u64, limit: usize) -> Result<usize, TableError> {
        self.submit(|answer| Job::Sweep { now_s, limit, answer }).await
    }

    async fn submit<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, TableError> {
        let gone = || TableError::Unavailable("its writer has ended: restart the service".into());
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Reads; if that fails, once more after the file is opened again.
    async fn reading<T>(
        &self,
        read: impl Fn(&ItemStore) -> Result<T, redb::Error> + Send + Sync,
    ) -> Result<T, TableError> {
        if let Ok(found) = read(&self.store) {
            return Ok(found);
        }
        // Any job opens the file.
        self.sweep(0, 0).await?;
        read(&self.store).map_err(|error| self.store.unavailable(&error))
    }
}

impl Drop for EmbeddedTable {
    fn drop(&mut self) {
        self.jobs = None;
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the table's writer has panicked");
        }
    }
}

#[async_trait]
impl Table for EmbeddedTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        self.reading(|store| store.read(keys)).await
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        let write = ItemWrite { key: key.clone(), expected, body, expires_at_s };
        self.submit(|answer| Job::Write(write, answer)).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.reading(|store| store.list(pk, from, |sk| sk <= to)).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.reading(|store| store.last(pk, limit)).await
    }
}

/// The writing thread, until the table is dropped.
fn serve(store: &ItemStore, jobs: &Receiver<Job>) {
    let mut swept_to = ItemKey { pk: String::new(), sk: String::new() };
    while let Ok(first) = jobs.recv() {
        let (mut writes, mut answers) = (Vec::new(), Vec::new());
        for job in std::iter::once(first).chain(jobs.try_iter()).take(GROUP_JOBS) {
            match job {
                Job::Write(write, answer) => {
                    writes.push(write);
                    answers.push(answer);
                }
                Job::Sweep { now_s, limit, answer } => {
                    let swept = store.sweep(&mut swept_to, now_s, limit);
                    reply(answer, swept.map_err(|error| store.unavailable(&error)));
                }
            }
        }
        match store.commit(&writes) {
            Ok(outcomes) => {
                let answers = answers.into_iter().zip(outcomes);
                answers.for_each(|(answer, outcome)| reply(answer, Ok(outcome)));
            }
            Err(error) => {
                let error = store.unavailable(&error);
                answers.into_iter().for_each(|answer| reply(answer, Err(error.clone())));
            }
        }
    }
}

fn reply<T>(answer: Answer<T>, result: Result<T, TableError>) {
    // A caller that is gone waits for nothing.
    drop(answer.send(result));
}
