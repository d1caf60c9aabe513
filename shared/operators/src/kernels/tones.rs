//! `solarize` and `posterize`: each value maps to another, independently of its neighbours.

use crate::kernels::planes::vectorised;
use crate::prelude::*;
use gristmill_kernel::*;

/// u8 or f32 of any shape -> the same, in place.
#[derive(Debug)]
pub(crate) struct Tones {
    p: f64,
    dtype: DType,
    tone: Tone,
}

#[derive(Clone, Copy, Debug)]
enum Tone {
    Solarize { threshold: f64 },
    Posterize { mask: u8 },
}

impl Tones {
    pub(crate) fn solarize(op: &Solarize, dtype: DType) -> Self {
        Tones { p: op.p, dtype, tone: Tone::Solarize { threshold: op.threshold } }
    }

    pub(crate) fn posterize(op: &Posterize) -> Self {
        let mask = !((0xff_u16 >> op.bits) as u8);
        Tones { p: op.p, dtype: DType::U8, tone: Tone::Posterize { mask } }
    }
}

impl InPlace for Tones {
    fn run(
        &self,
        value: &mut [u8],
        _: [usize; 2],
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String> {
        if draw.unit() >= self.p {
            return Ok(());
        }
        match (self.tone, self.dtype) {
            (Tone::Posterize { mask }, _) => value.iter_mut().for_each(|x| *x &= mask),
            (Tone::Solarize { threshold }, DType::U8) => {
                let threshold = threshold.ceil() as u8;
                vectorised(|| {
                    value.iter_mut().for_each(|x| *x = if *x >= threshold { !*x } else { *x });
                });
            }
            (Tone::Solarize { threshold }, _) => {
                let threshold = threshold as f32;
                for to in value.as_chunks_mut::<4>().0 {
                    let x = f32::from_le_bytes(*to);
                    *to = if x >= threshold { 1.0 - x } else { x }.to_le_bytes();
                }
            }
        }
        Ok(())
    }
}
