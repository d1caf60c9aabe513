//! `one_hot`: the number of a class becomes a row of zeros with a one in its place.

use super::{CastDType, element_wise};
use crate::{
    Declaration, FieldSchema, PipelineError, ValueRange, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// Most classes.
const MAX_CLASSES: u32 = 1 << 24;

/// An integer scalar -> f32 or u8 `[classes]`. As `tf.one_hot`, but that a number outside 0 to `classes` - 1
/// is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OneHot {
    pub field: String,
    pub classes: u32,
    pub dtype: CastDType,
}

impl Operator for OneHot {
    const DECLARATION: Declaration = element_wise("one_hot", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let field = params.require("field")?;
        let field = params.text("field", field)?;
        let classes = params.require("classes")?;
        let classes = params.whole("classes", classes, 1..=MAX_CLASSES)?;
        let choices = [("f32", CastDType::F32), ("u8", CastDType::U8)];
        let dtype = match params.get("dtype") {
            Some(node) => params.choice("dtype", node, &choices)?,
            None => CastDType::F32,
        };
        Ok(OneHot { field, classes, dtype })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("one_hot", &self.field)?;
        if !input.shape.is_empty() || !input.dtype.is_integer() {
            let (field, origin) = (&self.field, flow.origin(&self.field));
            return Err(format!(
                "`one_hot` needs one whole number, but `{field}` is {input}{origin}"
            ));
        }
        let range = Some(ValueRange { min: 0.0, max: 1.0 });
        let output = FieldSchema::fixed(self.dtype.dtype(), [self.classes]);
        flow.write("one_hot", &self.field, FieldSchema { range, ..output });
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
