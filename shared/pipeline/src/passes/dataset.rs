//! Moves operators on the sequence of records to the front. They are resolved before records are
//! read, and between operators on elements they would prevent fusing.

use super::{Change, Note, Optimised};
use crate::Stage;

/// Moves them to the front and keeps their order.
pub(super) fn first(optimised: &mut Optimised) {
    let stages = optimised.pipeline.stages();
    let of_dataset = |stage: &&Stage| stage.op.dataset().is_some();
    let (first, rest): (Vec<&Stage>, Vec<&Stage>) = stages.iter().partition(of_dataset);
    let order: Vec<Stage> = first.iter().chain(&rest).map(|stage| (*stage).clone()).collect();
    let moved = (0..).zip(&first).filter_map(|(to, stage)| {
        let from = stages.iter().position(|other| other.ordinal == stage.ordinal)?;
        let Stage { op, ordinal, line, .. } = stage;
        let reason = "which records there are is known before they are read".into();
        let change = Change::Moved { from, to, changes_results: false };
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
    // The move changes nothing for any operator. If the check fails anyway, the order stays.
    if let Ok(pipeline) = optimised.pipeline.with_stages(order) {
        optimised.pipeline = pipeline;
        optimised.notes.extend(moved);
    }
}
