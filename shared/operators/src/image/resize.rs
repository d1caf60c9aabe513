//! `resize`: resizes an image to a given size, and `resize_shorter`: its shorter side to a given length.

use crate::prelude::*;

#[cfg(feature = "kernels")]
use crate::image::resize::kernel::{ImageWindow, ResizeImage};

/// Weights of the source pixels of a resized image. With `antialias` they widen and cover every source
/// pixel, as in Pillow; without, the nearest 4 pixels (bilinear) or 16 (bicubic) count, as in torch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ResizeFilter {
    pub antialias: bool,
    #[serde(skip_serializing_if = "PixelInterpolation::is_bilinear")]
    pub interpolation: PixelInterpolation,
}

/// Curve of the weights. Bicubic is Keys' with parameter -0.5, or -0.75 without `antialias`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PixelInterpolation {
    Bilinear,
    Bicubic,
}

impl PixelInterpolation {
    fn is_bilinear(&self) -> bool {
        *self == PixelInterpolation::Bilinear
    }
}

/// The parameter `interpolation` of operators that resize.
pub(crate) const RESIZE_INTERPOLATION: Parameter = or(
    "interpolation",
    ParameterKind::Choice(&["bilinear", "bicubic"]),
    "bilinear",
    "How pixels are weighed; bicubic is sharper, and takes eight times as long.",
);

impl ResizeFilter {
    pub(crate) fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let interpolations = [PixelInterpolation::Bilinear, PixelInterpolation::Bicubic];
        Ok(ResizeFilter {
            antialias: params.read_flag("antialias")?,
            interpolation: params.read_choice("interpolation", &interpolations)?,
        })
    }

    /// The range after resizing. Bicubic weights may be negative.
    fn range(self, input: &FieldSchema) -> Option<ValueRange> {
        match (self.interpolation, input.dtype) {
            (PixelInterpolation::Bilinear, _) => input.range,
            (_, FieldDType::U8) => Some(ValueRange::PIXELS),
            _ => None,
        }
    }

    /// The cost of resizing, which by bilinear is `cost`.
    pub(crate) fn cost(self, cost: DeclaredCost) -> DeclaredCost {
        match self.interpolation {
            PixelInterpolation::Bilinear => cost,
            PixelInterpolation::Bicubic => DeclaredCost { byte_ps: 8 * cost.byte_ps, ..cost },
        }
    }
}

/// Images `[h, w, 1 or 3]` of u8 or f32 -> the same dtype, `[size[0], size[1], c]`. Bicubic equals
/// Pillow's `BICUBIC` (13 resizes some tall images along columns first, which rounds otherwise); without
/// `antialias`, torchvision's within 1 (2 in 1 of 1,000 values) for u8, and within 1e-5 of the largest value
/// for f32. Bilinear u8 is within 1 of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resize {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: [u32; 2],
    #[serde(flatten)]
    pub filter: ResizeFilter,
}

impl OperatorDefinition for Resize {
    const DECLARATION: OperatorDeclaration =
        with_effect("resize", 1, OperatorEffect::Resample).costs(20_000, 1_500);

    const PARAMETERS: &'static [Parameter] =
        &with_fields::<13>(&[SIZE, ANTIALIAS, RESIZE_INTERPOLATION], false);

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = size(params, "size")?;
        let filter = ResizeFilter::parse(params)?;
        Ok(Resize { fields: ImageFields::parse(params)?, size, filter })
    }
}

impl Operator for Resize {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        resized(flow, "resize", &self.fields, self.size, self.filter)
    }

    fn cost(&self) -> DeclaredCost {
        self.filter.cost(Self::DECLARATION.cost)
    }

    moves_fields!(resize => OperatorGeometry::Resize(MaskResize::Size(resize.size)));

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let to = || MaskResize::Size(self.size);
        Ok(masks::or_resized(&self.fields, given, to, || {
            let resize = kernel::ResizeImage::new(self.size, given, self.filter);
            transform(move |input, output, tools, _| {
                resize.resize(input, kernel::ImageWindow::whole(input.size), output, tools)
            })
        }))
    }
}

/// Dtypes of images that can be resized.
const RESIZABLE: &[FieldDType] = &[FieldDType::U8, FieldDType::F32];

/// Infers the schema of images of which all have `size` afterwards.
pub(crate) fn resized(
    flow: &mut SchemaFlow,
    op: &'static str,
    fields: &ImageFields,
    size: [u32; 2],
    filter: ResizeFilter,
) -> Result<(), String> {
    let [height, width] = size.map(Some);
    fields.infer(op, flow, RESIZABLE, |given| {
        let shape = vec![height, width, given.schema.shape[2]];
        Ok(FieldSchema { dtype: given.schema.dtype, shape, range: filter.range(given.schema) })
    })
}

/// u8 or f32 `[h, w, 1 or 3]` -> the same dtype, `[h', w', c]`, resized as by `resize`. The shorter side becomes `size`, the
/// longer one `size * longer / shorter`, rounded down. As torchvision's `Resize` with one number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResizeShorter {
    #[serde(flatten)]
    pub fields: ImageFields,
    pub size: u32,
    #[serde(flatten)]
    pub filter: ResizeFilter,
}

impl OperatorDefinition for ResizeShorter {
    const DECLARATION: OperatorDeclaration =
        with_effect("resize_shorter", 1, OperatorEffect::Resample).costs(20_000, 1_500);

    const PARAMETERS: &'static [Parameter] = &with_fields::<13>(
        &[
            required("size", from_to(1, MAX_SIDE), "The shorter side in pixels."),
            ANTIALIAS,
            RESIZE_INTERPOLATION,
        ],
        false,
    );

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let size = params.read_whole("size")?;
        let filter = ResizeFilter::parse(params)?;
        Ok(ResizeShorter { fields: ImageFields::parse(params)?, size, filter })
    }
}

impl Operator for ResizeShorter {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        self.fields.infer("resize_shorter", flow, RESIZABLE, |given| {
            let input = given.schema;
            let mut shape = vec![None, None, input.shape[2]];
            if let [Some(height), Some(width), _] = input.shape[..] {
                let size = self.output_size([height, width])?;
                (shape[0], shape[1]) = (Some(size[0]), Some(size[1]));
            }
            Ok(FieldSchema { dtype: input.dtype, shape, range: self.filter.range(input) })
        })
    }

    fn cost(&self) -> DeclaredCost {
        self.filter.cost(Self::DECLARATION.cost)
    }

    moves_fields!(resize => OperatorGeometry::Resize(MaskResize::Shorter(resize.clone())));

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let to = || MaskResize::Shorter(self.clone());
        let (op, given) = (self.clone(), given.clone());
        Ok(masks::or_resized(&self.fields, &given.clone(), to, || {
            transform(move |input, output, tools, _| {
                let size = op.output_size(input.size.map(|side| side as u32))?;
                let resize = ResizeImage::new(size, &given, op.filter);
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
    use super::*;
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

    /// u8 or f32 `[h, w, 1 or 3]` -> the same of `[size[0], size[1], c]`, the whole image or a window of it.
    #[derive(Debug)]
    pub(crate) struct ResizeImage {
        size: [u32; 2],
        channels: usize,
        method: ResizeMethod,
    }

    #[derive(Debug)]
    enum ResizeMethod {
        /// The library's, which is the fastest: u8 by bilinear.
        Library(ResizeOptions),
        Weights(ResizeFilter, FieldDType),
    }

    impl ResizeImage {
        pub(crate) fn new(size: [u32; 2], given: &FieldSchema, filter: ResizeFilter) -> Self {
            let algorithm = if filter.antialias {
                ResizeAlg::Convolution(FilterType::Bilinear)
            } else {
                ResizeAlg::Interpolation(FilterType::Bilinear)
            };
            let method = match (filter.interpolation, given.dtype) {
                (PixelInterpolation::Bilinear, FieldDType::U8) => {
                    ResizeMethod::Library(ResizeOptions::new().resize_alg(algorithm))
                }
                (_, dtype) => ResizeMethod::Weights(filter, dtype),
            };
            ResizeImage { size, channels: channels_of(given), method }
        }

        /// Resizes `window` of the image; pixels outside the window have no influence.
        pub(crate) fn resize(
            &self,
            input: ValueView<'_>,
            window: ImageWindow,
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
        ) -> Result<OutputSize, String> {
            let (size, channels) = (self.size.map(|side| side as usize), self.channels);
            // Typed, because the untyped call links the resizer's code for every pixel type.
            match &self.method {
                ResizeMethod::Library(options) if channels == 1 => {
                    self.resize_typed::<U8>(input, window, output, tools, options)
                }
                ResizeMethod::Library(options) => {
                    self.resize_typed::<U8x3>(input, window, output, tools, options)
                }
                ResizeMethod::Weights(filter, FieldDType::U8) => {
                    filter.resize::<u8>(input, window, size, channels, output, tools)
                }
                ResizeMethod::Weights(filter, _) => {
                    filter.resize::<f32>(input, window, size, channels, output, tools)
                }
            }
        }

        fn resize_typed<P: PixelTrait>(
            &self,
            input: ValueView<'_>,
            window: ImageWindow,
            output: KernelOutput<'_>,
            tools: &mut KernelScratch,
            options: &ResizeOptions,
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
                    let resizer = tools.state.get::<Resizer>();
                    let resized = resizer.resize_typed(&image, &mut output, options);
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
                let given = FieldSchema::fixed(FieldDType::U8, [height as u32, width as u32, 3]);
                let filter =
                    ResizeFilter { antialias, interpolation: PixelInterpolation::Bilinear };
                let kernel = ResizeImage::new([side, side], &given, filter);
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
