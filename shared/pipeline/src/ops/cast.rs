//! `cast`: the same numbers in another type.

use super::with_effect;
use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::{Deserialize, Serialize};

/// The types values can be cast to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CastDType {
    U8,
    F16,
    BF16,
    F32,
}

impl CastDType {
    /// The same as a field's dtype.
    pub const fn dtype(self) -> DType {
        match self {
            CastDType::U8 => DType::U8,
            CastDType::F16 => DType::F16,
            CastDType::BF16 => DType::BF16,
            CastDType::F32 => DType::F32,
        }
    }
}

/// Any numeric shape of u8, i64, f16, bf16 or f32 -> the same shape of `dtype`. Rounds to nearest,
/// ties to even; what u8 cannot hold becomes its nearest bound, and not-a-number becomes 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cast {
    pub field: String,
    pub dtype: CastDType,
}

impl Operator for Cast {
    const DECLARATION: Declaration = with_effect("cast", 1, Effect::Value);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let all = [CastDType::U8, CastDType::F16, CastDType::BF16, CastDType::F32];
        let choices = all.map(|dtype| (dtype.dtype().name(), dtype));
        let node = params.require("dtype")?;
        let dtype = params.choice("dtype", node, &choices)?;
        Ok(Cast { field: params.field()?, dtype })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("cast", &self.field)?;
        let field = &self.field;
        if input.dtype == DType::Bytes {
            let origin = flow.origin(field);
            return Err(format!("`cast` needs numbers, but `{field}` is {input}{origin}"));
        }
        let dtype = self.dtype.dtype();
        let outside = input.range.filter(|range| range.min < 0.0 || range.max > 255.0);
        if let (DType::U8, Some(range)) = (dtype, outside) {
            return Err(format!(
                "`cast` to u8 holds 0 to 255, but `{field}` is {:.3} to {:.3}{}; cast before it, \
                 or to another dtype",
                range.min,
                range.max,
                flow.origin(field)
            ));
        }
        let output = FieldSchema { dtype, ..input.clone() };
        flow.write("cast", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
