//! Inflation factors: how much an operator enlarges or shrinks its field (Pecan, section 5.2).

use crate::{BoxedOperator, Pipeline};
use serde::Serialize;
use std::collections::BTreeMap;

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
    input: &crate::ElementSchema,
    output: &crate::ElementSchema,
) -> InflationFactor {
    let bytes = |schema: &crate::ElementSchema| schema.field(op.field()?)?.element_bytes();
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
        let known = |schema: &crate::ElementSchema, field: &str| -> Option<Size> {
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
                let dtype = |schema: &crate::ElementSchema, field: &str| {
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
