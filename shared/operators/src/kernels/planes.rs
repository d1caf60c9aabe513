//! Pixels channel by channel, a block at a time, so that loops over colours compile to vector code.
//!
//! Loops are plain and over arrays of constant length; [`vectorised`] runs a copy compiled for the widest
//! vector unit of the machine. Each loop is a function of its own, because the compiler optimises a single
//! loop best. Loops treat values independently or sum integers, so results do not depend on the copy.

/// Pixels per block: enough to make the calls negligible, and few enough for the L1 cache.
pub(crate) const BLOCK: usize = 512;

/// One channel of a block.
pub(crate) type ChannelBlock<T> = [T; BLOCK];

/// Red, green and blue.
pub(crate) type RgbBlock<T> = [ChannelBlock<T>; 3];

/// Runs `work` compiled for the vector unit of this machine. Functions it calls must be inlined.
#[inline]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    struct Work<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Work<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Work(work))
}

/// A stored dtype of pixels, and the type used to compute with them.
pub(crate) trait PixelType {
    type Value: Copy + Default;
    const BYTES: usize;

    /// Splits the whole pixels in `from` into channels.
    fn load(from: &[u8], to: &mut RgbBlock<Self::Value>);
    fn store(from: &RgbBlock<Self::Value>, to: &mut [u8]);
    /// Stores as much of one channel as fits `to`.
    fn store_one(from: &ChannelBlock<Self::Value>, to: &mut [u8]);
    /// Computes the grey of each pixel with torchvision's weights.
    fn grey(planes: &RgbBlock<Self::Value>, to: &mut ChannelBlock<Self::Value>);
}

/// 0 to 255, computed in 16 bits.
pub(crate) struct U8Pixels;

/// 0 to 1.
pub(crate) struct F32Pixels;

impl PixelType for U8Pixels {
    type Value = i16;
    const BYTES: usize = 1;

    #[inline(never)]
    fn load(from: &[u8], [red, green, blue]: &mut RgbBlock<i16>) {
        let Ok(from) = <&[u8; BLOCK * 3]>::try_from(from) else { return };
        let mut bytes = [[0_u8; BLOCK]; 3];
        // Deinterleave, then widen: the compiler vectorises the two steps well.
        vectorised(|| {
            for i in 0..BLOCK {
                bytes[0][i] = from[3 * i];
                bytes[1][i] = from[3 * i + 1];
                bytes[2][i] = from[3 * i + 2];
            }
            widen(&bytes[0], red);
            widen(&bytes[1], green);
            widen(&bytes[2], blue);
        });
    }

    #[inline(never)]
    fn store([red, green, blue]: &RgbBlock<i16>, to: &mut [u8]) {
        let Ok(to) = <&mut [u8; BLOCK * 3]>::try_from(to) else { return };
        let mut bytes = [[0_u8; BLOCK]; 3];
        vectorised(|| {
            narrow(red, &mut bytes[0]);
            narrow(green, &mut bytes[1]);
            narrow(blue, &mut bytes[2]);
            for i in 0..BLOCK {
                to[3 * i] = bytes[0][i];
                to[3 * i + 1] = bytes[1][i];
                to[3 * i + 2] = bytes[2][i];
            }
        });
    }

    fn store_one(from: &ChannelBlock<i16>, to: &mut [u8]) {
        for (to, x) in to.iter_mut().zip(from) {
            *to = *x as u8;
        }
    }

    #[inline(never)]
    fn grey([red, green, blue]: &RgbBlock<i16>, to: &mut ChannelBlock<i16>) {
        // torchvision's weights in 65,536ths; they sum to less than one.
        let share = |x: i16, weight: u32| ((((x as u32) << 8) * weight) >> 16) as u16;
        vectorised(|| {
            for i in 0..BLOCK {
                let sum = share(red[i], 19_589)
                    .wrapping_add(share(green[i], 38_470))
                    .wrapping_add(share(blue[i], 7_471));
                to[i] = (sum.wrapping_add(1) >> 8) as i16;
            }
        });
    }
}

#[inline(always)]
fn widen(from: &[u8; BLOCK], to: &mut ChannelBlock<i16>) {
    for (x, to) in from.iter().zip(to) {
        *to = i16::from(*x);
    }
}

#[inline(always)]
fn narrow(from: &ChannelBlock<i16>, to: &mut [u8; BLOCK]) {
    for (x, to) in from.iter().zip(to) {
        *to = *x as u8;
    }
}

impl PixelType for F32Pixels {
    type Value = f32;
    const BYTES: usize = 4;

    #[inline(never)]
    fn load(from: &[u8], to: &mut RgbBlock<f32>) {
        vectorised(|| {
            for (i, pixel) in from.as_chunks::<12>().0.iter().enumerate().take(BLOCK) {
                let values = pixel.as_chunks::<4>().0;
                for c in 0..3 {
                    to[c][i] = f32::from_le_bytes(values[c]);
                }
            }
        });
    }

    #[inline(never)]
    fn store(from: &RgbBlock<f32>, to: &mut [u8]) {
        vectorised(|| {
            for (i, pixel) in to.as_chunks_mut::<12>().0.iter_mut().enumerate().take(BLOCK) {
                let values = pixel.as_chunks_mut::<4>().0;
                for c in 0..3 {
                    values[c] = from[c][i].to_le_bytes();
                }
            }
        });
    }

    fn store_one(from: &ChannelBlock<f32>, to: &mut [u8]) {
        for (to, x) in to.as_chunks_mut::<4>().0.iter_mut().zip(from) {
            *to = x.to_le_bytes();
        }
    }

    #[inline(never)]
    fn grey([red, green, blue]: &RgbBlock<f32>, to: &mut ChannelBlock<f32>) {
        vectorised(|| {
            for i in 0..BLOCK {
                to[i] = red[i] * 0.2989 + green[i] * 0.587 + blue[i] * 0.114;
            }
        });
    }
}

/// Changes an RGB image block by block; the last block is padded with black.
pub(crate) fn change<S: PixelType>(
    pixels: &mut [u8],
    mut change: impl FnMut(&mut RgbBlock<S::Value>),
) {
    let mut planes = [[S::Value::default(); BLOCK]; 3];
    let mut blocks = pixels.chunks_exact_mut(BLOCK * 3 * S::BYTES);
    for block in &mut blocks {
        S::load(block, &mut planes);
        change(&mut planes);
        S::store(&planes, block);
    }
    let rest = blocks.into_remainder();
    if !rest.is_empty() {
        let mut block = [0; BLOCK * 12];
        let block = &mut block[..BLOCK * 3 * S::BYTES];
        block[..rest.len()].copy_from_slice(rest);
        S::load(block, &mut planes);
        change(&mut planes);
        S::store(&planes, block);
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

/// Reads an RGB image block by block; the last block is padded with black.
pub(crate) fn read<S: PixelType>(pixels: &[u8], mut read: impl FnMut(&RgbBlock<S::Value>)) {
    let mut planes = [[S::Value::default(); BLOCK]; 3];
    let blocks = pixels.chunks_exact(BLOCK * 3 * S::BYTES);
    let rest = blocks.remainder();
    for block in blocks {
        S::load(block, &mut planes);
        read(&planes);
    }
    if !rest.is_empty() {
        let mut block = [0; BLOCK * 12];
        let block = &mut block[..BLOCK * 3 * S::BYTES];
        block[..rest.len()].copy_from_slice(rest);
        S::load(block, &mut planes);
        read(&planes);
    }
}
