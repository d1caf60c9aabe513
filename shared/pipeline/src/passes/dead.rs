//! Removes operators that do nothing or whose output is unused.

use super::{OptimisedPipeline, PassChange, PassNote};
use crate::{Cardinality, ImageFields, PipelineStage};
use std::collections::BTreeSet;

/// Removes useless operators until there are no more.
pub(super) fn remove(optimised: &mut OptimisedPipeline) {
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
        optimised.notes.extend(removed.into_iter().map(|(stage, reason)| {
            let PipelineStage { op, ordinal, line, .. } = stage;
            PassNote {
                pass: "dead_ops",
                op: op.name(),
                ordinal,
                line,
                change: PassChange::Removed,
                reason,
            }
        }));
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
        seen.extend(stage.op.field());
        seen.extend(stage.op.together().into_iter().flat_map(ImageFields::all));
    }
    None
}
