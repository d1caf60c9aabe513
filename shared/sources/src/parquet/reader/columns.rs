//! Which column of a file a feature is, and what its levels mean.
//!
//! A list `a` of a list-annotated column is stored as `a.list.element` or the like; features name it `a`.
//! The stored path works as well.

use crate::{Feature, FeatureDType, MAX_VALUES, words};

use ::parquet::{
    basic::{ConvertedType, LogicalType, Repetition, Type as Physical},
    schema::types::{ColumnDescPtr, ColumnDescriptor, SchemaDescriptor, Type},
};
use std::ops::Range;

/// Most digits of a decimal number: what 256 bits hold.
const MAX_DIGITS: usize = 76;
/// Most bytes of one.
const MAX_DECIMAL_BYTES: usize = 32;
/// Names that a message lists at most.
const MAX_LISTED: usize = 8;

/// Why a level of a column holds no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbsenceReason {
    /// A null, within so many lists.
    Null { depth: usize },
    /// A list without entries, within so many others.
    Empty { depth: usize },
}

/// A column that is read into a feature.
#[derive(Debug)]
pub(super) struct FeatureColumn<'a> {
    pub(super) feature: &'a Feature,
    pub(super) leaf: usize,
    pub(super) descriptor: ColumnDescPtr,
    /// By definition level below the highest: why there is no value.
    pub(super) absent: Vec<AbsenceReason>,
    /// Digits after the point, if its numbers are decimal.
    pub(super) scale: Option<usize>,
}

impl<'a> FeatureColumn<'a> {
    /// The column that `feature` names, if there is one.
    ///
    /// # Errors
    /// If it is not what the feature says.
    pub(super) fn find(
        schema: &SchemaDescriptor,
        feature: &'a Feature,
    ) -> Result<Option<Self>, String> {
        let named = |path: fn(&SchemaDescriptor, usize) -> String| {
            let leaves = 0..schema.num_columns();
            leaves.filter(|leaf| path(schema, *leaf) == feature.key).collect::<Vec<_>>()
        };
        let stored = |schema: &SchemaDescriptor, leaf: usize| schema.column(leaf).path().string();
        let found = Some(named(stored)).filter(|found| !found.is_empty());
        let leaf = match *found.unwrap_or_else(|| named(name)) {
            [] => return Ok(None),
            // Columns within two groups of one name differ in the rest of their paths.
            [leaf] if path(schema, leaf).len() == schema.column(leaf).path().parts().len() => leaf,
            _ => {
                let key = &feature.key;
                return Err(format!(
                    "two columns are named `{key}`: write the file with a name for each"
                ));
            }
        };
        let descriptor = schema.column(leaf);
        let scale = scale(&descriptor)
            .map_err(|what| format!("column `{}` is DECIMAL {what}", feature.key))?;
        let absent = absent(schema, leaf);
        let column = FeatureColumn { feature, leaf, absent, descriptor, scale };
        column.check()?;
        Ok(Some(column))
    }

    fn check(&self) -> Result<(), String> {
        let key = &self.feature.key;
        let lists = usize::try_from(self.descriptor.max_rep_level()).unwrap_or(0);
        let dims = self.feature.shape.len();
        if lists > MAX_LISTS || (lists == 0) != (dims == 0) || (lists > 1 && lists != dims) {
            return Err(match (lists, self.feature.dtype) {
                (0, _) => format!("column `{key}` is one value a row: leave out `shape`"),
                (_, FeatureDType::Bytes) => {
                    format!("column `{key}` is a list, the pipeline reads bytes, which is one")
                }
                (_, _) => format!(
                    "column `{key}` is a list, {lists} deep, the pipeline reads {dims} dimensions; \
                     give it `shape: [-1]`, or its dimensions"
                ),
            });
        }
        let physical = self.descriptor.physical_type();
        let fits = match self.feature.dtype {
            _ if self.scale.is_some() => true,
            FeatureDType::Bytes => {
                matches!(physical, Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY)
            }
            FeatureDType::I64 | FeatureDType::U64 => {
                matches!(
                    physical,
                    Physical::BOOLEAN | Physical::INT32 | Physical::INT64 | Physical::INT96
                )
            }
            FeatureDType::F32 | FeatureDType::F64 => {
                self.is_half()
                    || matches!(
                        physical,
                        Physical::INT32
                            | Physical::INT64
                            | Physical::INT96
                            | Physical::FLOAT
                            | Physical::DOUBLE
                    )
            }
        };
        if !fits {
            let asked = self.feature.dtype.dtype();
            return Err(format!("column `{key}` is {physical}, which cannot be read as {asked}"));
        }
        Ok(())
    }

    /// Whether its values are two bytes of a half-precision number.
    pub(super) fn is_half(&self) -> bool {
        matches!(self.descriptor.logical_type_ref(), Some(LogicalType::Float16))
    }

    /// Whether its integers are meant without a sign.
    pub(super) fn is_unsigned(&self) -> bool {
        use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
        matches!(self.descriptor.converted_type(), UINT_8 | UINT_16 | UINT_32 | UINT_64)
    }
}

/// Digits after the point of decimal numbers; none of others.
fn scale(column: &ColumnDescriptor) -> Result<Option<usize>, String> {
    let scale = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Decimal(decimal)), _) => decimal.scale,
        (_, ConvertedType::DECIMAL) => column.type_scale(),
        _ => return Ok(None),
    };
    let known = usize::try_from(scale).ok().filter(|scale| *scale <= MAX_DIGITS);
    known.map(Some).ok_or_else(|| format!("with {scale} digits after the point, which is not read"))
}

/// The message on a feature whose column a file lacks.
pub(super) fn lacks(schema: &SchemaDescriptor, feature: &Feature) -> String {
    let plain =
        |name: String| -> String { name.chars().filter(|c| !c.is_control()).take(40).collect() };
    let has: Vec<String> = (0..schema.num_columns())
        .take(MAX_LISTED)
        .map(|leaf| format!("`{}`", plain(name(schema, leaf))))
        .collect();
    let more = if schema.num_columns() > MAX_LISTED { " and more" } else { "" };
    format!("there is no column `{}`; it has {}{more}", feature.key, has.join(", "))
}

/// The types that lead to a leaf, the outermost first.
fn path(schema: &SchemaDescriptor, leaf: usize) -> Vec<&Type> {
    let (column, mut at, mut types) = (schema.column(leaf), schema.root_schema(), Vec::new());
    for part in column.path().parts() {
        let next = at.is_group().then(|| at.get_fields().iter().find(|field| field.name() == part));
        let Some(next) = next.flatten() else { break };
        types.push(next.as_ref());
        at = next;
    }
    types
}

/// The name of a leaf without the levels that only make lists.
fn name(schema: &SchemaDescriptor, leaf: usize) -> String {
    let types = path(schema, leaf);
    let mut parts = Vec::new();
    let mut rest = types.as_slice();
    while let [at, below @ ..] = rest {
        parts.push(at.name());
        rest = below;
        while let [list, within @ ..] = rest
            && list.get_basic_info().has_repetition()
            && list.get_basic_info().repetition() == Repetition::REPEATED
        {
            // The repeated group of one field is the list, and that field its entry.
            let three = list.is_group() && list.get_fields().len() == 1 && is_list(at);
            rest = match within {
                [_, entry @ ..] if three => entry,
                within if is_list(at) => within,
                _ => break,
            };
            // The entry may be a list itself.
            if !within.first().is_some_and(|entry| is_list(entry)) {
                break;
            }
        }
    }
    parts.join(".")
}

fn is_list(group: &Type) -> bool {
    let info = group.get_basic_info();
    group.is_group()
        && (info.converted_type() == ConvertedType::LIST
            || matches!(info.logical_type_ref(), Some(LogicalType::List)))
}

/// Each optional or repeated type on the way is a definition level: what is missing if it is.
fn absent(schema: &SchemaDescriptor, leaf: usize) -> Vec<AbsenceReason> {
    let (mut depth, mut absent) = (0, Vec::new());
    for at in path(schema, leaf) {
        let info = at.get_basic_info();
        match info.has_repetition().then(|| info.repetition()) {
            Some(Repetition::OPTIONAL) => absent.push(AbsenceReason::Null { depth }),
            Some(Repetition::REPEATED) => {
                absent.push(AbsenceReason::Empty { depth });
                depth += 1;
            }
            _ => {}
        }
    }
    absent
}

/// The text of a decimal number, as Python's `format(number, "f")` has it: two's complement from the highest byte,
/// `scale` digits after the point.
pub(super) fn decimal(bytes: &[u8], scale: usize) -> Result<String, String> {
    const BASE: u64 = 1_000_000_000;
    if bytes.len() > MAX_DECIMAL_BYTES {
        let length = bytes.len();
        return Err(format!("holds a DECIMAL of {length} bytes; the limit is {MAX_DECIMAL_BYTES}"));
    }
    let negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
    let mut digits = vec![0_u32];
    let mut take = |factor: u64, more: u8| {
        let mut carry = u64::from(more);
        for digit in &mut digits {
            let value = u64::from(*digit) * factor + carry;
            (*digit, carry) = ((value % BASE) as u32, value / BASE);
        }
        if carry > 0 {
            digits.push(carry as u32);
        }
    };
    bytes.iter().for_each(|byte| take(256, if negative { !byte } else { *byte }));
    // The complement and one is the negative number.
    take(1, u8::from(negative));
    let mut text = String::new();
    for digit in digits.iter().rev() {
        let width =
            if text.is_empty() { scale.saturating_sub(9 * (digits.len() - 1)) + 1 } else { 9 };
        text += &format!("{digit:0>width$}");
    }
    if scale > 0 {
        text.insert(text.len() - scale, '.');
    }
    Ok(if negative { format!("-{text}") } else { text })
}

// Puts the numbers of rows together from values and levels, and checks that lists are as the
// feature says.

/// Deepest lists of a column.
pub(super) const MAX_LISTS: usize = 8;

/// Values of rows, being put together.
pub(super) struct GatheredRows<'c, 'a> {
    column: &'c FeatureColumn<'a>,
    bytes: Vec<u8>,
    rows: Vec<Result<Range<usize>, String>>,
    /// State of the current row: its start, its values, and the entries of each open list.
    start: usize,
    count: usize,
    entries: [usize; MAX_LISTS + 1],
    fault: Option<String>,
    open: bool,
}

impl<'c, 'a> GatheredRows<'c, 'a> {
    pub(super) fn new(column: &'c FeatureColumn<'a>, rows: usize) -> Self {
        GatheredRows {
            column,
            bytes: Vec::new(),
            rows: Vec::with_capacity(rows),
            start: 0,
            count: 0,
            entries: [0; MAX_LISTS + 1],
            fault: None,
            open: false,
        }
    }

    fn fail(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    /// The next value belongs to the list at this repetition level: lists within it have ended.
    pub(super) fn place(&mut self, level: i16) {
        let level = usize::try_from(level).unwrap_or(0);
        if level == 0 {
            self.close();
            self.open = true;
        }
        self.close_lists(level);
        if let Some(entries) = self.entries.get_mut(level) {
            *entries += 1;
        }
    }

    /// Checks the lists within the one at `level`, and begins new ones.
    fn close_lists(&mut self, level: usize) {
        let lists = usize::try_from(self.column.descriptor.max_rep_level()).unwrap_or(0);
        for depth in (level + 1)..=lists.min(MAX_LISTS) {
            let entries = std::mem::replace(&mut self.entries[depth], 1);
            let dims = &self.column.feature.shape;
            // The outermost is checked with the number of values.
            if depth < 2 || entries == 0 || lists != dims.len() {
                continue;
            }
            if let Some(Some(dim)) = dims.get(depth - 1)
                && entries != *dim as usize
            {
                self.fail(format!(
                    "has a list of {entries} at depth {depth}, the pipeline reads {dim}"
                ));
            }
        }
    }

    pub(super) fn absent(&mut self, absent: AbsenceReason) {
        match absent {
            AbsenceReason::Null { depth: 0 } => {
                let Some(default) = &self.column.feature.default else {
                    return self.fail("is null".into());
                };
                // It was read when the pipeline was, and its lists are as long as they should be.
                self.entries[1..].fill(0);
                let read = words::read(self.column.feature, default, &mut self.bytes);
                match read {
                    Ok(count) => self.count = count,
                    Err(what) => self.fail(what),
                }
            }
            AbsenceReason::Null { .. } => self.fail("holds a null".into()),
            // It has no lists within, whose lengths would have to be right.
            AbsenceReason::Empty { depth: 0 } => self.entries[1..].fill(0),
            AbsenceReason::Empty { depth } => {
                self.fail(format!("has an empty list at depth {}", depth + 1));
            }
        }
    }

    pub(super) fn value(&mut self, put: impl FnOnce(&mut Vec<u8>) -> Result<(), String>) {
        self.count += 1;
        let most = self.column.feature.values().unwrap_or(MAX_VALUES as usize);
        if self.count <= most
            && let Err(what) = put(&mut self.bytes)
        {
            self.fail(what);
        }
    }

    /// Ends the row at hand, if there is one.
    fn close(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        if self.fault.is_none() {
            self.close_lists(0);
        }
        let fault =
            self.fault.take().map_or_else(|| self.column.feature.check_values(self.count), Err);
        let row = match fault {
            Ok(()) => Ok(self.start..self.bytes.len()),
            Err(what) => {
                self.bytes.truncate(self.start);
                Err(format!("column `{}` {what}", self.column.feature.key))
            }
        };
        self.rows.push(row);
        (self.start, self.count, self.entries) = (self.bytes.len(), 0, [0; MAX_LISTS + 1]);
    }

    pub(super) fn finish(mut self) -> (Vec<u8>, Vec<Result<Range<usize>, String>>) {
        self.close();
        (self.bytes, self.rows)
    }
}
