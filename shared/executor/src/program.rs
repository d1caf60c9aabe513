//! A compiled pipeline, with every decision that does not depend on the split.

use crate::{
    ExecError, ExecutorScratch,
    exchange::{self, ElementExchange},
    step::{CompiledStep, IndexedStage, StepAction, StepBuilder},
    zip::{self, ZippedReader},
};

use gristmill_chunk::{FrameSchema, TensorDType, TensorSpec};
use gristmill_kernel::{AssetLoader, NoAssets};
use gristmill_pipeline::{Batching, COPY_FIELD, FieldSchema, KEY_FIELD, Pipeline};
use gristmill_sources::RecordReader;
use std::{ops::RangeInclusive, sync::Arc};

/// A compiled pipeline. Threads share it; each has its own [`ExecutorScratch`].
pub struct CompiledPipeline {
    pub(crate) reader: RecordReader,
    /// Readers of the further datasets of a zip.
    pub(crate) zipped: Vec<ZippedReader>,
    pub(crate) steps: Vec<CompiledStep>,
    /// Name of the batch op, and its index in the pipeline's stages.
    pub(crate) batch_op: (&'static str, u32),
    pub(crate) batching: Batching,
    /// True if batches are cut from the rows of consecutive splits, in order. The fetcher then pads
    /// sequences, since a worker does not know the batch.
    pub(crate) in_order: bool,
    pub(crate) schema: FrameSchema,
    /// Number of fields that an element has at any step, delivered or not.
    pub(crate) cells: usize,
    pub(crate) delivered: Vec<DeliveredField>,
    /// Cache points before the batch.
    pub(crate) points: Vec<Arc<ElementExchange>>,
    pub(crate) key_tensor: usize,
    pub(crate) copy_tensor: usize,
    /// Upper bound of the elements that one record can become; their numbers stay below it.
    pub(crate) width: u32,
    /// Bytes of a row in all tensors that are not ragged.
    pub(crate) row_bytes: usize,
}

/// A field of the output batches.
#[derive(Debug)]
pub(crate) struct DeliveredField {
    pub(crate) name: String,
    pub(crate) cell: usize,
    pub(crate) tensor: usize,
    /// True if batching copies the field, because no step writes it to its row.
    pub(crate) copied: bool,
    pub(crate) sequence: Option<SequenceLayout>,
    /// The tensor of the shapes of images of different sizes, and what all of them have in common.
    pub(crate) shapes: Option<(usize, [Option<u32>; 3])>,
}

/// Suffix of the tensor that has the shapes of a field.
const SHAPES: &str = ".shapes";

#[derive(Debug)]
pub(crate) struct SequenceLayout {
    pub(crate) item_bytes: usize,
    pub(crate) pad: Vec<u8>,
}

impl CompiledPipeline {
    /// Compiles a pipeline whose operators need no assets, as [`PipelineCompiler::compile`].
    pub fn compile(pipeline: &Pipeline) -> Result<CompiledPipeline, ExecError> {
        PipelineCompiler::default().compile(pipeline)
    }
}

/// Compiles pipelines. The default has no assets and fuses operators.
#[derive(Clone, Copy)]
pub struct PipelineCompiler<'a> {
    /// The files of operators, by the hash of their content.
    pub assets: &'a dyn AssetLoader,
    /// Whether operators become one step where that is cheaper. Otherwise each has metrics of its own, and the output is
    /// the same.
    pub fuse: bool,
}

impl Default for PipelineCompiler<'_> {
    fn default() -> Self {
        PipelineCompiler { assets: &NoAssets, fuse: true }
    }
}

impl PipelineCompiler<'_> {
    /// Compiles a pipeline.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if this build cannot run the pipeline, or if a file that an operator
    /// needs is missing or not as expected. [`ExecError::Output`] if its tensors cannot be stored.
    pub fn compile(&self, pipeline: &Pipeline) -> Result<CompiledPipeline, ExecError> {
        let names = cell_names(pipeline);
        let cell = |name: &str| names.iter().position(|field| *field == name);
        let mut steps = StepBuilder::new(self);
        let (mut batch_op, mut points) = (("batch", 0), 0);
        let whole = |i: u32| i as usize > pipeline.batch_stage();
        for ((stage, input), i) in pipeline.stages().iter().zip(pipeline.schemas()).zip(0_u32..) {
            if stage.op.batching().is_some() {
                batch_op = (stage.op.name(), i);
                continue;
            }
            // Datasets are resolved before records are read, and a cache of whole batches is the
            // object itself.
            if stage.op.dataset().is_some() || whole(i) {
                steps.interrupt();
                continue;
            }
            if stage.op.cache_point().is_some() {
                steps.push(IndexedStage { stage, index: i }, StepAction::Point(points));
                points += 1;
                continue;
            }
            steps.operator(IndexedStage { stage, index: i }, input, cell)?;
        }
        let mut steps = steps.list;
        let schema = tensor_schema(pipeline)?;
        let missing = || ExecError::Pipeline("a delivered field has no tensor".into());
        let tensor = |name: &str| schema.index_of(name).ok_or_else(missing);
        let batching = pipeline.batching().clone();
        let mut delivered = delivered_fields(pipeline, &schema, cell).ok_or_else(missing)?;
        let in_order = pipeline.is_in_order();
        if in_order || batching.padding.is_none() {
            write_to_rows(&mut steps, &mut delivered, names.len());
        }
        let points = exchange::compile_cache_points(pipeline, &names, &steps, &delivered)?;
        let points = points.into_iter().map(Arc::new).collect();
        let fixed = (0..schema.tensors().len()).filter(|i| !schema.tensors()[*i].ragged);
        let row_bytes = fixed.filter_map(|i| schema.item_bytes(i)).sum();
        let width = steps.iter().try_fold(1_u32, |n, step| n.checked_mul(step.action.width()));
        let width = width.ok_or_else(|| {
            ExecError::Pipeline("a record becomes more elements than can be numbered".into())
        })?;
        Ok(CompiledPipeline {
            reader: RecordReader::new(pipeline.source()),
            zipped: zip::readers(pipeline.source()),
            steps,
            batch_op,
            batching,
            in_order,
            cells: names.len(),
            delivered,
            points,
            key_tensor: tensor(KEY_FIELD)?,
            copy_tensor: tensor(COPY_FIELD)?,
            width,
            row_bytes,
            schema,
        })
    }
}

impl CompiledPipeline {
    /// Names of the steps without batching. Fused operators are one step, `a+b`.
    pub fn steps(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|step| step.name)
    }

    /// Rows that the whole batches of a split may have.
    pub fn batch_rows(&self) -> RangeInclusive<u32> {
        self.batching.smallest_size()..=self.batching.largest_size()
    }

    /// Creates the buffers that one thread needs to run splits of this program.
    pub fn scratch(&self) -> ExecutorScratch {
        ExecutorScratch::new(self)
    }

    /// Tensors of every frame that this program writes. If the program pads sequences, this is the
    /// schema of the remainder frame, which is not padded.
    pub fn schema(&self) -> &FrameSchema {
        &self.schema
    }

    /// The cache point with this index among those of the pipeline.
    pub(crate) fn point(&self, point: u32) -> Result<&Arc<ElementExchange>, ExecError> {
        self.points.get(point as usize).ok_or_else(|| {
            let inner = self.points.len();
            ExecError::Pipeline(format!(
                "there is no `autocache` {point} to stop or begin at: the pipeline has {inner} before \
                 its batch"
            ))
        })
    }

    /// Index of the tensor that delivers `cell`.
    pub(crate) fn tensor_of(&self, cell: usize) -> usize {
        let field = self.delivered.iter().find(|field| field.cell == cell);
        // Only delivered fields have rows; the writer refuses a tensor that does not exist.
        field.map_or(usize::MAX, |field| field.tensor)
    }

    /// Whether every record becomes exactly one element.
    pub(crate) fn is_one_to_one(&self) -> bool {
        let one = |step: &CompiledStep| !matches!(step.action, StepAction::Filter { .. });
        self.width == 1 && self.steps.iter().all(one)
    }
}

/// The delivered fields that the author has named.
fn author_fields(pipeline: &Pipeline) -> impl Iterator<Item = (&String, &FieldSchema)> {
    let fields = pipeline.output_schema().fields.iter();
    fields.filter(|(name, _)| *name != KEY_FIELD && *name != COPY_FIELD)
}

/// Names of every field that an element has at any step. Fields of the source come first, dataset
/// by dataset, in the order of the readers.
fn cell_names(pipeline: &Pipeline) -> Vec<&str> {
    let features = pipeline.source().members().flat_map(|source| source.features.keys());
    let mut names: Vec<&str> = features.map(String::as_str).collect();
    for stage in pipeline.stages() {
        for name in stage.op.outputs() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// The fields that batches have beside key and copy; none if one of them has no cell or tensor.
fn delivered_fields(
    pipeline: &Pipeline,
    schema: &FrameSchema,
    cell: impl Fn(&str) -> Option<usize>,
) -> Option<Vec<DeliveredField>> {
    let field = |(name, field): (&String, &FieldSchema)| {
        let sequence = field.known_shape().is_none() || field.dtype.size_bytes().is_none();
        let sequence = sequence.then(|| SequenceLayout {
            item_bytes: field.item_bytes().unwrap_or(1) as usize,
            pad: pipeline.batching().pad_value(name).bytes(field.dtype),
        });
        let shape = <[Option<u32>; 3]>::try_from(&field.shape[..]);
        let shapes = schema.index_of(&format!("{name}{SHAPES}")).zip(shape.ok());
        Some(DeliveredField {
            name: name.clone(),
            cell: cell(name)?,
            tensor: schema.index_of(name)?,
            copied: true,
            sequence,
            shapes: shapes.filter(|_| field.is_unsized_image()),
        })
    };
    author_fields(pipeline).map(field).collect()
}

/// Makes the last transformation of a field write to the field's row; later steps change it there.
/// Excluded are transformations before an element becomes several, since each needs its own row,
/// and values that a later step reads.
fn write_to_rows(steps: &mut [CompiledStep], delivered: &mut [DeliveredField], cells: usize) {
    let mut settled = vec![true; cells];
    for field in delivered.iter().filter(|field| field.sequence.is_none()) {
        settled[field.cell] = false;
    }
    for step in steps.iter_mut().rev() {
        match &mut step.action {
            StepAction::Transform { input, output, to_row, .. } => {
                *to_row = !std::mem::replace(&mut settled[*output], true);
                if *to_row && let Some(field) = delivered.iter_mut().find(|f| f.cell == *output) {
                    field.copied = false;
                }
                settled[*input] = true;
            }
            StepAction::Combine { field, by, .. } => {
                settled[*field] = true;
                settled[*by] = true;
            }
            StepAction::Parse { input, outputs, .. } => {
                settled[*input] = true;
                outputs.iter().for_each(|output| settled[*output] = true);
            }
            StepAction::Filter { field, .. } | StepAction::Shorten { field, .. } => {
                settled[*field] = true
            }
            // Boxes are sequences, which have no fixed row.
            StepAction::Boxes { .. } => {}
            StepAction::Duplicate { .. } | StepAction::FlatMap { .. } => return,
            StepAction::InPlace { .. }
            | StepAction::Wait(_)
            | StepAction::Point(_)
            | StepAction::Nothing => {}
        }
    }
}

fn tensor_schema(pipeline: &Pipeline) -> Result<FrameSchema, ExecError> {
    let mut tensors = Vec::new();
    for (name, field) in &pipeline.output_schema().fields {
        if field.is_unsized_image() {
            tensors.push(TensorSpec::ragged(name, dtype(field), []));
            tensors.push(TensorSpec::fixed(format!("{name}{SHAPES}"), TensorDType::I64, [3]));
            continue;
        }
        tensors.push(tensor_spec(name, field).ok_or_else(|| {
            ExecError::Pipeline(format!("`{name}` is {field}, which cannot be stored"))
        })?);
    }
    Ok(FrameSchema::new(tensors)?)
}

/// Tensor of a field with one value per row. `None` if values vary in another dimension than the
/// first.
pub(crate) fn tensor_spec(name: &str, field: &FieldSchema) -> Option<TensorSpec> {
    let known = |dims: &[Option<u32>]| -> Option<Vec<usize>> {
        dims.iter().map(|dim| dim.map(|dim| dim as usize)).collect()
    };
    match (dtype(field), field.shape.as_slice()) {
        (dtype, [None, item @ ..]) => known(item).map(|item| TensorSpec::ragged(name, dtype, item)),
        (dtype, _) if field.dtype.size_bytes().is_none() => {
            Some(TensorSpec::ragged(name, dtype, []))
        }
        (dtype, shape) => known(shape).map(|shape| TensorSpec::fixed(name, dtype, shape)),
    }
}

pub(crate) fn dtype(field: &FieldSchema) -> TensorDType {
    use gristmill_pipeline::FieldDType as Field;
    match field.dtype {
        Field::Bytes | Field::U8 => TensorDType::U8,
        Field::F16 => TensorDType::F16,
        Field::BF16 => TensorDType::BF16,
        Field::F32 => TensorDType::F32,
        Field::F64 => TensorDType::F64,
        Field::U16 => TensorDType::U16,
        Field::I32 => TensorDType::I32,
        Field::U32 => TensorDType::U32,
        Field::I64 => TensorDType::I64,
        Field::U64 => TensorDType::U64,
    }
}
