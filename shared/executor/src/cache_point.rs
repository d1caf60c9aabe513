//! Compiled cache points: the fields of an element there, and how they are stored.
//!
//! A cache object is a chunk object. Its batch frames hold the elements that reached the cache
//! point, one per row, with their fields and origin. An optional remainder frame lists the records
//! that were refused before it.

use crate::{
    ExecError,
    program::{DeliveredField, dtype, tensor_spec},
    step::{CompiledStep, StepAction},
};

use gristmill_chunk::{ChunkFormatError, FrameSchema, TensorDType, TensorSpec};
use gristmill_kernel::FieldCell;
use gristmill_model::Epoch;
use gristmill_pipeline::{COPY_FIELD, FieldSchema, KEY_FIELD, Pipeline};
use std::fmt::Display;

/// Epoch with which operators before a cache point draw during a capture, in any epoch.
pub(crate) const REUSED_EPOCH: Epoch = gristmill_pipeline::CachePoint::DRAWN_EPOCH;

/// Tensors beside the fields; authors cannot use names with this prefix. For elements: position of
/// the record in the split, occurrence of the record in the epoch, and height and width of images
/// that vary in size.
const RECORD: &str = "__record__";
const REPEAT: &str = "__repeat__";
const SIZES: &str = "__sizes__";
/// For refused records: the operator and its reason.
const OP: &str = "__op__";
const REASON: &str = "__reason__";

/// A compiled cache point.
#[derive(Debug)]
pub(crate) struct CompiledCachePoint {
    /// Index among the steps.
    pub(crate) step: usize,
    /// Name in error messages.
    name: String,
    /// Schema of the frames of elements.
    pub(crate) schema: FrameSchema,
    pub(crate) origin: OriginTensors,
    /// Tensor of height and width, u32 `[n, 2]` for the n fields of varying size.
    pub(crate) sizes: Option<usize>,
    pub(crate) fields: Vec<CachePointField>,
    /// Bytes that every element takes, without its ragged values.
    pub(crate) row_bytes: usize,
}

/// Tensors that identify the origin of an element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OriginTensors {
    /// Dtype u64.
    pub(crate) key: usize,
    /// Dtype u32, like `record` and `repeat`. Number of the element among those of its record at
    /// this cache point.
    pub(crate) copy: usize,
    pub(crate) record: usize,
    pub(crate) repeat: usize,
}

/// A field of an element at the cache point.
#[derive(Debug)]
pub(crate) struct CachePointField {
    pub(crate) name: String,
    pub(crate) cell: usize,
    pub(crate) tensor: usize,
    pub(crate) schema: FieldSchema,
    pub(crate) ragged: bool,
    /// Index in the sizes tensor, if the field has one.
    pub(crate) size: Option<usize>,
    /// The tensor whose row already holds the final value at this cache point.
    pub(crate) row: Option<usize>,
}

impl CompiledCachePoint {
    /// An error at this cache point.
    pub(crate) fn error(&self, reason: impl Display) -> ExecError {
        ExecError::Cache { point: self.name.clone(), reason: reason.to_string() }
    }

    /// Bytes that the element in `cells` takes in the cache.
    pub(crate) fn element_bytes(&self, cells: &[FieldCell]) -> usize {
        let ragged = self.fields.iter().filter(|field| field.ragged);
        self.row_bytes + ragged.map(|field| cells[field.cell].place.bytes()).sum::<usize>()
    }
}

/// Tensors of the frame of refused records, which are in the order of the split.
pub(crate) struct RefusedRecordTensors {
    pub(crate) schema: FrameSchema,
    pub(crate) key: usize,
    pub(crate) record: usize,
    pub(crate) op: usize,
    pub(crate) reason: usize,
}

impl RefusedRecordTensors {
    pub(crate) fn new() -> Result<Self, ChunkFormatError> {
        let schema = FrameSchema::new(vec![
            TensorSpec::fixed(KEY_FIELD, TensorDType::U64, []),
            TensorSpec::fixed(RECORD, TensorDType::U32, []),
            TensorSpec::ragged(OP, TensorDType::U8, []),
            TensorSpec::ragged(REASON, TensorDType::U8, []),
        ])?;
        Ok(RefusedRecordTensors { schema, key: 0, record: 1, op: 2, reason: 3 })
    }
}

/// Compiles the cache points of a pipeline. `names` are the names of the cells.
pub(crate) fn compile(
    pipeline: &Pipeline,
    names: &[&str],
    steps: &[CompiledStep],
    delivered: &[DeliveredField],
) -> Result<Vec<CompiledCachePoint>, ExecError> {
    let mut points = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let StepAction::Point(nth) = step.action else { continue };
        let stage = step.stage as usize;
        let before =
            stage.checked_sub(1).map_or("source", |i| pipeline.stages()[i].op.identity().0);
        let point = format!("`autocache` {nth}, after `{before}`");
        let mut fields = Vec::new();
        let mut sized = 0;
        // Stores every field, even if no later step here reads it: another job with the same prefix
        // may.
        for (name, schema) in &pipeline.schemas()[stage].fields {
            let Some(cell) = names.iter().position(|known| known == name) else {
                let reason = format!("field `{name}` has no place: please report this");
                return Err(ExecError::Cache { point, reason });
            };
            let has_size = schema.known_shape().is_none() && schema.shape.len() >= 3;
            fields.push(CachePointField {
                name: name.clone(),
                cell,
                tensor: fields.len(),
                schema: schema.clone(),
                ragged: false,
                size: has_size.then_some(sized),
                row: finished(&steps[..i], cell, delivered),
            });
            sized += usize::from(has_size);
        }
        points.push(compiled(i, point, fields, sized)?);
    }
    Ok(points)
}

fn compiled(
    step: usize,
    name: String,
    mut fields: Vec<CachePointField>,
    sized: usize,
) -> Result<CompiledCachePoint, ExecError> {
    let mut tensors = Vec::new();
    for field in &mut fields {
        let CachePointField { name, schema, .. } = field;
        // A value that varies in several dimensions is stored flat; the sizes tensor has its shape.
        let spec = tensor_spec(name, schema);
        let spec = spec.unwrap_or_else(|| TensorSpec::ragged(name.as_str(), dtype(schema), []));
        field.ragged = spec.ragged;
        tensors.push(spec);
    }
    let first = tensors.len();
    let origin =
        OriginTensors { key: first, copy: first + 1, record: first + 2, repeat: first + 3 };
    tensors.push(TensorSpec::fixed(KEY_FIELD, TensorDType::U64, []));
    tensors
        .extend([COPY_FIELD, RECORD, REPEAT].map(|n| TensorSpec::fixed(n, TensorDType::U32, [])));
    let sizes = (sized > 0).then_some(tensors.len());
    tensors.extend(sizes.map(|_| TensorSpec::fixed(SIZES, TensorDType::U32, [sized, 2])));
    let schema = FrameSchema::new(tensors)
        .map_err(|error| ExecError::Cache { point: name.clone(), reason: error.to_string() })?;
    let row_bytes = |(tensor, spec): (usize, &TensorSpec)| {
        // Ragged tensors take one offset per row.
        if spec.ragged { size_of::<u64>() } else { schema.item_bytes(tensor).unwrap_or(0) }
    };
    let row_bytes = schema.tensors().iter().enumerate().map(row_bytes).sum();
    Ok(CompiledCachePoint { step, name, schema, origin, sizes, fields, row_bytes })
}

/// The tensor in whose row one of `steps` has written the final value of `cell`.
fn finished(steps: &[CompiledStep], cell: usize, delivered: &[DeliveredField]) -> Option<usize> {
    let writes = |step: &CompiledStep| match step.action {
        StepAction::Transform { output, to_row, .. } => to_row && output == cell,
        _ => false,
    };
    let field = delivered.iter().find(|field| field.cell == cell)?;
    steps.iter().any(writes).then_some(field.tensor)
}
