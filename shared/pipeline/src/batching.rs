//! How elements become batches: the size, and the handling of sequences of different lengths.

use crate::{
    AuthoredNumber, BoxedOperator, ElementSchema, OperatorRegistry, PipelineError, PipelineStage,
    flow::SchemaFlow, node::SyntaxNode, table::MappingReader,
};

use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of elements in a batch.
pub const MAX_BATCH_SIZE: u32 = 1 << 20;

/// Declared by the operator that makes batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Batching {
    /// Elements per batch; of several sizes the smallest, which is that of batches joined of several splits.
    pub size: u32,
    /// Whether an epoch drops its last batch if that is short.
    pub drop_remainder: bool,
    /// `None` delivers sequences unpadded, as values and offsets.
    pub padding: Option<SequencePadding>,
    /// Groups elements of similar length into the same batches.
    pub buckets: Option<LengthBuckets>,
    /// Makes batches of elements of one key alone.
    pub groups: Option<KeyGroups>,
}

/// How sequences of different lengths become one tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SequencePadding {
    /// Padded length of each field, in items. Fields without an entry are padded to the longest
    /// sequence of the batch.
    pub lengths: BTreeMap<String, u32>,
    /// Padding value of each field; 0 without an entry.
    pub values: BTreeMap<String, AuthoredNumber>,
}

/// Groups of similar length.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthBuckets {
    /// The sequence whose length selects the bucket.
    pub field: String,
    /// Ascending. Bucket `i` holds lengths from boundary `i - 1` up to, but not including, boundary
    /// `i`.
    pub boundaries: Vec<u32>,
    /// Whether that field is padded to the maximum length of its bucket.
    pub pad_to_boundary: bool,
    /// Elements per batch of each bucket, if they differ; else empty.
    pub sizes: Vec<u32>,
}

impl LengthBuckets {
    /// The bucket for a sequence of `length` items, from 0 to the number of boundaries.
    pub fn bucket_index(&self, length: usize) -> usize {
        self.boundaries.partition_point(|boundary| *boundary as usize <= length)
    }
}

/// Groups of one key each, of which no batch mixes two.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyGroups {
    /// The whole number that is the key, or the sequence whose length is.
    pub field: String,
    /// Ascending; a key is then the number of boundaries up to it. Empty: each number is a key of its own.
    pub boundaries: Vec<u32>,
    /// Elements per batch of each key between boundaries, if they differ; else empty.
    pub sizes: Vec<u32>,
}

impl KeyGroups {
    /// The key of an element whose field has this value or length.
    pub fn key(&self, number: i128) -> i128 {
        if self.boundaries.is_empty() {
            return number;
        }
        self.boundaries.partition_point(|boundary| i128::from(*boundary) <= number) as i128
    }
}

/// Least number of batches in a split where the number of keys is not known.
const BATCHES_OF_KEYS: u64 = 64;
/// Batches per bucket in a split. With fewer, most batches would mix the remainders of buckets.
const BATCHES_A_BUCKET: u64 = 4;

impl Batching {
    /// Minimum number of batches of [`size`](Self::size) in a split, so that buckets can fill; 1 without buckets.
    pub fn batches_together(&self) -> u64 {
        if self.groups.as_ref().is_some_and(|groups| groups.boundaries.is_empty()) {
            return BATCHES_OF_KEYS;
        }
        let buckets = self.buckets.as_ref().map(|buckets| &buckets.boundaries);
        let groups = self.groups.as_ref().map(|groups| &groups.boundaries);
        let Some(boundaries) = buckets.or(groups) else { return 1 };
        let elements = (0..=boundaries.len()).map(|i| u64::from(self.size_in(i)));
        elements.sum::<u64>().div_ceil(u64::from(self.size.max(1))) * BATCHES_A_BUCKET
    }

    /// Elements per batch of each bucket or key; empty if all have [`size`](Self::size).
    fn sizes(&self) -> &[u32] {
        let buckets = self.buckets.as_ref().map(|buckets| &buckets.sizes);
        buckets.or(self.groups.as_ref().map(|groups| &groups.sizes)).map_or(&[], Vec::as_slice)
    }

    /// Elements per batch of the bucket or key with this index.
    pub fn size_in(&self, bucket: usize) -> u32 {
        self.sizes().get(bucket).copied().unwrap_or(self.size)
    }

    /// Elements of the largest batch.
    pub fn largest_size(&self) -> u32 {
        self.sizes().iter().copied().max().unwrap_or(self.size)
    }

    /// Elements of the smallest batch before an epoch's last.
    pub fn smallest_size(&self) -> u32 {
        if self.groups.is_some() { 1 } else { self.size }
    }

    /// Whether batches before an epoch's last differ in size.
    pub fn has_sizes(&self) -> bool {
        self.groups.is_some() || !self.sizes().is_empty()
    }

    /// Padded length in items of `field`, in a batch whose longest sequence has `longest` items.
    ///
    /// # Errors
    /// If `longest` exceeds the length that the author set.
    pub fn padded_length(&self, field: &str, longest: usize) -> Result<usize, String> {
        let fixed = self.padding.as_ref().and_then(|padding| padding.lengths.get(field));
        if let Some(&length) = fixed {
            let length = length as usize;
            return if longest <= length {
                Ok(length)
            } else {
                Err(format!(
                    "`{field}` has {longest} items, more than the {length} it is padded to; put \
                     `truncate` before"
                ))
            };
        }
        let bucket = self.buckets.as_ref().filter(|b| b.pad_to_boundary && b.field == field);
        let boundary = bucket.and_then(|b| b.boundaries.get(b.bucket_index(longest)));
        // The last bucket has no upper boundary.
        Ok(boundary.map_or(longest, |boundary| *boundary as usize - 1))
    }

    /// The padding value of `field`.
    pub fn pad_value(&self, field: &str) -> AuthoredNumber {
        let values = self.padding.as_ref().map(|padding| &padding.values);
        values.and_then(|values| values.get(field)).copied().unwrap_or(AuthoredNumber::ZERO)
    }
}

/// The operator of `deliver` that trainers apply.
const BY_TRAINER: &str = "normalise";

/// Operators that the fetcher and then the trainer apply to a batch. The batch can so cross the
/// wire as u8, at a quarter of the bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeliveryOperators {
    /// Operators that the fetcher applies to every element, in this order. A pass moves them here;
    /// authors cannot write them.
    pub stages: Vec<PipelineStage>,
    /// Recorded with the pipeline and applied by trainers. It changes no delivered byte.
    pub normalise: Option<BoxedOperator>,
}

impl DeliveryOperators {
    pub(crate) fn parse(
        node: &SyntaxNode,
        registry: &OperatorRegistry,
    ) -> Result<Self, PipelineError> {
        let mut table = MappingReader::new("`deliver`", node)?;
        let deliver = Self::read(&mut table, registry)?;
        table.finish()?;
        Ok(deliver)
    }

    /// Reads the keys that an author may write; the table may have others.
    pub(crate) fn read(
        table: &mut MappingReader<'_>,
        registry: &OperatorRegistry,
    ) -> Result<Self, PipelineError> {
        let mut deliver = DeliveryOperators::default();
        if let Some(node) = table.given(BY_TRAINER) {
            let entry = registry.get(BY_TRAINER);
            let entry = entry.ok_or_else(|| node.error("this build cannot normalise"))?;
            let mut params = MappingReader::new("`normalise`", node)?;
            deliver.normalise = Some(entry.parse(&mut params)?);
            params.finish()?;
        }
        Ok(deliver)
    }

    /// Infers the element before each operator of the fetcher and after the last, starting from the
    /// output of workers. Checks that the trainer can apply its part to the result.
    pub(crate) fn infer(&self, flow: &mut SchemaFlow) -> Result<Vec<ElementSchema>, String> {
        let mut schemas = vec![flow.schema().clone()];
        for stage in &self.stages {
            stage.op.infer(flow)?;
            schemas.push(flow.schema().clone());
        }
        if let Some(normalise) = &self.normalise {
            normalise.infer(&mut flow.clone())?;
        }
        Ok(schemas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucketed(pad_to_boundary: bool) -> Batching {
        let buckets = LengthBuckets {
            field: "x".into(),
            boundaries: vec![4, 8],
            pad_to_boundary,
            sizes: vec![],
        };
        let padding = Some(SequencePadding {
            lengths: [("y".into(), 3)].into(),
            ..SequencePadding::default()
        });
        Batching { size: 2, drop_remainder: false, padding, buckets: Some(buckets), groups: None }
    }

    #[test]
    fn buckets_hold_up_to_their_boundary() {
        let buckets = bucketed(true).buckets.unwrap();
        let of: Vec<usize> = [0, 3, 4, 7, 8, 100].map(|n| buckets.bucket_index(n)).to_vec();
        assert_eq!(of, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_split_has_room_for_four_batches_of_each_bucket() {
        let mut batching = bucketed(true);
        assert_eq!((batching.batches_together(), batching.largest_size()), (12, 2));
        batching.buckets.as_mut().unwrap().sizes = vec![9, 4, 2];
        // 15 elements are eight batches of two.
        assert_eq!((batching.batches_together(), batching.largest_size()), (32, 9));
        assert_eq!([0, 1, 2].map(|bucket| batching.size_in(bucket)), [9, 4, 2]);
        assert!(batching.has_sizes() && !bucketed(true).has_sizes());
    }

    #[test]
    fn keys_are_numbers_or_the_buckets_they_are_in() {
        let groups = |boundaries: &[u32]| KeyGroups {
            field: "x".into(),
            boundaries: boundaries.to_vec(),
            sizes: vec![],
        };
        assert_eq!([-3, 0, 9].map(|number| groups(&[]).key(number)), [-3, 0, 9]);
        assert_eq!([-3, 3, 4, 8].map(|number| groups(&[4, 8]).key(number)), [0, 0, 1, 2]);
        let of = |boundaries: &[u32]| Batching {
            buckets: None,
            groups: Some(groups(boundaries)),
            ..bucketed(false)
        };
        assert_eq!([of(&[]), of(&[4, 8])].map(|batching| batching.batches_together()), [64, 12]);
        assert!(of(&[]).has_sizes() && of(&[]).smallest_size() == 1);
    }

    #[test]
    fn lengths_come_from_author_boundary_or_batch() {
        let length =
            |to_boundary: bool, field: &str, n| bucketed(to_boundary).padded_length(field, n);
        assert_eq!(length(true, "x", 2), Ok(3));
        assert_eq!(length(true, "x", 4), Ok(7));
        assert_eq!(length(true, "x", 9), Ok(9));
        assert_eq!(length(false, "x", 2), Ok(2));
        assert_eq!(length(false, "x", 0), Ok(0));
        assert_eq!(length(true, "y", 2), Ok(3));
        assert!(length(true, "y", 4).unwrap_err().contains("truncate"));
    }
}
