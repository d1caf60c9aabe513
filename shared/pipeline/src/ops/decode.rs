//! `decode`: an encoded image becomes pixels.

use super::{element_wise, image_size};
use crate::{
    DType, Declaration, FieldSchema, PipelineError, ValueRange, flow::Flow, op::Operator,
    table::Table,
};
use serde::Serialize;

/// bytes (JPEG, PNG or WebP, told apart by their first bytes) -> u8 `[h, w, 3]` RGB, 0 to 255; or grey
/// `[h, w, 1]`, weighed as Pillow's `convert("L")`. JPEG as libjpeg-turbo's accurate DCT with fancy
/// upsampling, within 1 of Pillow and TensorFlow; PNG and lossless WebP exactly; lossy WebP within 3 of
/// Pillow. Grey is repeated over the channels, transparency dropped, sixteen bits cut to eight. EXIF
/// orientation is left to the author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decode {
    pub field: String,
    /// Height and width that images typically have, for judging what the operators after it gain
    /// before any image was looked at. Changes no result.
    #[serde(skip)]
    pub typical_size: Option<[u32; 2]>,
    /// 3, or 1 for grey.
    #[serde(skip_serializing_if = "is_rgb")]
    pub channels: u32,
}

/// The default is not written: canonical forms are as they were before there was a choice.
fn is_rgb(channels: &u32) -> bool {
    *channels == 3
}

impl Operator for Decode {
    const DECLARATION: Declaration = element_wise("decode", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let typical_size = image_size(params, "typical_size")?;
        let channels = super::channels(params, 3)?;
        Ok(Decode { field: params.field()?, typical_size, channels })
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
        let shape = vec![None, None, Some(self.channels)];
        let range = Some(ValueRange::PIXELS);
        flow.write("decode", &self.field, FieldSchema { dtype: DType::U8, shape, range });
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        Some(&self.field)
    }
}
