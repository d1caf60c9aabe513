//! Applies the operators that are left to the fetcher to batches from workers.

use crate::{
    ExecError, PipelineCompiler,
    program::tensor_spec,
    step::{CompiledStep, IndexedStage, StepAction, StepBuilder},
};

use bytes::BytesMut;
use gristmill_chunk::{ChunkFormatError, ChunkFrame, ChunkLimits, TensorSpec, replace_tensors};
use gristmill_kernel::{CellStorage, FieldCell, KernelScratch, OperatorDraws};
use gristmill_pipeline::{ElementSchema, Pipeline, PipelineStage};

/// Turns batches as transferred into batches as delivered. The bytes equal those that workers would
/// have made with the same operators.
pub struct BatchFinisher {
    /// Tensors it computes. Each replaces the tensor of the same name.
    tensors: Vec<TensorSpec>,
    /// The steps that compute each tensor.
    steps: Vec<Vec<CompiledStep>>,
    cell: FieldCell,
    tools: KernelScratch,
}

impl BatchFinisher {
    /// Compiles the fetcher's operators of a pipeline. Returns `None` if it has none.
    ///
    /// # Errors
    /// [`ExecError::Pipeline`] if this build cannot run them, or they cannot be run on batches.
    pub fn compile(pipeline: &Pipeline) -> Result<Option<BatchFinisher>, ExecError> {
        let stages = &pipeline.deliver().stages;
        if stages.is_empty() {
            return Ok(None);
        }
        let compiler = PipelineCompiler::default();
        let (mut tensors, mut steps) = (Vec::new(), Vec::new());
        for (name, made) in &pipeline.delivered_schema().fields {
            let stages = stages.iter().zip(pipeline.finishing_schemas());
            let stages = stages.filter(|(stage, _)| stage.op.field() == Some(name));
            let steps_of_field = compile_field(stages, &compiler)?;
            if steps_of_field.is_empty() {
                continue;
            }
            let spec = tensor_spec(name, made).filter(|spec| !spec.ragged);
            tensors.push(spec.ok_or_else(|| refused(&format!("`{name}` differs in size")))?);
            steps.push(steps_of_field);
        }
        if tensors.is_empty() {
            return Err(refused("they make nothing that is delivered"));
        }
        Ok(Some(BatchFinisher {
            tensors,
            steps,
            cell: FieldCell::default(),
            tools: KernelScratch::default(),
        }))
    }

    /// Returns the delivered batch. `buffer` gets its size in bytes and returns an empty buffer.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if the frame does not belong to this pipeline,
    /// [`ChunkFormatError::OverLimit`] if the delivered batch would exceed `limits`.
    pub fn finish(
        &mut self,
        frame: &ChunkFrame,
        limits: &ChunkLimits,
        buffer: impl FnOnce(usize) -> BytesMut,
    ) -> Result<BytesMut, ChunkFormatError> {
        let BatchFinisher { tensors, steps, cell, tools } = self;
        replace_tensors(frame, tensors, limits, buffer, |tensor, from, to| {
            run(&steps[tensor], cell, tools, from, to).map_err(ChunkFormatError::invalid)
        })
    }
}

/// Compiles the steps of one field; each operator comes with the schema of its input.
fn compile_field<'p>(
    stages: impl Iterator<Item = (&'p PipelineStage, &'p ElementSchema)>,
    compiler: &'p PipelineCompiler<'p>,
) -> Result<Vec<CompiledStep>, ExecError> {
    let mut steps = StepBuilder::new(compiler);
    for (stage, input) in stages {
        steps.operator(IndexedStage { stage, index: 0 }, input, |_| Some(0))?;
    }
    // Only deterministic operators on their own field are left to the fetcher; anything else was
    // forged.
    let fits = |step: &CompiledStep| {
        matches!(
            step.action,
            StepAction::Transform { .. } | StepAction::InPlace { .. } | StepAction::Nothing
        )
    };
    let mut steps = steps.list;
    if !steps.iter().all(fits) {
        return Err(refused("one of them works on more than its field"));
    }
    // The last transformation writes straight to the row.
    let last = steps.iter_mut().rev().find_map(|step| match &mut step.action {
        StepAction::Transform { to_row, .. } => Some(to_row),
        _ => None,
    });
    last.into_iter().for_each(|to_row| *to_row = true);
    Ok(steps)
}

fn refused(why: &str) -> ExecError {
    ExecError::Pipeline(format!("operators cannot be applied to delivered batches: {why}"))
}

fn run(
    steps: &[CompiledStep],
    cell: &mut FieldCell,
    tools: &mut KernelScratch,
    from: &[u8],
    to: &mut [u8],
) -> Result<(), String> {
    cell.place = CellStorage::Record(0..from.len());
    for step in steps {
        step.apply(std::slice::from_mut(cell), from, to, tools, OperatorDraws::fixed)?;
    }
    if cell.place != CellStorage::Row {
        let value = cell.value(from, &[]);
        if value.len() != to.len() {
            return Err("a row has another size than its tensor".into());
        }
        to.copy_from_slice(value);
    }
    Ok(())
}
