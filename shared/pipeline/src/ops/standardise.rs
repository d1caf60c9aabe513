//! `standardise`: each image gets mean 0 and variance 1.

use super::element_wise;
use crate::{
    DType, Declaration, FieldSchema, PipelineError, flow::Flow, op::Operator, table::Table,
};
use serde::Serialize;

/// u8 or f32 `[h, w, 1 or 3]` -> f32 of the same shape: (x - mean) / max(deviation, 1 / sqrt(n)) with the
/// mean and deviation of all n values of the image. As `tf.image.per_image_standardization`, within 1e-4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standardise {
    pub field: String,
}

impl Operator for Standardise {
    const DECLARATION: Declaration = element_wise("standardise", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(Standardise { field: params.field()? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.image_of("standardise", &self.field, &[DType::U8, DType::F32], &[1, 3])?;
        let output = FieldSchema { dtype: DType::F32, shape: input.shape.clone(), range: None };
        flow.write("standardise", &self.field, output);
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
