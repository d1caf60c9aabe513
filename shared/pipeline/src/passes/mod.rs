//! Rewrites a pipeline so that it costs less and gives the same bytes, unless its author allows more.
//!
//! Each pass takes a checked pipeline and returns one. Every change is checked again as a whole.
//! Notes tell people what a pass did, or refused to do and why. Passes run once, before a job is
//! registered; the job freezes the result.

mod dataset;
mod dead;
mod factor;
mod fetcher;
mod order;

pub use factor::{FactorBasis, InflationFactor, MeasuredBytes};

use crate::{
    Pipeline, PipelineError,
    node::{NodeValue, SyntaxNode},
};
use serde::Serialize;

/// Which operators may change places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoOrder {
    /// Those that give the same bytes.
    #[default]
    Exact,
    /// Those that the paper on Pecan swaps: what results show is alike.
    Pecan,
    /// None.
    Off,
}

impl AutoOrder {
    pub(crate) fn parse(node: &SyntaxNode) -> Result<Self, PipelineError> {
        match &node.value {
            NodeValue::Str(name) if name == "exact" => Ok(AutoOrder::Exact),
            NodeValue::Str(name) if name == "pecan" => Ok(AutoOrder::Pecan),
            NodeValue::Bool(false) => Ok(AutoOrder::Off),
            _ => Err(node.error(format!(
                "`auto_order` must be `exact` (the default: moves change no byte), `pecan` (moves \
                 may change results) or `false` (nothing moves), not {}",
                node.shown()
            ))),
        }
    }
}

/// A change that a pass made to an operator, or refused to make.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassNote {
    pub pass: &'static str,
    pub op: &'static str,
    /// Position in the author's graph.
    pub ordinal: u32,
    /// Line in the pipeline file.
    pub line: Option<u32>,
    #[serde(flatten)]
    pub change: PassChange,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum PassChange {
    Removed,
    /// Moved from one index among the operators to another.
    Moved {
        from: usize,
        to: usize,
        /// Whether results may differ from those of the order that the author wrote.
        changes_results: bool,
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
pub struct OptimisedPipeline {
    pub pipeline: Pipeline,
    pub notes: Vec<PassNote>,
}

/// Runs every pass. `measured` has sizes from a sample of elements, if there was one.
pub fn optimise(pipeline: &Pipeline, measured: &MeasuredBytes) -> OptimisedPipeline {
    let mut optimised = OptimisedPipeline { pipeline: pipeline.clone(), notes: Vec::new() };
    dataset::first(&mut optimised);
    dead::remove(&mut optimised);
    if pipeline.auto_order() != AutoOrder::Off {
        order::reorder(&mut optimised, measured);
        fetcher::move_widening(&mut optimised);
    }
    optimised
}

impl Pipeline {
    /// Inflation factor of each operator, in order.
    pub fn factors(&self, measured: &MeasuredBytes) -> Vec<InflationFactor> {
        factor::factors(self, measured)
    }

    /// Inflation factors of the fetcher's operators, whose shapes are known.
    pub fn finishing_factors(&self) -> Vec<InflationFactor> {
        let schemas = self.finishing_schemas().windows(2);
        let stages = self.deliver().stages.iter().zip(schemas);
        stages.map(|(stage, edges)| factor::known(&stage.op, &edges[0], &edges[1])).collect()
    }
}
