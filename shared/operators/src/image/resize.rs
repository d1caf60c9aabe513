//! `resize`: resizes an image to a given size, and `resize_shorter`: its shorter side to a given length.

use crate::prelude::*;

#[cfg(feature = "kernels")]
use crate::image::resize::kernel::{ImageWindow, ResizeImage};

/// u8 `[h, w, 1 or 3]` -> u8 `[size[0], size[1], c]`, bilinear. With `antialias` the triangle filter widens
/// and covers every source pixel, as in Pillow; without, the nearest four pixels count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resize {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: [u32; 2],
    pub antialias: bool,
}

impl OperatorDefinition for Resize {
    const DECLARATION: OperatorDeclaration =
        with_effect("resize", 1, OperatorEffect::Resample).costs(20_000, 1_500);

    const PARAMETERS: &'static [Parameter] = &with_fields::<12>(&[SIZE, ANTIALIAS], false);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size(params, "size")?;
        let antialias = params.read_flag("antialias")?;
        Ok(Resize { fields: ImageFields::parse(params)?, size, antialias })
    }
}

impl Operator for Resize {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        resized(flow, "resize", &self.fields, self.size)
    }

    moves_fields!(resize => OperatorGeometry::Resize(MaskResize::Size(resize.size)));

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let to = || MaskResize::Size(self.size);
        Ok(masks::or_resized(&self.fields, given, to, |channels| {
            let resize = kernel::ResizeImage::new(self.size, channels, self.antialias);
            transform(move |input, output, tools, _| {
                resize.resize(input, kernel::ImageWindow::whole(input.size), output, tools)
            })
        }))
    }
}

/// Infers the schema of images of which all have `size` afterwards.
pub(crate) fn resized(
    flow: &mut SchemaFlow,
    op: &'static str,
    fields: &ImageFields,
    size: [u32; 2],
) -> Result<(), String> {
    let [height, width] = size.map(Some);
    fields.infer(op, flow, &[FieldDType::U8], |given| {
        let shape = vec![height, width, given.schema.shape[2]];
        Ok(FieldSchema { shape, ..given.schema.clone() })
    })
}

/// u8 `[h, w, 1 or 3]` -> u8 `[h', w', c]`, resized as by `resize`. The shorter side becomes `size`, the
/// longer one `size * longer / shorter`, rounded down. As torchvision's `Resize` with one number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResizeShorter {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: u32,
    pub antialias: bool,
}

impl OperatorDefinition for ResizeShorter {
    const DECLARATION: OperatorDeclaration =
        with_effect("resize_shorter", 1, OperatorEffect::Resample).costs(20_000, 1_500);

    const PARAMETERS: &'static [Parameter] = &with_fields::<12>(
        &[required("size", from_to(1, MAX_SIDE), "The shorter side in pixels."), ANTIALIAS],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = params.read_whole("size")?;
        let antialias = params.read_flag("antialias")?;
        Ok(ResizeShorter { fields: ImageFields::parse(params)?, size, antialias })
    }
}

impl Operator for ResizeShorter {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("resize_shorter", flow, &[FieldDType::U8], |given| {
            let input = given.schema;
            let mut shape = vec![None, None, input.shape[2]];
            if let [Some(height), Some(width), _] = input.shape[..] {
                let size = self.output_size([height, width])?;
                (shape[0], shape[1]) = (Some(size[0]), Some(size[1]));
            }
            Ok(FieldSchema { shape, ..input.clone() })
        })
    }

    moves_fields!(resize => OperatorGeometry::Resize(MaskResize::Shorter(resize.clone())));

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let to = || MaskResize::Shorter(self.clone());
        let op = self.clone();
        Ok(masks::or_resized(&self.fields, given, to, |channels| {
            transform(move |input, output, tools, _| {
                let size = op.output_size(input.size.map(|side| side as u32))?;
                let resize = ResizeImage::new(size, channels, op.antialias);
                resize.resize(input, ImageWindow::whole(input.size), output, tools)
            })
        }))
    }
}

impl ResizeShorter {
    /// Height and width of the output; an error if a side exceeds the limit.
    pub fn output_size(&self, [height, width]: [u32; 2]) -> Result<[u32; 2], String> {
        let (shorter, longer) = (height.min(width).max(1), height.max(width));
        let long = u64::from(self.size) * u64::from(longer) / u64::from(shorter);
        let long = u32::try_from(long).ok().filter(|long| *long <= MAX_SIDE);
        let long = long.ok_or_else(|| {
            format!("{width} x {height} resized would be longer than {MAX_SIDE} pixels")
        })?;
        Ok(if height <= width { [self.size, long] } else { [long, self.size] })
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use fast_image_resize::{
        FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer,
        images::{TypedCroppedImage, TypedImage, TypedImageRef},
        pixels::{U8, U8x3},
    };
    use gristmill_kernel::*;

    /// A rectangle of pixels inside an image.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ImageWindow {
        pub(crate) left: u32,
        pub(crate) top: u32,
        pub(crate) width: u32,
        pub(crate) height: u32,
    }

    impl ImageWindow {
        pub(crate) fn whole(size: [usize; 2]) -> Self {
            let [height, width] = size.map(|side| side as u32);
            ImageWindow { left: 0, top: 0, width, height }
        }
    }

    /// u8 `[h, w, 1 or 3]` -> u8 `[size[0], size[1], c]`, the whole image or a window of it.
    #[derive(Debug)]
    pub(crate) struct ResizeImage {
        size: [u32; 2],
        channels: usize,
        options: ResizeOptions,
    }

    impl ResizeImage {
        pub(crate) fn new(size: [u32; 2], channels: usize, antialias: bool) -> Self {
            let algorithm = if antialias {
                ResizeAlg::Convolution(FilterType::Bilinear)
            } else {
                ResizeAlg::Interpolation(FilterType::Bilinear)
            };
            ResizeImage { size, channels, options: ResizeOptions::new().resize_alg(algorithm) }
        }

        /// Resizes `window` of the image; pixels outside the window have no influence.
        pub(crate) fn resize(
            &self,
            input: ValueView<'_>,
            window: ImageWindow,
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
        ) -> Result<OutputSize, String> {
            // Typed, because the untyped call links the resizer's code for every pixel type.
            match self.channels {
                1 => self.resize_typed::<U8>(input, window, output, tools),
                _ => self.resize_typed::<U8x3>(input, window, output, tools),
            }
        }

        fn resize_typed<P: PixelTrait>(
            &self,
            input: ValueView<'_>,
            window: ImageWindow,
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
        ) -> Result<OutputSize, String> {
            let [height, width] = input.size.map(|side| side as u32);
            let [out_height, out_width] = self.size;
            let bytes = out_height as usize * out_width as usize * size_of::<P>();
            let image = TypedImageRef::<P>::from_buffer(width, height, input.bytes)
                .map_err(|error| format!("cannot resize: {error}"))?;
            let ImageWindow { left, top, width, height } = window;
            let image = TypedCroppedImage::from_ref(&image, left, top, width, height)
                .map_err(|error| format!("cannot crop: {error}"))?;
            let output = output.take(bytes)?;
            TypedImage::<P>::from_buffer(out_width, out_height, output)
                .map_err(|error| error.to_string())
                .and_then(|mut output| {
                    let resized = tools.state.get::<Resizer>().resize_typed(
                        &image,
                        &mut output,
                        &self.options,
                    );
                    resized.map_err(|error| error.to_string())
                })
                .map_err(|error| format!("cannot resize: {error}"))?;
            Ok(OutputSize { bytes, size: [out_height as usize, out_width as usize] })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        use fast_image_resize::CpuExtensions;

        fn picture(width: usize, height: usize) -> Vec<u8> {
            (0..width * height * 3).map(|i| ((i * 7 + i / 291 * 31) % 256) as u8).collect()
        }

        /// Workers of one numerics class may differ in their vector units.
        #[test]
        fn resizing_does_not_depend_on_vector_units() {
            let (width, height) = (97, 61);
            let pixels = picture(width, height);
            let resized = |extensions: CpuExtensions, antialias: bool, side: u32| {
                let mut resizer = Resizer::new();
                // Sound only for extensions that the processor has, which is checked below.
                #[allow(unsafe_code)]
                unsafe {
                    resizer.set_cpu_extensions(extensions);
                }
                let mut tools = KernelScratch::default();
                *tools.state.get() = resizer;
                let kernel = ResizeImage::new([side, side], 3, antialias);
                let mut out = Vec::new();
                let view = ValueView { bytes: &pixels, size: [height, width] };
                let window = ImageWindow::whole(view.size);
                kernel.resize(view, window, KernelOutput::Buffer(&mut out), &mut tools).unwrap();
                out
            };
            let mut available = vec![CpuExtensions::None];
            #[cfg(target_arch = "x86_64")]
            available.extend([CpuExtensions::Sse4_1, CpuExtensions::Avx2]);
            #[cfg(target_arch = "aarch64")]
            available.push(CpuExtensions::Neon);
            available.retain(CpuExtensions::is_supported);
            for antialias in [true, false] {
                for side in [16, 24, 61, 150] {
                    let all: Vec<Vec<u8>> =
                        available.iter().map(|e| resized(*e, antialias, side)).collect();
                    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{antialias} {side}");
                }
            }
        }
    }
}
