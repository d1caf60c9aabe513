//! `inflate`: an element becomes larger. For studies.

use super::element_wise;
use crate::{
    DType, Declaration, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// Largest factor.
const MAX_FACTOR: u32 = 1_000_000;

/// Any numeric `[..shape]` -> `[factor, ..shape]` of the same dtype: the value, `factor` times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inflate {
    pub field: String,
    pub factor: u32,
}

impl Operator for Inflate {
    const DECLARATION: Declaration = element_wise("inflate", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let factor = params.require("factor")?;
        let factor = params.whole("factor", factor, 1..=MAX_FACTOR)?;
        Ok(Inflate { field: params.field()?, factor })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let field = &self.field;
        let input = flow.field("inflate", field)?;
        if input.dtype == DType::Bytes || input.known_shape().is_none() {
            let origin = flow.origin(field);
            return Err(format!(
                "`inflate` needs numbers of one shape, but `{field}` is {input}{origin}"
            ));
        }
        let shape = [Some(self.factor)].into_iter().chain(input.shape.iter().copied()).collect();
        let output = FieldSchema { shape, ..input.clone() };
        // A tensor this large would be refused by `batch`, but only after other ops multiplied it.
        if output.shape.len() > 8
            || output.element_bytes().is_none_or(|b| b > crate::MAX_BATCH_BYTES)
        {
            return Err(format!("`inflate` makes `{field}` {output}, which no batch can hold"));
        }
        flow.write("inflate", field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
