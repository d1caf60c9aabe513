//! The steps of a compiled pipeline, and how they apply to one element.

use crate::{ExecError, PipelineCompiler};

use gristmill_kernel::{
    CellStorage, CombineKernel, ExtractKernel, FieldCell, InPlaceKernel, Kernel, KernelScratch,
    MAX_ITEMS, MoveBoxes, OperatorDraws, PredicateKernel, TransformKernel, ValueView,
};
use gristmill_pipeline::{
    BoxedOperator, ElementSchema, FieldSchema, ImageFields, KernelInput, Operator, PipelineStage,
};
use std::time::Duration;

/// Bytes of a box: four f32.
const BOX_BYTES: usize = 16;

pub(crate) enum StepAction {
    /// `to_row`: the output is final and is written straight to its row.
    Transform {
        input: usize,
        output: usize,
        kernel: Box<dyn TransformKernel>,
        to_row: bool,
    },
    InPlace {
        field: usize,
        kernel: Box<dyn InPlaceKernel>,
    },
    Filter {
        field: usize,
        kernel: Box<dyn PredicateKernel>,
    },
    /// Replaces `field` by what is made of it and of `by`; `by_size` is known of its schema.
    Combine {
        field: usize,
        by: usize,
        by_size: Option<[usize; 2]>,
        kernel: Box<dyn CombineKernel>,
    },
    /// Truncates the value to its first bytes.
    Shorten {
        field: usize,
        most_bytes: usize,
    },
    /// Makes several copies of the element.
    Duplicate {
        copies: u32,
    },
    /// Makes one element of each item of these lists, side by side.
    FlatMap {
        lists: Vec<ListCells>,
    },
    /// Extracts several values from one, in the order of `outputs`.
    Parse {
        input: usize,
        outputs: Vec<usize>,
        kernel: Box<dyn ExtractKernel>,
    },
    /// Moves boxes as the preceding image was moved, and drops labels with their boxes.
    Boxes {
        field: usize,
        labels: Vec<LabelCells>,
        kernel: Box<dyn MoveBoxes>,
    },
    Wait(Duration),
    /// A place to cache: index in [`CompiledPipeline::points`](crate::CompiledPipeline).
    Point(usize),
    /// The value already has the form that the operator asks for.
    Nothing,
}

impl StepAction {
    /// How many numbers the resulting elements need; 1 if there is at most one.
    pub(crate) fn width(&self) -> u32 {
        match self {
            StepAction::Duplicate { copies } => *copies,
            StepAction::FlatMap { .. } => MAX_ITEMS,
            _ => 1,
        }
    }
}

/// One compiled operator, or several fused ones.
pub(crate) struct CompiledStep {
    pub(crate) name: &'static str,
    /// The operator to which a record's error is attributed.
    pub(crate) blame: &'static str,
    /// Index in the pipeline's stages.
    pub(crate) stage: u32,
    pub(crate) ordinal: u32,
    /// Height and width of its input if the schema has them; otherwise the element has them.
    pub(crate) size: Option<[usize; 2]>,
    pub(crate) follows: Option<SharedDraw>,
    pub(crate) action: StepAction,
}

/// A field, and the preceding image whose draw it shares. Both must have the same size.
#[derive(Clone, Debug)]
pub(crate) struct SharedDraw {
    pub(crate) field: String,
    pub(crate) image: String,
}

impl CompiledStep {
    /// Applies a step that makes one element of one. Returns the bytes read and written. `row` is
    /// the row of the step's field if the step writes there or finds its value there. `draw` is
    /// called only if the step draws. An error is the reason why the record is bad, in one line.
    pub(crate) fn apply(
        &self,
        cells: &mut [FieldCell],
        record: &[u8],
        row: &mut [u8],
        tools: &mut KernelScratch,
        draw: impl FnOnce() -> OperatorDraws,
    ) -> Result<(usize, usize), String> {
        match &self.action {
            StepAction::Transform { input, output, kernel, to_row } => {
                let row = to_row.then_some(row);
                let (bytes_in, made) = if input == output {
                    let cell = &mut cells[*input];
                    let size = self.given_size(cell.size, tools)?;
                    let (bytes, sink) = cell.split(record, row)?;
                    (bytes.len(), kernel.run(ValueView { bytes, size }, sink, tools, &mut draw())?)
                } else {
                    let both = cells.get_disjoint_mut([*input, *output]);
                    let [from, to] = both.map_err(|error| error.to_string())?;
                    let bytes = from.value(record, &[]);
                    let view = ValueView { bytes, size: self.given_size(from.size, tools)? };
                    (bytes.len(), kernel.run(view, to.sink(row), tools, &mut draw())?)
                };
                let cell = &mut cells[*output];
                cell.moved(*to_row, made.bytes);
                cell.size = made.size;
                Ok((bytes_in, made.bytes))
            }
            StepAction::InPlace { field, kernel } => {
                let cell = &mut cells[*field];
                let size = self.given_size(cell.size, tools)?;
                let value = cell.value_mut(record, row)?;
                kernel.run(value, size, tools, &mut draw())?;
                Ok((value.len(), value.len()))
            }
            StepAction::Combine { field, by, by_size, kernel } => {
                let size = self.given_size(cells[*field].size, tools)?;
                let sizes = [size, by_size.unwrap_or(cells[*by].size)];
                combine(kernel.as_ref(), [*field, *by], sizes, cells, record, tools)
            }
            StepAction::Shorten { field, most_bytes } => {
                let cell = &mut cells[*field];
                let bytes_in = cell.place.bytes();
                cell.narrow(0, bytes_in.min(*most_bytes));
                Ok((bytes_in, cell.place.bytes()))
            }
            StepAction::Parse { input, outputs, kernel } => {
                let bytes_in = cells[*input].value(record, &[]).len();
                let found = parse(kernel.as_ref(), cells, tools, record, *input, outputs)?;
                Ok((bytes_in, found))
            }
            StepAction::Boxes { field, labels, kernel } => {
                move_boxes(kernel.as_ref(), *field, labels, cells, record, tools, &mut draw())
            }
            _ => Ok((0, 0)),
        }
    }

    /// Height and width of the input; `size` applies if the schema has none.
    fn given_size(
        &self,
        size: [usize; 2],
        tools: &mut KernelScratch,
    ) -> Result<[usize; 2], String> {
        let size = self.size.unwrap_or(size);
        match &self.follows {
            Some(SharedDraw { field, image }) if size != tools.source => {
                let ([height, width], [rows, columns]) = (size, tools.source);
                Err(format!(
                    "`{field}` is {height} x {width} (height x width), but `{image}` is \
                     {rows} x {columns}: fields that are moved together have one size"
                ))
            }
            _ => {
                tools.source = size;
                Ok(size)
            }
        }
    }

    /// Whether the step reads or writes the value of `cell`, or affects the whole element.
    pub(crate) fn touches(&self, cell: usize) -> bool {
        match &self.action {
            StepAction::Transform { input, output, .. } => [*input, *output].contains(&cell),
            StepAction::InPlace { field, .. } | StepAction::Shorten { field, .. } => *field == cell,
            StepAction::Combine { field, by, .. } => [*field, *by].contains(&cell),
            StepAction::Parse { input, outputs, .. } => *input == cell || outputs.contains(&cell),
            StepAction::Boxes { field, labels, .. } => {
                *field == cell || labels.iter().any(|(_, label, _)| *label == cell)
            }
            StepAction::Nothing => false,
            StepAction::Filter { .. }
            | StepAction::Duplicate { .. }
            | StepAction::FlatMap { .. }
            | StepAction::Wait(_)
            | StepAction::Point(_) => true,
        }
    }

    /// The cell of the field that is in its row while this step works on it.
    pub(crate) fn in_row(&self, cells: &[FieldCell]) -> Option<usize> {
        match self.action {
            StepAction::Transform { output, to_row: true, .. } => Some(output),
            StepAction::InPlace { field, .. } if cells[field].place == CellStorage::Row => {
                Some(field)
            }
            _ => None,
        }
    }
}

/// Extracts the values of `outputs` from the value of `input`. Returns the bytes found.
fn parse(
    kernel: &dyn ExtractKernel,
    cells: &mut [FieldCell],
    tools: &mut KernelScratch,
    record: &[u8],
    input: usize,
    outputs: &[usize],
) -> Result<usize, String> {
    let text = cells[input].value(record, &[]);
    let start = cells[input].start_in_record();
    let mut all = std::mem::take(&mut tools.found);
    all.resize_with(outputs.len().max(all.len()), FieldCell::default);
    let found = &mut all[..outputs.len()];
    let mut parsed = kernel.extract(text, found, tools);
    if start.is_none() && parsed.is_ok() {
        // An output may take over the input's buffer.
        let owned = found.iter_mut().try_for_each(|cell| cell.own(text));
        parsed = parsed.and_then(|bytes| owned.map(|()| bytes));
    }
    if parsed.is_ok() {
        for (output, found) in outputs.iter().zip(found) {
            cells[*output].adopt(found, start.unwrap_or(0));
        }
    }
    tools.found = all;
    parsed
}

/// Replaces the value in the first of two cells, whose images have these sizes, by what is made of both. Returns
/// the bytes read and made.
fn combine(
    kernel: &dyn CombineKernel,
    both: [usize; 2],
    sizes: [[usize; 2]; 2],
    cells: &mut [FieldCell],
    record: &[u8],
    tools: &mut KernelScratch,
) -> Result<(usize, usize), String> {
    let view = |bytes, i: usize| ValueView { bytes, size: sizes[i] };
    let (bytes_in, made) = if both[0] == both[1] {
        let (bytes, sink) = cells[both[0]].split(record, None)?;
        (2 * bytes.len(), kernel.run([view(bytes, 0); 2], sink, tools)?)
    } else {
        let cells = cells.get_disjoint_mut(both).map_err(|error| error.to_string())?;
        let [cell, other] = cells;
        let other = view(other.value(record, &[]), 1);
        let (bytes, sink) = cell.split(record, None)?;
        (bytes.len() + other.bytes.len(), kernel.run([view(bytes, 0), other], sink, tools)?)
    };
    let cell = &mut cells[both[0]];
    cell.moved(false, made.bytes);
    cell.size = made.size;
    Ok((bytes_in, made.bytes))
}

/// A list: its name, its cell, and the bytes of an item.
pub(crate) type ListCells = (String, usize, usize);

/// A field of labels: its name, its cell, and the bytes of one label.
pub(crate) type LabelCells = (String, usize, usize);

/// Moves the boxes in cell `field`, and drops the labels of dropped boxes. Returns the bytes read
/// and kept.
fn move_boxes(
    kernel: &dyn MoveBoxes,
    field: usize,
    labels: &[LabelCells],
    cells: &mut [FieldCell],
    record: &[u8],
    tools: &mut KernelScratch,
    draw: &mut OperatorDraws,
) -> Result<(usize, usize), String> {
    let boxes = cells[field].value_mut(record, &mut [])?;
    let mut bytes_in = boxes.len();
    let rows = boxes.len() / BOX_BYTES;
    let kept = kernel.run(boxes, tools.source, draw, &mut tools.ends)?;
    cells[field].narrow(0, kept * BOX_BYTES);
    let mut bytes_out = kept * BOX_BYTES;
    for (name, label, row_bytes) in labels {
        let values = cells[*label].value_mut(record, &mut [])?;
        let items = values.len() / row_bytes;
        if items != rows {
            return Err(format!("`{name}` has {items} rows for {rows} boxes"));
        }
        for (to, from) in tools.ends.iter().enumerate() {
            values.copy_within(from * row_bytes..(from + 1) * row_bytes, to * row_bytes);
        }
        bytes_in += values.len();
        bytes_out += kept * row_bytes;
        cells[*label].narrow(0, kept * row_bytes);
    }
    Ok((bytes_in, bytes_out))
}

// Turns operators into steps. Fuses operators where that is cheaper, and makes one step per field
// of an operator that moves several fields.

#[derive(Clone, Copy)]
pub(crate) struct IndexedStage<'p> {
    pub(crate) stage: &'p PipelineStage,
    pub(crate) index: u32,
}

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
    pub(crate) fn push(&mut self, at: IndexedStage<'p>, action: StepAction) {
        self.add(self.step(at, None, None, action), Chain::default());
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

    /// Adds the operator of a stage. `input` is the schema of
    /// its elements; `cell` finds the cell of a field.
    pub(crate) fn operator(
        &mut self,
        at: IndexedStage<'p>,
        input: &'p ElementSchema,
        cell: impl Fn(&str) -> Option<usize> + Copy,
    ) -> Result<(), ExecError> {
        let op = &at.stage.op;
        if !(self.compiler.fuse && self.fuse(at, cell)) {
            let action = action(op, input, cell, self.compiler)?;
            let given = op.field().and_then(|name| input.field(name));
            let step = self.step(at, given, None, action);
            self.add(step, Chain { ops: vec![op], given });
        }
        match op.together() {
            Some(fields) if !fields.is_one() => self.followers(at, fields, input, cell),
            _ => Ok(()),
        }
    }

    /// Adds the steps of an operator for its fields after the first. All of them have its ordinal,
    /// so that they share its draw.
    fn followers(
        &mut self,
        at: IndexedStage<'p>,
        fields: &'p ImageFields,
        input: &'p ElementSchema,
        cell: impl Fn(&str) -> Option<usize> + Copy,
    ) -> Result<(), ExecError> {
        for name in fields.images().skip(1) {
            let action = action(&at.stage.op.only(name), input, cell, self.compiler)?;
            let follows = SharedDraw { field: name.to_owned(), image: fields.field.clone() };
            let step = self.step(at, input.field(name), Some(follows), action);
            self.add(step, Chain::default());
        }
        for name in fields.boxes.iter().flat_map(|boxes| &boxes.boxes) {
            let action = boxes_action(&at.stage.op, name, input, cell)?;
            let step = self.step(at, None, None, action);
            self.add(step, Chain::default());
        }
        Ok(())
    }

    fn step(
        &self,
        at: IndexedStage<'_>,
        given: Option<&FieldSchema>,
        follows: Option<SharedDraw>,
        action: StepAction,
    ) -> CompiledStep {
        let IndexedStage { stage, index } = at;
        let (name, ordinal) = (stage.op.name(), stage.ordinal);
        let size = given.and_then(known_size);
        CompiledStep { name, blame: name, stage: index, ordinal, size, follows, action }
    }

    /// Fuses the operator with the step that made its field, if that is cheaper. Steps on other
    /// fields may stand between. Returns whether it did.
    fn fuse(&mut self, stage_at: IndexedStage<'p>, cell: impl Fn(&str) -> Option<usize>) -> bool {
        let IndexedStage { stage, index } = stage_at;
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
            CompiledStep { name, blame, stage: index, ordinal, size: None, follows: None, action };
        self.add(step, chain);
        true
    }
}

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
    let by = op.by().and_then(|name| cell(name).zip(input.field(name)));
    let kernel_input = KernelInput::new(given.map(|(_, schema)| schema), compiler.assets);
    let kernel = op.kernel(&kernel_input.with(by.map(|(_, schema)| schema)));
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
        Kernel::Combine(kernel) => {
            let (by, schema) = by.ok_or_else(|| cannot(op, "its field `by` is missing"))?;
            StepAction::Combine { field, by, by_size: known_size(schema), kernel }
        }
        Kernel::Extract(kernel) => {
            // Every field that an operator writes has a cell.
            let outputs = op.outputs().into_iter().filter_map(&cell).collect();
            StepAction::Parse { input: field, outputs, kernel }
        }
        Kernel::Shorten { most_bytes } => StepAction::Shorten { field, most_bytes },
        Kernel::Duplicate { copies } => StepAction::Duplicate { copies },
        Kernel::FlatMap { item_bytes } => {
            let name = op.field().unwrap_or_default().to_owned();
            StepAction::FlatMap { lists: vec![(name, field, item_bytes)] }
        }
        Kernel::Unbatch => {
            let list = |name: &String| {
                let item_bytes = input.field(name)?.item_bytes()?.max(1) as usize;
                Some((name.clone(), cell(name)?, item_bytes))
            };
            let lists = op.lists().iter().map(list).collect::<Option<Vec<_>>>();
            StepAction::FlatMap { lists: lists.ok_or_else(|| cannot(op, "a list is missing"))? }
        }
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
