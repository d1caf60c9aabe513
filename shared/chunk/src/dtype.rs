//! Element types of tensors, under the names safetensors gives them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of one tensor element, little-endian. Serialised as its safetensors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TensorDType {
    /// One byte, 0 or 1.
    Bool,
    U8,
    I8,
    U16,
    I16,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `F32`.
    BF16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl TensorDType {
    pub const ALL: [TensorDType; 13] = [
        TensorDType::Bool,
        TensorDType::U8,
        TensorDType::I8,
        TensorDType::U16,
        TensorDType::I16,
        TensorDType::F16,
        TensorDType::BF16,
        TensorDType::U32,
        TensorDType::I32,
        TensorDType::F32,
        TensorDType::U64,
        TensorDType::I64,
        TensorDType::F64,
    ];

    /// Bytes of one element: 1, 2, 4 or 8.
    pub const fn size_bytes(self) -> usize {
        match self {
            TensorDType::Bool | TensorDType::U8 | TensorDType::I8 => 1,
            TensorDType::U16 | TensorDType::I16 | TensorDType::F16 | TensorDType::BF16 => 2,
            TensorDType::U32 | TensorDType::I32 | TensorDType::F32 => 4,
            TensorDType::U64 | TensorDType::I64 | TensorDType::F64 => 8,
        }
    }

    /// The name in a safetensors header, for example `"BF16"`.
    pub const fn name(self) -> &'static str {
        match self {
            TensorDType::Bool => "BOOL",
            TensorDType::U8 => "U8",
            TensorDType::I8 => "I8",
            TensorDType::U16 => "U16",
            TensorDType::I16 => "I16",
            TensorDType::F16 => "F16",
            TensorDType::BF16 => "BF16",
            TensorDType::U32 => "U32",
            TensorDType::I32 => "I32",
            TensorDType::F32 => "F32",
            TensorDType::U64 => "U64",
            TensorDType::I64 => "I64",
            TensorDType::F64 => "F64",
        }
    }
}

impl fmt::Display for TensorDType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
