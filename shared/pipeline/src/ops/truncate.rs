//! `truncate`: a sequence is cut to a length.

use super::element_wise;
use crate::{Declaration, PipelineError, flow::Flow, op::Operator, table::Table};
use serde::Serialize;

/// Longest length, in items.
const MAX_LENGTH: u32 = 1 << 24;

/// A sequence `[n, ..]` or byte string -> its first `length` items; shorter ones stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Truncate {
    pub field: String,
    pub length: u32,
}

impl Operator for Truncate {
    const DECLARATION: Declaration = element_wise("truncate", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let length = params.require("length")?;
        Ok(Truncate { length: params.whole("length", length, 1..=MAX_LENGTH)?, field })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("truncate", &self.field)?;
        if !input.is_sequence() {
            let origin = flow.origin(&self.field);
            let field = &self.field;
            return Err(format!("`truncate` needs a sequence, but `{field}` is {input}{origin}"));
        }
        let output = input.clone();
        flow.write("truncate", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
