//! Rewrites a pipeline so that it costs less and means the same.
//!
//! Each pass takes a checked pipeline and returns one. Every change is checked again as a whole.
//! Notes tell people what a pass did, or refused to do and why. Passes run once, before a job is
//! registered; the job freezes the result.

mod dataset;
mod dead;
mod factor;
mod fetcher;
mod order;

pub use factor::{Basis, Factor, Measured};

use crate::Pipeline;
use serde::Serialize;

/// A change that a pass made to an operator, or refused to make.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Note {
    pub pass: &'static str,
    pub op: &'static str,
    /// Position in the author's graph.
    pub ordinal: u32,
    /// Line in the pipeline file.
    pub line: Option<u32>,
    #[serde(flatten)]
    pub change: Change,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    Removed,
    /// Moved from one index among the operators to another.
    Moved {
        from: usize,
        to: usize,
    },
    /// The pass could not move it across the operator of this name.
    Refused {
        across: &'static str,
    },
    /// Moved from this index among the operators to the fetcher, which applies it to batches from
    /// workers.
    ToFetcher {
        from: usize,
    },
}

/// A pipeline after all passes, and notes on what they did.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimised {
    pub pipeline: Pipeline,
    pub notes: Vec<Note>,
}

/// Runs every pass. `measured` has sizes from a sample of elements, if there was one.
pub fn optimise(pipeline: &Pipeline, measured: &Measured) -> Optimised {
    let mut optimised = Optimised { pipeline: pipeline.clone(), notes: Vec::new() };
    dataset::first(&mut optimised);
    dead::remove(&mut optimised);
    if pipeline.auto_order() {
        order::reorder(&mut optimised, measured);
        fetcher::move_widening(&mut optimised);
    }
    optimised
}

impl Pipeline {
    /// Inflation factor of each operator, in order.
    pub fn factors(&self, measured: &Measured) -> Vec<Factor> {
        factor::factors(self, measured)
    }

    /// Inflation factors of the fetcher's operators, whose shapes are known.
    pub fn finishing_factors(&self) -> Vec<Factor> {
        let schemas = self.finishing_schemas().windows(2);
        let stages = self.deliver().stages.iter().zip(schemas);
        stages.map(|(stage, edges)| factor::known(&stage.op, &edges[0], &edges[1])).collect()
    }
}
