//! Moves operators on the sequence of records to the front. They are resolved before records are
//! read, and between operators on elements they would prevent fusing.

use super::{OptimisedPipeline, PassChange, PassNote};
use crate::PipelineStage;

/// Moves them to the front and keeps their order.
pub(super) fn first(optimised: &mut OptimisedPipeline) {
    let stages = optimised.pipeline.stages();
    let of_dataset = |stage: &&PipelineStage| stage.op.dataset().is_some();
    let (first, rest): (Vec<&PipelineStage>, Vec<&PipelineStage>) =
        stages.iter().partition(of_dataset);
    let order: Vec<PipelineStage> =
        first.iter().chain(&rest).map(|stage| (*stage).clone()).collect();
    let moved = (0..).zip(&first).filter_map(|(to, stage)| {
        let from = stages.iter().position(|other| other.ordinal == stage.ordinal)?;
        let PipelineStage { op, ordinal, line, .. } = stage;
        let reason = "which records there are is known before they are read".into();
        let change = PassChange::Moved { from, to, changes_results: false };
        let note = PassNote {
            pass: "dataset_ops",
            op: op.name(),
            ordinal: *ordinal,
            line: *line,
            change,
            reason,
        };
        (from != to).then_some(note)
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
