//! `clip`: numbers are kept within bounds.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, ValueRange, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// Numbers of any shape -> the same, none below `min` or above `max`; not-a-number stays. Exactly as
/// `tf.clip_by_value`. One of the bounds may be left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clip {
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

impl Operator for Clip {
    const DECLARATION: Declaration = with_effect("clip", 1, Effect::Value);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let mut bound = |key| {
            let node = params.get(key);
            node.map(|node| params.number(key, node, f64::MIN..=f64::MAX)).transpose()
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
        let whole = |bound: Option<f64>| bound.is_none_or(|bound| bound.fract() == 0.0);
        let (field, origin) = (&self.field, flow.origin(&self.field));
        match input.dtype {
            DType::U8 | DType::U16 | DType::I32 | DType::I64 => {
                if !(whole(self.min) && whole(self.max)) {
                    return Err(format!(
                        "`clip` of `{field}`, which is {input}{origin}, needs whole numbers"
                    ));
                }
            }
            DType::F32 => {}
            _ => {
                return Err(format!(
                    "`clip` needs u8, u16, i32, i64 or f32, but `{field}` is {input}{origin}"
                ));
            }
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
        let low = [self.min, before.map(|range| range.min)].into_iter().flatten();
        let high = [self.max, before.map(|range| range.max)].into_iter().flatten();
        let (min, max) = (low.reduce(f64::max)?, high.reduce(f64::min)?);
        // Bounds that all values lie beyond make one value of them.
        let to = |x: f64| x.max(self.min.unwrap_or(x)).min(self.max.unwrap_or(f64::INFINITY));
        Some(ValueRange { min: to(min.min(max)), max: to(max.max(min)) })
    }
}
