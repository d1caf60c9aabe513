//! Operators as steps: those that are cheaper as one become one, and one that moves several fields becomes
//! a step for each.

use crate::{
    Compiler, ExecError, ops,
    step::{Action, Follows, Step},
};
use gristmill_pipeline::{FieldSchema, Op, Schema, Stage, ops::Fields};

/// The steps so far.
pub(crate) struct Steps<'p> {
    compiler: &'p Compiler<'p>,
    pub(crate) list: Vec<Step>,
    /// For each step the operators that it consists of, and what the first of them is given.
    chains: Vec<Chain<'p>>,
    /// Steps before this one stay as they are.
    settled: usize,
}

#[derive(Default)]
struct Chain<'p> {
    ops: Vec<&'p Op>,
    given: Option<&'p FieldSchema>,
}

impl<'p> Steps<'p> {
    pub(crate) fn new(compiler: &'p Compiler<'p>) -> Self {
        Steps { compiler, list: Vec::new(), chains: Vec::new(), settled: 0 }
    }

    /// A step that is no operator on fields.
    pub(crate) fn push(&mut self, step: Step) {
        self.add(step, Chain::default());
        self.interrupt();
    }

    /// What comes next is not one with what came before.
    pub(crate) fn interrupt(&mut self) {
        self.settled = self.list.len();
    }

    fn add(&mut self, step: Step, chain: Chain<'p>) {
        self.list.push(step);
        self.chains.push(chain);
    }

    /// The operator of `stage`, index `i` of its pipeline, on elements of schema `input`; `cell` finds
    /// the cell of a field.
    pub(crate) fn operator(
        &mut self,
        (stage, i): (&'p Stage, u32),
        input: &'p Schema,
        cell: impl Fn(&str) -> Option<usize> + Copy,
    ) -> Result<(), ExecError> {
        let op = &stage.op;
        if !(self.compiler.fuse && self.fuse((stage, i), cell)) {
            let action = ops::compile(op, input, cell, self.compiler)?;
            let given = op.field().and_then(|name| input.field(name));
            let step = self.step((stage, i), given, None, action);
            self.add(step, Chain { ops: vec![op], given });
        }
        match op.together() {
            Some(fields) if !fields.is_one() => self.followers((stage, i), fields, input, cell),
            _ => Ok(()),
        }
    }

    /// What an operator does to fields beside its first. Its draws are keyed by its ordinal, so that each of
    /// its steps has the same.
    fn followers(
        &mut self,
        (stage, i): (&'p Stage, u32),
        fields: &'p Fields,
        input: &'p Schema,
        cell: impl Fn(&str) -> Option<usize> + Copy,
    ) -> Result<(), ExecError> {
        for name in fields.images().skip(1) {
            let action = ops::compile(&stage.op.only(name), input, cell, self.compiler)?;
            let follows = Follows { field: name.to_owned(), image: fields.field.clone() };
            let step = self.step((stage, i), input.field(name), Some(follows), action);
            self.add(step, Chain::default());
        }
        for name in fields.boxes.iter().flat_map(|boxes| &boxes.boxes) {
            let action = ops::compile_boxes(&stage.op, name, input, cell)?;
            let step = self.step((stage, i), None, None, action);
            self.add(step, Chain::default());
        }
        Ok(())
    }

    fn step(
        &self,
        (stage, i): (&Stage, u32),
        given: Option<&FieldSchema>,
        follows: Option<Follows>,
        action: Action,
    ) -> Step {
        let (name, ordinal) = (self.compiler.name(&stage.op), stage.ordinal);
        let size = given.and_then(known_size);
        Step { name, blame: name, stage: i, ordinal, size, follows, action }
    }

    /// Makes the operator one step with that which made its field, if that is cheaper. Steps on other
    /// fields may stand between.
    fn fuse(&mut self, (stage, i): (&'p Stage, u32), cell: impl Fn(&str) -> Option<usize>) -> bool {
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
        let fused = given.and_then(|given| ops::fuse(ops, given));
        let Action::Transform { input, .. } = self.list[at].action else {
            ops.pop();
            return false;
        };
        let Some((name, kernel)) = fused else {
            ops.pop();
            return false;
        };
        let action = Action::Transform { input, output: input, kernel, to_row: false };
        self.list.remove(at);
        let chain = self.chains.remove(at);
        let ordinal = stage.ordinal;
        let step = Step { name, blame, stage: i, ordinal, size: None, follows: None, action };
        self.add(step, chain);
        true
    }
}

/// Whether `second` works on what `first` made, in place of it, and on nothing else.
fn is_chained(first: &Op, second: &Op) -> bool {
    let field = first.field();
    let alone = first.together().is_none_or(Fields::is_one);
    alone
        && field.is_some()
        && [first.output(), second.field(), second.output()].iter().all(|f| *f == field)
}

/// Height and width of an image, if all elements have the same.
fn known_size(field: &FieldSchema) -> Option<[usize; 2]> {
    match field.shape.as_slice() {
        [Some(height), Some(width), _] => Some([*height as usize, *width as usize]),
        _ => None,
    }
}
