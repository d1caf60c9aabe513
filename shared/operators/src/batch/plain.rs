//! `batch`: stacks elements.

use crate::prelude::*;

/// `size` elements -> one batch; every field gets a new first dimension. With `ragged`, sequences and byte
/// strings are delivered as values and offsets (`x` and `x.offsets`). Only the last batch of an epoch can
/// be short, and `drop_remainder` drops it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlainBatch {
    pub size: u32,
    pub drop_remainder: bool,
    /// Whether sequences may differ in length.
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
        or(
            "ragged",
            ParameterKind::Bool,
            "false",
            "Whether sequences of different lengths and byte strings are delivered as values and offsets.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (size, drop_remainder) = size::<Self>(params)?;
        Ok(PlainBatch { size, drop_remainder, ragged: flag::<Self>(params, "ragged")? })
    }
}

impl Operator for PlainBatch {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        for (name, field) in &flow.schema().fields {
            let one_shape = field.known_shape().is_some() && field.dtype != FieldDType::Bytes;
            if !(one_shape || self.ragged && field.is_sequence()) {
                let advice = match (field.dtype, field.is_sequence()) {
                    (FieldDType::Bytes, _) => "decode it, leave it out, or say `ragged: true`",
                    (_, true) => "use `padded_batch`, or say `ragged: true`",
                    _ => "put a resize or crop before it",
                };
                let origin = flow.origin(name);
                return Err(format!(
                    "`batch` needs every element of one shape, but `{name}` is {field}{origin}; {advice}"
                ));
            }
        }
        check_bytes(flow, self.size, |_, _| None)
    }

    fn batching(&self) -> Option<Batching> {
        let PlainBatch { size, drop_remainder, .. } = *self;
        Some(Batching { size, drop_remainder, padding: None, buckets: None })
    }

    fn set_batch_size(&mut self, size: u32) {
        self.size = size;
    }
}

/// Parses `size` and `drop_remainder`.
pub(crate) fn size<T: OperatorDefinition>(
    params: &mut MappingReader<'_>,
) -> Result<(u32, bool), PipelineError> {
    let size = whole::<T>(params, "size")?;
    Ok((size, flag::<T>(params, "drop_remainder")?))
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
