//! The table of one machine: an embedded store behind the port `Table`.
//!
//! One thread writes. Writes that wait share one commit, which is synced before they are answered, so an answered write
//! outlives a killed process and a power cut. Reads run on the caller's thread: they take microseconds and wait for no
//! commit.

mod store;

use std::fs::File;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{Item, ItemKey, Table, TableError, WriteOutcome};
use tokio::sync::oneshot;

use store::{ItemStore, ItemWrite, StoreFailure};

/// Bounds of what shares one commit.
const GROUP_WRITES: usize = 256;
const GROUP_BYTES: usize = 8 << 20;

/// What a caller waits for.
type Answer<T> = oneshot::Sender<Result<T, TableError>>;

/// Work of the writing thread.
enum Job {
    Write(ItemWrite, Answer<WriteOutcome>),
    Sweep {
        now_s: u64,
        limit: usize,
        answer: Answer<usize>,
    },
    /// A read failed.
    Reopen(StoreFailure, Answer<()>),
}

/// A table in a file of this machine, for one process at a time.
///
/// After an error of the disk the failing calls answer [`TableError::Unavailable`], and the file is opened again.
#[derive(Debug)]
pub struct EmbeddedTable {
    jobs: Option<Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    store: Arc<ItemStore>,
    /// Held until the store above is closed.
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

    /// Removes items that have expired at `now_s` (Unix time). One call looks at `limit` items and the next goes on
    /// from there, from the last item to the first again. Returns how many it removed.
    ///
    /// # Errors
    /// As a write.
    pub async fn sweep(&self, now_s: u64, limit: usize) -> Result<usize, TableError> {
        self.submit(|answer| Job::Sweep { now_s, limit, answer }).await
    }

    /// Bytes that the table takes on its disk.
    #[must_use]
    pub fn bytes_on_disk(&self) -> u64 {
        self.store.bytes_on_disk()
    }

    async fn submit<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, TableError> {
        let gone = || TableError::Unavailable("its writer has ended: restart the service".into());
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Reads; once more on the file opened again if that fails.
    async fn reading<T>(
        &self,
        read: impl Fn(&ItemStore) -> Result<T, StoreFailure> + Send + Sync,
    ) -> Result<T, TableError> {
        let failure = match read(&self.store) {
            Ok(found) => return Ok(found),
            Err(failure) => failure,
        };
        self.submit(|answer| Job::Reopen(failure, answer)).await?;
        read(&self.store).map_err(|failure| self.store.unavailable(&failure))
    }
}

impl Drop for EmbeddedTable {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the table's writer has panicked");
        }
    }
}

#[async_trait]
impl Table for EmbeddedTable {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, TableError> {
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

    async fn query(&self, pk: &str, prefix: &str) -> Result<Vec<(String, Item)>, TableError> {
        self.reading(|store| store.query(pk, prefix)).await
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, Item)>, TableError> {
        if from > to {
            return Ok(Vec::new());
        }
        let keys: RangeInclusive<&str> = from..=to;
        self.reading(|store| store.range(pk, keys.clone())).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, Item)>, TableError> {
        self.reading(|store| store.last(pk, limit)).await
    }
}

/// The writing thread, until the table is dropped.
fn serve(store: &ItemStore, jobs: &Receiver<Job>) {
    let mut swept_to = ItemKey { pk: String::new(), sk: String::new() };
    let mut next = None;
    while let Some(job) = next.take().or_else(|| jobs.recv().ok()) {
        match job {
            Job::Write(write, answer) => next = serve_writes(store, jobs, write, answer),
            Job::Sweep { now_s, limit, answer } => {
                let swept = store.sweep(&mut swept_to, now_s, limit);
                reply(answer, swept.map_err(|failure| after_failure(store, &failure)));
            }
            Job::Reopen(failure, answer) => {
                let reopened = store.reopen(&failure);
                reply(answer, reopened.map_err(|failure| store.unavailable(&failure)));
            }
        }
    }
}

/// Commits a write together with those that wait behind it. Returns the job after them, if one was taken.
fn serve_writes(
    store: &ItemStore,
    jobs: &Receiver<Job>,
    first: ItemWrite,
    answer: Answer<WriteOutcome>,
) -> Option<Job> {
    let mut bytes = first.body.len();
    let (mut writes, mut answers, mut next) = (vec![first], vec![answer], None);
    while writes.len() < GROUP_WRITES && bytes < GROUP_BYTES && next.is_none() {
        match jobs.try_recv() {
            Ok(Job::Write(write, answer)) => {
                bytes += write.body.len();
                writes.push(write);
                answers.push(answer);
            }
            Ok(other) => next = Some(other),
            Err(_) => break,
        }
    }
    match store.commit(&writes) {
        Ok(outcomes) => {
            answers
                .into_iter()
                .zip(outcomes)
                .for_each(|(answer, outcome)| reply(answer, Ok(outcome)));
        }
        Err(failure) => {
            let error = after_failure(store, &failure);
            answers.into_iter().for_each(|answer| reply(answer, Err(error.clone())));
        }
    }
    next
}

/// Opens the file again and returns what the failed calls answer.
fn after_failure(store: &ItemStore, failure: &StoreFailure) -> TableError {
    let error = store.unavailable(failure);
    tracing::warn!(%error, "the table failed");
    if let Err(failure) = store.reopen(failure) {
        tracing::warn!(%failure, "the table is closed until its next call");
    }
    error
}

fn reply<T>(answer: Answer<T>, result: Result<T, TableError>) {
    // A caller that is gone waits for nothing.
    drop(answer.send(result));
}
