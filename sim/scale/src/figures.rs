//! Measurements.

use crate::table::Used;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Calls of one kind while measuring.
#[derive(Debug, Default)]
pub struct CallFigures {
    pub calls: u64,
    pub used: Used,
    /// Latency at the caller, in microseconds.
    pub latencies_us: Vec<u32>,
    /// Calls without an answer in time.
    pub unanswered: u64,
}

impl CallFigures {
    /// The `q` quantile of latencies, in milliseconds; 0 without calls.
    pub fn latency_ms(&self, q: f64) -> f64 {
        let mut sorted = self.latencies_us.clone();
        sorted.sort_unstable();
        let at = (sorted.len().saturating_sub(1) as f64 * q) as usize;
        sorted.get(at).map_or(0.0, |us| f64::from(*us) / 1e3)
    }

    /// Mean of `value` per call.
    pub fn per_call(&self, value: u64) -> f64 {
        value as f64 / self.calls.max(1) as f64
    }
}

/// Results of one run.
#[derive(Debug, Default)]
pub struct Figures {
    pub calls: BTreeMap<&'static str, CallFigures>,
    /// Start and end of the measured part.
    pub began: Option<Duration>,
    pub ended: Option<Duration>,
    /// Splits committed since the run began, and in the measured part.
    pub committed: u64,
    pub measured: u64,
    /// Sum of the coordinators' busy time in the measured part.
    pub busy: Duration,
    pub deaths: u64,
    /// Largest answer of each kind in bytes, since the run began.
    pub largest: BTreeMap<&'static str, u64>,
    /// Errors with digits removed, and their numbers.
    pub troubles: BTreeMap<String, u64>,
    /// Workers started by the scaler, and the time at which all had.
    pub started: u32,
    pub all_started: Option<Duration>,
    pub scaler_killed: Option<Duration>,
}

impl Figures {
    pub fn is_measuring(&self) -> bool {
        self.began.is_some() && self.ended.is_none()
    }

    /// Duration of the measured part in seconds.
    pub fn seconds(&self) -> f64 {
        match (self.began, self.ended) {
            (Some(began), Some(ended)) => ended.saturating_sub(began).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Usage of all calls in the measured part.
    pub fn used(&self) -> Used {
        let mut sum = Used::default();
        for call in self.calls.values() {
            sum.add(&call.used);
        }
        sum
    }

    pub fn call(&mut self, name: &'static str) -> &mut CallFigures {
        self.calls.entry(name).or_default()
    }
}

/// [`Figures`] being collected.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Figures>);

impl Meter {
    pub fn figures(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an error; texts that differ only in numbers are one.
    pub fn trouble(&self, text: &str) {
        let text =
            text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(160).collect();
        *self.figures().troubles.entry(text).or_default() += 1;
    }

    /// The figures, after the run.
    pub fn take(&self) -> Figures {
        std::mem::take(&mut self.figures())
    }
}

impl Used {
    pub fn add(&mut self, other: &Self) {
        let Self { read_units, write_units, round_trips, conflicts, rejected } = other;
        self.read_units += read_units;
        self.write_units += write_units;
        self.round_trips += round_trips;
        self.conflicts += conflicts;
        self.rejected += rejected;
    }
}
