//! Numbers as authors write them, for fields of any type. Whole numbers stay exact.

use crate::{FieldDType, MappingReader, PipelineError, SyntaxNode, node::NodeValue};

use half::{bf16, f16};
use serde::{Serialize, Serializer};
use std::fmt;

/// Above this, an f64 cannot represent every whole number.
const MAX_EXACT: f64 = (1_u64 << 53) as f64;
/// Numbers that JSON lacks, by their words in YAML.
const NON_FINITE: [(&str, f64); 3] =
    [(".nan", f64::NAN), (".inf", f64::INFINITY), ("-.inf", f64::NEG_INFINITY)];
/// The largest finite bf16 and f16.
const MAX_BF16: f64 = 3.389_531_389_251_535_5e38;
const MAX_F16: f64 = 65_504.0;

/// A number, finite unless it is a padding. A whole number fits i64 or u64.
#[derive(Clone, Copy, Debug)]
pub enum AuthoredNumber {
    Whole(i128),
    Real(f64),
}

impl AuthoredNumber {
    /// Zero of any type.
    pub const ZERO: AuthoredNumber = AuthoredNumber::Whole(0);

    /// Reads the value of `key`.
    ///
    /// # Errors
    /// If it is not such a number.
    pub fn parse(
        table: &MappingReader<'_>,
        key: &str,
        node: &SyntaxNode,
    ) -> Result<Self, PipelineError> {
        let allowed = i128::from(i64::MIN)..=i128::from(u64::MAX);
        match node.value {
            NodeValue::Int(number) if allowed.contains(&number) => {
                Ok(AuthoredNumber::Whole(number))
            }
            NodeValue::Int(_) => Err(table.wrong(key, node, "a number of at most 64 bits")),
            // `2.0` is 2, so that every number has one canonical form.
            NodeValue::Float(number) if number.fract() == 0.0 && number.abs() <= MAX_EXACT => {
                Ok(AuthoredNumber::Whole(number as i128))
            }
            NodeValue::Float(number) if number.is_finite() => Ok(AuthoredNumber::Real(number)),
            _ => Err(table.wrong(key, node, "a finite number")),
        }
    }

    /// Reads the value of `key`, which may be NaN or infinite: a number of YAML, or its text, which
    /// is the canonical form.
    ///
    /// # Errors
    /// If it is not such a number.
    pub fn parse_padding(
        table: &MappingReader<'_>,
        key: &str,
        node: &SyntaxNode,
    ) -> Result<Self, PipelineError> {
        match &node.value {
            NodeValue::Float(number) if !number.is_finite() => Ok(AuthoredNumber::Real(*number)),
            NodeValue::Str(text) => NON_FINITE
                .iter()
                .find(|(word, _)| word == text)
                .map(|(_, number)| AuthoredNumber::Real(*number))
                .ok_or_else(|| table.wrong(key, node, "a number")),
            _ => AuthoredNumber::parse(table, key, node),
        }
    }

    /// The word of YAML for a number that JSON lacks.
    fn word(self) -> Option<&'static str> {
        let AuthoredNumber::Real(number) = self else { return None };
        let same = |other: f64| other == number || other.is_nan() && number.is_nan();
        NON_FINITE.iter().find(|(_, other)| same(*other)).map(|(word, _)| *word)
    }

    /// Returns the value of an integer field of `dtype`.
    ///
    /// # Errors
    /// Describes the valid values if `dtype` cannot hold the number.
    pub fn whole(self, dtype: FieldDType) -> Result<i128, String> {
        let (low, high): (i128, i128) = match dtype {
            FieldDType::U8 => (0, u8::MAX.into()),
            FieldDType::U16 => (0, u16::MAX.into()),
            FieldDType::U32 => (0, u32::MAX.into()),
            FieldDType::U64 => (0, u64::MAX.into()),
            FieldDType::I32 => (i32::MIN.into(), i32::MAX.into()),
            FieldDType::I64 => (i64::MIN.into(), i64::MAX.into()),
            FieldDType::Bytes
            | FieldDType::F16
            | FieldDType::BF16
            | FieldDType::F32
            | FieldDType::F64 => {
                return Err("no integer type".into());
            }
        };
        match self {
            AuthoredNumber::Whole(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(format!("a whole number from {low} to {high}")),
        }
    }

    /// Checks that a field of `dtype` can hold the number, rounded if `dtype` is a float type.
    ///
    /// # Errors
    /// Describes the valid values if `dtype` cannot hold the number.
    pub fn fits(self, dtype: FieldDType) -> Result<(), String> {
        let most = match dtype {
            FieldDType::F16 => MAX_F16,
            FieldDType::BF16 => MAX_BF16,
            FieldDType::F32 => f32::MAX.into(),
            FieldDType::F64 => f64::MAX,
            _ => return self.whole(dtype).map(drop),
        };
        if self.real().abs() <= most || !self.real().is_finite() {
            Ok(())
        } else {
            Err(format!("a number from -{most:e} to {most:e}"))
        }
    }

    /// The little-endian bytes of the number in a field of `dtype`, which must be able to hold it.
    pub fn bytes(self, dtype: FieldDType) -> Vec<u8> {
        match (dtype, self) {
            (FieldDType::I64, AuthoredNumber::Whole(number)) => {
                (number as i64).to_le_bytes().to_vec()
            }
            (FieldDType::U64, AuthoredNumber::Whole(number)) => {
                (number as u64).to_le_bytes().to_vec()
            }
            (_, number) => value_bytes(dtype, number.real()),
        }
    }

    /// The nearest f32.
    pub fn single(self) -> f32 {
        match self {
            AuthoredNumber::Whole(number) => number as f32,
            AuthoredNumber::Real(number) => number as f32,
        }
    }

    /// The nearest f64.
    pub fn real(self) -> f64 {
        match self {
            AuthoredNumber::Whole(number) => number as f64,
            AuthoredNumber::Real(number) => number,
        }
    }
}

impl fmt::Display for AuthoredNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthoredNumber::Whole(number) => number.fmt(out),
            AuthoredNumber::Real(number) => number.fmt(out),
        }
    }
}

/// NaN is the same padding as NaN.
impl PartialEq for AuthoredNumber {
    fn eq(&self, other: &Self) -> bool {
        match (*self, *other) {
            (AuthoredNumber::Whole(one), AuthoredNumber::Whole(other)) => one == other,
            (AuthoredNumber::Real(one), AuthoredNumber::Real(other)) => {
                one.to_bits() == other.to_bits()
            }
            _ => false,
        }
    }
}

/// By value: a whole number and a real one beyond 2^53 may compare as equal and yet differ.
impl PartialOrd for AuthoredNumber {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (AuthoredNumber::Whole(one), AuthoredNumber::Whole(other)) => one.partial_cmp(other),
            _ => self.real().partial_cmp(&other.real()),
        }
    }
}

impl Serialize for AuthoredNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            AuthoredNumber::Real(number) => match self.word() {
                Some(word) => serializer.serialize_str(word),
                None => serializer.serialize_f64(number),
            },
            AuthoredNumber::Whole(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => serializer.serialize_i64(number),
                (_, Ok(number)) => serializer.serialize_u64(number),
                _ => serializer.serialize_f64(number as f64),
            },
        }
    }
}

/// The little-endian bytes of `value` in a field of `dtype`.
pub fn value_bytes(dtype: FieldDType, value: f64) -> Vec<u8> {
    match dtype {
        FieldDType::Bytes | FieldDType::U8 => vec![value as u8],
        FieldDType::U16 => (value as u16).to_le_bytes().to_vec(),
        FieldDType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        FieldDType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        FieldDType::I32 => (value as i32).to_le_bytes().to_vec(),
        FieldDType::U32 => (value as u32).to_le_bytes().to_vec(),
        FieldDType::F32 => (value as f32).to_le_bytes().to_vec(),
        FieldDType::F64 => value.to_le_bytes().to_vec(),
        FieldDType::I64 => (value as i64).to_le_bytes().to_vec(),
        FieldDType::U64 => (value as u64).to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_fits_what_can_hold_it() {
        let fits = |number: AuthoredNumber| {
            let all = [
                FieldDType::U8,
                FieldDType::I32,
                FieldDType::I64,
                FieldDType::U64,
                FieldDType::F16,
                FieldDType::F32,
            ];
            all.map(|dtype| number.fits(dtype).is_ok())
        };
        assert_eq!(fits(AuthoredNumber::Whole(255)), [true; 6]);
        assert_eq!(fits(AuthoredNumber::Whole(-1)), [false, true, true, false, true, true]);
        let u64_max = AuthoredNumber::Whole(u64::MAX.into());
        assert_eq!(fits(u64_max), [false, false, false, true, false, true]);
        assert_eq!(fits(AuthoredNumber::Real(1.5)), [false, false, false, false, true, true]);
        assert_eq!(fits(AuthoredNumber::Real(1e39)), [false; 6]);
        assert!(AuthoredNumber::Real(1e38).fits(FieldDType::BF16).is_ok());
        let why = AuthoredNumber::Whole(-1).fits(FieldDType::U8).unwrap_err();
        assert_eq!(why, "a whole number from 0 to 255");
    }
}
