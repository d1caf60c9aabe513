//! Fused kernels: `decode` with `random_resized_crop`, which decodes the window alone, and `normalise` with `layout` and
//! `cast`, which writes the input of a network in one pass.

use crate::{
    image::{
        decode::kernel::{checked_size, decode, decode_jpeg_by_library, exif},
        random_resized_crop::kernel::CropAndResize,
        resize::kernel::ImageWindow,
    },
    kernels::planes::{BLOCK, vectorised},
    prelude::*,
};

use gristmill_jpeg::{JpegDecoder, JpegHeaders};
use gristmill_kernel::*;
use half::{bf16, f16, slice::HalfFloatSliceExt};

/// bytes (JPEG) -> u8 `[size[0], size[1], 3]`.
#[derive(Debug)]
pub(crate) struct DecodeAndCrop {
    crop: CropAndResize,
    apply_exif_orientation: bool,
}

impl DecodeAndCrop {
    pub(crate) fn new(crop: CropAndResize, apply_exif_orientation: bool) -> Self {
        DecodeAndCrop { crop, apply_exif_orientation }
    }

    /// Decodes the whole image first, for formats that cannot be decoded by window, and images to be turned.
    fn whole(
        &self,
        bytes: &[u8],
        orientation: u8,
        image: &mut Vec<u8>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let buffer = KernelOutput::Buffer(image);
        let OutputSize { bytes, size } =
            exif::upright(orientation, 3, buffer, |output| decode(bytes, output, tools))?;
        tools.source = size;
        self.crop.run(ValueView { bytes: &image[..bytes], size }, output, tools, draw)
    }

    /// Decodes only the window and resizes it.
    fn window(
        &self,
        jpeg: &[u8],
        frame: &JpegHeaders<'_>,
        image: &mut Vec<u8>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let size = checked_size("JPEG", frame.height as u64, frame.width as u64)?;
        tools.source = size;
        let window = self.crop.window(size, draw);
        let range = |start: u32, length: u32| start as usize..(start + length) as usize;
        let (x, y) = (range(window.left, window.width), range(window.top, window.height));
        let size = [y.len(), x.len()];
        let rgb = KernelOutput::Buffer(image).take(x.len() * y.len() * 3)?;
        if tools.state.get::<JpegDecoder>().decode(frame, x, y, rgb).is_some() {
            let window = ImageWindow { left: 0, top: 0, ..window };
            return self.crop.resize.resize(ValueView { bytes: rgb, size }, window, output, tools);
        }
        let OutputSize { bytes, size } =
            decode_jpeg_by_library(jpeg, KernelOutput::Buffer(image), tools)?;
        if size != [frame.height, frame.width] {
            return Err("bad JPEG: its header and its image differ in size".into());
        }
        self.crop.resize.resize(ValueView { bytes: &image[..bytes], size }, window, output, tools)
    }
}

impl TransformKernel for DecodeAndCrop {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let mut image = std::mem::take(&mut tools.image);
        let bytes = input.bytes;
        let orientation = if self.apply_exif_orientation { exif::orientation(bytes) } else { 1 };
        let made = match JpegHeaders::find(bytes) {
            Some(frame) if orientation == 1 => {
                self.window(bytes, &frame, &mut image, output, tools, draw)
            }
            _ => self.whole(bytes, orientation, &mut image, output, tools, draw),
        };
        tools.image = image;
        made
    }
}

// `normalise`, `layout` and `cast` fused: the network's input is written in one pass.

/// u8 or f32 `[h, w, 1 or 3]` -> f32, f16 or bf16 of that shape or, with `planes`, `[1 or 3, h, w]`.
/// The bytes equal those of the operators run one after the other.
#[derive(Debug)]
pub(crate) struct NetworkInput {
    /// Per channel: `x * factor + addend`.
    affine: Vec<(f32, f32)>,
    input: FieldDType,
    planes: bool,
    output: Float,
}

#[derive(Clone, Copy, Debug)]
enum Float {
    F32,
    F16,
    BF16,
}

impl NetworkInput {
    /// Fuses a `normalise` with the operators `then`; none unless they are at most one `layout` and at most
    /// one `cast` to floats.
    pub(crate) fn new(op: &Normalise, then: &[&dyn Operator], input: &FieldSchema) -> Option<Self> {
        let (mut planes, mut output) = (None, None);
        for op in then {
            match (op.downcast_ref::<Layout>(), op.downcast_ref::<Cast>()) {
                (Some(layout), _) if planes.is_none() => {
                    planes = Some(layout.to == DimensionOrder::Nchw)
                }
                (_, Some(cast)) if output.is_none() => {
                    output = Some(Float::from_dtype(cast.dtype)?)
                }
                _ => return None,
            }
        }
        Some(NetworkInput {
            affine: op.affine(),
            input: input.dtype,
            planes: planes.unwrap_or(false),
            output: output.unwrap_or(Float::F32),
        })
    }

    /// Normalises channel `c` of the pixels in `from`, which have `C` channels each.
    #[inline(always)]
    fn channel<const C: usize>(&self, c: usize, from: &[u8], to: &mut [f32]) {
        let (factor, addend) = self.affine[c];
        match self.input {
            FieldDType::U8 => vectorised(|| {
                for (pixel, to) in from.as_chunks::<C>().0.iter().zip(to) {
                    *to = f32::from(pixel[c]) * factor + addend;
                }
            }),
            _ => vectorised(|| {
                let values = from.as_chunks::<4>().0.as_chunks::<C>().0;
                for (pixel, to) in values.iter().zip(to) {
                    *to = f32::from_le_bytes(pixel[c]) * factor + addend;
                }
            }),
        }
    }

    fn planes<const C: usize>(&self, from: &[u8], out: &mut [u8]) {
        let value_bytes = crate::kernels::dtype_bytes(self.input);
        let plane_bytes = (out.len() / C).max(1);
        let mut block = [0_f32; BLOCK];
        for (i, pixels) in from.chunks(BLOCK * C * value_bytes).enumerate() {
            let values = &mut block[..pixels.len() / (C * value_bytes)];
            for (c, plane) in out.chunks_exact_mut(plane_bytes).enumerate().take(C) {
                self.channel::<C>(c, pixels, values);
                let start = i * BLOCK * self.output.bytes();
                self.output.write(values, &mut plane[start..]);
            }
        }
    }

    /// Writes pixels with channels last.
    fn pixels<const C: usize>(&self, from: &[u8], out: &mut [u8]) {
        let value_bytes = crate::kernels::dtype_bytes(self.input);
        let mut block = [0_f32; BLOCK * 3];
        let mut channel = [0_f32; BLOCK];
        for (i, pixels) in from.chunks(BLOCK * C * value_bytes).enumerate() {
            let count = pixels.len() / (C * value_bytes);
            for c in 0..C {
                self.channel::<C>(c, pixels, &mut channel[..count]);
                for (value, to) in channel[..count].iter().zip(block.as_chunks_mut::<C>().0) {
                    to[c] = *value;
                }
            }
            let start = i * BLOCK * C * self.output.bytes();
            self.output.write(&block[..count * C], &mut out[start..]);
        }
    }
}

impl Float {
    fn from_dtype(dtype: FieldDType) -> Option<Self> {
        match dtype {
            FieldDType::F32 => Some(Float::F32),
            FieldDType::F16 => Some(Float::F16),
            FieldDType::BF16 => Some(Float::BF16),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::BF16 => 2,
        }
    }

    /// Writes at most a block of values, rounded to nearest, ties to even, as `cast` does.
    fn write(self, values: &[f32], out: &mut [u8]) {
        match self {
            Float::F32 => {
                for (value, to) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                    *to = value.to_le_bytes();
                }
            }
            Float::F16 => {
                let mut halves = [f16::ZERO; BLOCK * 3];
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                for (value, to) in halves.iter().zip(out.as_chunks_mut::<2>().0) {
                    *to = value.to_le_bytes();
                }
            }
            Float::BF16 => {
                for (value, to) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                    *to = bf16::from_f32(*value).to_le_bytes();
                }
            }
        }
    }
}

impl TransformKernel for NetworkInput {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        _: &mut KernelScratch,
        _: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let ValueView { bytes, size } = input;
        let made = bytes.len() / crate::kernels::dtype_bytes(self.input) * self.output.bytes();
        let out = output.take(made)?;
        match (self.planes, self.affine.len()) {
            (true, 3) => self.planes::<3>(bytes, out),
            (false, 3) => self.pixels::<3>(bytes, out),
            // With one channel both layouts are the same.
            _ => self.pixels::<1>(bytes, out),
        }
        Ok(OutputSize { bytes: made, size })
    }
}
