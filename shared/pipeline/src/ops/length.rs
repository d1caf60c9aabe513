//! `length`: how many items a sequence has.

use super::{element_wise, into};
use crate::{
    DType, Declaration, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// A sequence `[n, ..]` or byte string of n bytes -> i64 scalar n, in the new field `into`, whose name
/// the element must not have yet. The sequence stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Length {
    pub field: String,
    pub into: String,
}

impl Operator for Length {
    const DECLARATION: Declaration = element_wise("length", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        Ok(Length { into: into(params, "length")?, field })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("length", &self.field)?;
        if !input.is_sequence() && input.shape.is_empty() {
            let origin = flow.origin(&self.field);
            return Err(format!(
                "`length` needs a sequence, but `{}` is {input}{origin}",
                self.field
            ));
        }
        if input.item_bytes().is_none() {
            return Err(format!("`length` of `{}` is not known: it is {input}", self.field));
        }
        flow.write_new("length", &self.into, FieldSchema::fixed(DType::I64, []))
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }

    fn output(&self) -> Option<&str> {
        Some(&self.into)
    }
}
