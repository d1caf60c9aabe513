//! `filter`: elements that fail a test are left out.

use crate::{
    random::Draw,
    step::{Predicate, View},
};
use gristmill_pipeline::{DType, FieldSchema, ops::Filter};

/// Looks at the value of a number, at the length of a sequence.
#[derive(Debug)]
pub(crate) struct Test {
    op: Filter,
    /// None if the value decides; else bytes of one item of the sequence whose length does.
    item_bytes: Option<usize>,
    dtype: DType,
}

impl Test {
    pub(crate) fn new(op: &Filter, field: &FieldSchema) -> Self {
        let sequence = field.is_sequence();
        let item_bytes = field.item_bytes().filter(|_| sequence).map(|bytes| bytes as usize);
        Test { op: op.clone(), item_bytes, dtype: field.dtype }
    }
}

impl Predicate for Test {
    fn keeps(&self, input: View<'_>, _: &mut Draw) -> Result<bool, String> {
        let value = match self.item_bytes {
            Some(item_bytes) => (input.bytes.len() / item_bytes) as f64,
            None => number(self.dtype, input.bytes).ok_or("its value is not one number")?,
        };
        Ok(self.op.keeps(value))
    }
}

fn number(dtype: DType, bytes: &[u8]) -> Option<f64> {
    Some(match dtype {
        DType::U8 => f64::from(u8::from_le_bytes(bytes.try_into().ok()?)),
        DType::U16 => f64::from(u16::from_le_bytes(bytes.try_into().ok()?)),
        DType::I32 => f64::from(i32::from_le_bytes(bytes.try_into().ok()?)),
        DType::U32 => f64::from(u32::from_le_bytes(bytes.try_into().ok()?)),
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)),
        DType::I64 => i64::from_le_bytes(bytes.try_into().ok()?) as f64,
        DType::U64 => u64::from_le_bytes(bytes.try_into().ok()?) as f64,
        DType::Bytes | DType::F16 | DType::BF16 => return None,
    })
}
