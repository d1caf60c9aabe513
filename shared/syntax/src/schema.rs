//! The type of an element on an edge of the pipeline.

use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// Field holding the source record an element comes from: u64, `file index << 32 | record index`.
pub const KEY_FIELD: &str = "__key__";
/// Field holding which of several elements of one source record this is: u32, from 0.
pub const COPY_FIELD: &str = "__copy__";

/// Type of the values of a field. Little-endian wherever it is bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldDType {
    /// A byte string of any length, such as an encoded image.
    Bytes,
    U8,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    BF16,
    F32,
    F64,
    U16,
    I32,
    U32,
    I64,
    U64,
}

impl FieldDType {
    /// Bytes of one value; none for byte strings, whose length varies.
    pub const fn size_bytes(self) -> Option<u64> {
        match self {
            FieldDType::Bytes => None,
            FieldDType::U8 => Some(1),
            FieldDType::F16 | FieldDType::BF16 | FieldDType::U16 => Some(2),
            FieldDType::F32 | FieldDType::I32 | FieldDType::U32 => Some(4),
            FieldDType::F64 | FieldDType::I64 | FieldDType::U64 => Some(8),
        }
    }

    /// Whether its values are whole numbers.
    pub const fn is_integer(self) -> bool {
        !matches!(
            self,
            FieldDType::Bytes
                | FieldDType::F16
                | FieldDType::BF16
                | FieldDType::F32
                | FieldDType::F64
        )
    }

    /// The name used in pipeline files.
    pub const fn name(self) -> &'static str {
        match self {
            FieldDType::Bytes => "bytes",
            FieldDType::U8 => "u8",
            FieldDType::F16 => "f16",
            FieldDType::BF16 => "bf16",
            FieldDType::F32 => "f32",
            FieldDType::F64 => "f64",
            FieldDType::U16 => "u16",
            FieldDType::I32 => "i32",
            FieldDType::U32 => "u32",
            FieldDType::I64 => "i64",
            FieldDType::U64 => "u64",
        }
    }
}

impl fmt::Display for FieldDType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The values a field can hold, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValueRange {
    pub min: f64,
    pub max: f64,
}

impl ValueRange {
    /// The values of a decoded image's pixels.
    pub const PIXELS: ValueRange = ValueRange { min: 0.0, max: 255.0 };
}

/// `range` with `value` in it.
pub fn widened(range: ValueRange, value: f64) -> ValueRange {
    ValueRange { min: range.min.min(value), max: range.max.max(value) }
}

/// One field of an element.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldSchema {
    pub dtype: FieldDType,
    /// One entry per dimension, `None` where elements differ; empty for scalars and byte strings.
    pub shape: Vec<Option<u32>>,
    /// The values it can hold, where that is known and narrower than the dtype says.
    pub range: Option<ValueRange>,
}

impl FieldSchema {
    /// A field of known shape and unknown range.
    pub fn fixed(dtype: FieldDType, shape: impl IntoIterator<Item = u32>) -> Self {
        FieldSchema { dtype, shape: shape.into_iter().map(Some).collect(), range: None }
    }

    /// Bytes of one element's value; `None` if elements differ, or beyond counting.
    pub fn element_bytes(&self) -> Option<u64> {
        let size = self.dtype.size_bytes()?;
        self.shape.iter().try_fold(size, |bytes, dim| bytes.checked_mul(u64::from((*dim)?)))
    }

    /// Whether elements differ in the first dimension alone: a byte string, or a list of items of one
    /// shape.
    pub fn is_sequence(&self) -> bool {
        match self.shape.split_first() {
            None => self.dtype == FieldDType::Bytes,
            Some((first, rest)) => first.is_none() && rest.iter().all(Option::is_some),
        }
    }

    /// Whether it is an image of which elements differ in height and width.
    pub fn is_unsized_image(&self) -> bool {
        let unknown = self.shape.iter().filter(|dim| dim.is_none()).count();
        self.shape.len() == 3 && (1..=2).contains(&unknown) && !self.is_sequence()
    }

    /// Bytes of one item along the first dimension, of a byte string 1; `None` for scalars, if items
    /// differ, or beyond counting.
    pub fn item_bytes(&self) -> Option<u64> {
        if self.dtype == FieldDType::Bytes {
            return Some(1);
        }
        let (_, rest) = self.shape.split_first()?;
        let size = self.dtype.size_bytes()?;
        rest.iter().try_fold(size, |bytes, dim| bytes.checked_mul(u64::from((*dim)?)))
    }

    /// The dimensions, if all are known.
    pub fn known_shape(&self) -> Option<Vec<u32>> {
        self.shape.iter().copied().collect()
    }
}

impl fmt::Display for FieldSchema {
    /// For example `u8 [?, ?, 3]`; byte strings are just `bytes`, scalars just their dtype.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.dtype)?;
        if self.shape.is_empty() {
            return Ok(());
        }
        let dims = self.shape.iter().map(|dim| dim.map_or("?".into(), |dim| dim.to_string()));
        write!(out, " [{}]", dims.collect::<Vec<_>>().join(", "))
    }
}

/// The fields of one element by name, without the batch dimension. Serialises as a mapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ElementSchema {
    pub fields: BTreeMap<String, FieldSchema>,
}

impl ElementSchema {
    /// The field called `name`.
    pub fn field(&self, name: &str) -> Option<&FieldSchema> {
        self.fields.get(name)
    }

    /// Bytes of one element; `None` if elements differ, or beyond counting.
    pub fn element_bytes(&self) -> Option<u64> {
        let mut fields = self.fields.values();
        fields.try_fold(0_u64, |sum, field| sum.checked_add(field.element_bytes()?))
    }

    /// With the fields that every delivered batch has beside the author's own.
    pub fn with_implicit(&self) -> ElementSchema {
        let mut fields = self.fields.clone();
        fields.insert(KEY_FIELD.into(), FieldSchema::fixed(FieldDType::U64, []));
        fields.insert(COPY_FIELD.into(), FieldSchema::fixed(FieldDType::U32, []));
        ElementSchema { fields }
    }
}
