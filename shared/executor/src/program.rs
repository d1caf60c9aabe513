//! A pipeline compiled: everything that does not depend on the split is decided here.

use crate::{
    ExecError, Scratch, SplitInput, SplitOutput, ops,
    sources::Reader,
    step::{Action, Step},
};
use gristmill_format::{DType, Schema, TensorSpec};
use gristmill_pipeline::{COPY_FIELD, Cardinality, FieldSchema, KEY_FIELD, Pipeline};

/// A pipeline ready to run; shared by any number of threads, each with a [`Scratch`] of its own.
pub struct Program {
    pub(crate) reader: Reader,
    pub(crate) steps: Vec<Step>,
    /// Index of the batch op in the pipeline's stages.
    pub(crate) batch_stage: u32,
    pub(crate) batch_size: usize,
    pub(crate) schema: Schema,
    /// Per field, in the order of their names: its tensor.
    pub(crate) tensors: Vec<usize>,
    /// Per field, whether no step writes it to its row, so that batching has to copy it.
    pub(crate) copied: Vec<bool>,
    pub(crate) key_tensor: usize,
    pub(crate) copy_tensor: usize,
    pub(crate) row_bytes: usize,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ops: Vec<&str> = self.steps.iter().map(|step| step.name).collect();
        out.debug_struct("Program").field("ops", &ops).field("schema", &self.schema).finish()
    }
}

impl Program {
    /// Compiles a pipeline.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if this build cannot run it, [`ExecError::Output`] if its tensors
    /// cannot be stored.
    pub fn compile(pipeline: &Pipeline) -> Result<Program, ExecError> {
        let names: Vec<&str> = pipeline.source().features.keys().map(String::as_str).collect();
        let field_index = |name: &str| names.iter().position(|field| *field == name);
        let mut steps = Vec::new();
        let mut batch_stage = 0;
        for (i, stage) in pipeline.stages().iter().enumerate() {
            if stage.op.declaration().cardinality == Cardinality::Batch {
                batch_stage = i as u32;
                continue;
            }
            let input = &pipeline.schemas()[i];
            let action = ops::compile(&stage.op, input, field_index)?;
            let size = stage.op.field().and_then(|name| known_size(input.field(name)?));
            steps.push(Step { name: stage.op.name(), ordinal: stage.ordinal, size, action });
        }
        let mut copied = vec![true; names.len()];
        // The last transformation of a field writes to its row; what comes after changes it there.
        for step in steps.iter_mut().rev() {
            if let Action::Transform { field, to_row, .. } = &mut step.action {
                *to_row = std::mem::take(&mut copied[*field]);
            }
        }
        let schema = tensor_schema(pipeline)?;
        let missing = || ExecError::Pipeline("a delivered field has no tensor".into());
        let tensor = |name: &str| schema.index_of(name).ok_or_else(missing);
        let row_bytes = (0..schema.tensors().len()).filter_map(|i| schema.item_bytes(i)).sum();
        Ok(Program {
            reader: Reader::new(pipeline.source()),
            steps,
            batch_stage,
            batch_size: pipeline.batch_size() as usize,
            tensors: names.iter().map(|name| tensor(name)).collect::<Result<_, _>>()?,
            copied,
            key_tensor: tensor(KEY_FIELD)?,
            copy_tensor: tensor(COPY_FIELD)?,
            row_bytes,
            schema,
        })
    }

    /// What one thread needs to run splits of this program.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(self.tensors.len())
    }

    /// Runs the pipeline over the records of one split. `cancelled` is asked before each element.
    ///
    /// # Errors
    /// [`ExecError::Cancelled`] when asked to stop, [`ExecError::Record`] for a bad record under
    /// [`ErrorPolicy::Fail`](gristmill_types::ErrorPolicy::Fail), [`ExecError::Source`] if `data`
    /// is not the byte range of the records, [`ExecError::Output`] if the object gets too large.
    pub fn run_split(
        &self,
        scratch: &mut Scratch,
        input: &SplitInput<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<SplitOutput, ExecError> {
        crate::run::run(self, scratch, input, cancelled)
    }

    /// The tensors of every frame this program writes.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

/// Height and width of an image, if all elements have the same.
fn known_size(field: &FieldSchema) -> Option<[usize; 2]> {
    match field.shape.as_slice() {
        [Some(height), Some(width), _] => Some([*height as usize, *width as usize]),
        _ => None,
    }
}

fn tensor_schema(pipeline: &Pipeline) -> Result<Schema, ExecError> {
    let mut tensors = Vec::new();
    for (name, field) in &pipeline.output_schema().fields {
        let (Some(dtype), Some(shape)) = (dtype(field), field.known_shape()) else {
            return Err(ExecError::Pipeline(format!(
                "`{name}` is {field}, which cannot be stored"
            )));
        };
        let shape: Vec<usize> = shape.into_iter().map(|dim| dim as usize).collect();
        tensors.push(TensorSpec::fixed(name, dtype, shape));
    }
    Ok(Schema::new(tensors)?)
}

fn dtype(field: &FieldSchema) -> Option<DType> {
    use gristmill_pipeline::DType as Field;
    Some(match field.dtype {
        Field::Bytes => return None,
        Field::U8 => DType::U8,
        Field::F16 => DType::F16,
        Field::BF16 => DType::BF16,
        Field::F32 => DType::F32,
        Field::U32 => DType::U32,
        Field::I64 => DType::I64,
        Field::U64 => DType::U64,
    })
}
