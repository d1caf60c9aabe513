//! A pipeline compiled: everything that does not depend on the split is decided here.

use crate::{
    Compiler, ExecError, ResumeInput, Scratch, SplitInput, SplitOutput, Unfinished,
    cache_point::{self, Point},
    step::{Action, Step},
    steps::Steps,
    zip::{self, ZippedReader},
};
use gristmill_chunk::{DType, Schema, TensorSpec};
use gristmill_pipeline::{Batching, COPY_FIELD, FieldSchema, KEY_FIELD, Pipeline};
use gristmill_sources::Reader;
use std::sync::Arc;

/// A pipeline ready to run; shared by any number of threads, each with a [`Scratch`] of its own.
pub struct Program {
    pub(crate) reader: Reader,
    /// Of the further datasets of a zip.
    pub(crate) zipped: Vec<ZippedReader>,
    pub(crate) steps: Vec<Step>,
    /// Name of the batch op, and its index in the pipeline's stages.
    pub(crate) batch_op: (&'static str, u32),
    pub(crate) batching: Batching,
    /// Whether batches are cut from the rows of neighbouring splits, in order. Their sequences can only
    /// be padded then.
    pub(crate) in_order: bool,
    pub(crate) schema: Schema,
    /// Fields an element has on its way, delivered or not.
    pub(crate) cells: usize,
    pub(crate) delivered: Vec<Delivered>,
    /// The places to cache before the batch.
    pub(crate) points: Vec<Arc<Point>>,
    pub(crate) key_tensor: usize,
    pub(crate) copy_tensor: usize,
    /// Elements that one record can become, as far as they are numbered.
    pub(crate) width: u32,
    /// Of the tensors that are not ragged.
    pub(crate) row_bytes: usize,
}

/// A field that is delivered.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) name: String,
    pub(crate) cell: usize,
    pub(crate) tensor: usize,
    /// Whether batching has to copy it, as no step writes it to its row.
    pub(crate) copied: bool,
    /// Of a sequence: what one item takes, and one value of padding.
    pub(crate) sequence: Option<Sequence>,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) item_bytes: usize,
    pub(crate) pad: Vec<u8>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ops: Vec<&str> = self.steps.iter().map(|step| step.name).collect();
        out.debug_struct("Program").field("ops", &ops).field("schema", &self.schema).finish()
    }
}

impl Program {
    /// Compiles a pipeline whose operators need nothing beside it; a [`Compiler`] does others.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if this build cannot run it, [`ExecError::Output`] if its tensors
    /// cannot be stored.
    pub fn compile(pipeline: &Pipeline) -> Result<Program, ExecError> {
        Compiler::new().compile(pipeline)
    }

    /// As [`compile`](Self::compile), with every operator a step of its own: slower, equal in what it
    /// makes, and its metrics tell operators apart.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_apart(pipeline: &Pipeline) -> Result<Program, ExecError> {
        Compiler::new().apart().compile(pipeline)
    }

    pub(crate) fn compile_with(
        pipeline: &Pipeline,
        compiler: &Compiler<'_>,
    ) -> Result<Program, ExecError> {
        let names = cell_names(pipeline);
        let cell = |name: &str| names.iter().position(|field| *field == name);
        let mut steps = Steps::new(compiler);
        let (mut batch_op, mut points) = (("batch", 0), 0);
        let whole = |i: u32| i as usize > pipeline.batch_stage();
        for ((stage, input), i) in pipeline.stages().iter().zip(pipeline.schemas()).zip(0_u32..) {
            if stage.op.batching().is_some() {
                batch_op = (stage.op.name(), i);
                continue;
            }
            // Resolved before records are read; and what is cached of whole batches is the object itself.
            if stage.op.dataset().is_some() || whole(i) {
                steps.interrupt();
                continue;
            }
            if stage.op.cache_point().is_some() {
                let (name, ordinal, action) =
                    (stage.op.name(), stage.ordinal, Action::Point(points));
                steps.push(Step {
                    name,
                    blame: name,
                    stage: i,
                    ordinal,
                    size: None,
                    follows: None,
                    action,
                });
                points += 1;
                continue;
            }
            steps.operator((stage, i), input, cell)?;
        }
        let mut steps = steps.list;
        let schema = tensor_schema(pipeline)?;
        let missing = || ExecError::Pipeline("a delivered field has no tensor".into());
        let tensor = |name: &str| schema.index_of(name).ok_or_else(missing);
        let batching = pipeline.batching().clone();
        let mut delivered = Vec::new();
        for (name, field) in &pipeline.output_schema().fields {
            if name == KEY_FIELD || name == COPY_FIELD {
                continue;
            }
            let sequence = field.known_shape().is_none() || field.dtype.size_bytes().is_none();
            let sequence = sequence.then(|| Sequence {
                item_bytes: field.item_bytes().unwrap_or(1) as usize,
                pad: batching.pad_value(name).bytes(field.dtype),
            });
            let (cell, tensor) = (cell(name).ok_or_else(missing)?, tensor(name)?);
            delivered.push(Delivered { name: name.clone(), cell, tensor, copied: true, sequence });
        }
        let in_order = pipeline.is_in_order();
        if in_order || batching.padding.is_none() {
            write_to_rows(&mut steps, &mut delivered, names.len());
        }
        let points = cache_point::compile(pipeline, &names, &steps, &delivered)?;
        let points = points.into_iter().map(Arc::new).collect();
        let fixed = (0..schema.tensors().len()).filter(|i| !schema.tensors()[*i].ragged);
        let row_bytes = fixed.filter_map(|i| schema.item_bytes(i)).sum();
        let width = steps.iter().try_fold(1_u32, |n, step| n.checked_mul(step.action.width()));
        let width = width.ok_or_else(|| {
            ExecError::Pipeline("a record becomes more elements than can be numbered".into())
        })?;
        Ok(Program {
            reader: Reader::new(pipeline.source()),
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

    /// The steps by name, batching left out: operators that run as one are one, `a+b`.
    pub fn steps(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|step| step.name)
    }

    /// What one thread needs to run splits of this program.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(self)
    }

    /// Runs the pipeline over the records of one split. `cancelled` is asked before each element.
    ///
    /// # Errors
    /// [`ExecError::Cancelled`] when asked to stop, [`ExecError::Record`] for a bad record under
    /// [`ErrorPolicy::Fail`](gristmill_model::ErrorPolicy::Fail), [`ExecError::Source`] if `data`
    /// is not the byte range of the records, [`ExecError::Output`] if the object gets too large.
    pub fn run_split(
        &self,
        scratch: &mut Scratch,
        input: &SplitInput<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<SplitOutput, ExecError> {
        crate::run::run(self, scratch, input, cancelled)
    }

    /// As [`run_split`](Self::run_split), of a split whose records are read in several portions: runs
    /// those of `input` after those of `before`, with `more` to come after them. Portions differ in their
    /// records alone. [`Unfinished::ran`] tells how far it came with one that is run in turns. [`end_split`](Self::end_split) gives what all of them became.
    ///
    /// # Errors
    /// As [`run_split`](Self::run_split).
    pub fn run_portion(
        &self,
        scratch: &mut Scratch,
        before: Option<Unfinished>,
        input: &SplitInput<'_>,
        more: u32,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Unfinished, ExecError> {
        crate::run::run_portion(self, (scratch, before), input, more, cancelled)
    }

    /// Ends a split of which all portions have been run, with the scratch that they were run with.
    ///
    /// # Errors
    /// [`ExecError::Output`] if the object gets too large.
    pub fn end_split(
        &self,
        scratch: &mut Scratch,
        unfinished: Unfinished,
    ) -> Result<SplitOutput, ExecError> {
        crate::run::end(self, scratch, unfinished)
    }

    /// Runs the rest of the pipeline over a split that [`run_split`](Self::run_split) put aside at a
    /// place to cache: makes what it makes of the records themselves, and lists the same records as
    /// left out. Payloads of those are not there any more: `quarantined` is empty. `cancelled` is
    /// asked before each element.
    ///
    /// # Errors
    /// [`ExecError::Cache`] if `input.object` is damaged or of another pipeline; else as
    /// [`run_split`](Self::run_split).
    pub fn resume_split(
        &self,
        scratch: &mut Scratch,
        input: &ResumeInput,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<SplitOutput, ExecError> {
        crate::resume::resume(self, scratch, input, cancelled)
    }

    /// As [`resume_split`](Self::resume_split), of a split that was put aside in parts: runs the one of
    /// `input` after those of `before`. [`end_resumed`](Self::end_resumed) gives what all of them became.
    ///
    /// # Errors
    /// As [`resume_split`](Self::resume_split).
    pub fn resume_part(
        &self,
        scratch: &mut Scratch,
        before: Option<Unfinished>,
        input: &ResumeInput,
        is_last: bool,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Unfinished, ExecError> {
        crate::resume::resume_part(self, (scratch, before), input, is_last, cancelled)
    }

    /// Ends a split of which all parts were run from what was put aside at `point`, with the scratch that
    /// they were run with.
    ///
    /// # Errors
    /// [`ExecError::Output`] if the object gets too large.
    pub fn end_resumed(
        &self,
        scratch: &mut Scratch,
        point: u32,
        unfinished: Unfinished,
    ) -> Result<SplitOutput, ExecError> {
        crate::resume::end_resumed(self, scratch, point, unfinished)
    }

    /// The tensors of every frame this program writes; where it pads sequences, those of the remainder
    /// frame, which has them as they are.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The place to cache with this index among those of the pipeline.
    pub(crate) fn point(&self, point: u32) -> Result<&Arc<Point>, ExecError> {
        self.points.get(point as usize).ok_or_else(|| {
            let inner = self.points.len();
            ExecError::Pipeline(format!(
                "there is no `autocache` {point} to stop or begin at: the pipeline has {inner} before \
                 its batch"
            ))
        })
    }

    /// The tensor that cell `cell` is delivered in.
    pub(crate) fn tensor_of(&self, cell: usize) -> usize {
        let field = self.delivered.iter().find(|field| field.cell == cell);
        // Only delivered fields have rows; a tensor that is not there is refused by the writer.
        field.map_or(usize::MAX, |field| field.tensor)
    }

    /// Whether a record can become other than one element.
    pub(crate) fn is_one_to_one(&self) -> bool {
        let one = |step: &Step| !matches!(step.action, Action::Filter { .. });
        self.width == 1 && self.steps.iter().all(one)
    }
}

/// Every field that an element has at some time: those of the source first, dataset by dataset, in the
/// order in which readers find them.
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

/// The last transformation of a field writes to its row; what comes after changes it there. Not
/// before an element becomes several, each of which has a row of its own, nor if the value is read
/// once more.
fn write_to_rows(steps: &mut [Step], delivered: &mut [Delivered], cells: usize) {
    let mut settled = vec![true; cells];
    for field in delivered.iter().filter(|field| field.sequence.is_none()) {
        settled[field.cell] = false;
    }
    for step in steps.iter_mut().rev() {
        match &mut step.action {
            Action::Transform { input, output, to_row, .. } => {
                *to_row = !std::mem::replace(&mut settled[*output], true);
                if *to_row && let Some(field) = delivered.iter_mut().find(|f| f.cell == *output) {
                    field.copied = false;
                }
                settled[*input] = true;
            }
            Action::Parse { input, outputs, .. } => {
                settled[*input] = true;
                outputs.iter().for_each(|output| settled[*output] = true);
            }
            Action::Filter { field, .. } | Action::Shorten { field, .. } => settled[*field] = true,
            // Sequences, which are written to no row.
            Action::Boxes { .. } => {}
            Action::Duplicate { .. } | Action::FlatMap { .. } => return,
            Action::InPlace { .. } | Action::Wait(_) | Action::Point(_) | Action::Nothing => {}
        }
    }
}

fn tensor_schema(pipeline: &Pipeline) -> Result<Schema, ExecError> {
    let mut tensors = Vec::new();
    for (name, field) in &pipeline.output_schema().fields {
        tensors.push(tensor_spec(name, field).ok_or_else(|| {
            ExecError::Pipeline(format!("`{name}` is {field}, which cannot be stored"))
        })?);
    }
    Ok(Schema::new(tensors)?)
}

/// The tensor of a field's values, one a row; none if they differ in more than their first dimension.
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

pub(crate) fn dtype(field: &FieldSchema) -> DType {
    use gristmill_pipeline::DType as Field;
    match field.dtype {
        Field::Bytes | Field::U8 => DType::U8,
        Field::F16 => DType::F16,
        Field::BF16 => DType::BF16,
        Field::F32 => DType::F32,
        Field::F64 => DType::F64,
        Field::U16 => DType::U16,
        Field::I32 => DType::I32,
        Field::U32 => DType::U32,
        Field::I64 => DType::I64,
        Field::U64 => DType::U64,
    }
}
