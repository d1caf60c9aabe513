//! Turns operators into steps. Fuses operators where that is cheaper, and makes one step per field
//! of an operator that moves several fields.

use crate::{
    ExecError, PipelineCompiler,
    step::{CompiledStep, SharedDraw, StepAction},
};
use gristmill_kernel::Kernel;
use gristmill_pipeline::{
    BoxedOperator, ElementSchema, FieldSchema, ImageFields, KernelInput, Operator, PipelineStage,
};

/// The steps so far.
pub(crate) struct StepBuilder<'p> {
    compiler: &'p PipelineCompiler<'p>,
    pub(crate) list: Vec<CompiledStep>,
    /// For each step its operators, and the schema of the first one's input.
    chains: Vec<Chain<'p>>,
    /// Fusing leaves the steps before this index alone.
    settled: usize,
}

#[derive(Default)]
struct Chain<'p> {
    ops: Vec<&'p BoxedOperator>,
    given: Option<&'p FieldSchema>,
}

impl<'p> StepBuilder<'p> {
    pub(crate) fn new(compiler: &'p PipelineCompiler<'p>) -> Self {
        StepBuilder { compiler, list: Vec::new(), chains: Vec::new(), settled: 0 }
    }

    /// Adds a step that is not an operator on fields. Nothing fuses across it.
    pub(crate) fn push(&mut self, step: CompiledStep) {
        self.add(step, Chain::default());
        self.interrupt();
    }

    /// Prevents later operators from fusing with the steps so far.
    pub(crate) fn interrupt(&mut self) {
        self.settled = self.list.len();
    }

    fn add(&mut self, step: CompiledStep, chain: Chain<'p>) {
        self.list.push(step);
        self.chains.push(chain);
    }

    /// Adds the operator of `stage`, which has index `i` in the pipeline. `input` is the schema of
    /// its elements; `cell` finds the cell of a field.
    pub(crate) fn operator(
        &mut self,
        (stage, i): (&'p PipelineStage, u32),
        input: &'p ElementSchema,
        cell: impl Fn(&str) -> Option<usize> + Copy,
    ) -> Result<(), ExecError> {
        let op = &stage.op;
        if !(self.compiler.fuse && self.fuse((stage, i), cell)) {
            let action = action(op, input, cell, self.compiler)?;
            let given = op.field().and_then(|name| input.field(name));
            let step = self.step((stage, i), given, None, action);
            self.add(step, Chain { ops: vec![op], given });
        }
        match op.together() {
            Some(fields) if !fields.is_one() => self.followers((stage, i), fields, input, cell),
            _ => Ok(()),
        }
    }

    /// Adds the steps of an operator for its fields after the first. All of them have its ordinal,
    /// so that they share its draw.
    fn followers(
        &mut self,
        (stage, i): (&'p PipelineStage, u32),
        fields: &'p ImageFields,
        input: &'p ElementSchema,
        cell: impl Fn(&str) -> Option<usize> + Copy,
    ) -> Result<(), ExecError> {
        for name in fields.images().skip(1) {
            let action = action(&stage.op.only(name), input, cell, self.compiler)?;
            let follows = SharedDraw { field: name.to_owned(), image: fields.field.clone() };
            let step = self.step((stage, i), input.field(name), Some(follows), action);
            self.add(step, Chain::default());
        }
        for name in fields.boxes.iter().flat_map(|boxes| &boxes.boxes) {
            let action = boxes_action(&stage.op, name, input, cell)?;
            let step = self.step((stage, i), None, None, action);
            self.add(step, Chain::default());
        }
        Ok(())
    }

    fn step(
        &self,
        (stage, i): (&PipelineStage, u32),
        given: Option<&FieldSchema>,
        follows: Option<SharedDraw>,
        action: StepAction,
    ) -> CompiledStep {
        let (name, ordinal) = (stage.op.name(), stage.ordinal);
        let size = given.and_then(known_size);
        CompiledStep { name, blame: name, stage: i, ordinal, size, follows, action }
    }

    /// Fuses the operator with the step that made its field, if that is cheaper. Steps on other
    /// fields may stand between. Returns whether it did.
    fn fuse(
        &mut self,
        (stage, i): (&'p PipelineStage, u32),
        cell: impl Fn(&str) -> Option<usize>,
    ) -> bool {
        let Some(field) = stage.op.field().and_then(cell) else { return false };
        let Some(at) = self.list.iter().rposition(|step| step.touches(field)) else { return false };
        let Chain { ops, given } = &mut self.chains[at];
        let Some(before) = ops.last().filter(|before| is_chained(before, &stage.op)) else {
            return false;
        };
        if at < self.settled {
            return false;
        }
        let blame = before.name();
        ops.push(&stage.op);
        let then: Vec<&dyn Operator> = ops[1..].iter().map(|op| &***op).collect();
        let fused = given.and_then(|given| ops[0].fuse(&then, given));
        let StepAction::Transform { input, .. } = self.list[at].action else {
            ops.pop();
            return false;
        };
        let Some((name, kernel)) = fused else {
            ops.pop();
            return false;
        };
        let action = StepAction::Transform { input, output: input, kernel, to_row: false };
        self.list.remove(at);
        let chain = self.chains.remove(at);
        let ordinal = stage.ordinal;
        let step =
            CompiledStep { name, blame, stage: i, ordinal, size: None, follows: None, action };
        self.add(step, chain);
        true
    }
}

/// The action of `op` on elements of schema `input`. `cell` finds the cell of a field.
fn action(
    op: &BoxedOperator,
    input: &ElementSchema,
    cell: impl Fn(&str) -> Option<usize>,
    compiler: &PipelineCompiler<'_>,
) -> Result<StepAction, ExecError> {
    let given = match op.field() {
        None => None,
        Some(name) => match cell(name).zip(input.field(name)) {
            None => return Err(cannot(op, "its field is missing")),
            given => given,
        },
    };
    let kernel = op.kernel(&KernelInput::new(given.map(|(_, schema)| schema), compiler.assets));
    let kernel = kernel.map_err(ExecError::Pipeline)?;
    let Some((field, _)) = given else {
        return match kernel {
            Kernel::Wait(duration) => Ok(StepAction::Wait(duration)),
            Kernel::Duplicate { copies } => Ok(StepAction::Duplicate { copies }),
            Kernel::Nothing => Ok(StepAction::Nothing),
            _ => Err(cannot(op, "it works on a field and names none")),
        };
    };
    let output = op.output().and_then(&cell).unwrap_or(field);
    Ok(match kernel {
        Kernel::Transform(kernel) => {
            StepAction::Transform { input: field, output, kernel, to_row: false }
        }
        Kernel::InPlace(kernel) => StepAction::InPlace { field, kernel },
        Kernel::Filter(kernel) => StepAction::Filter { field, kernel },
        Kernel::Extract(kernel) => {
            // Every field that an operator writes has a cell.
            let outputs = op.outputs().into_iter().filter_map(&cell).collect();
            StepAction::Parse { input: field, outputs, kernel }
        }
        Kernel::Shorten { most_bytes } => StepAction::Shorten { field, most_bytes },
        Kernel::Duplicate { copies } => StepAction::Duplicate { copies },
        Kernel::FlatMap { item_bytes } => StepAction::FlatMap { field, item_bytes },
        Kernel::Wait(duration) => StepAction::Wait(duration),
        Kernel::Nothing => StepAction::Nothing,
    })
}

/// The action of an operator on the boxes that it moves with its images.
fn boxes_action(
    op: &BoxedOperator,
    name: &str,
    input: &ElementSchema,
    cell: impl Fn(&str) -> Option<usize>,
) -> Result<StepAction, ExecError> {
    let missing = || cannot(op, "a field of its boxes is missing");
    let rules = op.together().and_then(|fields| fields.boxes.as_ref()).ok_or_else(missing)?;
    let kernel = op.boxes_kernel().ok_or_else(missing)?;
    let labels = rules.labels.iter().map(|label| {
        let row_bytes = input.field(label)?.item_bytes()?.max(1) as usize;
        Some((label.clone(), cell(label)?, row_bytes))
    });
    let labels = labels.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
    Ok(StepAction::Boxes { field: cell(name).ok_or_else(missing)?, labels, kernel })
}

fn cannot(op: &BoxedOperator, why: &str) -> ExecError {
    ExecError::Pipeline(format!("`{}` cannot be compiled: {why}", op.name()))
}

/// Whether `second` replaces the output of `first` in its field and touches nothing else.
fn is_chained(first: &BoxedOperator, second: &BoxedOperator) -> bool {
    let field = first.field();
    let alone = first.together().is_none_or(ImageFields::is_one);
    alone
        && field.is_some()
        && [first.output(), second.field(), second.output()].iter().all(|f| *f == field)
}

/// Height and width of an image, if they are the same for all elements.
fn known_size(field: &FieldSchema) -> Option<[usize; 2]> {
    match field.shape.as_slice() {
        [Some(height), Some(width), _] => Some([*height as usize, *width as usize]),
        _ => None,
    }
}
