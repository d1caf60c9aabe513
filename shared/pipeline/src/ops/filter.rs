//! `filter`: elements that fail a test are left out.

use super::with_effect;
use crate::{
    Cardinality, DType, Declaration, Effect, PipelineError,
    flow::Flow,
    node::{Node, Value},
    op::Operator,
    table::Table,
};
use serde::Serialize;

/// Most values of `in`.
const MAX_VALUES: usize = 65_536;

/// Keeps the elements whose `field` passes every test given. Of a number the tests look at its
/// value, of a sequence or byte string at its length. Elements left out are no errors and are not
/// listed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filter {
    pub field: String,
    /// Smallest value or length kept.
    pub min: Option<f64>,
    /// Largest value or length kept.
    pub max: Option<f64>,
    /// Only these values or lengths are kept.
    #[serde(rename = "in")]
    pub one_of: Option<Vec<f64>>,
}

impl Operator for Filter {
    const DECLARATION: Declaration = Declaration {
        cardinality: Cardinality::Filter,
        ..with_effect("filter", 1, Effect::Select)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let mut bound = |key| match params.get(key) {
            Some(Node { value: Value::Null, .. }) | None => Ok(None),
            Some(node) => params.number(key, node, f64::MIN..=f64::MAX).map(Some),
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
        match measured && !matches!(field.dtype, DType::F16 | DType::BF16) {
            true => Ok(()),
            false => Err(format!(
                "`filter` tests a number, or the length of a sequence, but `{}` is {field}{}",
                self.field,
                flow.origin(&self.field)
            )),
        }
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }

    fn output(&self) -> Option<&str> {
        None
    }
}

impl Filter {
    /// Whether an element of this value, or length, is kept. What is not a number is not.
    pub fn keeps(&self, value: f64) -> bool {
        let listed = |values: &Vec<f64>| values.contains(&value);
        self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
            && self.one_of.as_ref().is_none_or(listed)
    }
}

fn values(params: &Table<'_>, node: &Node) -> Result<Vec<f64>, PipelineError> {
    match &node.value {
        Value::Seq(items) if (1..=MAX_VALUES).contains(&items.len()) => {
            items.iter().map(|item| params.number("in", item, f64::MIN..=f64::MAX)).collect()
        }
        _ => Err(node.error(format!("`filter` `in` must be a list of 1 to {MAX_VALUES} numbers"))),
    }
}
