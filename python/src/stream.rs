//! A job's stream of batches, for the rank of this process.

use crate::{
    batch::{Batch, EpochEnd},
    errors, log, wait,
};
use futures::FutureExt as _;
use gristmill_chunk::{Frame, Limits};
use gristmill_client::{
    Acknowledger, Failure, FetchError, Fetcher, Job, RankBatch, RankOptions, StepDelivery, Steps,
    StreamOptions,
    server::Beginning,
    waiting::{Link, Waiting, Watcher},
};
use gristmill_model::splits::{Cursor, ranks::Tail};
use pyo3::{exceptions::PyTimeoutError, prelude::*};
use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

/// How often a thread looks whether another has left the stream.
const LOOK: Duration = Duration::from_millis(2);

/// An open stream.
struct Open {
    steps: Steps,
    /// The next delivery, which was taken and kept back.
    kept: Option<StepDelivery>,
}

/// The stream of the rank of this process.
#[pyclass(frozen, module = "gristmill._native")]
pub struct Stream {
    open: Mutex<Option<Open>>,
    acknowledger: Acknowledger,
    watcher: Watcher,
    link: Arc<Link>,
    /// The place `(epoch, g)` at which it was opened.
    #[pyo3(get)]
    begin: (u32, u64),
    /// Batches (steps) of a whole epoch, for this rank; none if that is not known in advance.
    #[pyo3(get)]
    batches_per_epoch: Option<u64>,
}

/// An item of the stream.
#[derive(IntoPyObject)]
pub enum Item {
    Batch(Batch),
    EpochEnd(EpochEnd),
}

impl Stream {
    pub fn open(
        py: Python<'_>,
        job: &Job,
        at: Option<Cursor>,
        options: (&RankOptions, &StreamOptions),
    ) -> PyResult<Self> {
        let link = Arc::clone(&job.service.link);
        let opening = open(job, at, options);
        let steps = wait::wait(py, opening, || Some(link.waiting()))?;
        let (steps, begin) = steps.map_err(|error| match error {
            Opening::Refused(why) => errors::error(py, "CheckpointError", why),
            Opening::Failed(error) => errors::of_fetch(py, &error),
        })?;
        let all = steps.fetcher().batches_per_epoch();
        let count = u64::from(steps.ranks().count.get());
        let batches_per_epoch = all.map(|all| match steps.ranks().tail {
            Tail::Drop => all / count,
            Tail::Repeat | Tail::Uneven => all.div_ceil(count),
        });
        Ok(Self {
            watcher: steps.fetcher().watcher(),
            acknowledger: steps.fetcher().acknowledger(),
            open: Mutex::new(Some(Open { steps, kept: None })),
            link,
            begin: (begin.epoch, begin.batch_index),
            batches_per_epoch,
        })
    }

    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<Open>>> {
        // In a fork, another thread of the parent may have held the lock.
        wait::runtime(py)?;
        loop {
            if let Ok(open) = self.open.try_lock() {
                return Ok(open);
            }
            // A thread that fetches ahead leaves it now and then.
            py.detach(|| thread::sleep(LOOK));
            py.check_signals()?;
        }
    }

    fn closed(py: Python<'_>) -> PyErr {
        errors::error(py, "Error", "the loader is closed")
    }

    fn waiting(&self) -> Option<Waiting> {
        Some(self.link.or(self.watcher.waiting()))
    }

    /// The next delivery.
    ///
    /// # Errors
    /// `TimeoutError` if there is none within `patience`.
    fn delivery(
        &self,
        py: Python<'_>,
        Open { steps, kept }: &mut Open,
        patience: Option<Duration>,
    ) -> PyResult<StepDelivery> {
        if let Some(kept) = kept.take() {
            return Ok(kept);
        }
        let ready = {
            let _runtime = wait::runtime(py)?.enter();
            steps.next().now_or_never()
        };
        let delivery = match ready {
            Some(delivery) => {
                log::hand_over(py)?;
                delivery
            }
            None => {
                let next = async {
                    match patience {
                        Some(patience) => tokio::time::timeout(patience, steps.next()).await.ok(),
                        None => Some(steps.next().await),
                    }
                };
                let delivery = wait::wait(py, next, || self.waiting())?;
                delivery.ok_or_else(|| PyTimeoutError::new_err("no batch yet"))?
            }
        };
        delivery.map_err(|error| errors::of_fetch(py, &error))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The tasks and their runtime are not in a fork.
        if wait::is_fork()
            && let Ok(mut open) = self.open.try_lock()
        {
            mem::forget(open.take());
        }
    }
}

#[pymethods]
impl Stream {
    /// The next batch, the end of an epoch, or None at the end of the job. Raises `TimeoutError` after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Item>> {
        let patience =
            timeout.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let mut guard = self.lock(py)?;
        let open = guard.as_mut().ok_or_else(|| Self::closed(py))?;
        loop {
            match self.delivery(py, open, patience)? {
                StepDelivery::Step { batches, next, .. } => {
                    // With an uneven tail, the last step may have no batch for this rank.
                    let Some(given) = batches.into_iter().flatten().next() else { continue };
                    return batch(py, given, next).map(Item::Batch).map(Some);
                }
                StepDelivery::EpochEnd { totals, left_out, .. } => {
                    let end = EpochEnd {
                        epoch: totals.epoch,
                        batches: totals.batches,
                        rows: totals.rows,
                        skipped: totals.skipped,
                        left_out,
                    };
                    return Ok(Some(Item::EpochEnd(end)));
                }
                StepDelivery::End => return Ok(None),
            }
        }
    }

    /// Passes over the batches before batch `g` of `epoch`, and acknowledges them if asked to. Returns how many were passed
    /// over.
    #[pyo3(signature = (epoch, g, acknowledge))]
    fn pass_to(&self, py: Python<'_>, epoch: u32, g: u64, acknowledge: bool) -> PyResult<u64> {
        let to = Cursor::new(epoch, g);
        let mut guard = self.lock(py)?;
        let open = guard.as_mut().ok_or_else(|| Self::closed(py))?;
        let mut passed = 0;
        loop {
            let at = match self.delivery(py, open, None)? {
                StepDelivery::Step { step, batches, next } => {
                    // A stream that begins behind the last batch of an epoch has no end of it.
                    if batches.iter().flatten().any(|given| given.batch.cursor() >= to) {
                        open.kept = Some(StepDelivery::Step { step, batches, next });
                        return Ok(passed);
                    }
                    passed += 1;
                    next
                }
                StepDelivery::EpochEnd { totals, .. } => {
                    if totals.epoch == epoch && totals.batches < g {
                        let has = totals.batches;
                        let why =
                            format!("there is no {to} to go on at: the epoch has {has} batches");
                        return Err(errors::error(py, "CheckpointError", why));
                    }
                    Cursor::start_of(totals.epoch + 1)
                }
                StepDelivery::End => return Ok(passed),
            };
            if acknowledge {
                open.steps.checkpointed(at);
            }
            if at >= to {
                return Ok(passed);
            }
            py.check_signals()?;
        }
    }

    /// All before batch `g` of `epoch` is in a checkpoint.
    fn acknowledge(&self, epoch: u32, g: u64) {
        // In a fork it changes a copy that nobody reports.
        self.acknowledger.checkpointed_before(Cursor::new(epoch, g));
    }

    /// Reports what was acknowledged, and waits for the service's answer; then closes the stream. With all of the job
    /// acknowledged, the service closes the job; with several ranks, once all have come so far.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.lock(py)?;
        let Some(open) = guard.as_ref() else { return Ok(()) };
        let settled = open.steps.fetcher().settle();
        let settled = wait::wait(py, settled, || {
            let closing = Waiting::patiently("the service to take in the end of the stream");
            self.waiting().filter(|waiting| waiting.is_fault).or(Some(closing))
        })?;
        *guard = None;
        settled.map_err(|error| errors::of_fetch(py, &error))
    }

    /// Closes the stream without a report.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if wait::is_fork() {
            return Ok(());
        }
        let open = self.lock(py)?.take();
        let _runtime = wait::runtime(py)?.enter();
        drop(open);
        Ok(())
    }

    /// Numbers of the stream: seconds waited, workers, bytes fetched.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
        let stats = pyo3::types::PyDict::new(py);
        let guard = self.lock(py)?;
        let Some(open) = guard.as_ref() else { return Ok(stats) };
        let fetcher = open.steps.fetcher();
        let snapshot = fetcher.snapshot();
        stats.set_item("waited_s", fetcher.waited().as_secs_f64())?;
        stats.set_item("workers", snapshot.active_workers)?;
        stats.set_item("workers_max", snapshot.workers_max)?;
        stats.set_item("fetched_bytes", snapshot.fetched_bytes)?;
        stats.set_item("recomputed_splits", snapshot.healed)?;
        stats.set_item("prefetch_bytes", snapshot.prefetch_bytes)?;
        stats.set_item("local_bytes", snapshot.local_bytes)?;
        Ok(stats)
    }
}

/// The batch of this rank, which keeps nothing of the fetcher's memory budget: a trainer may keep any number.
fn batch(py: Python<'_>, given: RankBatch, next: Cursor) -> PyResult<Batch> {
    let RankBatch { batch, repeated_for } = given;
    let at = batch.cursor();
    let frame = Frame::parse(batch.frame, &Limits::default());
    let frame = frame.map_err(|error| errors::error(py, "ServiceError", error))?;
    Ok(Batch::new(&frame, (at, next), repeated_for))
}

enum Opening {
    Refused(String),
    Failed(FetchError),
}

impl From<FetchError> for Opening {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

/// Opens a stream at `at`, or where the job's last trainer was; waits until the service has accepted it.
async fn open(
    job: &Job,
    at: Option<Cursor>,
    (ranks, options): (&RankOptions, &StreamOptions),
) -> Result<(Steps, Cursor), Opening> {
    let refused = |why: Failure| Opening::Refused(why.to_string());
    let asked = ranks.own(job).map_err(refused)?;
    let status = match (asked, at) {
        (None, Some(_)) => None,
        _ => Some(job.status(options.patience).await?),
    };
    let (own, begin) = match (asked, status) {
        (Some(own), Some(status)) => {
            let begins = Beginning::of(&status, own, at, None);
            let (beginning, own) = begins.map_err(Opening::Refused)?;
            (Some(own), beginning.known())
        }
        (_, status) => (None, at.or(status.map(|status| status.durable)).unwrap_or_default()),
    };
    let fetcher = job.open_for(own, begin, options).await?;
    let mut steps = Steps::new(fetcher);
    match accepted(steps.fetcher()).await {
        // Another rank began the run, and nobody named another place.
        Err(FetchError::RunBegan { from, .. }) if at.is_none() => {
            steps.begin_run(from).await;
            accepted(steps.fetcher()).await?;
            Ok((steps, from))
        }
        accepted => Ok(accepted.map(|()| (steps, begin))?),
    }
}

/// Waits until the service has accepted the stream.
async fn accepted(fetcher: &Fetcher) -> Result<(), FetchError> {
    fetcher.located().await?;
    fetcher.announce();
    fetcher.admitted().await
}
