//! `clip`: numbers are kept within bounds.

use super::planes::vectorised;
use crate::{
    random::Draw,
    step::{InPlace, Tools},
};
use gristmill_pipeline::{DType, ops::Clip};

/// Numbers of any shape -> the same, in place.
#[derive(Debug)]
pub(crate) struct Bounds {
    min: f64,
    max: f64,
    dtype: DType,
}

impl Bounds {
    pub(crate) fn new(op: &Clip, dtype: DType) -> Self {
        let (min, max) = (op.min.unwrap_or(f64::NEG_INFINITY), op.max.unwrap_or(f64::INFINITY));
        Bounds { min, max, dtype }
    }
}

impl InPlace for Bounds {
    fn run(
        &self,
        value: &mut [u8],
        _: [usize; 2],
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<(), String> {
        // A float to integer cast saturates, so that bounds beyond a type are its own.
        macro_rules! clip {
            ($type:ty) => {{
                let (min, max) = (self.min as $type, self.max as $type);
                vectorised(|| {
                    for to in value.as_chunks_mut::<{ size_of::<$type>() }>().0 {
                        let x = <$type>::from_le_bytes(*to);
                        let x = if x < min { min } else { x };
                        *to = if x > max { max } else { x }.to_le_bytes();
                    }
                })
            }};
        }
        match self.dtype {
            DType::U8 => clip!(u8),
            DType::U16 => clip!(u16),
            DType::I32 => clip!(i32),
            DType::I64 => clip!(i64),
            DType::F32 => clip!(f32),
            other => return Err(format!("cannot clip {other}")),
        }
        Ok(())
    }
}
