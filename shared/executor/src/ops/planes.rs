//! Pixels channel by channel, a block at a time: what loops over colours compile to vector code from.
//!
//! Loops here are plain, over arrays of constant length; [`vectorised`] runs them in a copy compiled
//! for the widest vector unit that is there. All work on each value for itself, in f32 or integers,
//! so that no result depends on which copy ran.

use gristmill_pipeline::DType;

/// Pixels of a block.
pub(crate) const BLOCK: usize = 64;

/// One channel of a block.
pub(crate) type Plane = [f32; BLOCK];

/// Red, green and blue.
pub(crate) type Planes = [Plane; 3];

/// Runs `work` compiled for the vector unit of this machine. What it calls must be inlined.
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

/// How values of pixels are stored.
pub(crate) trait Sample {
    const BYTES: usize;
    /// White.
    const MAX: f32;
    /// Whether values are whole numbers, so that every operator's result is cut to one.
    const WHOLE: bool;

    fn load(from: &[u8], to: &mut Planes);
    fn store(from: &Planes, to: &mut [u8]);
    /// Stores one channel, as far as there is room.
    fn store_one(from: &Plane, to: &mut [u8]);
}

/// Values 0 to 255.
pub(crate) struct U8;

/// Values 0 to 1.
pub(crate) struct F32;

impl Sample for U8 {
    const BYTES: usize = 1;
    const MAX: f32 = 255.0;
    const WHOLE: bool = true;

    #[inline(always)]
    fn load(from: &[u8], to: &mut Planes) {
        let pixels = from.as_chunks::<3>().0;
        let mut bytes = [[0_u8; BLOCK]; 3];
        // Apart first, wide then: two steps that the compiler has good code for.
        for (i, pixel) in pixels.iter().enumerate().take(BLOCK) {
            bytes[0][i] = pixel[0];
            bytes[1][i] = pixel[1];
            bytes[2][i] = pixel[2];
        }
        for (plane, bytes) in to.iter_mut().zip(&bytes) {
            for (x, byte) in plane.iter_mut().zip(bytes) {
                *x = f32::from(*byte);
            }
        }
    }

    #[inline(always)]
    fn store(from: &Planes, to: &mut [u8]) {
        let mut bytes = [[0_u8; BLOCK]; 3];
        for (bytes, plane) in bytes.iter_mut().zip(from) {
            for (byte, x) in bytes.iter_mut().zip(plane) {
                *byte = *x as i32 as u8;
            }
        }
        for (i, pixel) in to.as_chunks_mut::<3>().0.iter_mut().enumerate().take(BLOCK) {
            *pixel = [bytes[0][i], bytes[1][i], bytes[2][i]];
        }
    }

    #[inline(always)]
    fn store_one(from: &Plane, to: &mut [u8]) {
        for (to, x) in to.iter_mut().zip(from) {
            *to = *x as i32 as u8;
        }
    }
}

impl Sample for F32 {
    const BYTES: usize = 4;
    const MAX: f32 = 1.0;
    const WHOLE: bool = false;

    #[inline(always)]
    fn load(from: &[u8], to: &mut Planes) {
        for (i, pixel) in from.as_chunks::<12>().0.iter().enumerate().take(BLOCK) {
            let values = pixel.as_chunks::<4>().0;
            for c in 0..3 {
                to[c][i] = f32::from_le_bytes(values[c]);
            }
        }
    }

    #[inline(always)]
    fn store(from: &Planes, to: &mut [u8]) {
        for (i, pixel) in to.as_chunks_mut::<12>().0.iter_mut().enumerate().take(BLOCK) {
            let values = pixel.as_chunks_mut::<4>().0;
            for c in 0..3 {
                values[c] = from[c][i].to_le_bytes();
            }
        }
    }

    #[inline(always)]
    fn store_one(from: &Plane, to: &mut [u8]) {
        for (to, x) in to.as_chunks_mut::<4>().0.iter_mut().zip(from) {
            *to = x.to_le_bytes();
        }
    }
}

/// Changes an RGB image block by block; the last block is filled up with black.
#[inline(always)]
pub(crate) fn change<S: Sample>(pixels: &mut [u8], mut change: impl FnMut(&mut Planes)) {
    let mut planes = [[0.0; BLOCK]; 3];
    let mut blocks = pixels.chunks_exact_mut(BLOCK * 3 * S::BYTES);
    for block in &mut blocks {
        S::load(block, &mut planes);
        change(&mut planes);
        S::store(&planes, block);
    }
    let rest = blocks.into_remainder();
    if !rest.is_empty() {
        planes = [[0.0; BLOCK]; 3];
        load_rest::<S>(rest, &mut planes);
        change(&mut planes);
        store_rest::<S>(&planes, rest);
    }
}

/// Reads an RGB image block by block; the last block is filled up with black.
#[inline(always)]
pub(crate) fn read<S: Sample>(pixels: &[u8], mut read: impl FnMut(&Planes)) {
    let mut planes = [[0.0; BLOCK]; 3];
    let blocks = pixels.chunks_exact(BLOCK * 3 * S::BYTES);
    let rest = blocks.remainder();
    for block in blocks {
        S::load(block, &mut planes);
        read(&planes);
    }
    if !rest.is_empty() {
        planes = [[0.0; BLOCK]; 3];
        load_rest::<S>(rest, &mut planes);
        read(&planes);
    }
}

// Not inlined: the one short block of an image needs no second copy of everything.
#[inline(never)]
fn load_rest<S: Sample>(rest: &[u8], planes: &mut Planes) {
    let mut block = [0; BLOCK * 12];
    let block = &mut block[..BLOCK * 3 * S::BYTES];
    block[..rest.len()].copy_from_slice(rest);
    S::load(block, planes);
}

#[inline(never)]
fn store_rest<S: Sample>(planes: &Planes, rest: &mut [u8]) {
    let mut block = [0; BLOCK * 12];
    let block = &mut block[..BLOCK * 3 * S::BYTES];
    S::store(planes, block);
    rest.copy_from_slice(&block[..rest.len()]);
}

/// The grey of each pixel, as torchvision weighs it.
#[inline(always)]
pub(crate) fn grey<S: Sample>([red, green, blue]: &Planes) -> Plane {
    let mut grey = [0.0; BLOCK];
    for i in 0..BLOCK {
        let value = red[i] * 0.2989 + green[i] * 0.587 + blue[i] * 0.114;
        grey[i] = if S::WHOLE { value.floor() } else { value };
    }
    grey
}

/// Whether images of `dtype` are of whole numbers; else they are f32.
pub(crate) fn is_whole(dtype: DType) -> bool {
    dtype == DType::U8
}
