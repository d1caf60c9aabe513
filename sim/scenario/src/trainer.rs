//! The trainer: clients in step take the next batches in order once they are on their host, and step.

use crate::{World, noise::Noise, server::Server};
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub(crate) struct Trainer {
    /// When each batch that is next in order is on the host.
    arrivals: VecDeque<f64>,
    ingest: Server,
    noise: Noise,
    free_s: f64,
    step_s: f64,
}

impl Trainer {
    pub fn new(noise: Noise) -> Self {
        let (arrivals, ingest) = Default::default();
        Self { arrivals, ingest, noise, free_s: 0.0, step_s: 0.0 }
    }

    /// These many more batches are in order from now on; the fetcher takes them in one after the other.
    pub fn arrived(&mut self, batches: u64, now_s: f64, world: &World) {
        for _ in 0..batches {
            let at_s = self.ingest.serve(now_s, world.batch_bytes, world.ingest_per_s);
            self.arrivals.push_back(at_s);
        }
    }

    /// When it will take its next batches; infinite while they are not committed.
    pub fn next_take_s(&self, world: &World) -> f64 {
        let last = self.arrivals.get(world.clients as usize - 1);
        last.map_or(f64::INFINITY, |at_s| at_s.max(self.free_s))
    }

    /// Takes a batch for each client; returns how long they waited, in seconds.
    pub fn take(&mut self, now_s: f64, world: &World) -> f64 {
        self.arrivals.drain(..world.clients as usize);
        let stall_s = (now_s - self.free_s).max(0.0);
        self.step_s = world.step_s * self.noise.factor(world.step_noise);
        self.free_s = now_s + self.step_s;
        stall_s
    }

    /// What the latest step takes.
    pub fn step_s(&self) -> f64 {
        self.step_s
    }
}
