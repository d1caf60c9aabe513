//! Turns: one thread takes deliveries at a time, and another may end its wait.

use super::{Open, PyStream, PyStreamItem, batch};
use crate::{batch::PyEpochEnd, errors, log, wait};
use futures::FutureExt as _;
use gristmill_model::splits::Cursor;
use gristmill_stream::{EpochTotals, StepDelivery};
use pyo3::prelude::*;
use std::{
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// How often a thread looks whether another has left the stream.
const LOOK: Duration = Duration::from_millis(2);
/// How long a thread waits for one whose turn is over: it leaves at once, unless a signal handler runs in it.
const LEAVES_IN: Duration = Duration::from_secs(5);

/// The turn in which deliveries are taken.
#[derive(Clone, Copy, Default)]
pub(super) struct DeliveryTurn {
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
pub(super) struct StreamGuard<'a> {
    stream: &'a PyStream,
    open: Option<MutexGuard<'a, Option<Open>>>,
    turn: u64,
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.stream.holder) = None;
        self.open = None;
        self.stream.drop_if_closed();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn take(&self, py: Python<'_>, turn: u64) -> PyResult<StreamGuard<'_>> {
        // In a fork, another thread of the parent may have held the lock.
        wait::runtime(py)?;
        let (own, began) = (thread::current().id(), Instant::now());
        loop {
            let turns = *self.turns.borrow();
            if let Some(over) = Self::over(py, turns, turn) {
                return Err(over);
            }
            let open = match self.open.try_lock() {
                Ok(open) => Some(open),
                Err(TryLockError::Poisoned(open)) => Some(open.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if open.is_some() {
                *lock(&self.holder) = Some((own, turn));
                return Ok(StreamGuard { stream: self, open, turn });
            }
            let holder = *lock(&self.holder);
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

    /// Drops the stream if it is closed and nobody is in it.
    pub(super) fn drop_if_closed(&self) {
        if self.turns.borrow().is_closed
            && let Ok(mut open) = self.open.try_lock()
        {
            let _runtime = wait::entered();
            drop(open.take());
        }
    }
}

impl StreamGuard<'_> {
    pub fn open(&mut self, py: Python<'_>) -> PyResult<&mut Open> {
        let open = self.open.as_mut().and_then(|open| open.as_mut());
        open.ok_or_else(|| errors::error(py, "Error", "the loader is closed, or its service is"))
    }

    /// The next delivery.
    ///
    /// # Errors
    /// Those of the stream, and the end of the turn.
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
            Ok(delivery) => delivery.map_err(|error| errors::of_fetch(py, &error)),
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
