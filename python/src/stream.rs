//! A job's stream of batches, for the rank of this process.

use crate::{
    batch::{PyBatch, PyEpochEnd},
    errors, log,
    wait::{self, PyInterrupt},
};
use futures::FutureExt as _;
use gristmill_chunk::{ChunkFrame, ChunkLimits};
use gristmill_client::{JobHandle, ProgramFailure, RankOptions, StreamOptions};
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::wire::{JobState, JobStatus};
use gristmill_serve::StartCandidates;
use gristmill_stream::{
    BatchAcknowledger, EpochTotals, FetchError, Fetcher, RankBatch, ServedRanks, StepDelivery,
    StepStream,
    waiting::{TrackedCoordinator, WaitExplainer, WaitReason},
};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use std::{
    mem,
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// An open stream.
struct Open {
    steps: StepStream,
    /// The next delivery, which was taken and kept back.
    kept: Option<StepDelivery>,
}

/// The place of a stream.
struct Place {
    /// Its next batch.
    next: Cursor,
    /// All before it is in a checkpoint. The service learns it as far as the stream has come: it knows nothing of what
    /// follows.
    durable: Cursor,
}

/// The stream of the rank of this process.
///
/// One thread takes deliveries at a time. All else may be called at any moment, from any thread and from a signal handler
/// that runs while its thread waits for a delivery.
#[pyclass(frozen, name = "Stream", module = "gristmill._native")]
pub struct PyStream {
    open: Mutex<Option<Open>>,
    turns: watch::Sender<DeliveryTurn>,
    /// The thread that has `open`, and its turn.
    holder: Mutex<Option<(ThreadId, u64)>>,
    at: Mutex<Place>,
    acknowledger: BatchAcknowledger,
    watcher: WaitExplainer,
    link: Arc<TrackedCoordinator>,
    epochs: u32,
    patience: Duration,
    /// The place `(epoch, g)` at which it was opened.
    #[pyo3(get)]
    begin: (u32, u64),
    /// Batches (steps) of a whole epoch, for this rank; none if that is not known in advance.
    #[pyo3(get)]
    batches_per_epoch: Option<u64>,
}

/// An item of the stream.
#[derive(IntoPyObject)]
pub enum PyStreamItem {
    Batch(PyBatch),
    EpochEnd(PyEpochEnd),
}

impl PyStream {
    pub fn open(
        py: Python<'_>,
        job: &JobHandle,
        at: Option<Cursor>,
        ranks: &RankOptions,
        options: &StreamOptions,
        interrupt: Option<&PyInterrupt>,
    ) -> PyResult<Self> {
        let link = Arc::clone(&job.service.link);
        let opening = open(job, at, ranks, options);
        let steps = wait::until(py, interrupt, opening, || Some(link.waiting()))?;
        let (steps, begin) = steps.map_err(|error| match error {
            StreamOpenError::Refused(why) => errors::error(py, "CheckpointError", why),
            StreamOpenError::Failed(error) => errors::fetch_error(py, &error),
        })?;
        let all = steps.fetcher().batches_per_epoch();
        let count = u64::from(steps.ranks().data_ranks());
        let batches_per_epoch = all.map(|all| match steps.ranks().tail {
            TailPolicy::Drop => all / count,
            TailPolicy::Repeat | TailPolicy::Uneven => all.div_ceil(count),
        });
        Ok(Self {
            watcher: steps.fetcher().watcher(),
            acknowledger: steps.fetcher().acknowledger(),
            open: Mutex::new(Some(Open { steps, kept: None })),
            turns: watch::Sender::default(),
            holder: Mutex::default(),
            at: Mutex::new(Place { next: begin, durable: Cursor::default() }),
            link,
            epochs: job.view.spec.epochs,
            patience: options.patience,
            begin: (begin.epoch, begin.batch_index),
            batches_per_epoch,
        })
    }

    fn next_batch(&self) -> Cursor {
        self.at.lock().next
    }

    fn come_to(&self, next: Cursor) {
        self.change(|at| at.next = next);
    }

    fn change(&self, change: impl FnOnce(&mut Place)) {
        let mut at = self.at.lock();
        change(&mut at);
        // In a fork it changes a copy that nobody reports.
        self.acknowledger.checkpointed_before(at.durable.min(at.next));
    }

    fn reason(&self) -> WaitReason {
        self.link.or(self.watcher.waiting())
    }
}

impl Drop for PyStream {
    fn drop(&mut self) {
        // The tasks and their runtime are not in a fork.
        if wait::is_fork()
            && let Some(mut open) = self.open.try_lock()
        {
            mem::forget(open.take());
        }
    }
}

#[pymethods]
impl PyStream {
    /// Begins the next turn: who takes deliveries of an earlier one gets an error.
    fn turn(&self) -> u64 {
        self.turns.send_modify(|turns| turns.present += 1);
        self.turns.borrow().present
    }

    /// Ends `turn`, unless a later one has begun.
    fn end_turn(&self, turn: u64) {
        self.turns.send_if_modified(|turns| {
            let is_present = turns.present == turn;
            turns.present += u64::from(is_present);
            is_present
        });
    }

    /// The place `(epoch, g)` of the next batch.
    #[getter]
    fn at(&self) -> (u32, u64) {
        let at = self.next_batch();
        (at.epoch, at.batch_index)
    }

    /// The next batch of `epoch`, or its end; None behind its end.
    fn next(&self, py: Python<'_>, turn: u64, epoch: u32) -> PyResult<Option<PyStreamItem>> {
        let mut taken = self.take(py, turn)?;
        if epoch >= self.epochs || self.next_batch().epoch > epoch {
            return Ok(None);
        }
        taken.next(py, epoch).map(Some)
    }

    /// Passes over the batches before batch `g` of `epoch`, and acknowledges them if asked to.
    fn pass_to(
        &self,
        py: Python<'_>,
        turn: u64,
        epoch: u32,
        g: u64,
        acknowledge: bool,
    ) -> PyResult<()> {
        let to = Cursor::new(epoch, g).min(Cursor::start_of(self.epochs));
        let mut taken = self.take(py, turn)?;
        while self.next_batch() < to {
            let at = match taken.delivery(py)? {
                StepDelivery::Step { step, batches, next } => {
                    // A stream that begins behind the last batch of an epoch has no end of it.
                    if batches.iter().flatten().any(|given| given.batch.cursor() >= to) {
                        taken.open(py)?.kept = Some(StepDelivery::Step { step, batches, next });
                        self.come_to(to);
                        return Ok(());
                    }
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
                StepDelivery::End => Cursor::start_of(self.epochs),
            };
            self.change(|place| {
                place.next = at;
                place.durable = if acknowledge { place.durable.max(at) } else { place.durable };
            });
            py.check_signals()?;
        }
        Ok(())
    }

    /// All before batch `g` of `epoch` is in a checkpoint.
    fn acknowledge(&self, epoch: u32, g: u64) {
        let durable = Cursor::new(epoch, g);
        self.change(|at| at.durable = at.durable.max(durable));
    }

    /// All of the job is done, though the end of the last epoch was not asked for.
    fn acknowledge_all(&self) {
        self.come_to(Cursor::start_of(self.epochs));
        self.acknowledge(self.epochs, 0);
    }

    /// Reports what was acknowledged, and waits for the service's answer; then closes the stream. With all of the job
    /// acknowledged, the service closes the job; with several ranks, once all have come so far.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        wait::runtime(py)?;
        self.turns.send_modify(|turns| turns.is_closing = true);
        if self.turns.borrow().is_closed {
            return Ok(());
        }
        let mut turns = self.turns.subscribe();
        let settling = async {
            tokio::select! {
                biased;
                // Another thread closes it: nothing is reported any more.
                _ = turns.wait_for(|turns| turns.is_closed) => Ok(()),
                settled = self.acknowledger.settle() => settled,
            }
        };
        let settled = wait::wait(py, settling, || {
            let closing = WaitReason::patiently("the service to take in the end of the stream");
            Some(Some(self.reason()).filter(|waiting| waiting.is_fault).unwrap_or(closing))
        });
        self.close();
        settled?.map_err(|error| errors::fetch_error(py, &error))
    }

    /// Closes the stream without a report. Does nothing in a fork.
    fn close(&self) {
        if wait::is_fork() {
            return;
        }
        self.turns.send_modify(|turns| (turns.is_closing, turns.is_closed) = (true, true));
        self.drop_if_closed();
    }

    /// Numbers of the stream: workers, bytes fetched, memory.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
        let stats = pyo3::types::PyDict::new(py);
        let snapshot = self.watcher.statistics();
        stats.set_item("workers", snapshot.active_workers)?;
        stats.set_item("workers_max", snapshot.workers_max)?;
        stats.set_item("fetched_bytes", snapshot.fetched_bytes)?;
        stats.set_item("recomputed_splits", snapshot.healed)?;
        stats.set_item("prefetch_bytes", snapshot.prefetch_bytes)?;
        stats.set_item("local_bytes", snapshot.local_bytes)?;
        Ok(stats)
    }

    /// The reason why the next batch is missing.
    fn waiting(&self) -> String {
        self.reason().text
    }
}

/// The batch of this rank, which keeps nothing of the fetcher's memory budget: a trainer may keep any number.
fn batch(py: Python<'_>, given: RankBatch, next: Cursor) -> PyResult<PyBatch> {
    let RankBatch { batch, repeated_for } = given;
    let at = batch.cursor();
    let frame = ChunkFrame::parse(batch.frame, &ChunkLimits::default());
    let frame = frame.map_err(|error| errors::error(py, "ServiceError", error))?;
    Ok(PyBatch::new(&frame, at, next, repeated_for))
}

/// Why a stream cannot be opened.
pub enum StreamOpenError {
    Refused(String),
    Failed(FetchError),
}

impl From<FetchError> for StreamOpenError {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

/// Opens a stream at `at`, or where the job's last trainer was; waits until the service has accepted it.
pub async fn open(
    job: &JobHandle,
    at: Option<Cursor>,
    ranks: &RankOptions,
    options: &StreamOptions,
) -> Result<(StepStream, Cursor), StreamOpenError> {
    let refused = |why: ProgramFailure| StreamOpenError::Refused(why.to_string());
    let asked = ranks.own(job).map_err(refused)?;
    let status = match (asked, at) {
        (None, Some(_)) if job.view.state != JobState::Done => None,
        _ => Some(job.status(options.patience).await?),
    };
    let (own, begin) = match (asked, status) {
        (Some(own), Some(status)) => {
            let (begin, own) = begins(&status, own, at).map_err(StreamOpenError::Refused)?;
            (Some(own), begin)
        }
        (_, Some(status)) => {
            let beginning = StartCandidates::from_job_status(&status, at);
            let past_end = at.map(|at| beginning.past_end(RunRanks::one(at), 0, at));
            (None, first(&status, &beginning, past_end))
        }
        (_, None) => (None, at.unwrap_or_default()),
    };
    let fetcher = job.open_for(own, begin, options).await?;
    let mut steps = StepStream::new(fetcher);
    match accepted(steps.fetcher()).await {
        // Another rank began the run, and nobody named another place.
        Err(FetchError::RunBegan { from, .. }) if at.is_none() => {
            steps.begin_run(from).await;
            accepted(steps.fetcher()).await?;
            Ok((steps, from))
        }
        // A state after the last batch of an epoch is before the stream, which begins with the next epoch.
        accepted => Ok(accepted.map(|()| (steps, at.map_or(begin, |at| at.min(begin))))?),
    }
}

/// The beginning of the stream of a rank that wants `at` next. In a run that has begun, that is where its last one was
/// durable: the rank may return to any later state.
fn begins(
    status: &JobStatus,
    own: ServedRanks,
    at: Option<Cursor>,
) -> Result<(Cursor, ServedRanks), String> {
    let is_known = status.run.as_ref().is_some_and(|known| known.run.token == own.run.token);
    let (beginning, own) =
        StartCandidates::from_run_status(status, own, at.filter(|_| !is_known), None)?;
    let rank = own.range.first;
    let past_end = at.map(|at| beginning.past_end(own.run.ranks, rank, at));
    let begin = first(status, &beginning, past_end);
    match at.filter(|_| past_end < Some(begin)) {
        None => Ok((begin, own)),
        Some(at) => Err(format!(
            "rank {rank} wants {at}, and its run is safe up to {begin}, of which nothing is kept: load a state at or \
             after that, or begin a new run on all ranks (another run=...)"
        )),
    }
}

/// The first batch of a stream: none for a reader that has all of a job that is done.
fn first(status: &JobStatus, beginning: &StartCandidates, past_end: Option<Cursor>) -> Cursor {
    let end = Cursor::start_of(status.job.spec.epochs);
    let has_all = status.job.state == JobState::Done && past_end == Some(end);
    if has_all { end } else { beginning.known() }
}

/// Waits until the service has accepted the stream.
async fn accepted(fetcher: &Fetcher) -> Result<(), FetchError> {
    fetcher.located().await?;
    fetcher.announce();
    fetcher.admitted().await
}

// Turns: one thread takes deliveries at a time, and another may end its wait.

/// How often a thread looks whether another has left the stream.
const LOOK: Duration = Duration::from_millis(2);
/// How long a thread waits for one whose turn is over: it leaves at once, unless a signal handler runs in it.
const LEAVES_IN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Default)]
struct DeliveryTurn {
    pub present: u64,
    /// Nobody takes deliveries any more.
    pub is_closing: bool,
    /// The stream is dropped once nobody is in it.
    pub is_closed: bool,
}

/// Why a wait ended without a delivery.
enum Over {
    Turn(DeliveryTurn),
    LeftAlone(String),
}

/// The stream while one thread takes deliveries.
struct StreamGuard<'a> {
    stream: &'a PyStream,
    open: Option<MutexGuard<'a, Option<Open>>>,
    turn: u64,
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        *self.stream.holder.lock() = None;
        self.open = None;
        self.stream.drop_if_closed();
    }
}

impl PyStream {
    /// Why deliveries are not for `turn`, if so.
    fn over(py: Python<'_>, turns: DeliveryTurn, turn: u64) -> Option<PyErr> {
        let why = match turns {
            DeliveryTurn { is_closing: true, .. } => "the loader is closed, or its service is",
            DeliveryTurn { present, .. } if present != turn => {
                "this iteration is over: another one of this loader has begun, or its state was changed"
            }
            _ => return None,
        };
        Some(errors::error(py, "Error", why))
    }

    /// Begins to take deliveries.
    ///
    /// # Errors
    /// The turn is over, or this thread takes deliveries already, below the signal handler that it runs.
    fn take(&self, py: Python<'_>, turn: u64) -> PyResult<StreamGuard<'_>> {
        // In a fork, another thread of the parent may have held the lock.
        wait::runtime(py)?;
        let (own, began) = (thread::current().id(), Instant::now());
        loop {
            let turns = *self.turns.borrow();
            if let Some(over) = Self::over(py, turns, turn) {
                return Err(over);
            }
            if let Some(open) = self.open.try_lock() {
                *self.holder.lock() = Some((own, turn));
                return Ok(StreamGuard { stream: self, open: Some(open), turn });
            }
            let holder = *self.holder.lock();
            let why = match holder {
                Some((thread, _)) if thread == own => {
                    "a signal handler cannot read batches of the loader whose next batch the program waits for"
                }
                Some((_, of)) if of != turn && began.elapsed() > LEAVES_IN => {
                    "another thread has not left the loader: it runs a signal handler"
                }
                _ => {
                    py.detach(|| thread::sleep(LOOK));
                    py.check_signals()?;
                    continue;
                }
            };
            return Err(errors::error(py, "Error", why));
        }
    }

    fn drop_if_closed(&self) {
        if self.turns.borrow().is_closed
            && let Some(mut open) = self.open.try_lock()
        {
            let _runtime = wait::entered();
            drop(open.take());
        }
    }
}

impl StreamGuard<'_> {
    /// The open stream.
    pub fn open(&mut self, py: Python<'_>) -> PyResult<&mut Open> {
        let open = self.open.as_mut().and_then(|open| open.as_mut());
        open.ok_or_else(|| errors::error(py, "Error", "the loader is closed, or its service is"))
    }

    /// The next delivery.
    pub fn delivery(&mut self, py: Python<'_>) -> PyResult<StepDelivery> {
        let (stream, turn) = (self.stream, self.turn);
        let Open { steps, kept } = self.open(py)?;
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
                Ok(delivery)
            }
            None => {
                let mut turns = stream.turns.subscribe();
                let next = async {
                    tokio::select! {
                        biased;
                        turns = turns.wait_for(|turns| turns.is_closing || turns.present != turn) => {
                            Err(Over::Turn(turns.map(|turns| *turns).unwrap_or_default()))
                        }
                        next = steps.next() => Ok(next),
                        why = stream.watcher.left_alone(stream.patience) => Err(Over::LeftAlone(why)),
                    }
                };
                wait::wait(py, next, || Some(stream.reason()))?
            }
        };
        match delivery {
            Ok(delivery) => delivery.map_err(|error| errors::fetch_error(py, &error)),
            Err(Over::Turn(turns)) => Err(PyStream::over(py, turns, turn)
                .unwrap_or_else(|| errors::error(py, "Error", "the loader is closed"))),
            Err(Over::LeftAlone(why)) => Err(errors::error(
                py,
                "JobError",
                format!("{why}: all ranks make the same loaders, in the same order, and read them"),
            )),
        }
    }

    /// The next batch of `epoch`, or its end.
    pub fn next(&mut self, py: Python<'_>, epoch: u32) -> PyResult<PyStreamItem> {
        loop {
            match self.delivery(py)? {
                StepDelivery::Step { step, mut batches, next } => {
                    let first = batches.iter().flatten().next();
                    let Some(at) = first.map(|given| given.batch.cursor()) else {
                        // With an uneven tail, the last step may have no batch for this rank.
                        self.stream.come_to(next);
                        continue;
                    };
                    if at.epoch > epoch {
                        self.stream.come_to(Cursor::start_of(at.epoch));
                        self.open(py)?.kept = Some(StepDelivery::Step { step, batches, next });
                        return Ok(PyStreamItem::EpochEnd(PyEpochEnd::default()));
                    }
                    self.stream.come_to(next);
                    if let Some(given) = batches.drain(..).flatten().next() {
                        return batch(py, given, next).map(PyStreamItem::Batch);
                    }
                }
                StepDelivery::EpochEnd { totals, left_out, .. } => {
                    self.stream.come_to(Cursor::start_of(totals.epoch + 1));
                    if totals.epoch == epoch {
                        return Ok(PyStreamItem::EpochEnd(self.end(py, totals, left_out)?));
                    }
                }
                StepDelivery::End => {
                    self.stream.come_to(Cursor::start_of(self.stream.epochs));
                    let totals = EpochTotals { epoch, ..EpochTotals::default() };
                    return Ok(PyStreamItem::EpochEnd(self.end(py, totals, 0)?));
                }
            }
        }
    }

    fn end(&mut self, py: Python<'_>, totals: EpochTotals, left_out: u64) -> PyResult<PyEpochEnd> {
        let plan = self.open(py)?.steps.fetcher().view().and_then(|view| view.plan);
        let why_empty = plan.and_then(|plan| totals.why_empty(&plan));
        Ok(PyEpochEnd { batches: totals.batches, left_out, why_empty })
    }
}
