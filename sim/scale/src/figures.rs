//! Measurements.

use crate::table::TableUsage;
use gristmill_model::wire::AnyCall;
use std::{collections::BTreeMap, time::Duration};

/// Calls of one kind while measuring.
#[derive(Debug, Default)]
pub struct CallFigures {
    pub calls: u64,
    pub used: TableUsage,
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
pub struct ScaleFigures {
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
    /// Events sent to workers, and those of them that expired.
    pub events: u32,
    pub expired: u32,
    /// Workers that began while as many as wanted were running.
    pub surplus: u32,
    /// Calls that the URL rejected in the measured part.
    pub refused_calls: u64,
    /// The readers of a run in the measured part, by their first rank.
    pub readers: BTreeMap<u32, ReaderFigures>,
    /// Steps of all ranks in the measured part.
    pub steps: u64,
}

/// Calls of one reader.
#[derive(Debug, Default)]
pub struct ReaderFigures {
    pub polls: CallTimes,
    /// Polls that report progress.
    pub reports: CallTimes,
}

/// Times of calls of one kind.
#[derive(Debug, Default)]
pub struct CallTimes {
    calls: u64,
    first: Duration,
    last: Duration,
}

impl CallTimes {
    fn add(&mut self, at: Duration) {
        if self.calls == 0 {
            self.first = at;
        }
        (self.calls, self.last) = (self.calls + 1, at);
    }

    /// Calls per second, from the first to the last.
    pub fn per_second(&self) -> f64 {
        let seconds = self.last.saturating_sub(self.first).as_secs_f64();
        if seconds > 0.0 { (self.calls - 1) as f64 / seconds } else { 0.0 }
    }
}

impl ScaleFigures {
    /// Whether the measured part has begun and not ended.
    pub fn is_measuring(&self) -> bool {
        self.began.is_some() && self.ended.is_none()
    }

    /// Records a poll that is sent at `at`.
    pub fn note_poll(&mut self, call: &AnyCall, at: Duration) {
        let AnyCall::Poll(poll) = call else { return };
        let (first, reports) = (poll.ranks.first, poll.report.is_some());
        if self.is_measuring() {
            let reader = self.readers.entry(first).or_default();
            reader.polls.add(at);
            if reports {
                reader.reports.add(at);
            }
        }
    }

    /// Duration of the measured part in seconds.
    pub fn seconds(&self) -> f64 {
        match (self.began, self.ended) {
            (Some(began), Some(ended)) => ended.saturating_sub(began).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Usage of all calls in the measured part.
    pub fn used(&self) -> TableUsage {
        let mut sum = TableUsage::default();
        for call in self.calls.values() {
            sum.add(&call.used);
        }
        sum
    }

    /// Records a call of the measured part.
    pub fn record(&mut self, name: &'static str, used: &TableUsage, took: Duration) {
        if self.is_measuring() {
            let kind = self.calls.entry(name).or_default();
            kind.calls += 1;
            kind.used.add(used);
            kind.latencies_us.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        }
    }
}

impl TableUsage {
    /// Adds the use of other requests.
    pub fn add(&mut self, other: &Self) {
        let Self { read_units, write_units, round_trips, rejected } = other;
        self.read_units += read_units;
        self.write_units += write_units;
        self.round_trips += round_trips;
        self.rejected += rejected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_calls_does_not_depend_on_when_the_measured_part_begins() {
        let mut beats = CallTimes::default();
        assert_eq!(beats.per_second(), 0.0);
        for call in 0..6 {
            beats.add(Duration::from_millis(70 + 200 * call));
        }
        assert_eq!(beats.per_second(), 5.0);
    }
}
