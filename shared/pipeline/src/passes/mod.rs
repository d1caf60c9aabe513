//! Rewrites a pipeline so that it costs less and gives the same bytes, unless its author allows more.
//!
//! Each pass takes a checked pipeline and returns one. Every change is checked again as a whole.
//! Notes tell people what a pass did, or refused to do and why. Passes run once, before a job is
//! registered; the job freezes the result.

mod fetcher;
mod order;

use crate::{
    Cardinality, ImageFields, Pipeline, PipelineError, PipelineStage,
    node::{NodeValue, SyntaxNode},
};

use serde::Serialize;
use std::collections::BTreeSet;

pub use order::{FactorBasis, InflationFactor, MeasuredBytes};

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

impl PassNote {
    fn new(pass: &'static str, stage: &PipelineStage, change: PassChange, reason: String) -> Self {
        let PipelineStage { op, ordinal, line, .. } = stage;
        PassNote { pass, op: op.name(), ordinal: *ordinal, line: *line, change, reason }
    }
}

/// The change that a pass made or refused; indices are among the operators before it.
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

/// Runs every pass. `measured` has sizes from a sample of elements, if there was one. Only
/// [`AutoOrder::Pecan`] takes them into account, and only where schemas do not tell the size: any
/// other order is known from the pipeline alone.
pub fn optimise(pipeline: &Pipeline, measured: &MeasuredBytes) -> OptimisedPipeline {
    let mut optimised = simplified(pipeline);
    if pipeline.auto_order() != AutoOrder::Off {
        let open = order::open(&optimised.pipeline);
        let sizes = measured.iter().filter(|(ordinal, _)| open.contains(ordinal));
        order::reorder(&mut optimised, &sizes.map(|(ordinal, bytes)| (*ordinal, *bytes)).collect());
        fetcher::move_widening(&mut optimised);
    }
    optimised
}

/// The passes that come before operators on elements are reordered.
fn simplified(pipeline: &Pipeline) -> OptimisedPipeline {
    let mut optimised = OptimisedPipeline { pipeline: pipeline.clone(), notes: Vec::new() };
    first(&mut optimised);
    remove(&mut optimised);
    optimised
}

/// Whether sizes from a sample of elements could change the order of operators.
pub fn needs_sizes(pipeline: &Pipeline) -> bool {
    let open = order::open(&simplified(pipeline).pipeline);
    let order = |sizes: &MeasuredBytes| {
        let ordered = optimise(pipeline, sizes).pipeline;
        let stages = ordered.stages().iter().chain(&ordered.deliver().stages);
        stages.map(|stage| stage.ordinal).collect::<Vec<_>>()
    };
    let alike = MeasuredBytes::from_iter(open.iter().map(|ordinal| (*ordinal, (1.0, 1.0))));
    let expected = order(&alike);
    // Trying one operator at a time suffices: where two orders part, one operator's direction made
    // the difference.
    open.iter().any(|ordinal| {
        [0.5, 2.0].into_iter().any(|after| {
            let mut sizes = alike.clone();
            sizes.insert(*ordinal, (1.0, after));
            order(&sizes) != expected
        })
    })
}

impl Pipeline {
    /// The names of all operators in the order in which they run: those of workers, then those that
    /// the fetcher applies.
    pub fn operator_names(&self) -> Vec<&str> {
        let all = self.stages().iter().chain(&self.deliver().stages);
        all.map(|stage| stage.op.identity().0).collect()
    }

    /// Inflation factor of each operator, in order.
    pub fn factors(&self, measured: &MeasuredBytes) -> Vec<InflationFactor> {
        order::factors(self, measured)
    }

    /// Inflation factors of the fetcher's operators, whose shapes are known.
    pub fn finishing_factors(&self) -> Vec<InflationFactor> {
        let schemas = self.finishing_schemas().windows(2);
        let stages = self.deliver().stages.iter().zip(schemas);
        stages.map(|(stage, edges)| order::known(&stage.op, &edges[0], &edges[1])).collect()
    }
}

// Moves operators on the sequence of records to the front. They are resolved before records are
// read, and between operators on elements they would prevent fusing.

/// Moves them to the front and keeps their order.
fn first(optimised: &mut OptimisedPipeline) {
    let stages = optimised.pipeline.stages();
    let of_dataset = |stage: &&PipelineStage| stage.op.dataset().is_some();
    let (first, rest): (Vec<&PipelineStage>, Vec<&PipelineStage>) =
        stages.iter().partition(of_dataset);
    let order: Vec<PipelineStage> =
        first.iter().chain(&rest).map(|stage| (*stage).clone()).collect();
    let moved = (0..).zip(&first).filter_map(|(to, stage)| {
        let from = stages.iter().position(|other| other.ordinal == stage.ordinal)?;
        let reason = "which records there are is known before they are read".into();
        let change = PassChange::Moved { from, to, changes_results: false };
        (from != to).then(|| PassNote::new("dataset_ops", stage, change, reason))
    });
    let moved: Vec<PassNote> = moved.collect();
    if moved.is_empty() {
        return;
    }
    // The move changes nothing for any operator. If the check fails anyway, the order stays.
    if let Ok(pipeline) = optimised.pipeline.with_stages(order) {
        optimised.pipeline = pipeline;
        optimised.notes.extend(moved);
    }
}

/// Removes useless operators until there are no more.
fn remove(optimised: &mut OptimisedPipeline) {
    while let Some((at, reason)) = find(optimised) {
        let mut stages = optimised.pipeline.stages().to_vec();
        let mut removed = vec![(stages.remove(at), reason)];
        let op = removed[0].0.op.clone();
        let given = &optimised.pipeline.schemas()[at];
        for made in op.outputs().into_iter().filter(|field| given.field(field).is_none()) {
            forget(&mut stages, made, &mut removed);
        }
        // If the pipeline is invalid without the operator, it is needed.
        let Ok(pipeline) = optimised.pipeline.with_stages(stages) else { return };
        optimised.pipeline = pipeline;
        let note = |(stage, reason): (PipelineStage, String)| {
            PassNote::new("dead_ops", &stage, PassChange::Removed, reason)
        };
        optimised.notes.extend(removed.into_iter().map(note));
    }
}

/// Removes the field from operators that drop it, since nothing makes it any more.
fn forget(stages: &mut Vec<PipelineStage>, made: &str, removed: &mut Vec<(PipelineStage, String)>) {
    for stage in stages.iter_mut() {
        stage.op.forget(made);
    }
    let empty = |stage: &mut PipelineStage| stage.op.is_empty();
    removed.extend(
        stages.extract_if(.., empty).map(|stage| (stage, "nothing is left to drop".into())),
    );
}

fn find(optimised: &OptimisedPipeline) -> Option<(usize, String)> {
    let pipeline = &optimised.pipeline;
    let stages = pipeline.stages();
    let mut seen = BTreeSet::new();
    // Walks backwards. A field is used if it is delivered, or read by a later operator.
    seen.extend(pipeline.output_schema().fields.keys().map(String::as_str));
    for (i, stage) in stages.iter().enumerate().rev() {
        let (input, output) = (&pipeline.schemas()[i], &pipeline.schemas()[i + 1]);
        let declared = stage.op.declaration();
        if let Some(reason) = stage.op.does_nothing()
            && input == output
        {
            return Some((i, reason.to_owned()));
        }
        let writes = stage.op.outputs();
        let unseen = !writes.is_empty() && writes.iter().all(|field| !seen.contains(field));
        // Removing an operator that takes its field away would deliver that field.
        let takes = stage.op.field().is_some_and(|field| output.field(field).is_none());
        if unseen && !takes && declared.cardinality == Cardinality::OneToOne {
            return Some((i, format!("nobody sees `{}` after it", writes.join("`, `"))));
        }
        // A dropped field is used only if an earlier operator reads it.
        seen.extend(stage.op.field().into_iter().chain(stage.op.by()));
        seen.extend(stage.op.lists().iter().map(String::as_str));
        seen.extend(stage.op.together().into_iter().flat_map(ImageFields::all));
    }
    None
}
