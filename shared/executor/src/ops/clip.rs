//! `clip`: numbers are kept within bounds.

use super::planes::vectorised;
use crate::{
    random::Draw,
    step::{InPlace, Tools},
};
use gristmill_pipeline::{DType, Number, ops::Clip};

/// Numbers of any shape -> the same, in place.
#[derive(Debug)]
pub(crate) struct Bounds {
    min: Option<Number>,
    max: Option<Number>,
    dtype: DType,
}

impl Bounds {
    pub(crate) fn new(op: &Clip, dtype: DType) -> Self {
        Bounds { min: op.min, max: op.max, dtype }
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
        // The pipeline checked that the type holds each bound.
        macro_rules! clip {
            ($type:ty, $least:expr, $most:expr) => {{
                let of = |bound: Option<Number>, other: $type| match bound {
                    Some(Number::Whole(bound)) => bound as $type,
                    Some(Number::Real(bound)) => bound as $type,
                    None => other,
                };
                let (min, max) = (of(self.min, $least), of(self.max, $most));
                vectorised(|| {
                    for to in value.as_chunks_mut::<{ size_of::<$type>() }>().0 {
                        let x = <$type>::from_le_bytes(*to);
                        let x = if x < min { min } else { x };
                        *to = if x > max { max } else { x }.to_le_bytes();
                    }
                })
            }};
            ($type:ty) => {
                clip!($type, <$type>::MIN, <$type>::MAX)
            };
        }
        match self.dtype {
            DType::U8 => clip!(u8),
            DType::U16 => clip!(u16),
            DType::I32 => clip!(i32),
            DType::I64 => clip!(i64),
            DType::U64 => clip!(u64),
            DType::F64 => clip!(f64, f64::NEG_INFINITY, f64::INFINITY),
            DType::F32 => clip!(f32, f32::NEG_INFINITY, f32::INFINITY),
            other => return Err(format!("cannot clip {other}")),
        }
        Ok(())
    }
}
