//! `filter`: elements that fail a test are left out.

use super::with_effect;
use crate::{
    Cardinality, DType, Declaration, Effect, Number, PipelineError,
    flow::Flow,
    node::{Node, Value},
    op::Operator,
    table::Table,
};
use serde::Serialize;

/// Most values of `in`.
const MAX_VALUES: usize = 65_536;

/// Keeps the elements whose `field` passes every test given. Of a number the tests look at its
/// value, of a sequence or byte string at its length. They compare in the field's own type: integers
/// exactly, floats with the number rounded to that type. A number that the type cannot hold is refused. Elements
/// left out are no errors and are not listed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filter {
    pub field: String,
    /// Smallest value or length kept.
    pub min: Option<Number>,
    /// Largest value or length kept.
    pub max: Option<Number>,
    /// Only these values or lengths are kept.
    #[serde(rename = "in")]
    pub one_of: Option<Vec<Number>>,
}

impl Operator for Filter {
    const DECLARATION: Declaration = Declaration {
        cardinality: Cardinality::Filter,
        ..with_effect("filter", 2, Effect::Select)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let mut bound = |key| match params.get(key) {
            Some(Node { value: Value::Null, .. }) | None => Ok(None),
            Some(node) => Number::parse(params, key, node).map(Some),
        };
        let (min, max) = (bound("min")?, bound("max")?);
        let one_of = match params.get("in") {
            Some(Node { value: Value::Null, .. }) | None => None,
            Some(node) => Some(values(params, node)?),
        };
        if min.is_none() && max.is_none() && one_of.is_none() {
            return Err(params.error("`filter` needs a test: `min`, `max` or `in`"));
        }
        Ok(Filter { field, min, max, one_of })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let field = flow.field("filter", &self.field)?;
        let measured = field.is_sequence() || field.shape.is_empty();
        if !measured || matches!(field.dtype, DType::F16 | DType::BF16) {
            return Err(format!(
                "`filter` tests a number, or the length of a sequence, but `{}` is {field}{}",
                self.field,
                flow.origin(&self.field)
            ));
        }
        for (key, number) in self.numbers() {
            number.fits(compared_dtype(field.is_sequence(), field.dtype)).map_err(|wanted| {
                let what = if field.is_sequence() { "the length of " } else { "" };
                let (name, origin) = (&self.field, flow.origin(&self.field));
                format!(
                    "`filter` `{key}` must be {wanted}, not {number}: it tests {what}`{name}`, which \
                     is {field}{origin}"
                )
            })?;
        }
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }

    fn output(&self) -> Option<&str> {
        None
    }
}

impl Filter {
    /// Every number it compares with, and the parameter that holds it.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, Number)> {
        let bounds = [("min", self.min), ("max", self.max)];
        let bounds = bounds.into_iter().filter_map(|(key, bound)| Some((key, bound?)));
        bounds.chain(self.one_of.iter().flatten().map(|number| ("in", *number)))
    }
}

/// The type in which values of `field` are compared, or their lengths.
pub const fn compared_dtype(is_sequence: bool, dtype: DType) -> DType {
    if is_sequence { DType::U32 } else { dtype }
}

fn values(params: &Table<'_>, node: &Node) -> Result<Vec<Number>, PipelineError> {
    match &node.value {
        Value::Seq(items) if (1..=MAX_VALUES).contains(&items.len()) => {
            items.iter().map(|item| Number::parse(params, "in", item)).collect()
        }
        _ => Err(node.error(format!("`filter` `in` must be a list of 1 to {MAX_VALUES} numbers"))),
    }
}
