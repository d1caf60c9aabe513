//! `layout`: channels last become channels first, or the other way round.

use super::element_wise;
use crate::{
    DType, Declaration, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// The order of an image's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// `[h, w, c]`, and so `[n, h, w, c]` in a batch.
    Nhwc,
    /// `[c, h, w]`, and so `[n, c, h, w]` in a batch.
    Nchw,
}

/// Numbers `[h, w, c]` -> `[c, h, w]` (`to: nchw`), or back (`to: nhwc`). Image operators take `[h, w, c]`
/// alone, so that this comes after them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    pub field: String,
    pub to: Order,
}

impl Operator for Layout {
    const DECLARATION: Declaration = element_wise("layout", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let choices = [
            ("nchw", Order::Nchw),
            ("chw", Order::Nchw),
            ("nhwc", Order::Nhwc),
            ("hwc", Order::Nhwc),
        ];
        let node = params.require("to")?;
        Ok(Layout { to: params.choice("to", node, &choices)?, field: params.field()? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("layout", &self.field)?;
        let of_channels = |c: Option<u32>| c.is_some_and(|c| (1..=4).contains(&c));
        let shape = match (self.to, input.shape.as_slice()) {
            (Order::Nchw, &[h, w, c]) if of_channels(c) => Some(vec![c, h, w]),
            (Order::Nhwc, &[c, h, w]) if of_channels(c) => Some(vec![h, w, c]),
            _ => None,
        };
        let Some(shape) = shape.filter(|_| input.dtype != DType::Bytes) else {
            let wanted = match self.to {
                Order::Nchw => "[h, w, c]",
                Order::Nhwc => "[c, h, w]",
            };
            let (field, origin) = (&self.field, flow.origin(&self.field));
            return Err(format!(
                "`layout` needs an image ({wanted} with 1 to 4 channels), but `{field}` is {input}{origin}"
            ));
        };
        let output = FieldSchema { shape, ..input.clone() };
        flow.write("layout", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
