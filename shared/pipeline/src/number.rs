//! Numbers as authors write them, for fields of any type. Whole numbers stay exact.

use crate::{
    DType, PipelineError,
    node::{Node, Value},
    table::Table,
};
use half::{bf16, f16};
use serde::{Serialize, Serializer};
use std::fmt;

/// Above this, an f64 cannot represent every whole number.
const MAX_EXACT: f64 = (1_u64 << 53) as f64;
/// The largest finite bf16 and f16.
const MAX_BF16: f64 = 3.389_531_389_251_535_5e38;
const MAX_F16: f64 = 65_504.0;

/// A finite number. A whole number fits i64 or u64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(i128),
    Real(f64),
}

impl Number {
    pub const ZERO: Number = Number::Whole(0);

    /// Reads the value of `key`.
    ///
    /// # Errors
    /// If it is not such a number.
    pub fn parse(table: &Table<'_>, key: &str, node: &Node) -> Result<Self, PipelineError> {
        let bits = i128::from(i64::MIN)..=i128::from(u64::MAX);
        match node.value {
            Value::Int(number) if bits.contains(&number) => Ok(Number::Whole(number)),
            Value::Int(_) => Err(table.wrong(key, node, "a number of at most 64 bits")),
            // `2.0` is 2, so that every number has one canonical form.
            Value::Float(number) if number.fract() == 0.0 && number.abs() <= MAX_EXACT => {
                Ok(Number::Whole(number as i128))
            }
            Value::Float(number) if number.is_finite() => Ok(Number::Real(number)),
            _ => Err(table.wrong(key, node, "a finite number")),
        }
    }

    /// Returns the value of an integer field of `dtype`.
    ///
    /// # Errors
    /// Describes the valid values if `dtype` cannot hold the number.
    pub fn whole(self, dtype: DType) -> Result<i128, String> {
        let (low, high): (i128, i128) = match dtype {
            DType::U8 => (0, u8::MAX.into()),
            DType::U16 => (0, u16::MAX.into()),
            DType::U32 => (0, u32::MAX.into()),
            DType::U64 => (0, u64::MAX.into()),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::I64 => (i64::MIN.into(), i64::MAX.into()),
            DType::Bytes | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
                return Err("no number".into());
            }
        };
        match self {
            Number::Whole(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(format!("a whole number from {low} to {high}")),
        }
    }

    /// Checks that a field of `dtype` can hold the number, rounded if `dtype` is a float type.
    ///
    /// # Errors
    /// Describes the valid values if `dtype` cannot hold the number.
    pub fn fits(self, dtype: DType) -> Result<(), String> {
        let most = match dtype {
            DType::F16 => MAX_F16,
            DType::BF16 => MAX_BF16,
            DType::F32 => f32::MAX.into(),
            DType::F64 => f64::MAX,
            _ => return self.whole(dtype).map(drop),
        };
        if self.real().abs() <= most {
            Ok(())
        } else {
            Err(format!("a number from -{most:e} to {most:e}"))
        }
    }

    /// The little-endian bytes of the number in a field of `dtype`, which must be able to hold it.
    pub fn bytes(self, dtype: DType) -> Vec<u8> {
        match (dtype, self) {
            (DType::I64, Number::Whole(number)) => (number as i64).to_le_bytes().to_vec(),
            (DType::U64, Number::Whole(number)) => (number as u64).to_le_bytes().to_vec(),
            (_, number) => value_bytes(dtype, number.real()),
        }
    }

    /// The nearest f32.
    pub fn single(self) -> f32 {
        match self {
            Number::Whole(number) => number as f32,
            Number::Real(number) => number as f32,
        }
    }

    /// The nearest f64.
    pub fn real(self) -> f64 {
        match self {
            Number::Whole(number) => number as f64,
            Number::Real(number) => number,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => number.fmt(out),
            Number::Real(number) => number.fmt(out),
        }
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Number::Whole(one), Number::Whole(other)) => one.partial_cmp(other),
            _ => self.real().partial_cmp(&other.real()),
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Number::Real(number) => serializer.serialize_f64(number),
            Number::Whole(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => serializer.serialize_i64(number),
                (_, Ok(number)) => serializer.serialize_u64(number),
                _ => serializer.serialize_f64(number as f64),
            },
        }
    }
}

/// The little-endian bytes of `value` in a field of `dtype`.
pub fn value_bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Bytes | DType::U8 => vec![value as u8],
        DType::U16 => (value as u16).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::U32 => (value as u32).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::U64 => (value as u64).to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_fits_what_can_hold_it() {
        let fits = |number: Number| {
            let all = [DType::U8, DType::I32, DType::I64, DType::U64, DType::F16, DType::F32];
            all.map(|dtype| number.fits(dtype).is_ok())
        };
        assert_eq!(fits(Number::Whole(255)), [true; 6]);
        assert_eq!(fits(Number::Whole(-1)), [false, true, true, false, true, true]);
        let u64_max = Number::Whole(u64::MAX.into());
        assert_eq!(fits(u64_max), [false, false, false, true, false, true]);
        assert_eq!(fits(Number::Real(1.5)), [false, false, false, false, true, true]);
        assert_eq!(fits(Number::Real(1e39)), [false; 6]);
        assert!(Number::Real(1e38).fits(DType::BF16).is_ok());
        let why = Number::Whole(-1).fits(DType::U8).unwrap_err();
        assert_eq!(why, "a whole number from 0 to 255");
    }
}
