//! How elements become batches: which size, and what of elements that differ in length.

use crate::Number;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most elements of one batch.
pub const MAX_BATCH_SIZE: u32 = 1 << 20;

/// What the last operator of a pipeline declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Batching {
    /// Elements of a batch.
    pub size: u32,
    /// Whether the last batch of an epoch is left out when it is short.
    pub drop_remainder: bool,
    /// None if fields that differ in length are delivered as they are, values and offsets.
    pub padding: Option<Padding>,
    /// Elements of like lengths come together.
    pub buckets: Option<Buckets>,
}

/// How sequences of different lengths become one tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Padding {
    /// Items each sequence of a field is padded to; without an entry, as many as the longest of the
    /// batch has.
    pub lengths: BTreeMap<String, u32>,
    /// The value each field is padded with; 0 without an entry.
    pub values: BTreeMap<String, Number>,
}

/// Groups of like lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// The sequence whose length decides.
    pub field: String,
    /// Ascending. Bucket `i` holds lengths from boundary `i - 1` up to, not including, boundary `i`.
    pub boundaries: Vec<u32>,
    /// Whether the deciding field is padded to the longest its bucket can hold.
    pub pad_to_boundary: bool,
}

impl Buckets {
    /// The bucket of a sequence of `length` items: 0 to the number of boundaries.
    pub fn of(&self, length: usize) -> usize {
        self.boundaries.partition_point(|boundary| *boundary as usize <= length)
    }
}

/// Batches to a bucket in a split: fewer, and most of them would be made of what buckets have left.
const BATCHES_A_BUCKET: u64 = 4;

impl Batching {
    /// Batches that a split should have at least for buckets to fill in it; 1 without buckets.
    pub fn batches_together(&self) -> u64 {
        let buckets = self.buckets.as_ref().map(|buckets| buckets.boundaries.len() as u64 + 1);
        buckets.map_or(1, |buckets| buckets * BATCHES_A_BUCKET)
    }

    /// Items that sequences of `field` are padded to in a batch whose longest has `longest`.
    ///
    /// # Errors
    /// If it is longer than the author allowed.
    pub fn padded_length(&self, field: &str, longest: usize) -> Result<usize, String> {
        let fixed = self.padding.as_ref().and_then(|padding| padding.lengths.get(field));
        if let Some(&length) = fixed {
            let length = length as usize;
            return match longest <= length {
                true => Ok(length),
                false => Err(format!(
                    "`{field}` has {longest} items, more than the {length} it is padded to; put \
                     `truncate` before"
                )),
            };
        }
        let bucket = self.buckets.as_ref().filter(|b| b.pad_to_boundary && b.field == field);
        let boundary = bucket.and_then(|b| b.boundaries.get(b.of(longest)));
        // Beyond the last boundary there is none to pad to. A tensor has no empty dimension.
        Ok(boundary.map_or(longest, |boundary| *boundary as usize - 1).max(1))
    }

    /// What `field` is padded with.
    pub fn pad_value(&self, field: &str) -> Number {
        let values = self.padding.as_ref().map(|padding| &padding.values);
        values.and_then(|values| values.get(field)).copied().unwrap_or(Number::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucketed(pad_to_boundary: bool) -> Batching {
        let buckets = Buckets { field: "x".into(), boundaries: vec![4, 8], pad_to_boundary };
        let padding = Some(Padding { lengths: [("y".into(), 3)].into(), ..Padding::default() });
        Batching { size: 2, drop_remainder: false, padding, buckets: Some(buckets) }
    }

    #[test]
    fn buckets_hold_up_to_their_boundary() {
        let buckets = bucketed(true).buckets.unwrap();
        let of: Vec<usize> = [0, 3, 4, 7, 8, 100].map(|n| buckets.of(n)).to_vec();
        assert_eq!(of, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn lengths_come_from_author_boundary_or_batch() {
        let length =
            |to_boundary: bool, field: &str, n| bucketed(to_boundary).padded_length(field, n);
        assert_eq!(length(true, "x", 2), Ok(3));
        assert_eq!(length(true, "x", 4), Ok(7));
        assert_eq!(length(true, "x", 9), Ok(9));
        assert_eq!(length(false, "x", 2), Ok(2));
        assert_eq!(length(false, "x", 0), Ok(1));
        assert_eq!(length(true, "y", 2), Ok(3));
        assert!(length(true, "y", 4).unwrap_err().contains("truncate"));
    }
}
