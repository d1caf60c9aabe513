//! `clip`: numbers are kept within bounds.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, FieldSchema, Number, PipelineError, ValueRange, flow::Flow,
    op::Operator, table::Table,
};
use serde::Serialize;

/// Numbers of any shape -> the same, none below `min` or above `max`; not-a-number stays. Exactly as
/// `tf.clip_by_value`. One of the bounds may be left out; each is one that the field's type can hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clip {
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Number>,
}

impl Operator for Clip {
    const DECLARATION: Declaration = with_effect("clip", 2, Effect::Value);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let mut bound = |key| {
            let node = params.get(key);
            node.map(|node| Number::parse(params, key, node)).transpose()
        };
        let (min, max) = (bound("min")?, bound("max")?);
        match (min, max) {
            (None, None) => Err(params.error("`clip` needs `min` or `max`, or both")),
            (Some(min), Some(max)) if min > max => {
                Err(params
                    .error(format!("`clip` `min` must be at most `max`, not {min} and {max}")))
            }
            _ => Ok(Clip { field: params.field()?, min, max }),
        }
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("clip", &self.field)?;
        let (field, origin) = (&self.field, flow.origin(&self.field));
        use DType::{F32, F64, I32, I64, U8, U16, U64};
        if !matches!(input.dtype, U8 | U16 | I32 | I64 | U64 | F32 | F64) {
            return Err(format!(
                "`clip` needs u8, u16, i32, i64, u64, f32 or f64, but `{field}` is {input}{origin}"
            ));
        }
        for (key, bound) in [("min", self.min), ("max", self.max)] {
            let Some(bound) = bound else { continue };
            bound.fits(input.dtype).map_err(|wanted| {
                format!(
                    "`clip` `{key}` must be {wanted}, not {bound}: `{field}` is {input}{origin}"
                )
            })?;
        }
        let range = self.range(input);
        let output = FieldSchema { range, ..input.clone() };
        flow.write("clip", field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}

impl Clip {
    fn range(&self, input: &FieldSchema) -> Option<ValueRange> {
        let before = input.range;
        let (own_min, own_max) = (self.min.map(Number::real), self.max.map(Number::real));
        let low = [own_min, before.map(|range| range.min)].into_iter().flatten();
        let high = [own_max, before.map(|range| range.max)].into_iter().flatten();
        let (min, max) = (low.reduce(f64::max)?, high.reduce(f64::min)?);
        // Bounds that all values lie beyond make one value of them.
        let to = |x: f64| x.max(own_min.unwrap_or(x)).min(own_max.unwrap_or(f64::INFINITY));
        Some(ValueRange { min: to(min.min(max)), max: to(max.max(min)) })
    }
}
