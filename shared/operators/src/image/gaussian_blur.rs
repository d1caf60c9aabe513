//! `gaussian_blur`: blurs an image by a random amount, with a probability.

use crate::prelude::*;

/// Largest kernel.
const MAX_KERNEL: u32 = 255;

/// u8 (0 to 255) or f32 (0 to 1) `[h, w, 1 or 3]` -> the same; with probability `p` convolved with a
/// Gaussian whose sigma is drawn uniformly. Edges are reflected. As torchvision's `GaussianBlur`: u8 within
/// 1 of torchvision 0.29, f32 within 1e-3. The kernel is truncated beyond three sigmas (f32: four).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GaussianBlur {
    pub field: String,
    pub kernel_size: u32,
    pub sigma: [f64; 2],
    pub p: f64,
}

impl OperatorDefinition for GaussianBlur {
    const DECLARATION: OperatorDeclaration =
        with_effect("gaussian_blur", 1, OperatorEffect::Warp).costs(5_000, 3_000).random();

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "kernel_size",
            from_to(1, MAX_KERNEL),
            "Width and height of the kernel in pixels, odd.",
        ),
        or(
            "sigma",
            ParameterKind::List(&ParameterKind::Number { min: 1e-3, max: 100.0 }),
            "[0.1, 2.0]",
            "Bounds of sigma in pixels. Written as one number: always that.",
        ),
        probability("1.0"),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let node = params.require("kernel_size")?;
        let kernel_size = params.read_whole("kernel_size")?;
        if kernel_size % 2 == 0 {
            let next = kernel_size + 1;
            return Err(node.error(format!(
                "`gaussian_blur` `kernel_size` must be odd, not {kernel_size}; {next} is next"
            )));
        }
        let sigma = interval(params, "sigma", |s| [s, s])?;
        let p = params.read_number("p")?;
        Ok(GaussianBlur { field: params.field()?, kernel_size, sigma, p })
    }
}

impl Operator for GaussianBlur {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = flow.colours("gaussian_blur", &self.field, &[1, 3])?.clone();
        flow.write("gaussian_blur", &self.field, field);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let [low, high] = self.sigma;
        let blur = kernel::GaussianFilter {
            kernel_size: self.kernel_size,
            dtype: given.dtype,
            channels: channels_of(given),
        };
        Ok(sometimes(self.p, move |value, size, tools, draw| {
            blur.apply(draw.between(low, high), value, size, tools)
        }))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    //! `gaussian_blur`: two passes with a symmetric kernel, row by row, in place.
    //!
    //! The row pass writes into a ring of as many rows as the kernel is high. The column pass overwrites a row
    //! of the image once the ring holds all rows it needs. The ring is small enough for the L1 cache. Between
    //! the passes u8 pixels are 16-bit fixed-point numbers.

    use super::*;
    use gristmill_kernel::KernelScratch;

    /// Values summed at once.
    const LANES: usize = 64;
    /// Most neighbours on one side, for kernels of at most 255 pixels.
    const MAX_RADIUS: usize = 127;
    /// Memory limit of the ring, which only absurdly wide images exceed.
    const MAX_SCRATCH_BYTES: usize = 256 << 20;
    /// Fractional bits of a u8 pixel between the passes; one bit is left for the sum of a pair.
    const FRACTION_BITS: u32 = 7;

    /// `[h, w, c]` of u8 or f32 -> the same, in place.
    #[derive(Debug)]
    pub(crate) struct GaussianFilter {
        pub(crate) kernel_size: u32,
        pub(crate) dtype: FieldDType,
        pub(crate) channels: usize,
    }

    impl GaussianFilter {
        /// Blurs with the given sigma, in pixels.
        pub(crate) fn apply(
            &self,
            sigma: f64,
            value: &mut [u8],
            size: [usize; 2],
            tools: &mut KernelScratch,
        ) -> Result<(), String> {
            let shape = [size[0], size[1], self.channels];
            let radius = self.kernel_size as usize / 2;
            match self.dtype {
                FieldDType::U8 => {
                    let kernel = Kernel::new(sigma, radius.min(kernel_radius(sigma, 3.0)));
                    blur(&kernel, value, shape, &mut tools.shorts)
                }
                _ => {
                    let kernel = Kernel::new(sigma, radius.min(kernel_radius(sigma, 4.0)));
                    blur(&kernel, value, shape, &mut tools.floats)
                }
            }
        }
    }

    /// Radius in pixels of `sigmas` sigmas.
    fn kernel_radius(sigma: f64, sigmas: f64) -> usize {
        (sigma * sigmas).ceil() as usize
    }

    /// Weights by distance, from 0. The first, plus twice the sum of the others, is 1.
    struct Kernel {
        radius: usize,
        weights: [f64; MAX_RADIUS + 1],
    }

    impl Kernel {
        fn new(sigma: f64, radius: usize) -> Self {
            let radius = radius.min(MAX_RADIUS);
            let mut weights = [0.0; MAX_RADIUS + 1];
            let mut sum = 0.0;
            for (distance, weight) in weights.iter_mut().enumerate().take(radius + 1) {
                let x = distance as f64 / sigma;
                *weight = libm::exp(-0.5 * x * x);
                sum += if distance == 0 { *weight } else { 2.0 * *weight };
            }
            weights.iter_mut().for_each(|weight| *weight /= sum);
            Kernel { radius, weights }
        }
    }

    /// The type of a value within the two passes.
    trait Lane: Copy + Default {
        const BYTES: usize;

        /// The kernel's weights. Integer weights give the pixel itself the remainder, so that they sum to one.
        fn weights(kernel: &Kernel) -> [Self; MAX_RADIUS + 1];
        fn load(from: &[u8], to: &mut [Self]);
        fn store(from: &[Self], to: &mut [u8]);
        /// The share of the pixel itself, to which `radius` calls of [`add`](Self::add) add their shares.
        fn first(self, weight: Self, radius: usize) -> Self;
        /// Adds the shares of two pixels.
        fn add(self, left: Self, right: Self, weight: Self) -> Self;
    }

    impl Lane for u16 {
        const BYTES: usize = 1;

        fn weights(kernel: &Kernel) -> [u16; MAX_RADIUS + 1] {
            let mut weights =
                kernel.weights.map(|weight| (weight * 65536.0).round_ties_even() as u16);
            let others: u32 = weights[1..].iter().map(|weight| u32::from(*weight)).sum();
            weights[0] = 65536_u32.saturating_sub(2 * others).min(65535) as u16;
            weights
        }

        #[inline(always)]
        fn load(from: &[u8], to: &mut [u16]) {
            vectorised(|| {
                for (x, to) in from.iter().zip(to) {
                    *to = u16::from(*x) << FRACTION_BITS;
                }
            });
        }

        #[inline(always)]
        fn store(from: &[u16], to: &mut [u8]) {
            vectorised(|| {
                for (x, to) in from.iter().zip(to) {
                    *to = ((x + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS).min(255) as u8;
                }
            });
        }

        #[inline(always)]
        fn first(self, weight: u16, radius: usize) -> u16 {
            // Each share rounds down and loses half a unit on average; this makes up for it.
            high(self, weight) + (radius as u16).div_ceil(2)
        }

        #[inline(always)]
        fn add(self, left: u16, right: u16, weight: u16) -> u16 {
            self.wrapping_add(high(left.wrapping_add(right), weight))
        }
    }

    /// The upper half of a product.
    #[inline(always)]
    fn high(x: u16, weight: u16) -> u16 {
        ((u32::from(x) * u32::from(weight)) >> 16) as u16
    }

    impl Lane for f32 {
        const BYTES: usize = 4;

        fn weights(kernel: &Kernel) -> [f32; MAX_RADIUS + 1] {
            kernel.weights.map(|weight| weight as f32)
        }

        #[inline(always)]
        fn load(from: &[u8], to: &mut [f32]) {
            for (x, to) in from.as_chunks::<4>().0.iter().zip(to) {
                *to = f32::from_le_bytes(*x);
            }
        }

        #[inline(always)]
        fn store(from: &[f32], to: &mut [u8]) {
            for (x, to) in from.iter().zip(to.as_chunks_mut::<4>().0) {
                *to = x.to_le_bytes();
            }
        }

        #[inline(always)]
        fn first(self, weight: f32, _: usize) -> f32 {
            self * weight
        }

        #[inline(always)]
        fn add(self, left: f32, right: f32, weight: f32) -> f32 {
            self + (left + right) * weight
        }
    }

    /// Index of pixel `i` of `n`, reflected at the first and the last pixel.
    fn reflected(i: isize, n: usize) -> usize {
        let period = 2 * (n as isize - 1).max(1);
        let i = i.rem_euclid(period);
        i.min(period - i).min(n as isize - 1) as usize
    }

    fn blur<L: Lane>(
        kernel: &Kernel,
        value: &mut [u8],
        [height, width, channels]: [usize; 3],
        scratch: &mut Vec<L>,
    ) -> Result<(), String> {
        let radius = kernel.radius;
        if radius == 0 || value.is_empty() {
            return Ok(());
        }
        let values = width * channels;
        let stride = values.next_multiple_of(LANES);
        let rows = 2 * radius + 1;
        let padded = stride + 2 * radius * channels;
        let needed = stride.saturating_mul(rows + 1).saturating_add(padded);
        if needed > MAX_SCRATCH_BYTES / size_of::<L>() {
            return Err(format!("an image {width} pixels wide is too wide to blur"));
        }
        if scratch.len() < needed {
            scratch.resize(needed, L::default());
        }
        let (padded, rest) = scratch[..needed].split_at_mut(padded);
        let (line, ring) = rest.split_at_mut(stride);
        let pass = Pass { weights: L::weights(kernel), radius, channels, values, stride };
        let row_bytes = values * L::BYTES;
        let mut ahead = 0;
        let mut around = [[0; 2]; MAX_RADIUS + 1];
        for y in 0..height {
            while ahead < height.min(y + radius + 1) {
                let row = &value[ahead * row_bytes..][..row_bytes];
                pass.along(row, padded, &mut ring[ahead % rows * stride..][..stride]);
                ahead += 1;
            }
            // Once per row: divisions for every block would take longer than the sums.
            for (distance, rows_of) in around.iter_mut().enumerate().take(radius + 1) {
                let at = |y: isize| reflected(y, height) % rows * stride;
                *rows_of = [at(y as isize - distance as isize), at((y + distance) as isize)];
            }
            pass.across(ring, &around, line);
            L::store(line, &mut value[y * row_bytes..][..row_bytes]);
        }
        Ok(())
    }

    struct Pass<L> {
        weights: [L; MAX_RADIUS + 1],
        radius: usize,
        channels: usize,
        /// Values of a row; `stride` is this rounded up to whole [`LANES`].
        values: usize,
        stride: usize,
    }

    impl<L: Lane> Pass<L> {
        /// Convolves a row along itself.
        #[inline(never)]
        fn along(&self, row: &[u8], padded: &mut [L], out: &mut [L]) {
            let Pass { radius, channels, values, stride, .. } = *self;
            let margin = radius * channels;
            L::load(row, &mut padded[margin..][..values]);
            let width = values / channels;
            for i in 0..radius {
                let left = margin + reflected(-1 - i as isize, width) * channels;
                let right = margin + reflected((width + i) as isize, width) * channels;
                for c in 0..channels {
                    padded[margin - (i + 1) * channels + c] = padded[left + c];
                    padded[margin + values + i * channels + c] = padded[right + c];
                }
            }
            let padded = &*padded;
            let at = |distance: usize| {
                let offset = distance * channels;
                (&padded[margin - offset..][..stride], &padded[margin + offset..][..stride])
            };
            vectorised(|| self.convolve(at, out));
        }

        /// Convolves across rows; `around` holds, by distance, where the rows above and below begin in the ring.
        #[inline(never)]
        fn across(&self, ring: &[L], around: &[[usize; 2]; MAX_RADIUS + 1], out: &mut [L]) {
            let at = |distance: usize| {
                let [above, below] = around[distance];
                (&ring[above..][..self.stride], &ring[below..][..self.stride])
            };
            vectorised(|| self.convolve(at, out));
        }

        /// Sums weighted values; `at` returns those at a distance on both sides.
        #[inline(always)]
        fn convolve<'a>(&self, at: impl Fn(usize) -> (&'a [L], &'a [L]), out: &mut [L])
        where
            L: 'a,
        {
            let (centre, _) = at(0);
            let blocks = centre.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0);
            for (block, (centre, out)) in blocks.enumerate() {
                let mut sum = *centre;
                for x in &mut sum {
                    *x = x.first(self.weights[0], self.radius);
                }
                for distance in 1..=self.radius {
                    let (left, right) = at(distance);
                    let left = &left.as_chunks::<LANES>().0[block];
                    let right = &right.as_chunks::<LANES>().0[block];
                    let weight = self.weights[distance];
                    for i in 0..LANES {
                        sum[i] = sum[i].add(left[i], right[i], weight);
                    }
                }
                *out = sum;
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn indices_are_mirrored() {
            let of = |n: usize| (-4..7).map(|i| reflected(i, n)).collect::<Vec<_>>();
            assert_eq!(of(4), [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
            assert_eq!(of(2), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]);
            assert_eq!(of(1), [0; 11]);
        }

        #[test]
        fn a_uniform_image_stays() {
            let mut tools = KernelScratch::default();
            for kernel_size in [3, 5, 23, 255] {
                let blur = GaussianFilter { kernel_size, dtype: FieldDType::U8, channels: 3 };
                for (level, sigma) in (0..=255).zip((1..).map(|i| 0.1 + f64::from(i) * 0.1)) {
                    let mut image = vec![level; 9 * 31 * 3];
                    blur.apply(sigma, &mut image, [9, 31], &mut tools).unwrap();
                    assert!(image.iter().all(|x| *x == level), "{level} {kernel_size} {sigma}");
                }
            }
        }
    }
}
