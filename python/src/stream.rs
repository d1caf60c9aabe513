//! A job's stream of batches, for the rank of this process.

mod turn;

use crate::{
    batch::{PyBatch, PyEpochEnd},
    errors,
    opening::{StreamOpenError, open},
    wait::{self, PyInterrupt},
};
use gristmill_chunk::{ChunkFrame, ChunkLimits};
use gristmill_client::{JobHandle, RankOptions, StreamOptions};
use gristmill_model::splits::{Cursor, ranks::TailPolicy};
use gristmill_stream::{
    BatchAcknowledger, RankBatch, StepDelivery, StepStream,
    waiting::{TrackedCoordinator, WaitExplainer, WaitReason},
};
use pyo3::prelude::*;
use std::{
    mem,
    sync::{Arc, Mutex},
    thread::ThreadId,
    time::Duration,
};
use tokio::sync::watch;
use turn::{DeliveryTurn, lock};

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
            StreamOpenError::Failed(error) => errors::of_fetch(py, &error),
        })?;
        let all = steps.fetcher().batches_per_epoch();
        let count = u64::from(steps.ranks().count.get());
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
        lock(&self.at).next
    }

    /// The stream has come to `next`.
    fn come_to(&self, next: Cursor) {
        self.change(|at| at.next = next);
    }

    fn change(&self, change: impl FnOnce(&mut Place)) {
        let mut at = lock(&self.at);
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
            && let Ok(mut open) = self.open.try_lock()
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
        settled?.map_err(|error| errors::of_fetch(py, &error))
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
        let snapshot = self.watcher.snapshot();
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
    Ok(PyBatch::new(&frame, (at, next), repeated_for))
}
