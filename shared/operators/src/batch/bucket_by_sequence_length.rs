//! `bucket_by_sequence_length`: stacks elements of similar lengths, to keep padding short.

use crate::prelude::*;

/// Most boundaries.
const MAX_BOUNDARIES: usize = 1024;
/// Largest boundary, in items.
const MAX_BOUNDARY: u32 = 1 << 24;

/// Elements -> batches of `size` whose sequences in `field` have similar lengths, padded as in
/// `padded_batch`; with `pad_to_bucket_boundary`, `field` is padded to the longest its bucket can hold. As
/// `tf.data.Dataset.bucket_by_sequence_length` with one batch size.
///
/// Buckets fill within a split. A split has at least four batches per bucket, if the dataset has that many
/// and `--split-batches` does not say otherwise. Elements left in buckets at the end of a split are batched
/// with their neighbours in length, so every batch except the last of an epoch is full. If a split is one
/// batch, buckets have no effect; `explain --data`, `plan` and `run` then report it and suggest a remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BucketBySequenceLength {
    pub field: String,
    /// Ascending, in items: bucket `i` ends before boundary `i`; the last bucket is unbounded.
    pub boundaries: Vec<u32>,
    pub size: u32,
    pub drop_remainder: bool,
    pub pad_to_bucket_boundary: bool,
    #[serde(flatten)]
    pub padding: SequencePadding,
}

impl OperatorDefinition for BucketBySequenceLength {
    const DECLARATION: OperatorDeclaration = batch::plain::declaration("bucket_by_sequence_length");

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence whose length decides."),
        required(
            "boundaries",
            ParameterKind::List(&ParameterKind::Whole { min: 2, max: MAX_BOUNDARY as u64 }),
            "Ascending, in items: bucket `i` ends before boundary `i`; the last bucket has no end.",
        ),
        batch_size_parameter(),
        DROP_REMAINDER,
        or(
            "pad_to_bucket_boundary",
            ParameterKind::Bool,
            "false",
            "Pad `field` to the longest its bucket can hold (its boundary - 1), not to the longest of the batch.",
        ),
        LENGTHS,
        VALUES,
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let node = params.require("boundaries")?;
        let boundaries = wholes::<Self>(params, "boundaries")?;
        if boundaries.is_empty()
            || boundaries.len() > MAX_BOUNDARIES
            || !boundaries.is_sorted_by(|a, b| a < b)
        {
            return Err(node.error(format!(
                "`bucket_by_sequence_length` `boundaries` must be 1 to {MAX_BOUNDARIES} ascending \
                 lengths, such as [33, 65, 129]"
            )));
        }
        let (size, drop_remainder) = batch::plain::size::<Self>(params)?;
        let pad_to_bucket_boundary = flag::<Self>(params, "pad_to_bucket_boundary")?;
        let padding = batch::padded_batch::padding::<Self>(params)?;
        Ok(Self { field, boundaries, size, drop_remainder, pad_to_bucket_boundary, padding })
    }
}

impl Operator for BucketBySequenceLength {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let op = Self::DECLARATION.name;
        let field = flow.field(op, &self.field)?;
        if field.known_shape().is_some() && field.dtype != FieldDType::Bytes {
            let origin = flow.origin(&self.field);
            return Err(format!(
                "`{op}` needs a sequence, but `{}` is {field}{origin}",
                self.field
            ));
        }
        batch::padded_batch::check(flow, op, &self.padding)?;
        batch::plain::check_bytes(flow, self.size, |_, _| None)
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Reads(&self.field)
    }

    fn batching(&self) -> Option<Batching> {
        let Self { size, drop_remainder, .. } = *self;
        let buckets = LengthBuckets {
            field: self.field.clone(),
            boundaries: self.boundaries.clone(),
            pad_to_boundary: self.pad_to_bucket_boundary,
        };
        let padding = Some(self.padding.clone());
        Some(Batching { size, drop_remainder, padding, buckets: Some(buckets) })
    }

    fn set_batch_size(&mut self, size: u32) {
        self.size = size;
    }
}
