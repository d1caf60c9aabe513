//! The trainer: clients in lockstep take the next batches in order once they are on their host, and step.

use crate::{ModelConditions, noise::NoiseStream, server::SharedLimit};
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub(crate) struct ModelTrainer {
    /// Times at which each next batch in order was made, and reaches the host.
    arrivals: VecDeque<Arrival>,
    ingest: SharedLimit,
    noise: NoiseStream,
    free_s: f64,
    step_s: f64,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    made_s: f64,
    at_s: f64,
}

/// A trainer's wait, and the part of it with the batch in transit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrainerStall {
    pub all_s: f64,
    pub fetch_s: f64,
}

impl ModelTrainer {
    pub fn new(noise: NoiseStream) -> Self {
        let (arrivals, ingest) = Default::default();
        Self { arrivals, ingest, noise, free_s: 0.0, step_s: 0.0 }
    }

    /// Adds `batches` batches in order; the fetcher receives them in sequence.
    pub fn arrived(&mut self, batches: u64, now_s: f64, conditions: &ModelConditions) {
        for _ in 0..batches {
            let at_s = self.ingest.serve(now_s, conditions.batch_bytes, conditions.ingest_per_s);
            self.arrivals.push_back(Arrival { made_s: now_s, at_s });
        }
    }

    /// Time at which it takes its next batches; infinite until they are committed.
    pub fn next_take_s(&self, conditions: &ModelConditions) -> f64 {
        let last = self.arrivals.get(conditions.clients as usize - 1);
        last.map_or(f64::INFINITY, |last| last.at_s.max(self.free_s))
    }

    /// Takes an available batch for each client.
    pub fn take(&mut self, now_s: f64, conditions: &ModelConditions) -> TrainerStall {
        let last = self.arrivals.drain(..conditions.clients as usize).next_back();
        let made_s = last.map_or(now_s, |last| last.made_s);
        let all_s = (now_s - self.free_s).max(0.0);
        let fetch_s = (now_s - made_s.max(self.free_s)).max(0.0);
        self.step_s = conditions.step_s * self.noise.factor(conditions.step_noise);
        self.free_s = now_s + self.step_s;
        TrainerStall { all_s, fetch_s }
    }

    /// Duration of the latest step.
    pub fn step_s(&self) -> f64 {
        self.step_s
    }
}
