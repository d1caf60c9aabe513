//! `decode`: decodes an image to pixels.

use crate::prelude::*;

/// bytes (JPEG, PNG, WebP, BMP, GIF, TIFF, PGM or PPM, by their first bytes) -> u8 `[h, w, 3]` RGB, 0 to 255; or
/// grey `[h, w, 1]`, weighted as in Pillow's `convert("L")`.
///
/// JPEG uses libjpeg-turbo's accurate DCT with fancy upsampling, within 1 of Pillow and TensorFlow. Lossy
/// WebP is within 3 of Pillow. PNG, lossless WebP, BMP, GIF (its first frame), TIFF (grey, RGB, palette or
/// CMYK; plain, PackBits, LZW or deflate), PGM and PPM are exact. Grey is repeated over the channels,
/// transparency is dropped, and sixteen bits are cut to eight. EXIF orientation is applied on request.
///
/// With `mode: indices`, bytes (PNG, BMP, GIF or TIFF with a palette; grey PNG, BMP, TIFF or PGM) -> u8 or u16
/// `[h, w, 1]`: the stored class numbers, not the palette's colours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decode {
    pub field: String,
    #[serde(skip)]
    pub typical_size: Option<[u32; 2]>,
    #[serde(skip_serializing_if = "is_rgb")]
    pub channels: u32,
    #[serde(skip_serializing_if = "is_colours")]
    pub mode: DecodeMode,
    #[serde(skip_serializing_if = "is_u8")]
    pub dtype: FieldDType,
    /// Turn the image upright, as its EXIF orientation says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub apply_exif_orientation: bool,
}

/// Meaning of the decoded values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeMode {
    Colours,
    /// Class numbers of a mask: the stored palette indices or grey values.
    Indices,
}

/// The default is not serialised, so canonical forms (and fingerprints) match those of older versions.
fn is_rgb(channels: &u32) -> bool {
    *channels == 3
}

fn is_colours(mode: &DecodeMode) -> bool {
    *mode == DecodeMode::Colours
}

fn is_u8(dtype: &FieldDType) -> bool {
    *dtype == FieldDType::U8
}

impl OperatorDefinition for Decode {
    const DECLARATION: OperatorDeclaration = element_wise("decode", 1).costs(20_000, 10_000);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        or("channels", CHANNELS, "3", "3, or 1 for grey; always 1 with `mode: indices`."),
        or(
            "mode",
            ParameterKind::Choice(&["colours", "indices"]),
            "colours",
            "`colours`, or `indices` for masks.",
        ),
        or("dtype", ParameterKind::Choice(&["u8", "u16"]), "u8", "Of `mode: indices`: u8 or u16."),
        or(
            "apply_exif_orientation",
            ParameterKind::Bool,
            "false",
            "Turn the image upright, as the EXIF orientation of a JPEG, PNG, WebP or TIFF says. As Pillow's `ImageOps.exif_transpose`.",
        ),
        absent(
            "typical_size",
            IMAGE_SIZE,
            "Height and width that images typically have, for judging what the operators after it gain before any image was looked at. Changes no result, unless `auto_order` is `pecan`.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let typical_size = optional_size(params, "typical_size")?;
        let modes = [DecodeMode::Colours, DecodeMode::Indices];
        let mode = params.read_choice("mode", &modes)?;
        let channels = match (mode, params.get("channels")) {
            (DecodeMode::Indices, None) => 1,
            _ => channels(params)?,
        };
        if mode == DecodeMode::Indices && channels != 1 {
            return Err(params.error("`decode` makes one channel of indices: leave `channels` out"));
        }
        let dtype = params.read_choice("dtype", &[FieldDType::U8, FieldDType::U16])?;
        if mode == DecodeMode::Colours && dtype != FieldDType::U8 {
            let node = params.require("dtype")?;
            return Err(params.wrong("dtype", node, FieldDType::U8.name()));
        }
        let apply_exif_orientation = params.read_flag("apply_exif_orientation")?;
        let field = params.field()?;
        Ok(Decode { field, typical_size, channels, mode, dtype, apply_exif_orientation })
    }
}

impl Operator for Decode {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("decode", &self.field)?;
        if input.dtype != FieldDType::Bytes {
            return Err(flow.needs("decode", "bytes", &self.field));
        }
        let shape = vec![None, None, Some(self.channels)];
        let range = (self.dtype == FieldDType::U8).then_some(ValueRange::PIXELS);
        flow.write("decode", &self.field, FieldSchema { dtype: self.dtype, shape, range });
        flow.set_mask(&self.field, self.mode == DecodeMode::Indices);
        Ok(())
    }

    replaces_field!();

    fn typical_bytes(&self) -> Option<f64> {
        self.typical_size.map(|[height, width]| f64::from(height) * f64::from(width) * 3.0)
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        input.field()?;
        let Decode { channels, mode, dtype, apply_exif_orientation, .. } = *self;
        let pixel_bytes = channels as usize * crate::kernels::dtype_bytes(dtype);
        Ok(transform(move |input, output, tools, _| {
            let bytes = input.bytes;
            let orientation =
                if apply_exif_orientation { kernel::exif::orientation(bytes) } else { 1 };
            kernel::exif::upright(orientation, pixel_bytes, output, |output| {
                match (mode, channels) {
                    (DecodeMode::Indices, _) => {
                        kernel::indices::decode(bytes, dtype, output, &mut tools.pixels)
                    }
                    (DecodeMode::Colours, 3) => kernel::decode(bytes, output, tools),
                    (DecodeMode::Colours, _) => kernel::decode_grey(bytes, output, tools),
                }
            })
        }))
    }

    #[cfg(feature = "kernels")]
    fn fuse(&self, then: &[&dyn Operator], _: &FieldSchema) -> Option<FusedKernel> {
        let [next] = then else { return None };
        let crop = next.downcast_ref::<RandomResizedCrop>()?;
        if self.channels != 3 || crop.fields.first_is_mask() {
            return None;
        }
        use crate::image::random_resized_crop::kernel::{CropAndResize, rgb};
        let crop = CropAndResize::new(crop, &rgb());
        let kernel = crate::kernels::fused::DecodeAndCrop::new(crop, self.apply_exif_orientation);
        Some(("decode+random_resized_crop", Box::new(kernel)))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel;
