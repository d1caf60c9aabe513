//! `cast`: the same numbers in another type.

use crate::prelude::*;

/// The types values can be cast to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CastDType {
    U8,
    U16,
    I32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl CastDType {
    const ALL: [CastDType; 9] = [
        CastDType::U8,
        CastDType::U16,
        CastDType::I32,
        CastDType::I64,
        CastDType::U64,
        CastDType::F16,
        CastDType::BF16,
        CastDType::F32,
        CastDType::F64,
    ];

    /// Least and largest value of an integer type; none if `cast` does not narrow the range to it.
    fn bounds(self) -> Option<[f64; 2]> {
        match self {
            CastDType::U8 => Some([0.0, 255.0]),
            CastDType::U16 => Some([0.0, 65_535.0]),
            CastDType::I32 => Some([f64::from(i32::MIN), f64::from(i32::MAX)]),
            CastDType::U64 => Some([0.0, f64::MAX]),
            CastDType::I64 | CastDType::F16 | CastDType::BF16 | CastDType::F32 | CastDType::F64 => {
                None
            }
        }
    }

    /// The same as a field's dtype.
    pub const fn dtype(self) -> FieldDType {
        match self {
            CastDType::U8 => FieldDType::U8,
            CastDType::U16 => FieldDType::U16,
            CastDType::I32 => FieldDType::I32,
            CastDType::I64 => FieldDType::I64,
            CastDType::U64 => FieldDType::U64,
            CastDType::F16 => FieldDType::F16,
            CastDType::BF16 => FieldDType::BF16,
            CastDType::F32 => FieldDType::F32,
            CastDType::F64 => FieldDType::F64,
        }
    }
}

/// Numbers of any shape -> the same shape of `dtype`: u8, u16, i32, i64, u64, f16, bf16, f32 or f64. Rounds
/// to nearest, ties to even (`tf.cast` and torch truncate towards zero). Casts to integers saturate, also
/// for infinities; NaN becomes 0. Casts to floats are exactly those of TensorFlow and torch: values beyond
/// f16 become infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cast {
    pub field: String,
    pub dtype: CastDType,
}

impl OperatorDefinition for Cast {
    const DECLARATION: OperatorDeclaration =
        with_effect("cast", 1, OperatorEffect::Value).costs(200, 300);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "dtype",
            ParameterKind::Choice(&["u8", "u16", "i32", "i64", "u64", "f16", "bf16", "f32", "f64"]),
            "The type of what comes out.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let dtype = choice::<Self, _>(params, "dtype", &CastDType::ALL)?;
        Ok(Cast { field: params.field()?, dtype })
    }
}

impl Operator for Cast {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("cast", &self.field)?;
        let field = &self.field;
        if input.dtype == FieldDType::Bytes {
            let origin = flow.origin(field);
            return Err(format!("`cast` needs numbers, but `{field}` is {input}{origin}"));
        }
        let dtype = self.dtype.dtype();
        // Values outside the type saturate.
        let range = input.range.map(|range| match self.dtype.bounds() {
            Some([least, most]) => {
                ValueRange { min: range.min.clamp(least, most), max: range.max.clamp(least, most) }
            }
            None => range,
        });
        let output = FieldSchema { dtype, range, ..input.clone() };
        flow.write("cast", &self.field, output);
        Ok(())
    }

    replaces_field!();

    fn exact_effect(&self, _: &FieldSchema) -> ExactEffect {
        ExactEffect::EachPixel
    }

    fn does_nothing(&self) -> Option<&'static str> {
        // The caller compares the schemas before and after; the dtype is the same.
        Some("its input has that dtype already")
    }

    fn is_for_delivery(&self) -> bool {
        matches!(self.dtype, CastDType::BF16 | CastDType::F16)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        Ok(if self.dtype.dtype() == given.dtype {
            Kernel::Nothing
        } else {
            let (from, to) = (given.dtype, self.dtype);
            transform(move |input, output, _, _| kernel::convert(from, to, input, output))
        })
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel;
