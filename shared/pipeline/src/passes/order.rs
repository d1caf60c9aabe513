//! Reorders operators: those that shrink elements move early, those that enlarge them move late.
//!
//! Implements AutoOrder (Pecan, section 5.2, algorithm 2) with three differences. Operators that
//! shrink keep their relative order. An operator moves past one neighbour at a time, only if the
//! two commute, the pipeline stays valid and the output schema stays the same. A filter also moves
//! before operators that do not touch its field, since a dropped element needs no work.

use super::{Change, Factor, Measured, Note, Optimised};
use crate::{Cardinality, DType, Effect, Pipeline, Stage};
use std::collections::BTreeSet;

/// Name of the pass in notes.
const PASS: &str = "auto_order";

/// Direction in which an operator should move.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
    Stay,
}

pub(super) fn reorder(optimised: &mut Optimised, measured: &Measured) {
    let before: Vec<u32> = optimised.pipeline.stages().iter().map(|stage| stage.ordinal).collect();
    let mut refused = Vec::new();
    for &ordinal in &before {
        bubble(&mut optimised.pipeline, ordinal, Way::Up, measured, &mut refused);
    }
    for &ordinal in before.iter().rev() {
        bubble(&mut optimised.pipeline, ordinal, Way::Down, measured, &mut refused);
    }
    let factors = optimised.pipeline.factors(measured);
    for (to, (stage, factor)) in optimised.pipeline.stages().iter().zip(&factors).enumerate() {
        let from = before.iter().position(|ordinal| *ordinal == stage.ordinal).unwrap_or(to);
        let way = way(stage, factor);
        if (way == Way::Up && to < from) || (way == Way::Down && to > from) {
            optimised.notes.push(note(stage, Change::Moved { from, to }, why(stage, factor, way)));
        }
    }
    optimised.notes.append(&mut refused);
}

fn way(stage: &Stage, factor: &Factor) -> Way {
    let declared = stage.op.declaration();
    match declared.cardinality {
        _ if declared.pins_position || stage.keep_position => Way::Stay,
        Cardinality::Filter => Way::Up,
        // The operator keeps its input field.
        _ if stage.op.field() != stage.op.output() => Way::Stay,
        // CPUs are slow on half precision; it is meant for the wire.
        _ if stage.op.is_for_delivery() => Way::Down,
        _ if factor.is_deflationary() => Way::Up,
        _ if factor.is_inflationary() => Way::Down,
        _ => Way::Stay,
    }
}

fn why(stage: &Stage, factor: &Factor, way: Way) -> String {
    let factor = factor.inflation_factor.map_or("?".into(), |factor| format!("{factor:.2}"));
    match way {
        _ if stage.op.declaration().cardinality == Cardinality::Filter => {
            "what it leaves out needs no work".into()
        }
        Way::Up => format!("it makes elements smaller (inflation factor {factor})"),
        Way::Down if stage.op.field().is_some() && factor.starts_with('0') => {
            "half precision is for the wire: computing on it is slow".into()
        }
        _ => format!("it makes elements larger (inflation factor {factor})"),
    }
}

/// Moves an operator in the wanted direction as far as possible.
fn bubble(
    pipeline: &mut Pipeline,
    ordinal: u32,
    wanted: Way,
    measured: &Measured,
    refused: &mut Vec<Note>,
) {
    loop {
        let stages = pipeline.stages();
        let Some(at) = stages.iter().position(|stage| stage.ordinal == ordinal) else { return };
        let factors = pipeline.factors(measured);
        if way(&stages[at], &factors[at]) != wanted {
            return;
        }
        let past = match wanted {
            Way::Up => at.checked_sub(1),
            _ => Some(at + 1).filter(|next| *next < stages.len()),
        };
        // Operators with the same direction keep their order.
        let Some(past) = past.filter(|past| way(&stages[*past], &factors[*past]) != wanted) else {
            return;
        };
        match swapped(pipeline, at, past) {
            Ok(better) => *pipeline = better,
            Err(reason) => {
                let across = stages[past].op.name();
                if let Some(reason) = reason {
                    refused.push(note(&stages[at], Change::Refused { across }, reason));
                }
                return;
            }
        }
    }
}

fn note(stage: &Stage, change: Change, reason: String) -> Note {
    let Stage { op, ordinal, line, .. } = stage;
    Note { pass: PASS, op: op.name(), ordinal: *ordinal, line: *line, change, reason }
}

/// The fields that an operator reads or writes.
fn touches(stage: &Stage) -> Vec<&str> {
    stage.op.field().into_iter().chain(stage.op.outputs()).collect()
}

/// Whether the fields allow two operators that move pixels to swap: both move the same images,
/// without masks or boxes, which must come out exactly the same.
fn alike(one: &Stage, other: &Stage) -> bool {
    let exact = |stage: &Stage| {
        let fields = stage.op.together();
        fields.is_some_and(|fields| !fields.masks.is_empty() || fields.boxes.is_some())
    };
    let fields = |stage| BTreeSet::from_iter(touches(stage));
    fields(one) == fields(other) && !exact(one) && !exact(other)
}

/// Returns the pipeline with two neighbours swapped if that means the same. Otherwise returns the
/// reason, or `None` if the reason is obvious.
fn swapped(pipeline: &Pipeline, at: usize, past: usize) -> Result<Pipeline, Option<String>> {
    let stages = pipeline.stages();
    let (mover, other) = (&stages[at], &stages[past]);
    let pinned = other.op.declaration();
    if pinned.pins_position {
        return Err(None);
    }
    if other.keep_position {
        return Err(Some(format!("`{}` keeps its position", other.op.name())));
    }
    let shared = touches(mover).iter().any(|field| touches(other).contains(field));
    // A drop has no input field, but still takes fields away.
    let apart = !shared && mover.op.field().is_some() && other.op.field().is_some();
    if !apart {
        let both = (mover.op.declaration().effect, pinned.effect);
        let vouched = mover.assume_commutes || other.assume_commutes;
        // Conversions from bytes to numbers, or to another number of dimensions, are a barrier.
        let converts = |i: usize| {
            let schema = |i: usize, name: Option<&str>| pipeline.schemas()[i].field(name?).cloned();
            let op = &stages[i].op;
            let (from, to) = (schema(i, op.field()), schema(i + 1, op.output()));
            from.zip(to).is_none_or(|(from, to)| {
                (from.dtype == DType::Bytes) != (to.dtype == DType::Bytes)
                    || from.shape.len() != to.shape.len()
            })
        };
        if converts(at) || converts(past) {
            return Err(None);
        }
        // Half precision holds the same numbers, rounded.
        let rounds = both == (Effect::Value, Effect::Value)
            && (mover.op.is_for_delivery() || other.op.is_for_delivery());
        let commute = (rounds || both.0.commutes_with(both.1))
            && (!both.0.moves() || !both.1.moves() || alike(mover, other));
        if !commute && !vouched {
            return Err(Some(format!(
                "`{}` then `{}` is not what `{}` then `{}` is; say `assume_commutes: true` on one of \
                 them if that is all the same to you",
                mover.op.name(),
                other.op.name(),
                other.op.name(),
                mover.op.name()
            )));
        }
    }
    let mut stages = stages.to_vec();
    stages.swap(at, past);
    let candidate = pipeline.with_stages(stages).map_err(|error| Some(error.message))?;
    let (before, after) = (pipeline.output_schema(), candidate.output_schema());
    match before == after {
        true => Ok(candidate),
        false => {
            let mut fields = before.fields.iter().zip(&after.fields);
            let changed = fields.find(|(before, after)| before != after);
            let changed = changed.map_or(String::new(), |((name, before), (_, after))| {
                let range = |field: &crate::FieldSchema| {
                    field.range.map_or(String::new(), |r| format!(" {:.2}..{:.2}", r.min, r.max))
                };
                let (from, to) = (range(before), range(after));
                format!(": `{name}` would be {after}{to}, not {before}{from}")
            });
            Err(Some(format!("what is delivered would change{changed}")))
        }
    }
}
