//! `scale` and `clip`: arithmetic on each number. `one_hot`: a class number as a vector.

use crate::prelude::*;

#[cfg(feature = "kernels")]
use half::{bf16, f16};

/// Any shape of u8, f16, bf16 or f32 -> f32: `x * factor + offset`, by default u8 0 to 255 to f32 0 to 1.
/// One f32 multiplication and one addition: within 1e-6 of torchvision's `ToDtype(scale=True)`, which
/// divides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    pub field: String,
    pub factor: f64,
    pub offset: f64,
}

impl OperatorDefinition for Scale {
    const DECLARATION: OperatorDeclaration =
        with_effect("scale", 1, OperatorEffect::Value).costs(300, 400);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or(
            "factor",
            ParameterKind::Number { min: -1e9, max: 1e9 },
            "0.00392156862745098",
            "Factor; 1/255 unless given.",
        ),
        or(
            "offset",
            ParameterKind::Number { min: -1e9, max: 1e9 },
            "0.0",
            "Added after the multiplication.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let factor = params.read_number("factor")?;
        let offset = params.read_number("offset")?;
        Ok(Scale { field: params.field()?, factor, offset })
    }
}

impl Operator for Scale {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("scale", &self.field)?;
        if !matches!(
            input.dtype,
            FieldDType::U8 | FieldDType::F16 | FieldDType::BF16 | FieldDType::F32
        ) {
            let advice = match input.dtype {
                FieldDType::Bytes => "put `decode` before it",
                _ => "put `cast: { dtype: f32 }` before it",
            };
            let needs = flow.needs("scale", "u8, f16, bf16 or f32", &self.field);
            return Err(format!("{needs}; {advice}"));
        }
        let range = input.range.map(|ValueRange { min, max }| {
            let ends = [min, max].map(|x| x * self.factor + self.offset);
            ValueRange { min: ends[0].min(ends[1]), max: ends[0].max(ends[1]) }
        });
        let output = FieldSchema { dtype: FieldDType::F32, shape: input.shape.clone(), range };
        flow.write("scale", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        #[inline(always)]
        fn write(values: impl Iterator<Item = f32>, by: [f32; 2], out: &mut [u8]) {
            for (x, to) in values.zip(out.as_chunks_mut::<4>().0) {
                *to = (x * by[0] + by[1]).to_le_bytes();
            }
        }
        let dtype = input.field()?.dtype;
        let by = [self.factor as f32, self.offset as f32];
        Ok(transform(move |input, output, _, _| {
            let ValueView { bytes, size } = input;
            let made = bytes.len() / dtype_bytes(dtype) * 4;
            let out = output.take(made)?;
            match dtype {
                FieldDType::U8 => {
                    vectorised(|| write(bytes.iter().map(|x| f32::from(*x)), by, out))
                }
                FieldDType::F16 => {
                    let read = |x: &[u8; 2]| f16::from_le_bytes(*x).to_f32();
                    write(bytes.as_chunks().0.iter().map(read), by, out);
                }
                FieldDType::BF16 => {
                    let read = |x: &[u8; 2]| bf16::from_le_bytes(*x).to_f32();
                    write(bytes.as_chunks().0.iter().map(read), by, out);
                }
                FieldDType::F32 => {
                    let read = |x: &[u8; 4]| f32::from_le_bytes(*x);
                    vectorised(|| write(bytes.as_chunks().0.iter().map(read), by, out));
                }
                other => return Err(format!("cannot scale {other}")),
            }
            Ok(OutputSize { bytes: made, size })
        }))
    }
}

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
        absent("min", ANY_NUMBER, "Lower bound."),
        absent("max", ANY_NUMBER, "Upper bound."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let mut bound = |key| {
            let node = params.get(key);
            node.map(|node| AuthoredNumber::parse(params, key, node)).transpose()
        };
        let (min, max) = (bound("min")?, bound("max")?);
        if min.is_none() && max.is_none() {
            return Err(params.error("`clip` needs `min` or `max`, or both"));
        }
        check_bounds(params, "clip", min, max)?;
        Ok(Clip { field: params.field()?, min, max })
    }
}

impl Operator for Clip {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("clip", &self.field)?;
        let (field, origin) = (&self.field, flow.origin(&self.field));
        use FieldDType::{F32, F64, I32, I64, U8, U16, U64};
        if !matches!(input.dtype, U8 | U16 | I32 | I64 | U64 | F32 | F64) {
            return Err(flow.needs("clip", "u8, u16, i32, i64, u64, f32 or f64", field));
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

/// Most classes.
const MAX_CLASSES: u32 = 1 << 24;

/// An integer scalar -> f32 or u8 `[classes]`. As `tf.one_hot`, except that a number outside 0 to
/// `classes` - 1 is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OneHot {
    pub field: String,
    pub classes: u32,
    pub dtype: FieldDType,
}

impl OperatorDefinition for OneHot {
    const DECLARATION: OperatorDeclaration = element_wise("one_hot", 1).costs(300, 100);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The field of class numbers."),
        required("classes", from_to(1, MAX_CLASSES), "Number of classes."),
        or("dtype", ParameterKind::Choice(&["f32", "u8"]), "f32", "f32 or u8."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let classes = params.read_whole("classes")?;
        let dtype = params.read_choice("dtype", &[FieldDType::F32, FieldDType::U8])?;
        Ok(OneHot { field, classes, dtype })
    }
}

impl Operator for OneHot {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("one_hot", &self.field)?;
        if !input.shape.is_empty() || !input.dtype.is_integer() {
            return Err(flow.needs("one_hot", "one whole number", &self.field));
        }
        let range = Some(ValueRange { min: 0.0, max: 1.0 });
        let output = FieldSchema::fixed(self.dtype, [self.classes]);
        flow.write("one_hot", &self.field, FieldSchema { range, ..output });
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let (given, classes) = (input.field()?.dtype, self.classes as usize);
        let one = value_bytes(self.dtype, 1.0);
        Ok(transform(move |input, output, _, _| {
            let class = crate::kernels::integer(given, input.bytes).ok_or("it has no value")?;
            let place = usize::try_from(class).ok().filter(|place| *place < classes);
            let place =
                place.ok_or_else(|| format!("{class} is not one of {classes} classes, 0 on"))?;
            let bytes = classes * one.len();
            let out = output.take(bytes)?;
            out.fill(0);
            out[place * one.len()..][..one.len()].copy_from_slice(&one);
            Ok(OutputSize { bytes, size: [0, 0] })
        }))
    }
}

#[cfg(feature = "kernels")]
mod kernel {
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
