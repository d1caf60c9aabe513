//! Operators that do nothing, or whose work nobody sees, are removed.

use super::{Change, Note, Optimised};
use crate::{Cardinality, Fields, Stage};
use std::collections::BTreeSet;

/// Removes operators until none is left that does nothing.
pub(super) fn remove(optimised: &mut Optimised) {
    while let Some((at, reason)) = find(optimised) {
        let mut stages = optimised.pipeline.stages().to_vec();
        let mut removed = vec![(stages.remove(at), reason)];
        let op = removed[0].0.op.clone();
        let given = &optimised.pipeline.schemas()[at];
        for made in op.outputs().into_iter().filter(|field| given.field(field).is_none()) {
            forget(&mut stages, made, &mut removed);
        }
        // A pipeline that does not hold together without it needs it after all.
        let Ok(pipeline) = optimised.pipeline.with_stages(stages) else { return };
        optimised.pipeline = pipeline;
        optimised.notes.extend(removed.into_iter().map(|(stage, reason)| {
            let Stage { op, ordinal, line, .. } = stage;
            Note { pass: "dead_ops", op: op.name(), ordinal, line, change: Change::Removed, reason }
        }));
    }
}

/// A field that is not made need not be dropped.
fn forget(stages: &mut Vec<Stage>, made: &str, removed: &mut Vec<(Stage, String)>) {
    for stage in stages.iter_mut() {
        stage.op.forget(made);
    }
    let empty = |stage: &mut Stage| stage.op.is_empty();
    removed.extend(
        stages.extract_if(.., empty).map(|stage| (stage, "nothing is left to drop".into())),
    );
}

fn find(optimised: &Optimised) -> Option<(usize, String)> {
    let pipeline = &optimised.pipeline;
    let stages = pipeline.stages();
    let mut seen = BTreeSet::new();
    // From the end: a field is seen if it is delivered, or read by an operator that is.
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
        // What it takes away would be delivered without it.
        let takes = stage.op.field().is_some_and(|field| output.field(field).is_none());
        if unseen && !takes && declared.cardinality == Cardinality::OneToOne {
            return Some((i, format!("nobody sees `{}` after it", writes.join("`, `"))));
        }
        // What is dropped is not seen before, unless read.
        seen.extend(stage.op.field());
        seen.extend(stage.op.together().into_iter().flat_map(Fields::all));
    }
    None
}
