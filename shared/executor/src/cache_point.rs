//! Places to cache, compiled: what an element consists of there, and how that is stored.
//!
//! A cache object is a chunk object. Its batch frames hold the elements that reached the place, a row
//! each: its fields, and where the element comes from. A remainder frame, if there is one, lists the records
//! that were refused before.

use crate::{
    ExecError,
    program::{Delivered, dtype, tensor_spec},
    step::{Action, Step},
};

use gristmill_chunk::{DType, FormatError, Schema, TensorSpec};
use gristmill_kernel::Cell;
use gristmill_model::Epoch;
use gristmill_pipeline::{COPY_FIELD, FieldSchema, KEY_FIELD, Pipeline};
use std::fmt::Display;

/// The epoch as which what comes before a place to cache draws when it is put there, whichever epoch
/// puts it.
pub(crate) const REUSED_EPOCH: Epoch = gristmill_pipeline::CachePoint::DRAWN_EPOCH;

/// Tensors beside the fields; names that begin so are no author's. Of elements: place of the record in
/// the split, which time the epoch has it, and height and width of the images that differ in them.
const RECORD: &str = "__record__";
const REPEAT: &str = "__repeat__";
const SIZES: &str = "__sizes__";
/// Of refused records.
const OP: &str = "__op__";
const REASON: &str = "__reason__";

/// A place to cache.
#[derive(Debug)]
pub(crate) struct Point {
    /// Its index among the steps.
    pub(crate) step: usize,
    /// How errors call it.
    name: String,
    /// Of the frames of elements.
    pub(crate) schema: Schema,
    pub(crate) origin: Origin,
    /// Of height and width, u32 `[n, 2]` for the n fields that have a place there.
    pub(crate) sizes: Option<usize>,
    pub(crate) fields: Vec<PointField>,
    /// Bytes an element takes whatever its values are.
    pub(crate) row_bytes: usize,
}

/// The tensors that say where an element comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// u64.
    pub(crate) key: usize,
    /// The others are u32. The element's number among those of its record, as it is at this place.
    pub(crate) copy: usize,
    pub(crate) record: usize,
    pub(crate) repeat: usize,
}

/// A field that the element has there.
#[derive(Debug)]
pub(crate) struct PointField {
    pub(crate) name: String,
    pub(crate) cell: usize,
    pub(crate) tensor: usize,
    pub(crate) schema: FieldSchema,
    pub(crate) ragged: bool,
    /// Its place among the sizes, if it has one.
    pub(crate) size: Option<usize>,
    /// The tensor in whose row it already is here, finished.
    pub(crate) row: Option<usize>,
}

impl Point {
    /// That something is wrong here.
    pub(crate) fn error(&self, reason: impl Display) -> ExecError {
        ExecError::Cache { point: self.name.clone(), reason: reason.to_string() }
    }

    /// Bytes that the element in `cells` takes in the cache.
    pub(crate) fn element_bytes(&self, cells: &[Cell]) -> usize {
        let ragged = self.fields.iter().filter(|field| field.ragged);
        self.row_bytes + ragged.map(|field| cells[field.cell].place.bytes()).sum::<usize>()
    }
}

/// The tensors of the frame of refused records: in the order of the split, with their place in it.
pub(crate) struct Refused {
    pub(crate) schema: Schema,
    pub(crate) key: usize,
    pub(crate) record: usize,
    pub(crate) op: usize,
    pub(crate) reason: usize,
}

impl Refused {
    pub(crate) fn new() -> Result<Self, FormatError> {
        let schema = Schema::new(vec![
            TensorSpec::fixed(KEY_FIELD, DType::U64, []),
            TensorSpec::fixed(RECORD, DType::U32, []),
            TensorSpec::ragged(OP, DType::U8, []),
            TensorSpec::ragged(REASON, DType::U8, []),
        ])?;
        Ok(Refused { schema, key: 0, record: 1, op: 2, reason: 3 })
    }
}

/// The places of a pipeline whose steps have been compiled. `names` are those of the cells.
pub(crate) fn compile(
    pipeline: &Pipeline,
    names: &[&str],
    steps: &[Step],
    delivered: &[Delivered],
) -> Result<Vec<Point>, ExecError> {
    let mut points = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let Action::Point(nth) = step.action else { continue };
        let stage = step.stage as usize;
        let before =
            stage.checked_sub(1).map_or("source", |i| pipeline.stages()[i].op.identity().0);
        let point = format!("`autocache` {nth}, after `{before}`");
        let mut fields = Vec::new();
        let mut sized = 0;
        // All of the element, whether the steps after it here read it or not: those of another job with
        // the same prefix may.
        for (name, schema) in &pipeline.schemas()[stage].fields {
            let Some(cell) = names.iter().position(|known| known == name) else {
                let reason = format!("field `{name}` has no place: please report this");
                return Err(ExecError::Cache { point, reason });
            };
            let has_size = schema.known_shape().is_none() && schema.shape.len() >= 3;
            fields.push(PointField {
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
    mut fields: Vec<PointField>,
    sized: usize,
) -> Result<Point, ExecError> {
    let mut tensors = Vec::new();
    for field in &mut fields {
        let PointField { name, schema, .. } = field;
        // Values that differ in several dimensions are stored as a row of numbers; their sizes say the
        // rest.
        let spec = tensor_spec(name, schema);
        let spec = spec.unwrap_or_else(|| TensorSpec::ragged(name.as_str(), dtype(schema), []));
        field.ragged = spec.ragged;
        tensors.push(spec);
    }
    let first = tensors.len();
    let origin = Origin { key: first, copy: first + 1, record: first + 2, repeat: first + 3 };
    tensors.push(TensorSpec::fixed(KEY_FIELD, DType::U64, []));
    tensors.extend([COPY_FIELD, RECORD, REPEAT].map(|n| TensorSpec::fixed(n, DType::U32, [])));
    let sizes = (sized > 0).then_some(tensors.len());
    tensors.extend(sizes.map(|_| TensorSpec::fixed(SIZES, DType::U32, [sized, 2])));
    let schema = Schema::new(tensors)
        .map_err(|error| ExecError::Cache { point: name.clone(), reason: error.to_string() })?;
    let row_bytes = |(tensor, spec): (usize, &TensorSpec)| match spec.ragged {
        // An offset.
        true => size_of::<u64>(),
        false => schema.item_bytes(tensor).unwrap_or(0),
    };
    let row_bytes = schema.tensors().iter().enumerate().map(row_bytes).sum();
    Ok(Point { step, name, schema, origin, sizes, fields, row_bytes })
}

/// The tensor in whose row one of `steps` has written the final value of `cell`.
fn finished(steps: &[Step], cell: usize, delivered: &[Delivered]) -> Option<usize> {
    let writes = |step: &Step| match step.action {
        Action::Transform { output, to_row, .. } => to_row && output == cell,
        _ => false,
    };
    let field = delivered.iter().find(|field| field.cell == cell)?;
    steps.iter().any(writes).then_some(field.tensor)
}
