//! Leaves operators that enlarge a field just before delivery to the fetcher. Pixels then cross the
//! wire as u8 and become floats on the trainer's host, which receives a quarter of the bytes.

use super::{OptimisedPipeline, PassChange, PassNote};
use crate::{BoxedOperator, Cardinality, FieldSchema, Pipeline, PipelineStage, Randomness};
use std::collections::BTreeSet;

/// Minimum ratio of delivered to transferred bytes. Below it, the saving is not worth the trainer
/// host's time.
const LEAST_RATIO: f64 = 1.05;

/// Moves operators that widen delivered fields from workers to the fetcher.
pub(super) fn move_widening(optimised: &mut OptimisedPipeline) {
    let pipeline = &optimised.pipeline;
    let moved = widening(pipeline);
    if moved.is_empty() {
        return;
    }
    let (mut stages, mut deliver) = (Vec::new(), pipeline.deliver().clone());
    let mut notes = Vec::new();
    for (from, stage) in pipeline.stages().iter().enumerate() {
        if !moved.contains(&from) {
            stages.push(stage.clone());
            continue;
        }
        notes.push(note(from, stage, pipeline));
        deliver.stages.push(stage.clone());
    }
    if let Ok(moved) = pipeline.with_delivery(stages, deliver)
        && moved.delivered_schema() == pipeline.delivered_schema()
    {
        optimised.pipeline = moved;
        optimised.notes.extend(notes);
    }
}

fn note(from: usize, stage: &PipelineStage, pipeline: &Pipeline) -> PassNote {
    let field = stage.op.field().unwrap_or_default();
    let schema = |i: usize| pipeline.schemas()[i].field(field).map(FieldSchema::to_string);
    let (before, after) = (schema(from).unwrap_or_default(), schema(from + 1).unwrap_or_default());
    let reason = format!(
        "`{field}` crosses the wire before it becomes larger ({before} -> {after}); what is \
         delivered is the same"
    );
    PassNote::new("to_fetcher", stage, PassChange::ToFetcher { from }, reason)
}

/// Indices of the operators that widen delivered fields, and of later operators on the same fields.
fn widening(pipeline: &Pipeline) -> BTreeSet<usize> {
    let mut moved = BTreeSet::new();
    for field in pipeline.output_schema().fields.keys() {
        let last = last_on(pipeline, field);
        let bytes =
            |i: usize| pipeline.schemas()[i].field(field).and_then(FieldSchema::element_bytes);
        // Takes the last of equally small places, which leaves the fetcher the least work.
        let smallest = last.iter().filter_map(|&i| Some((bytes(i)?, std::cmp::Reverse(i)))).min();
        let (Some((smallest, at)), Some(delivered)) =
            (smallest, last.last().and_then(|&i| bytes(i + 1)))
        else {
            continue;
        };
        if delivered as f64 > smallest as f64 * LEAST_RATIO {
            moved.extend(last.into_iter().filter(|i| *i >= at.0));
        }
    }
    moved
}

/// Indices, in order, of the last operators on `field` that the fetcher could apply.
fn last_on(pipeline: &Pipeline, field: &str) -> Vec<usize> {
    let (stages, batch) = pipeline.stages().split_at(pipeline.batch_stage());
    let mut last: Vec<usize> = Vec::new();
    // The batch depends on what they make.
    if batch.first().is_some_and(|batch| batch.op.field() == Some(field)) {
        return last;
    }
    for (i, stage) in stages.iter().enumerate().rev() {
        let of_field = stage.op.touched().contains(&field);
        if !of_field && touches_nothing_else(&stage.op) {
            continue;
        }
        let known = |i: usize| pipeline.schemas()[i].field(field).is_some_and(is_fixed);
        if !of_field || !can_follow(stage) || !known(i) || !known(i + 1) {
            break;
        }
        last.push(i);
    }
    last.reverse();
    last
}

/// Whether an operator changes only its own field, and neither the number nor the order of
/// elements.
fn touches_nothing_else(op: &BoxedOperator) -> bool {
    let declared = op.declaration();
    declared.cardinality == Cardinality::OneToOne
        && op.cache_point().is_none()
        && op.dataset().is_none()
        && !op.is_external()
}

/// Whether the fetcher can apply the operator: it treats all elements alike, works in place on its
/// field, and refuses no records.
fn can_follow(stage: &PipelineStage) -> bool {
    let PipelineStage { op, keep_position, .. } = stage;
    let declared = op.declaration();
    !keep_position
        && op.can_follow_batch()
        && declared.randomness == Randomness::Deterministic
        && declared.cardinality == Cardinality::OneToOne
        && op.output() == op.field()
}

/// Whether all elements have the same shape, so that a batch holds only their values.
fn is_fixed(field: &FieldSchema) -> bool {
    field.known_shape().is_some() && field.dtype.size_bytes().is_some()
}
