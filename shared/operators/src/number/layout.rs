//! `layout`: converts between channels last and channels first.

use crate::prelude::*;

/// The order of an image's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DimensionOrder {
    /// `[h, w, c]`, which is `[n, h, w, c]` in a batch.
    Nhwc,
    /// `[c, h, w]`, which is `[n, c, h, w]` in a batch.
    Nchw,
}

/// Numbers `[h, w, c]` -> `[c, h, w]` (`to: nchw`), or back (`to: nhwc`). Image operators accept only
/// `[h, w, c]`, so `layout` must follow them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    pub field: String,
    pub to: DimensionOrder,
}

impl OperatorDefinition for Layout {
    const DECLARATION: OperatorDeclaration = element_wise("layout", 1).costs(300, 600);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "to",
            ParameterKind::Choice(&["nchw", "chw", "nhwc", "hwc"]),
            "The order of what comes out; `chw` and `hwc` mean the same as `nchw` and `nhwc`.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let orders = [
            DimensionOrder::Nchw,
            DimensionOrder::Nchw,
            DimensionOrder::Nhwc,
            DimensionOrder::Nhwc,
        ];
        Ok(Layout { to: params.read_choice("to", &orders)?, field: params.field()? })
    }
}

impl Operator for Layout {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("layout", &self.field)?;
        let of_channels = |c: Option<u32>| c.is_some_and(|c| (1..=4).contains(&c));
        let shape = match (self.to, input.shape.as_slice()) {
            (DimensionOrder::Nchw, &[h, w, c]) if of_channels(c) => Some(vec![c, h, w]),
            (DimensionOrder::Nhwc, &[c, h, w]) if of_channels(c) => Some(vec![h, w, c]),
            _ => None,
        };
        let Some(shape) = shape.filter(|_| input.dtype != FieldDType::Bytes) else {
            let wanted = match self.to {
                DimensionOrder::Nchw => "an image ([h, w, c] with 1 to 4 channels)",
                DimensionOrder::Nhwc => "an image ([c, h, w] with 1 to 4 channels)",
            };
            return Err(flow.needs("layout", wanted, &self.field));
        };
        let output = FieldSchema { shape, ..input.clone() };
        flow.write("layout", &self.field, output);
        Ok(())
    }

    replaces_field!();

    fn can_follow_batch(&self) -> bool {
        true
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let transpose = kernel::TransposeKernel::new(self.to, input.field()?);
        Ok(transform(move |ValueView { bytes, size }, output, _, _| {
            let out = output.take(bytes.len())?;
            vectorised(|| transpose.values(bytes, out));
            Ok(OutputSize { bytes: bytes.len(), size })
        }))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use super::*;

    /// `[h, w, c]` -> `[c, h, w]`, or the other way round.
    #[derive(Debug)]
    pub(crate) struct TransposeKernel {
        to: DimensionOrder,
        channels: usize,
        value_bytes: usize,
    }

    impl TransposeKernel {
        pub(crate) fn new(to: DimensionOrder, input: &FieldSchema) -> Self {
            let channels = match to {
                DimensionOrder::Nchw => input.shape.last(),
                DimensionOrder::Nhwc => input.shape.first(),
            };
            let channels = channels.copied().flatten().unwrap_or(1) as usize;
            TransposeKernel { to, channels, value_bytes: dtype_bytes(input.dtype) }
        }

        /// Moves values of `N` bytes, `C` per pixel.
        #[inline(always)]
        fn copy<const N: usize, const C: usize>(&self, from: &[u8], to: &mut [u8]) {
            let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
            let pixels = from.len() / C;
            match self.to {
                DimensionOrder::Nchw => {
                    for (c, plane) in to.chunks_exact_mut(pixels.max(1)).enumerate() {
                        for (to, pixel) in plane.iter_mut().zip(from.as_chunks::<C>().0) {
                            *to = pixel[c];
                        }
                    }
                }
                DimensionOrder::Nhwc => {
                    for (c, plane) in from.chunks_exact(pixels.max(1)).enumerate() {
                        for (pixel, from) in to.as_chunks_mut::<C>().0.iter_mut().zip(plane) {
                            pixel[c] = *from;
                        }
                    }
                }
            }
        }

        #[inline(always)]
        fn transpose_values<const N: usize>(&self, from: &[u8], to: &mut [u8]) {
            match self.channels {
                2 => self.copy::<N, 2>(from, to),
                3 => self.copy::<N, 3>(from, to),
                4 => self.copy::<N, 4>(from, to),
                // With one channel both layouts are the same.
                _ => to.copy_from_slice(from),
            }
        }

        #[inline(always)]
        pub(super) fn values(&self, from: &[u8], to: &mut [u8]) {
            match self.value_bytes {
                1 => self.transpose_values::<1>(from, to),
                2 => self.transpose_values::<2>(from, to),
                4 => self.transpose_values::<4>(from, to),
                _ => self.transpose_values::<8>(from, to),
            }
        }
    }
}
