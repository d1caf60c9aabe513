//! `pad_sequence`: a sequence is filled up to a length.

use super::element_wise;
use crate::{
    DType, Declaration, FieldSchema, Number, PipelineError, flow::Flow, op::Operator,
    schema::widened, table::Table,
};
use serde::Serialize;

/// Longest length, in items.
const MAX_LENGTH: u32 = 1 << 24;

/// A sequence `[n, ..]` of numbers -> `[length, ..]`: `value` follows what is there. A longer one is an
/// error of its record, or cut with `truncate`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PadSequence {
    pub field: String,
    /// Items of every sequence that comes out.
    pub length: u32,
    /// Whether only the first `length` items of a longer sequence are kept.
    pub truncate: bool,
    /// What is filled in; the field's dtype must be able to hold it.
    pub value: Number,
}

impl Operator for PadSequence {
    const DECLARATION: Declaration = element_wise("pad_sequence", 2);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let length = params.require("length")?;
        let length = params.whole("length", length, 1..=MAX_LENGTH)?;
        let truncate = params.bool("truncate", false)?;
        let value = params.get("value");
        let value = value.map(|node| Number::parse(params, "value", node)).transpose()?;
        let value = value.unwrap_or(Number::ZERO);
        Ok(PadSequence { field, length, truncate, value })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("pad_sequence", &self.field)?;
        let (field, origin) = (&self.field, flow.origin(&self.field));
        let items = input.shape.split_first().filter(|_| input.item_bytes().is_some());
        let Some((first, item)) = items.filter(|_| input.dtype != DType::Bytes) else {
            return Err(format!(
                "`pad_sequence` needs a sequence of numbers, but `{field}` is {input}{origin}"
            ));
        };
        if first.is_some_and(|first| first > self.length) && !self.truncate {
            return Err(format!(
                "`pad_sequence` to {} cannot hold `{field}`, which is {input}{origin}; say \
                 `truncate: true` if it may be cut",
                self.length
            ));
        }
        self.value.fits(input.dtype).map_err(|wanted| {
            let value = self.value;
            format!(
                "`pad_sequence` `value` must be {wanted}, not {value}: `{field}` is {input}{origin}"
            )
        })?;
        let shape = [Some(self.length)].into_iter().chain(item.iter().copied()).collect();
        let range = input.range.map(|range| widened(range, self.value.real()));
        let output = FieldSchema { dtype: input.dtype, shape, range };
        flow.write("pad_sequence", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
