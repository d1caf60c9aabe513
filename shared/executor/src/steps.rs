//! Operators as steps: those that are cheaper as one become one.

use crate::{
    Compiler, ExecError, ops,
    step::{Action, Step},
};
use gristmill_pipeline::{FieldSchema, Op, Schema, Stage};

/// The steps so far.
pub(crate) struct Steps<'p> {
    compiler: &'p Compiler<'p>,
    pub(crate) list: Vec<Step>,
    /// The operators that the last step consists of, and what the first of them is given.
    last: Vec<&'p Op>,
    given: Option<&'p FieldSchema>,
}

impl<'p> Steps<'p> {
    pub(crate) fn new(compiler: &'p Compiler<'p>) -> Self {
        Steps { compiler, list: Vec::new(), last: Vec::new(), given: None }
    }

    /// A step that is no operator on fields.
    pub(crate) fn push(&mut self, step: Step) {
        self.list.push(step);
        self.interrupt();
    }

    /// What comes next is not one with what came before.
    pub(crate) fn interrupt(&mut self) {
        self.last.clear();
    }

    /// The operator of `stage`, index `i` of its pipeline, on elements of schema `input`; `cell` finds
    /// the cell of a field.
    pub(crate) fn operator(
        &mut self,
        (stage, i): (&'p Stage, u32),
        input: &'p Schema,
        cell: impl Fn(&str) -> Option<usize>,
    ) -> Result<(), ExecError> {
        if self.compiler.fuse && self.fuse((stage, i)) {
            return Ok(());
        }
        let action = ops::compile(&stage.op, input, cell, self.compiler)?;
        self.given = stage.op.field().and_then(|name| input.field(name));
        let size = self.given.and_then(known_size);
        let (name, ordinal) = (self.compiler.name(&stage.op), stage.ordinal);
        self.list.push(Step { name, blame: name, stage: i, ordinal, size, action });
        self.last = vec![&stage.op];
        Ok(())
    }

    /// Makes the operator a part of the last step, if that is cheaper.
    fn fuse(&mut self, (stage, i): (&'p Stage, u32)) -> bool {
        let Some(before) = self.last.last().filter(|before| is_chained(before, &stage.op)) else {
            return false;
        };
        let blame = before.name();
        self.last.push(&stage.op);
        let fused = self.given.and_then(|given| ops::fuse(&self.last, given));
        if let Some((name, kernel)) = fused
            && let Some(Step { action: Action::Transform { input, .. }, .. }) = self.list.last()
        {
            let action = Action::Transform { input: *input, output: *input, kernel, to_row: false };
            self.list.pop();
            let ordinal = stage.ordinal;
            self.list.push(Step { name, blame, stage: i, ordinal, size: None, action });
            return true;
        }
        self.last.pop();
        false
    }
}

/// Whether `second` works on what `first` made, in place of it.
fn is_chained(first: &Op, second: &Op) -> bool {
    let field = first.field();
    field.is_some() && [first.output(), second.field(), second.output()].iter().all(|f| *f == field)
}

/// Height and width of an image, if all elements have the same.
fn known_size(field: &FieldSchema) -> Option<[usize; 2]> {
    match field.shape.as_slice() {
        [Some(height), Some(width), _] => Some([*height as usize, *width as usize]),
        _ => None,
    }
}
