//! Rewriting a pipeline so that it costs less and means the same.
//!
//! Each pass takes a checked pipeline and gives one; whatever a pass proposes is checked again as a
//! whole, and what it did, or would not do and why, is noted for people to read. They run once, before a
//! job is registered: what comes out is what the job freezes.

mod dataset;
mod dead;
mod factor;
mod fetcher;
mod order;

pub use factor::{Basis, Factor, Measured};

use crate::Pipeline;
use serde::Serialize;

/// What a pass did with one operator, or left.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Note {
    pub pass: &'static str,
    pub op: &'static str,
    /// Place in the graph as its author wrote it.
    pub ordinal: u32,
    /// Line of the pipeline file.
    pub line: Option<u32>,
    #[serde(flatten)]
    pub change: Change,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    Removed,
    /// From one index among the operators to another.
    Moved {
        from: usize,
        to: usize,
    },
    /// It would have been moved across the operator of this name.
    Refused {
        across: &'static str,
    },
    /// From this index among the operators to the fetcher, which applies it to what was delivered.
    ToFetcher {
        from: usize,
    },
}

/// A pipeline after all passes, and what they did.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimised {
    pub pipeline: Pipeline,
    pub notes: Vec<Note>,
}

/// Runs every pass. `measured` says what operators did to elements that were looked at, if any were.
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
    /// What each operator does to the size of its field, in the order of the operators.
    pub fn factors(&self, measured: &Measured) -> Vec<Factor> {
        factor::factors(self, measured)
    }

    /// What each operator of the fetcher does to the size of its field; their shapes are known.
    pub fn finishing_factors(&self) -> Vec<Factor> {
        let schemas = self.finishing_schemas().windows(2);
        let stages = self.deliver().stages.iter().zip(schemas);
        stages.map(|(stage, edges)| factor::known(&stage.op, &edges[0], &edges[1])).collect()
    }
}
