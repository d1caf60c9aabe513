//! `layout`: converts between channels last and channels first.

use crate::prelude::*;

/// The order of an image's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
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
    pub to: Order,
}

impl Define for Layout {
    const DECLARATION: Declaration = element_wise("layout", 1).costs(300, 600);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "to",
            Kind::Choice(&["nchw", "chw", "nhwc", "hwc"]),
            "The order of what comes out; `chw` and `hwc` mean the same as `nchw` and `nhwc`.",
        ),
    ];

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let orders = [Order::Nchw, Order::Nchw, Order::Nhwc, Order::Nhwc];
        Ok(Layout { to: choice::<Self, _>(params, "to", &orders)?, field: params.field()? })
    }
}

impl Operator for Layout {
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

    replaces_field!();

    fn can_follow_batch(&self) -> bool {
        true
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let transpose = kernel::Transpose::new(self.to, input.field()?);
        Ok(transform(move |View { bytes, size }, output, _, _| {
            let out = output.take(bytes.len())?;
            vectorised(|| transpose.values(bytes, out));
            Ok(Made { bytes: bytes.len(), size })
        }))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    //! `layout`: channels last to channels first, and back.

    use super::*;

    /// `[h, w, c]` -> `[c, h, w]`, or the other way round.
    #[derive(Debug)]
    pub(crate) struct Transpose {
        to: Order,
        channels: usize,
        value_bytes: usize,
    }

    impl Transpose {
        pub(crate) fn new(to: Order, input: &FieldSchema) -> Self {
            let channels = match to {
                Order::Nchw => input.shape.last(),
                Order::Nhwc => input.shape.first(),
            };
            let channels = channels.copied().flatten().unwrap_or(1) as usize;
            Transpose { to, channels, value_bytes: dtype_bytes(input.dtype) }
        }

        /// Moves values of `N` bytes, `C` per pixel.
        #[inline(always)]
        fn copy<const N: usize, const C: usize>(&self, from: &[u8], to: &mut [u8]) {
            let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
            let pixels = from.len() / C;
            match self.to {
                Order::Nchw => {
                    for (c, plane) in to.chunks_exact_mut(pixels.max(1)).enumerate() {
                        for (to, pixel) in plane.iter_mut().zip(from.as_chunks::<C>().0) {
                            *to = pixel[c];
                        }
                    }
                }
                Order::Nhwc => {
                    for (c, plane) in from.chunks_exact(pixels.max(1)).enumerate() {
                        for (pixel, from) in to.as_chunks_mut::<C>().0.iter_mut().zip(plane) {
                            pixel[c] = *from;
                        }
                    }
                }
            }
        }

        #[inline(always)]
        fn of<const N: usize>(&self, from: &[u8], to: &mut [u8]) {
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
                1 => self.of::<1>(from, to),
                2 => self.of::<2>(from, to),
                4 => self.of::<4>(from, to),
                _ => self.of::<8>(from, to),
            }
        }
    }
}
