//! `clip`: clamps numbers to bounds.

use crate::prelude::*;

/// Numbers of any shape -> the same, clamped to `min` and `max`; NaN stays. Exactly as `tf.clip_by_value`.
/// Either bound may be absent. The field's type must be able to hold each bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clip {
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<AuthoredNumber>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<AuthoredNumber>,
}

impl OperatorDefinition for Clip {
    const DECLARATION: OperatorDeclaration =
        with_effect("clip", 2, OperatorEffect::Value).costs(300, 400);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        absent("min", ParameterKind::Number { min: f64::MIN, max: f64::MAX }, "Lower bound."),
        absent("max", ParameterKind::Number { min: f64::MIN, max: f64::MAX }, "Upper bound."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let mut bound = |key| {
            let node = params.get(key);
            node.map(|node| AuthoredNumber::parse(params, key, node)).transpose()
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
}

impl Operator for Clip {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("clip", &self.field)?;
        let (field, origin) = (&self.field, flow.origin(&self.field));
        use FieldDType::{F32, F64, I32, I64, U8, U16, U64};
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

    replaces_field!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::EachPixel
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let (min, max, dtype) = (self.min, self.max, given.dtype);
        Ok(in_place(move |value, _, _, _| kernel::clip(min, max, dtype, value)))
    }
}

impl Clip {
    fn range(&self, input: &FieldSchema) -> Option<ValueRange> {
        let before = input.range;
        let (own_min, own_max) =
            (self.min.map(AuthoredNumber::real), self.max.map(AuthoredNumber::real));
        let low = [own_min, before.map(|range| range.min)].into_iter().flatten();
        let high = [own_max, before.map(|range| range.max)].into_iter().flatten();
        let (min, max) = (low.reduce(f64::max)?, high.reduce(f64::min)?);
        // If all values lie beyond a bound, they all become that bound.
        let to = |x: f64| x.max(own_min.unwrap_or(x)).min(own_max.unwrap_or(f64::INFINITY));
        Some(ValueRange { min: to(min.min(max)), max: to(max.max(min)) })
    }
}

#[cfg(feature = "kernels")]
mod kernel {
    //! `clip`: clamps numbers to bounds.

    use super::*;

    /// Clamps numbers of any shape.
    pub(super) fn clip(
        min: Option<AuthoredNumber>,
        max: Option<AuthoredNumber>,
        dtype: FieldDType,
        value: &mut [u8],
    ) -> Result<(), String> {
        // The pipeline checked that the type can hold each bound.
        macro_rules! clip {
            ($type:ty, $least:expr, $most:expr) => {{
                let of = |bound: Option<AuthoredNumber>, other: $type| match bound {
                    Some(AuthoredNumber::Whole(bound)) => bound as $type,
                    Some(AuthoredNumber::Real(bound)) => bound as $type,
                    None => other,
                };
                let (min, max) = (of(min, $least), of(max, $most));
                vectorised(|| {
                    for to in value.as_chunks_mut::<{ size_of::<$type>() }>().0 {
                        let x = <$type>::from_le_bytes(*to);
                        let x = if x < min { min } else { x };
                        *to = if x > max { max } else { x }.to_le_bytes();
                    }
                })
            }};
            ($type:ty) => {
                clip!($type, <$type>::MIN, <$type>::MAX)
            };
        }
        match dtype {
            FieldDType::U8 => clip!(u8),
            FieldDType::U16 => clip!(u16),
            FieldDType::I32 => clip!(i32),
            FieldDType::I64 => clip!(i64),
            FieldDType::U64 => clip!(u64),
            FieldDType::F64 => clip!(f64, f64::NEG_INFINITY, f64::INFINITY),
            FieldDType::F32 => clip!(f32, f32::NEG_INFINITY, f32::INFINITY),
            other => return Err(format!("cannot clip {other}")),
        }
        Ok(())
    }
}
