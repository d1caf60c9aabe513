//! `pad_sequence`: a sequence is filled up to a length.

use super::{element_wise, number};
use crate::{
    DType, Declaration, FieldSchema, PipelineError, flow::Flow, op::Operator, schema::widened,
    table::Table,
};
use serde::Serialize;

/// Longest length, in items.
const MAX_LENGTH: u32 = 1 << 24;
/// Beyond this f64 does not hold every integer.
const MAX_VALUE: f64 = (1_u64 << 53) as f64;

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
    pub value: f64,
}

impl Operator for PadSequence {
    const DECLARATION: Declaration = element_wise("pad_sequence", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let length = params.require("length")?;
        let length = params.whole("length", length, 1..=MAX_LENGTH)?;
        let truncate = params.bool("truncate", false)?;
        let value = number(params, "value", 0.0, -MAX_VALUE..=MAX_VALUE)?;
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
        if !holds(input.dtype, self.value) {
            let (value, dtype) = (self.value, input.dtype);
            return Err(format!(
                "`pad_sequence` `value` must be one that {dtype} can hold, not {value}"
            ));
        }
        let shape = [Some(self.length)].into_iter().chain(item.iter().copied()).collect();
        let range = input.range.map(|range| widened(range, self.value));
        let output = FieldSchema { dtype: input.dtype, shape, range };
        flow.write("pad_sequence", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}

/// Whether `dtype` holds `value`: integers exactly, floats rounded but finite.
fn holds(dtype: DType, value: f64) -> bool {
    let (low, high) = match dtype {
        DType::Bytes => return false,
        DType::U8 => (0.0, 255.0),
        DType::U16 => (0.0, 65_535.0),
        DType::U32 => (0.0, f64::from(u32::MAX)),
        DType::U64 => (0.0, MAX_VALUE),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 | DType::F32 | DType::BF16 => (-MAX_VALUE, MAX_VALUE),
        // The largest binary16.
        DType::F16 => (-65_504.0, 65_504.0),
    };
    (low..=high).contains(&value) && (!dtype.is_integer() || value.fract() == 0.0)
}
