//! What is measured.

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
    /// Microseconds, as the caller felt it.
    pub latencies_us: Vec<u32>,
    /// Calls that were not answered in time.
    pub unanswered: u64,
}

impl CallFigures {
    /// The `q` quantile of latencies, in milliseconds; 0 of none.
    pub fn latency_ms(&self, q: f64) -> f64 {
        let mut sorted = self.latencies_us.clone();
        sorted.sort_unstable();
        let at = (sorted.len().saturating_sub(1) as f64 * q) as usize;
        sorted.get(at).map_or(0.0, |us| f64::from(*us) / 1e3)
    }

    /// `value` for each call.
    pub fn per_call(&self, value: u64) -> f64 {
        value as f64 / self.calls.max(1) as f64
    }
}

/// What one run came to.
#[derive(Debug, Default)]
pub struct Figures {
    pub calls: BTreeMap<&'static str, CallFigures>,
    /// When measuring began and ended.
    pub began: Option<Duration>,
    pub ended: Option<Duration>,
    /// Splits committed since the run began, and while measuring.
    pub committed: u64,
    pub measured: u64,
    /// Coordinators' time while measuring, summed.
    pub busy: Duration,
    pub deaths: u64,
    /// Bytes of the largest answer of each kind, since the run began.
    pub largest: BTreeMap<&'static str, u64>,
    /// What went wrong, digits left out, and how often.
    pub troubles: BTreeMap<String, u64>,
    /// Workers that the scaler invoked and that began, and when the last of all wanted did.
    pub started: u32,
    pub all_started: Option<Duration>,
    pub scaler_killed: Option<Duration>,
}

impl Figures {
    pub fn is_measuring(&self) -> bool {
        self.began.is_some() && self.ended.is_none()
    }

    /// Seconds that were measured.
    pub fn seconds(&self) -> f64 {
        match (self.began, self.ended) {
            (Some(began), Some(ended)) => ended.saturating_sub(began).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// What all calls used while measuring.
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

/// [`Figures`] as they grow.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Figures>);

impl Meter {
    pub fn figures(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what went wrong; texts that differ in numbers only are one.
    pub fn trouble(&self, text: &str) {
        let text =
            text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(160).collect();
        *self.figures().troubles.entry(text).or_default() += 1;
    }

    /// The figures, once the run is over.
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
