//! `flat_map`: an element becomes as many as a field of it has items.

use super::element_wise;
use crate::{
    Cardinality, DType, Declaration, FieldSchema, PipelineError, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// Most items of one element: more would not have numbers of their own.
pub const MAX_ITEMS: u32 = 65_536;

/// `[n, ..shape]` in `field` -> n elements of `[..shape]`, in order; the other fields are repeated. As
/// `tf.data.Dataset.flat_map(Dataset.from_tensor_slices)`; no item, no element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlatMap {
    pub field: String,
}

impl Operator for FlatMap {
    const DECLARATION: Declaration = Declaration {
        cardinality: Cardinality::OneToMany,
        pins_position: true,
        ..element_wise("flat_map", 1)
    };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        Ok(FlatMap { field: params.text("field", field)? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("flat_map", &self.field)?;
        let items = input.shape.split_first().filter(|_| input.item_bytes().is_some());
        let Some((_, item)) = items.filter(|_| input.dtype != DType::Bytes) else {
            return Err(format!(
                "`flat_map` needs a list of items of one shape, but `{}` is {input}{}",
                self.field,
                flow.origin(&self.field)
            ));
        };
        let output = FieldSchema { shape: item.to_vec(), ..input.clone() };
        flow.write("flat_map", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
