//! Reorders operators: those that shrink elements move early, those that enlarge them move late.
//!
//! Implements AutoOrder (Pecan, section 5.2, algorithm 2) with four differences. Operators that
//! shrink keep their relative order. An operator moves past one neighbour at a time, only if the
//! two commute, the pipeline stays valid and the output schema stays the same. A filter also moves
//! before operators that do not touch its field, since a dropped element needs no work. And two
//! operators commute by default only if they give the same bytes in either order: what the paper
//! swaps beyond that is for `auto_order: pecan`.
//!
//! A job that is resumed, or read on a second host, must get the same order. So the order depends on
//! bytes alone and never on times, and the bytes are declared or those of a sample that the dataset's
//! version fixes.

use super::{AutoOrder, OptimisedPipeline, PassChange, PassNote};
use crate::{
    BoxedOperator, Cardinality, ElementSchema, FieldDType, FieldSchema, OperatorEffect, Pipeline,
    PipelineStage,
};

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Name of the pass in notes.
const PASS: &str = "auto_order";

/// Direction in which an operator should move.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
    Stay,
}

/// Notes while operators move.
#[derive(Default)]
struct Moves {
    refused: Vec<PassNote>,
    /// By ordinal, the operators that one moved across although results may then differ.
    inexact: BTreeMap<u32, Vec<&'static str>>,
}

/// The operators, by ordinal, whose factors need a sample of elements.
pub(super) fn open(pipeline: &Pipeline) -> BTreeSet<u32> {
    if pipeline.auto_order() != AutoOrder::Pecan {
        return BTreeSet::new();
    }
    let factors = factors(pipeline, &MeasuredBytes::new());
    let stages = pipeline.stages().iter().zip(factors);
    let open = stages.filter(|(stage, factor)| {
        factor.basis != FactorBasis::Static && stage.op.field().is_some()
    });
    open.map(|(stage, _)| stage.ordinal).collect()
}

pub(super) fn reorder(optimised: &mut OptimisedPipeline, measured: &MeasuredBytes) {
    let before: Vec<u32> = optimised.pipeline.stages().iter().map(|stage| stage.ordinal).collect();
    let mut moves = Moves::default();
    for &ordinal in &before {
        bubble(&mut optimised.pipeline, ordinal, Way::Up, measured, &mut moves);
    }
    for &ordinal in before.iter().rev() {
        bubble(&mut optimised.pipeline, ordinal, Way::Down, measured, &mut moves);
    }
    let factors = optimised.pipeline.factors(measured);
    for (to, (stage, factor)) in optimised.pipeline.stages().iter().zip(&factors).enumerate() {
        let from = before.iter().position(|ordinal| *ordinal == stage.ordinal).unwrap_or(to);
        let way = way(stage, factor);
        let crossed = moves.inexact.remove(&stage.ordinal);
        let changes_results = crossed.is_some();
        if (way == Way::Up && to < from) || (way == Way::Down && to > from) || changes_results {
            let mut reason = why(stage, factor, way);
            if let Some(crossed) = crossed {
                reason += &format!("; across `{}` the result is another", crossed.join("`, `"));
            }
            let change = PassChange::Moved { from, to, changes_results };
            optimised.notes.push(PassNote::new(PASS, stage, change, reason));
        }
    }
    optimised.notes.append(&mut moves.refused);
}

fn way(stage: &PipelineStage, factor: &InflationFactor) -> Way {
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

fn why(stage: &PipelineStage, factor: &InflationFactor, way: Way) -> String {
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
    measured: &MeasuredBytes,
    moves: &mut Moves,
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
        let across = stages[past].op.name();
        match swapped(pipeline, at, past) {
            Ok((better, commute)) => {
                if commute == Commute::Roughly {
                    moves.inexact.entry(ordinal).or_default().push(across);
                }
                *pipeline = better;
            }
            Err(reason) => {
                if let Some(reason) = reason {
                    let change = PassChange::Refused { across };
                    moves.refused.push(PassNote::new(PASS, &stages[at], change, reason));
                }
                return;
            }
        }
    }
}

/// The fields that an operator reads or writes.
fn touches(stage: &PipelineStage) -> Vec<&str> {
    stage.op.touched()
}

/// How two neighbours may change places.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Commute {
    /// The bytes are the same in either order.
    Exactly,
    /// Results may differ, and the author allows that.
    Roughly,
}

/// Whether every field that both touch is an image to those that move it. Boxes and labels follow
/// the image: other operators on them do not commute with what moves them.
fn share_images(one: &PipelineStage, other: &PipelineStage) -> bool {
    let is_image = |stage: &PipelineStage, field: &str| {
        stage.op.together().is_none_or(|fields| fields.images().any(|image| image == field))
    };
    let mut shared = touches(one).into_iter().filter(|field| touches(other).contains(field));
    shared.all(|field| is_image(one, field) && is_image(other, field))
}

/// Whether the paper on Pecan swaps two operators on a field, as long as both move the same images,
/// without masks or boxes, which must come out exactly the same.
fn commute_in_pecan(one: &PipelineStage, other: &PipelineStage) -> bool {
    let exact = |stage: &PipelineStage| {
        let fields = stage.op.together();
        fields.is_some_and(|fields| !fields.masks.is_empty() || fields.boxes.is_some())
    };
    let fields = |stage| BTreeSet::from_iter(touches(stage));
    let alike = || fields(one) == fields(other) && !exact(one) && !exact(other);
    let both = (one.op.declaration().effect, other.op.declaration().effect);
    // Half precision holds the same numbers, rounded.
    let rounds = both == (OperatorEffect::Value, OperatorEffect::Value)
        && (one.op.is_for_delivery() || other.op.is_for_delivery());
    (rounds || both.0.commutes_with(both.1))
        && (!both.0.moves() || !both.1.moves() || alike())
        && share_images(one, other)
}

/// Whether an operator converts from bytes to numbers, or to another number of dimensions.
fn converts(pipeline: &Pipeline, i: usize) -> bool {
    let schema = |i: usize, name: Option<&str>| pipeline.schemas()[i].field(name?).cloned();
    let op = &pipeline.stages()[i].op;
    let (from, to) = (schema(i, op.field()), schema(i + 1, op.output()));
    from.zip(to).is_none_or(|(from, to)| {
        (from.dtype == FieldDType::Bytes) != (to.dtype == FieldDType::Bytes)
            || from.shape.len() != to.shape.len()
    })
}

/// Whether two neighbours may swap, as far as their effects and the author say. Otherwise returns
/// the reason, or `None` if the reason is obvious.
fn commute(pipeline: &Pipeline, at: usize, past: usize) -> Result<Commute, Option<String>> {
    let (mover, other) = (&pipeline.stages()[at], &pipeline.stages()[past]);
    let shared = touches(mover).iter().any(|field| touches(other).contains(field));
    // A drop has no input field, but still takes fields away.
    if !shared && mover.op.field().is_some() && other.op.field().is_some() {
        return Ok(Commute::Exactly);
    }
    if converts(pipeline, at) || converts(pipeline, past) {
        return Err(None);
    }
    let effects = [at, past].map(|i| pipeline.stages()[i].exact_effect(&pipeline.schemas()[i]));
    if effects[0].commutes_with(effects[1]) && share_images(mover, other) {
        return Ok(Commute::Exactly);
    }
    let in_pecan = commute_in_pecan(mover, other);
    let allowed = in_pecan && pipeline.auto_order() == AutoOrder::Pecan;
    if allowed || mover.assume_commutes || other.assume_commutes {
        return Ok(Commute::Roughly);
    }
    let remedy = if in_pecan {
        "`auto_order: pecan` moves it nevertheless"
    } else {
        "say `assume_commutes: true` on one of them if that is all the same to you"
    };
    let [mover, other] = [mover, other].map(|stage| stage.op.name());
    Err(Some(format!("`{mover}` then `{other}` is not what `{other}` then `{mover}` is; {remedy}")))
}

/// Returns the pipeline with two neighbours swapped if that means the same. Otherwise returns the
/// reason, or `None` if the reason is obvious.
fn swapped(
    pipeline: &Pipeline,
    at: usize,
    past: usize,
) -> Result<(Pipeline, Commute), Option<String>> {
    let stages = pipeline.stages();
    let other = &stages[past];
    if other.op.declaration().pins_position {
        return Err(None);
    }
    if other.keep_position {
        return Err(Some(format!("`{}` keeps its position", other.op.name())));
    }
    let commute = commute(pipeline, at, past)?;
    let mut stages = stages.to_vec();
    stages.swap(at, past);
    let candidate = pipeline.with_stages(stages).map_err(|error| Some(error.message))?;
    let (before, after) = (pipeline.output_schema(), candidate.output_schema());
    if before == after {
        Ok((candidate, commute))
    } else {
        let mut fields = before.fields.iter().zip(&after.fields);
        let changed = fields.find(|(before, after)| before != after);
        let changed = changed.map_or(String::new(), |((name, before), (_, after))| {
            let range = |field: &FieldSchema| {
                field.range.map_or(String::new(), |r| format!(" {:.2}..{:.2}", r.min, r.max))
            };
            let (from, to) = (range(before), range(after));
            format!(": `{name}` would be {after}{to}, not {before}{from}")
        });
        Err(Some(format!("what is delivered would change{changed}")))
    }
}

// Inflation factors: how much an operator enlarges or shrinks its field (Pecan, section 5.2).

/// Measured mean bytes of the field before and after each operator, keyed by ordinal.
pub type MeasuredBytes = BTreeMap<u32, (f64, f64)>;

/// How a factor is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FactorBasis {
    /// From dtypes and shapes alone.
    Static,
    /// From the typical image size that the author gives.
    Typical,
    /// From a sample of elements.
    Sampled,
    Unknown,
}

/// An operator's inflation factor: bytes of its field after it / before it, over all elements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InflationFactor {
    pub inflation_factor: Option<f64>,
    pub basis: FactorBasis,
}

impl InflationFactor {
    /// Factors closer to 1 than this count as 1: 0.95 to 1.05.
    const TIE: f64 = 0.05;

    pub(super) fn is_deflationary(&self) -> bool {
        self.inflation_factor.is_some_and(|factor| factor < 1.0 - Self::TIE)
    }

    pub(super) fn is_inflationary(&self) -> bool {
        self.inflation_factor.is_some_and(|factor| factor > 1.0 + Self::TIE)
    }
}

/// The factor of an operator whose field has a known size before and after.
pub(super) fn known(
    op: &BoxedOperator,
    input: &ElementSchema,
    output: &ElementSchema,
) -> InflationFactor {
    let bytes = |schema: &ElementSchema| schema.field(op.field()?)?.element_bytes();
    let ratio = |(before, after): (u64, u64)| (before > 0).then(|| after as f64 / before as f64);
    let inflation_factor = bytes(input).zip(bytes(output)).and_then(ratio);
    InflationFactor { inflation_factor, basis: FactorBasis::Static }
}

/// Bytes of a field, and whether they are an estimate.
type Size = (f64, bool);

pub(super) fn factors(pipeline: &Pipeline, measured: &MeasuredBytes) -> Vec<InflationFactor> {
    // Estimated bytes of fields of unknown size.
    let mut estimates: BTreeMap<&str, f64> = BTreeMap::new();
    let mut factors = Vec::new();
    for (i, stage) in pipeline.stages().iter().enumerate() {
        let (input, output) = (&pipeline.schemas()[i], &pipeline.schemas()[i + 1]);
        let known = |schema: &ElementSchema, field: &str| -> Option<Size> {
            Some((schema.field(field)?.element_bytes()? as f64, false))
        };
        let estimated = |field: &str| estimates.get(field).map(|bytes| (*bytes, true));
        let before = stage.op.field().and_then(|f| known(input, f).or_else(|| estimated(f)));
        let typical = stage.op.typical_bytes().map(|bytes| (bytes, true));
        let after = match stage.op.field().zip(stage.op.output()) {
            None => None,
            Some(_) if typical.is_some() => typical,
            Some((from, to)) => known(output, to).or_else(|| {
                // The size is unknown on both sides: assume that only the dtype changes.
                let dtype = |schema: &ElementSchema, field: &str| {
                    schema.field(field).and_then(|field| field.dtype.size_bytes())
                };
                let ratio = dtype(output, to)? as f64 / dtype(input, from)? as f64;
                before.map(|(bytes, _)| (bytes * ratio, true))
            }),
        };
        if let (Some(field), Some((bytes, _))) = (stage.op.output(), after) {
            estimates.insert(field, bytes);
        }
        let factor = |before: f64, after: f64, basis| InflationFactor {
            inflation_factor: (before > 0.0).then_some(after / before),
            basis,
        };
        factors.push(match (measured.get(&stage.ordinal), before, after) {
            (Some((before, after)), ..) => factor(*before, *after, FactorBasis::Sampled),
            (None, Some((before, a)), Some((after, b))) => factor(
                before,
                after,
                if a || b { FactorBasis::Typical } else { FactorBasis::Static },
            ),
            _ => InflationFactor { inflation_factor: None, basis: FactorBasis::Unknown },
        });
    }
    factors
}
