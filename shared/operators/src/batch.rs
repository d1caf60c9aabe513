//! Operators that make batches of elements.

use crate::prelude::*;

use std::collections::BTreeMap;

/// `size` elements -> one batch; every field gets a new first dimension. With `ragged`, sequences and byte
/// strings are delivered as values and offsets (`x` and `x.offsets`), and images of different sizes as values,
/// offsets and shapes (`x.shapes`), of which Python's loaders make lists. Only the last batch of an epoch can
/// be short, and `drop_remainder` drops it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlainBatch {
    pub size: u32,
    pub drop_remainder: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ragged: bool,
}

/// The declaration of all operators that make batches.
pub(crate) const fn declaration(name: &'static str) -> OperatorDeclaration {
    OperatorDeclaration {
        cardinality: Cardinality::Batch,
        pins_position: true,
        scope: OperatorScope::Split,
        ..element_wise(name, 1).costs(300, 200)
    }
}

impl OperatorDefinition for PlainBatch {
    const DECLARATION: OperatorDeclaration = declaration("batch");

    const PARAMETERS: &'static [Parameter] = &[
        batch_size_parameter(),
        DROP_REMAINDER,
        switch(
            "ragged",
            "Whether sequences of different lengths and byte strings are delivered as values and offsets, and images of different sizes as lists.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (size, drop_remainder) = size(params)?;
        Ok(PlainBatch { size, drop_remainder, ragged: params.read_flag("ragged")? })
    }
}

impl Operator for PlainBatch {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        for (name, field) in &flow.schema().fields {
            let one_shape = field.known_shape().is_some() && field.dtype != FieldDType::Bytes;
            let is_ragged = field.is_sequence() || field.is_unsized_image();
            if !(one_shape || self.ragged && is_ragged) {
                let advice = match (field.dtype, field.is_sequence()) {
                    (FieldDType::Bytes, _) => "decode it, leave it out, or say `ragged: true`",
                    (_, true) => "use `padded_batch`, or say `ragged: true`",
                    _ => "put a resize or crop before it, or say `ragged: true`",
                };
                let needs = flow.needs("batch", "every element of one shape", name);
                return Err(format!("{needs}; {advice}"));
            }
        }
        check_bytes(flow, self.size, |_, _| None)
    }

    fn batching(&self) -> Option<Batching> {
        let PlainBatch { size, drop_remainder, .. } = *self;
        Some(Batching { size, drop_remainder, padding: None, buckets: None, groups: None })
    }

    fn set_batch_size(&mut self, size: u32) {
        self.size = size;
    }
}

/// Parses `size` and `drop_remainder`.
fn size(params: &mut MappingReader<'_>) -> Result<(u32, bool), PipelineError> {
    Ok((params.read_whole("size")?, params.read_flag("drop_remainder")?))
}

/// Checks that a batch fits an object. Counts the known bytes of each field: those of its fixed shape, or
/// the bytes it is padded to, which `padded` returns.
pub(crate) fn check_bytes(
    flow: &SchemaFlow,
    size: u32,
    padded: impl Fn(&str, &FieldSchema) -> Option<u64>,
) -> Result<(), String> {
    let schema = flow.schema().with_implicit();
    let known = |(name, field): (&String, &FieldSchema)| match field.known_shape() {
        Some(_) if field.dtype != FieldDType::Bytes => field.element_bytes(),
        _ => Some(padded(name, field).unwrap_or(0)),
    };
    let element_bytes = schema.fields.iter().try_fold(0_u64, |sum, f| sum.checked_add(known(f)?));
    match element_bytes.and_then(|bytes| bytes.checked_mul(u64::from(size))) {
        Some(bytes) if bytes <= MAX_BATCH_BYTES => Ok(()),
        bytes => Err(format!(
            "a batch of {size} elements has {} bytes; the limit is {MAX_BATCH_BYTES}: make the \
             batch or its elements smaller",
            bytes.map_or("more than countable".into(), |bytes| bytes.to_string())
        )),
    }
}

/// `size` elements -> one batch. A sequence `[?, ..]` or byte string becomes `[size, n, ..]`, padded at its
/// end to the field's entry in `lengths`, else to the longest of the batch. As
/// `tf.data.Dataset.padded_batch`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaddedBatch {
    pub size: u32,
    pub drop_remainder: bool,
    #[serde(flatten)]
    pub padding: SequencePadding,
}

impl OperatorDefinition for PaddedBatch {
    const DECLARATION: OperatorDeclaration = declaration("padded_batch");

    const PARAMETERS: &'static [Parameter] =
        &[batch_size_parameter(), DROP_REMAINDER, LENGTHS, VALUES];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (size, drop_remainder) = size(params)?;
        Ok(PaddedBatch { size, drop_remainder, padding: padding(params)? })
    }
}

impl Operator for PaddedBatch {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        check(flow, "padded_batch", &self.padding)?;
        let padded = |name: &str, field: &FieldSchema| {
            let items = u64::from(*self.padding.lengths.get(name)?);
            items.checked_mul(field.item_bytes()?)
        };
        check_bytes(flow, self.size, padded)
    }

    fn batching(&self) -> Option<Batching> {
        let PaddedBatch { size, drop_remainder, ref padding } = *self;
        Some(Batching {
            size,
            drop_remainder,
            padding: Some(padding.clone()),
            buckets: None,
            groups: None,
        })
    }

    fn set_batch_size(&mut self, size: u32) {
        self.size = size;
    }
}

/// Parses `lengths` and `values`, which are mappings from fields.
fn padding(params: &mut MappingReader<'_>) -> Result<SequencePadding, PipelineError> {
    let mut padding = SequencePadding::default();
    if let Some(node) = params.get("lengths") {
        let table = MappingReader::new("`lengths`", node)?;
        let range = params.wholes_of("lengths");
        padding.lengths = entries(&table, |key, n| table.whole(key, n, range.clone()))?;
    }
    if let Some(node) = params.get("values") {
        let table = MappingReader::new("`values`", node)?;
        padding.values = entries(&table, |key, n| AuthoredNumber::parse_padding(&table, key, n))?;
    }
    Ok(padding)
}

fn entries<T>(
    table: &MappingReader<'_>,
    read: impl Fn(&str, &SyntaxNode) -> Result<T, PipelineError>,
) -> Result<BTreeMap<String, T>, PipelineError> {
    let entry = |(name, _, node): (String, _, _)| {
        let value = read(&name, node)?;
        Ok((name, value))
    };
    table.entries()?.into_iter().map(entry).collect()
}

/// Checks that every field can be padded as requested.
pub(crate) fn check(flow: &SchemaFlow, op: &str, padding: &SequencePadding) -> Result<(), String> {
    let fields = &flow.schema().fields;
    for name in padding.lengths.keys().chain(padding.values.keys()) {
        let Some(field) = fields.get(name) else {
            let known: Vec<&str> = fields.keys().map(String::as_str).collect();
            let meant = nearest(name, &known);
            let meant = meant.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            return Err(format!(
                "`{op}` pads field `{name}`, which the element does not have{meant}"
            ));
        };
        if field.known_shape().is_some() && field.dtype != FieldDType::Bytes {
            let origin = flow.origin(name);
            return Err(format!("`{op}` pads `{name}`, but it is {field}{origin}: of one length"));
        }
    }
    for (name, field) in fields {
        let fits = field.known_shape().is_some() || field.is_sequence();
        if !fits {
            let origin = flow.origin(name);
            return Err(format!(
                "`{op}` pads the first dimension only, but `{name}` is {field}{origin}"
            ));
        }
        let Some(value) = padding.values.get(name) else { continue };
        let dtype = if field.dtype == FieldDType::Bytes { FieldDType::U8 } else { field.dtype };
        value.fits(dtype).map_err(|wanted| {
            format!("`{op}` pads `{name}`, which is {field}, with {wanted}, not {value}")
        })?;
    }
    Ok(())
}

/// Most boundaries.
const MAX_BOUNDARIES: usize = 1024;
/// Largest boundary, in items.
const MAX_BOUNDARY: u32 = 1 << 24;

/// Elements -> batches of `size` whose sequences in `field` have similar lengths, padded as in
/// `padded_batch`; with `pad_to_bucket_boundary`, `field` is padded to the longest its bucket can hold. As
/// `tf.data.Dataset.bucket_by_sequence_length`. With `sizes` (tf.data's `bucket_batch_sizes`) each bucket has its own batch
/// size.
///
/// Buckets fill within a split. A split has at least four batches per bucket, if the dataset has that many
/// and `--split-batches` does not say otherwise. Elements left in buckets at the end of a split are batched
/// with their neighbours in length, so every batch except the last of an epoch is full; with `sizes`, one batch of a split
/// may have fewer, and no batch has more than the bucket of its longest sequence allows. If a split is one
/// batch, buckets have no effect; `explain --data`, `plan` and `run` then report it and suggest a remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BucketBySequenceLength {
    pub field: String,
    pub boundaries: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<u32>,
    pub drop_remainder: bool,
    pub pad_to_bucket_boundary: bool,
    #[serde(flatten)]
    pub padding: SequencePadding,
}

impl OperatorDefinition for BucketBySequenceLength {
    const DECLARATION: OperatorDeclaration = declaration("bucket_by_sequence_length");

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence whose length decides."),
        required(
            "boundaries",
            ParameterKind::List(&from_to(2, MAX_BOUNDARY)),
            "Ascending, in items: bucket `i` ends before boundary `i`; the last bucket has no end.",
        ),
        SIZE_OR_SIZES,
        sizes_parameter(
            "Elements of a batch of each bucket: one more than `boundaries`, in their order.",
        ),
        DROP_REMAINDER,
        switch(
            "pad_to_bucket_boundary",
            "Pad `field` to the longest its bucket can hold (its boundary - 1), not to the longest of the batch.",
        ),
        LENGTHS,
        VALUES,
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        params.require("boundaries")?;
        let boundaries = boundaries(params)?;
        let (size, sizes) = bucket_sizes(params, boundaries.len() + 1)?;
        let drop_remainder = params.read_flag("drop_remainder")?;
        let pad_to_bucket_boundary = params.read_flag("pad_to_bucket_boundary")?;
        let padding = padding(params)?;
        Ok(Self { field, boundaries, size, sizes, drop_remainder, pad_to_bucket_boundary, padding })
    }
}

const SIZE: ParameterKind = from_to(1, MAX_BATCH_SIZE);

/// `size` of an operator that takes `sizes` as well.
const SIZE_OR_SIZES: Parameter = absent("size", SIZE, "Elements of a batch; else `sizes` says it.");

/// `sizes`, which `text` describes.
const fn sizes_parameter(text: &'static str) -> Parameter {
    absent("sizes", ParameterKind::List(&SIZE), text)
}

/// Parses `boundaries`.
fn boundaries(params: &mut MappingReader<'_>) -> Result<Vec<u32>, PipelineError> {
    let Some(node) = params.given("boundaries") else { return Ok(Vec::new()) };
    let boundaries = params.wholes("boundaries", node, params.wholes_of("boundaries"))?;
    if boundaries.is_empty()
        || boundaries.len() > MAX_BOUNDARIES
        || !boundaries.is_sorted_by(|a, b| a < b)
    {
        return Err(node.error(format!(
            "{} `boundaries` must be 1 to {MAX_BOUNDARIES} ascending lengths, such as [33, 65, 129]",
            params.name()
        )));
    }
    Ok(boundaries)
}

/// Parses `size` or `sizes`, of which one is given. Equal sizes are one size.
fn bucket_sizes(
    params: &mut MappingReader<'_>,
    buckets: usize,
) -> Result<(Option<u32>, Vec<u32>), PipelineError> {
    let range = params.wholes_of("size");
    let size = params.given("size").map(|node| params.whole("size", node, range.clone()));
    let size = size.transpose()?;
    let Some(node) = params.given("sizes") else {
        let missing = || {
            let op = params.name();
            params.error(format!(
                "{op} needs `size`, or `sizes` with one number for each of its {buckets} buckets"
            ))
        };
        return Ok((Some(size.ok_or_else(missing)?), Vec::new()));
    };
    let op = params.name();
    let sizes = params.wholes("sizes", node, range)?;
    if size.is_some() {
        return Err(node.error(format!("{op} has `size` and `sizes`; leave one of them out")));
    }
    if sizes.len() != buckets {
        return Err(node.error(format!(
            "{op} has {} `sizes` for {buckets} buckets: one more than it has `boundaries`",
            sizes.len()
        )));
    }
    match sizes[..] {
        [first, ..] if sizes.iter().all(|size| *size == first) => Ok((Some(first), Vec::new())),
        _ => Ok((None, sizes)),
    }
}

impl Operator for BucketBySequenceLength {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let op = Self::DECLARATION.name;
        let field = flow.field(op, &self.field)?;
        if field.known_shape().is_some() && field.dtype != FieldDType::Bytes {
            return Err(flow.needs(op, "a sequence", &self.field));
        }
        check(flow, op, &self.padding)?;
        let largest = self.sizes.iter().copied().max().or(self.size);
        check_bytes(flow, largest.unwrap_or(1), |_, _| None)
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Reads(&self.field)
    }

    fn batching(&self) -> Option<Batching> {
        let Self { size, drop_remainder, .. } = *self;
        let size = self.sizes.iter().copied().min().or(size).unwrap_or(1);
        let buckets = LengthBuckets {
            field: self.field.clone(),
            boundaries: self.boundaries.clone(),
            pad_to_boundary: self.pad_to_bucket_boundary,
            sizes: self.sizes.clone(),
        };
        let padding = Some(self.padding.clone());
        Some(Batching { size, drop_remainder, padding, buckets: Some(buckets), groups: None })
    }

    fn set_batch_size(&mut self, size: u32) {
        (self.size, self.sizes) = (Some(size), Vec::new());
    }
}

/// Elements -> batches of elements of one key alone: the whole number in `field`, or the length of a sequence. With
/// `boundaries` a key is what is between two of them, and `sizes` may say the elements of a batch of each. A batch comes
/// when its key has enough elements; sequences are padded as in `padded_batch`. As `tf.data.Dataset.group_by_window` whose
/// reduce function is `padded_batch`.
///
/// Groups fill within a split, and what is left of each key at its end is a short batch, as at the end of tf.data's
/// dataset. A split has at least 64 batches, or with `boundaries` four of each key, if the dataset has that many and
/// `--split-batches` does not say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupByWindow {
    pub field: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub boundaries: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<u32>,
    #[serde(flatten)]
    pub padding: SequencePadding,
}

impl OperatorDefinition for GroupByWindow {
    const DECLARATION: OperatorDeclaration = declaration("group_by_window");

    const PARAMETERS: &'static [Parameter] = &[
        required(
            "field",
            ParameterKind::Field,
            "The key: a whole number, or a sequence by its length.",
        ),
        absent(
            "boundaries",
            ParameterKind::List(&from_to(1, MAX_BOUNDARY)),
            "Ascending: key `i` ends before boundary `i`; the last key has no end. Left out, each number is a key.",
        ),
        SIZE_OR_SIZES,
        sizes_parameter(
            "Elements of a batch of each key: one more than `boundaries`, in their order.",
        ),
        LENGTHS,
        VALUES,
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let boundaries = boundaries(params)?;
        if boundaries.is_empty()
            && let Some(node) = params.given("sizes")
        {
            return Err(node.error(
                "`group_by_window` `sizes` are those between `boundaries`, which it lacks",
            ));
        }
        let (size, sizes) = bucket_sizes(params, boundaries.len() + 1)?;
        Ok(GroupByWindow { field, boundaries, size, sizes, padding: padding(params)? })
    }
}

impl Operator for GroupByWindow {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        use FieldDType::{I32, I64, U8, U16, U32, U64};
        let op = Self::DECLARATION.name;
        let field = flow.field(op, &self.field)?;
        let is_whole =
            field.shape.is_empty() && [U8, U16, U32, U64, I32, I64].contains(&field.dtype);
        if !is_whole && !field.is_sequence() {
            let needs = flow.needs(op, "a whole number or a sequence", &self.field);
            return Err(format!("{needs}; `cast` it to i64 before"));
        }
        check(flow, op, &self.padding)?;
        let largest = self.sizes.iter().copied().max().or(self.size);
        check_bytes(flow, largest.unwrap_or(1), |_, _| None)
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Reads(&self.field)
    }

    fn batching(&self) -> Option<Batching> {
        let groups = KeyGroups {
            field: self.field.clone(),
            boundaries: self.boundaries.clone(),
            sizes: self.sizes.clone(),
        };
        Some(Batching {
            size: self.sizes.iter().copied().min().or(self.size).unwrap_or(1),
            drop_remainder: false,
            padding: Some(self.padding.clone()),
            buckets: None,
            groups: Some(groups),
        })
    }

    fn set_batch_size(&mut self, size: u32) {
        (self.size, self.sizes) = (Some(size), Vec::new());
    }
}
