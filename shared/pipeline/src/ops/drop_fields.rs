//! `drop`: fields that are not delivered.

use super::element_wise;
use crate::{
    Declaration, PipelineError,
    flow::Flow,
    node::{Node, Value, shown},
    op::Operator,
    table::Table,
};
use serde::Serialize;

/// Any element -> the same without `fields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropFields {
    pub fields: Vec<String>,
}

impl Operator for DropFields {
    const DECLARATION: Declaration = element_wise("drop", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let node: &Node = params.require("fields")?;
        let fields: Vec<String> = match &node.value {
            Value::Seq(items) if !items.is_empty() => {
                items.iter().map(|item| params.text("fields", item)).collect::<Result<_, _>>()?
            }
            _ => return Err(node.error("`drop` `fields` must be a list of field names")),
        };
        if let Some((_, twice)) =
            fields.iter().enumerate().find(|(i, field)| fields[..*i].contains(field))
        {
            return Err(node.error(format!("`drop` `fields` names {} twice", shown(twice))));
        }
        Ok(DropFields { fields })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        for field in &self.fields {
            flow.field("drop", field)?;
            flow.remove(field);
        }
        match flow.schema().fields.is_empty() {
            true => Err("`drop` leaves the element without fields".into()),
            false => Ok(()),
        }
    }

    fn field(&self) -> Option<&str> {
        None
    }
}
