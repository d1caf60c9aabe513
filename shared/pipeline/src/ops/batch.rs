//! `batch`: elements are stacked.

use super::element_wise;
use crate::{
    Cardinality, DType, Declaration, MAX_BATCH_BYTES, PipelineError, Scope, flow::Flow,
    op::Operator, table::Table,
};
use serde::Serialize;

/// Most elements of one batch.
pub(crate) const MAX_BATCH_SIZE: u32 = 1 << 20;

/// `size` elements of one shape -> one batch, every field with a new first dimension. Across the
/// splits of an epoch only the last batch can be short, and `drop_remainder` leaves that one out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Batch {
    pub size: u32,
    pub drop_remainder: bool,
}

impl Operator for Batch {
    const DECLARATION: Declaration = Declaration {
        cardinality: Cardinality::Batch,
        pins_position: true,
        scope: Scope::Split,
        ..element_wise("batch", 1)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let size = params.require("size")?;
        let size = params.whole("size", size, 1..=MAX_BATCH_SIZE)?;
        Ok(Batch { size, drop_remainder: params.bool("drop_remainder", false)? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        for (name, field) in &flow.schema().fields {
            if field.known_shape().is_some() && field.dtype != DType::Bytes {
                continue;
            }
            let advice = match field.dtype {
                DType::Bytes => "decode it, or leave it out of the features",
                _ => "put a resize or crop before it",
            };
            let shape = field.to_string();
            return Err(format!(
                "`batch` needs every element of one shape, but `{name}` is {shape}{}; {advice}",
                flow.origin(name)
            ));
        }
        let element_bytes = flow.schema().with_implicit().element_bytes();
        let batch_bytes = element_bytes.and_then(|b| b.checked_mul(u64::from(self.size)));
        match batch_bytes {
            Some(bytes) if bytes <= MAX_BATCH_BYTES => Ok(()),
            bytes => Err(format!(
                "a batch of {} elements has {} bytes; the limit is {MAX_BATCH_BYTES}: make the \
                 batch or its elements smaller",
                self.size,
                bytes.map_or("more than countable".into(), |bytes| bytes.to_string())
            )),
        }
    }

    fn field(&self) -> Option<&str> {
        None
    }
}
