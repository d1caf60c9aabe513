//! Elements out as frames and in from frames: an exchange is a place between two steps where elements leave a run,
//! and where a run takes them up again, here or on another machine.
//!
//! [`ElementFrames::put`] copies an element into a row of a frame of a chunk object, and [`FrameElements::load`]
//! brings a row back into the cells of a run. Both follow an [`ElementExchange`], compiled with the pipeline. A row
//! has every field of the element, even those that no later step reads; the height and width of images that vary in
//! size; and the origin of the element, from which later steps draw: key of its record, number among the elements of
//! the record, position of the record in the split, and occurrence of the record in the epoch. Records that were refused
//! before the exchange are a frame of their own ([`refused_schema`]), so that the steps that go on report them.
//!
//! A reader checks the schema of a frame, and the sizes of its images, before any step runs: frames may come from
//! storage. Frames end at 2 MiB. Cache points use all of it (`cached_split`).

use crate::{
    ExecError,
    element::ElementContext,
    program::{DeliveredField, dtype, tensor_spec},
    split_execution::{ElementFault, ExecutorScratch},
    step::{CompiledStep, StepAction},
};

use gristmill_chunk::{
    ChunkFormatError, ChunkFrame, ChunkFrameKind, ChunkWriter, FrameSchema, TensorDType,
    TensorSpec, TensorView,
};
use gristmill_kernel::{CellStorage, FieldCell};
use gristmill_model::RecordKey;
use gristmill_pipeline::{COPY_FIELD, FieldSchema, KEY_FIELD, Pipeline};
use std::{fmt::Display, ops::Range};

/// Size at which a frame ends. A reader can check and use such a frame while it is in the
/// processor's cache. Ragged values are collected outside the object and take at most this much
/// memory. A larger element is a frame of its own.
const FRAME_BYTES: usize = 2 << 20;

/// Tensors beside the fields; authors cannot use names with this prefix. For elements: position of
/// the record in the split, occurrence of the record in the epoch, and height and width of images
/// that vary in size.
const RECORD: &str = "__record__";
const REPEAT: &str = "__repeat__";
/// Height and width of each field whose image varies in size, u32 `[n, 2]`.
pub const IMAGE_SIZES: &str = "__sizes__";
/// The operator that refused a record; only frames of refused records have it, with the reason.
pub const REFUSED_OP: &str = "__op__";
const REASON: &str = "__reason__";

/// Whether height and width of a field's values are in the tensor [`IMAGE_SIZES`], one pair for each such field.
pub fn has_image_size(schema: &FieldSchema) -> bool {
    schema.known_shape().is_none() && schema.shape.len() >= 3
}

/// An exchange of a compiled pipeline: the tensors of its frames.
#[derive(Debug)]
pub(crate) struct ElementExchange {
    /// Index among the steps.
    pub(crate) step: usize,
    /// Name in error messages.
    name: String,
    schema: FrameSchema,
    /// First of four tensors that identify the origin of an element: key (u64), copy, record and repeat
    /// (u32), as [`ElementOrigin`] has them.
    origin: usize,
    /// Tensor of height and width, u32 `[n, 2]` for the n fields of varying size.
    sizes: Option<usize>,
    fields: Vec<ExchangedField>,
    /// Bytes that every element takes, without its ragged values.
    row_bytes: usize,
}

#[derive(Debug)]
struct ExchangedField {
    name: String,
    cell: usize,
    tensor: usize,
    schema: FieldSchema,
    ragged: bool,
    /// Index in the sizes tensor, if the field has one.
    size: Option<usize>,
    /// The delivered tensor whose row already holds the final value at this exchange.
    row: Option<usize>,
}

impl ElementExchange {
    pub(crate) fn error(&self, reason: impl Display) -> ExecError {
        ExecError::Cache { point: self.name.clone(), reason: reason.to_string() }
    }

    /// Bytes that the element in `cells` takes in a frame.
    pub(crate) fn element_bytes(&self, cells: &[FieldCell]) -> usize {
        let ragged = self.fields.iter().filter(|field| field.ragged);
        self.row_bytes + ragged.map(|field| cells[field.cell].place.bytes()).sum::<usize>()
    }
}

pub(crate) fn compile_cache_points(
    pipeline: &Pipeline,
    names: &[&str],
    steps: &[CompiledStep],
    delivered: &[DeliveredField],
) -> Result<Vec<ElementExchange>, ExecError> {
    let mut points = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let StepAction::Point(nth) = step.action else { continue };
        let stage = step.stage as usize;
        let before =
            stage.checked_sub(1).map_or("source", |i| pipeline.stages()[i].op.identity().0);
        let point = format!("`autocache` {nth}, after `{before}`");
        let mut fields = Vec::new();
        let mut sized = 0;
        // Another job with the same prefix may read a field that no later step here reads.
        for (name, schema) in &pipeline.schemas()[stage].fields {
            let Some(cell) = names.iter().position(|known| known == name) else {
                let reason = format!("field `{name}` has no place: please report this");
                return Err(ExecError::Cache { point, reason });
            };
            let has_size = has_image_size(schema);
            fields.push(ExchangedField {
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
    mut fields: Vec<ExchangedField>,
    sized: usize,
) -> Result<ElementExchange, ExecError> {
    let mut tensors = Vec::new();
    for field in &mut fields {
        let ExchangedField { name, schema, .. } = field;
        // A value that varies in several dimensions is stored flat; the sizes tensor has its shape.
        let spec = tensor_spec(name, schema);
        let spec = spec.unwrap_or_else(|| TensorSpec::ragged(name.as_str(), dtype(schema), []));
        field.ragged = spec.ragged;
        tensors.push(spec);
    }
    let origin = tensors.len();
    tensors.push(TensorSpec::fixed(KEY_FIELD, TensorDType::U64, []));
    tensors
        .extend([COPY_FIELD, RECORD, REPEAT].map(|n| TensorSpec::fixed(n, TensorDType::U32, [])));
    let sizes = (sized > 0).then_some(tensors.len());
    tensors.extend(sizes.map(|_| TensorSpec::fixed(IMAGE_SIZES, TensorDType::U32, [sized, 2])));
    let schema = FrameSchema::new(tensors)
        .map_err(|error| ExecError::Cache { point: name.clone(), reason: error.to_string() })?;
    let row_bytes = |(tensor, spec): (usize, &TensorSpec)| {
        // Ragged tensors take one offset per row.
        if spec.ragged { size_of::<u64>() } else { schema.item_bytes(tensor).unwrap_or(0) }
    };
    let row_bytes = schema.tensors().iter().enumerate().map(row_bytes).sum();
    Ok(ElementExchange { step, name, schema, origin, sizes, fields, row_bytes })
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

/// The origin of an element in its split, as a row has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementOrigin {
    pub(crate) key: RecordKey,
    /// Number of the element among those of its record at the exchange.
    pub(crate) copy: u32,
    /// Position of the record in the split.
    pub(crate) record: u32,
    /// Occurrence of the record in the epoch.
    pub(crate) repeat: u32,
}

/// Elements out: the frame that is being filled. No frame is open while `planned` is 0.
#[derive(Debug)]
pub(crate) struct ElementFrames {
    expected: usize,
    planned: usize,
    rows: usize,
    bytes: usize,
}

impl ElementFrames {
    pub(crate) fn new(expected: usize) -> Self {
        ElementFrames { expected, planned: 0, rows: 0, bytes: 0 }
    }

    /// Copies an element into the next row of the scratch's cache object. `row` is the delivered row that the run
    /// is filling. Returns the bytes of the element.
    pub(crate) fn put(
        &mut self,
        exchange: &ElementExchange,
        scratch: &mut ExecutorScratch,
        row: usize,
        element: ElementContext<'_>,
        origin: ElementOrigin,
    ) -> Result<usize, ElementFault> {
        let fault = |error: ChunkFormatError| ElementFault::Fatal(exchange.error(error));
        let ExecutorScratch { cells, writer, cache, .. } = scratch;
        self.begin(exchange, cache).map_err(fault)?;
        for field in &exchange.fields {
            let cell = &cells[field.cell];
            let value = match (&cell.place, field.row) {
                (CellStorage::Row, Some(tensor)) => writer.row_mut(tensor, row)?,
                _ => cell.value(element.record, &[]),
            };
            put_field(field, cache, self.rows, value).map_err(fault)?;
            if let (Some(size), Some(sizes)) = (field.size, exchange.sizes) {
                let row = cache.row_mut(sizes, self.rows).map_err(fault)?;
                for (slot, side) in row[size * 8..].as_chunks_mut::<4>().0.iter_mut().zip(cell.size)
                {
                    // Image sides are far below this limit.
                    *slot = u32::try_from(side).unwrap_or(u32::MAX).to_le_bytes();
                }
            }
        }
        let ElementOrigin { key, copy, record, repeat } = origin;
        let key = key.packed().to_le_bytes();
        cache.row_mut(exchange.origin, self.rows)?.copy_from_slice(&key);
        for (tensor, number) in (exchange.origin + 1..).zip([copy, record, repeat]) {
            cache.row_mut(tensor, self.rows)?.copy_from_slice(&number.to_le_bytes());
        }
        let bytes = exchange.element_bytes(cells);
        self.rows += 1;
        self.bytes += bytes;
        if self.rows == self.planned || self.bytes >= FRAME_BYTES {
            self.end(cache).map_err(fault)?;
        }
        Ok(bytes)
    }

    fn begin(
        &mut self,
        exchange: &ElementExchange,
        cache: &mut ChunkWriter,
    ) -> Result<(), ChunkFormatError> {
        if self.planned == 0 {
            let most = (FRAME_BYTES / exchange.row_bytes.max(1)).max(1);
            self.planned = self.expected.clamp(1, most);
            cache.begin_frame(&exchange.schema, self.planned)?;
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, cache: &mut ChunkWriter) -> Result<(), ChunkFormatError> {
        let expected = self.expected.saturating_sub(self.rows);
        let ElementFrames { planned, rows, .. } =
            std::mem::replace(self, ElementFrames::new(expected));
        if planned == 0 {
            return Ok(());
        }
        cache.end_frame(ChunkFrameKind::Batch, rows)
    }
}

fn put_field(
    field: &ExchangedField,
    cache: &mut ChunkWriter,
    row: usize,
    value: &[u8],
) -> Result<(), ChunkFormatError> {
    if field.ragged {
        return cache.push_ragged(field.tensor, value);
    }
    let to = cache.row_mut(field.tensor, row)?;
    if to.len() != value.len() {
        let (name, is, wanted) = (&field.name, value.len(), to.len());
        let what = format!("`{name}` has {is} bytes, not {wanted}: please report this");
        return Err(ChunkFormatError::invalid(what));
    }
    to.copy_from_slice(value);
    Ok(())
}

/// Elements in: the tensors of one frame, whose order may differ from the exchange's.
pub(crate) struct FrameElements<'f> {
    pub(crate) bytes: &'f [u8],
    fields: Vec<TensorView<'f>>,
    sizes: Option<TensorView<'f>>,
    origin: [TensorView<'f>; 4],
}

impl<'f> FrameElements<'f> {
    /// Returns `None` if the frame has another schema than the exchange.
    pub(crate) fn new(frame: &'f ChunkFrame, exchange: &ElementExchange) -> Option<Self> {
        let known: &FrameSchema = &exchange.schema;
        if frame.schema() != known {
            return None;
        }
        let view = |tensor: usize| frame.get(&known.tensors().get(tensor)?.name);
        let fields =
            exchange.fields.iter().map(|field| view(field.tensor)).collect::<Option<_>>()?;
        let sizes = match exchange.sizes {
            Some(sizes) => Some(view(sizes)?),
            None => None,
        };
        let first = exchange.origin;
        let origin = [view(first)?, view(first + 1)?, view(first + 2)?, view(first + 3)?];
        Some(FrameElements { bytes: frame.bytes(), fields, sizes, origin })
    }

    /// Height and width of a field that is in the sizes tensor.
    fn size(&self, row: usize, size: usize) -> [usize; 2] {
        let sizes = self.sizes.and_then(|sizes| sizes.row(row)).unwrap_or_default();
        let at = |side: usize| number(sizes.get(size * 8 + side * 4..)) as usize;
        [at(0), at(1)]
    }

    pub(crate) fn origin(&self, row: usize) -> ElementOrigin {
        let [keys, copies, records, repeats] = self.origin.map(|tensor| tensor.row(row));
        ElementOrigin {
            key: key(keys),
            copy: number(copies),
            record: number(records),
            repeat: number(repeats),
        }
    }

    /// Loads an element's fields into their cells. Final values go to `delivered`, the row that the run is filling.
    /// Returns the bytes of the element.
    pub(crate) fn load(
        &self,
        exchange: &ElementExchange,
        scratch: &mut ExecutorScratch,
        delivered: usize,
        row: usize,
    ) -> Result<usize, ElementFault> {
        let fault = |why: String| ElementFault::Fatal(exchange.error(why));
        let ExecutorScratch { cells, writer, .. } = scratch;
        for cell in cells.iter_mut() {
            cell.place = CellStorage::Record(0..0);
        }
        for (field, view) in exchange.fields.iter().zip(&self.fields) {
            let cell = &mut cells[field.cell];
            let range = view.row_range(row).unwrap_or_default();
            if let Some(size) = field.size {
                cell.size = self.size(row, size);
                check_size(field, &range, cell.size).map_err(fault)?;
            }
            cell.place = match field.row {
                None => CellStorage::Record(range),
                Some(tensor) => {
                    let to = writer.row_mut(tensor, delivered)?;
                    let value = self.bytes.get(range).filter(|value| value.len() == to.len());
                    to.copy_from_slice(value.ok_or_else(|| fault("a row is too short".into()))?);
                    CellStorage::Row
                }
            };
        }
        Ok(exchange.element_bytes(cells))
    }
}

/// The first u32 of `bytes`, or 0 if they are too few.
pub(crate) fn number(bytes: Option<&[u8]>) -> u32 {
    bytes.and_then(<[u8]>::first_chunk::<4>).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(crate) fn key(bytes: Option<&[u8]>) -> RecordKey {
    let packed = bytes.and_then(<[u8]>::first_chunk::<8>);
    RecordKey::unpack(packed.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// Checks that the length of a value that varies in several dimensions matches its size. Operators
/// on images rely on it.
fn check_size(
    field: &ExchangedField,
    range: &Range<usize>,
    size: [usize; 2],
) -> Result<(), String> {
    let schema = &field.schema;
    if schema.is_sequence() {
        return Ok(());
    }
    let known = schema.shape.iter().flatten().map(|dim| *dim as usize);
    let unknown = schema.shape.iter().filter(|dim| dim.is_none()).count();
    let sides: &[usize] = match (unknown, schema.shape.first()) {
        (1, Some(None)) => &size[..1],
        (1, _) => &size[1..],
        _ => &size,
    };
    let value_bytes = schema.dtype.size_bytes().map_or(1, |bytes| bytes as usize);
    let bytes = known.chain(sides.iter().copied()).try_fold(value_bytes, usize::checked_mul);
    if bytes == Some(range.len()) && !range.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "`{}` of what was cached has {} bytes, an image of {} x {} of {schema} has others",
            field.name,
            range.len(),
            size[0],
            size[1]
        ))
    }
}

/// Tensors of the frame of refused records, which are in the order of the split: key, position, operator and reason.
pub(crate) fn refused_schema() -> Result<FrameSchema, ChunkFormatError> {
    FrameSchema::new(vec![
        TensorSpec::fixed(KEY_FIELD, TensorDType::U64, []),
        TensorSpec::fixed(RECORD, TensorDType::U32, []),
        TensorSpec::ragged(REFUSED_OP, TensorDType::U8, []),
        TensorSpec::ragged(REASON, TensorDType::U8, []),
    ])
}
