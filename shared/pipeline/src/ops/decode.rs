//! `decode`: an encoded JPEG becomes pixels.

use super::{element_wise, image_size};
use crate::{
    DType, Declaration, FieldSchema, PipelineError, ValueRange, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// bytes (JPEG) -> u8 `[h, w, 3]` RGB, 0 to 255. As libjpeg-turbo's accurate DCT with fancy
/// upsampling; grayscale is repeated over the channels. EXIF orientation is left to the author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decode {
    pub field: String,
    /// Height and width that images typically have, for judging what the operators after it gain
    /// before any image was looked at. Changes no result.
    #[serde(skip)]
    pub typical_size: Option<[u32; 2]>,
}

impl Operator for Decode {
    const DECLARATION: Declaration = element_wise("decode", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let typical_size = image_size(params, "typical_size")?;
        Ok(Decode { field: params.field()?, typical_size })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        let input = flow.field("decode", &self.field)?;
        if input.dtype != DType::Bytes {
            return Err(format!(
                "`decode` needs bytes, but `{}` is {input}{}",
                self.field,
                flow.origin(&self.field)
            ));
        }
        let shape = vec![None, None, Some(3)];
        let range = Some(ValueRange::PIXELS);
        flow.write("decode", &self.field, FieldSchema { dtype: DType::U8, shape, range });
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
