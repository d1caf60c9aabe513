//! Operators on the sequence of records come first: they are resolved before anything is read, and
//! between operators on elements they would keep these from running as one.

use super::{Change, Note, Optimised};
use crate::Stage;

/// Moves them before all others, in their order.
pub(super) fn first(optimised: &mut Optimised) {
    let stages = optimised.pipeline.stages();
    let of_dataset = |stage: &&Stage| stage.op.dataset().is_some();
    let (first, rest): (Vec<&Stage>, Vec<&Stage>) = stages.iter().partition(of_dataset);
    let order: Vec<Stage> = first.iter().chain(&rest).map(|stage| (*stage).clone()).collect();
    let moved = (0..).zip(&first).filter_map(|(to, stage)| {
        let from = stages.iter().position(|other| other.ordinal == stage.ordinal)?;
        let Stage { op, ordinal, line, .. } = stage;
        let reason = "which records there are is known before they are read".into();
        let change = Change::Moved { from, to };
        let note = Note {
            pass: "dataset_ops",
            op: op.name(),
            ordinal: *ordinal,
            line: *line,
            change,
            reason,
        };
        (from != to).then_some(note)
    });
    let moved: Vec<Note> = moved.collect();
    if moved.is_empty() {
        return;
    }
    // It is the same pipeline to every operator; were it not, it would stay.
    if let Ok(pipeline) = optimised.pipeline.with_stages(order) {
        optimised.pipeline = pipeline;
        optimised.notes.extend(moved);
    }
}
