//! `padded_batch`: stacks elements, and pads sequences to one length.

use crate::prelude::*;
use std::collections::BTreeMap;

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
    const DECLARATION: OperatorDeclaration = batch::plain::declaration("padded_batch");

    const PARAMETERS: &'static [Parameter] =
        &[batch_size_parameter(), DROP_REMAINDER, LENGTHS, VALUES];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (size, drop_remainder) = batch::plain::size::<Self>(params)?;
        Ok(PaddedBatch { size, drop_remainder, padding: padding::<Self>(params)? })
    }
}

impl Operator for PaddedBatch {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        check(flow, "padded_batch", &self.padding)?;
        let padded = |name: &str, field: &FieldSchema| {
            let items = u64::from(*self.padding.lengths.get(name)?);
            items.checked_mul(field.item_bytes()?)
        };
        batch::plain::check_bytes(flow, self.size, padded)
    }

    fn batching(&self) -> Option<Batching> {
        let PaddedBatch { size, drop_remainder, ref padding } = *self;
        Some(Batching { size, drop_remainder, padding: Some(padding.clone()), buckets: None })
    }

    fn set_batch_size(&mut self, size: u32) {
        self.size = size;
    }
}

/// Parses `lengths` and `values`, which are mappings from fields.
pub(crate) fn padding<T: OperatorDefinition>(
    params: &mut MappingReader<'_>,
) -> Result<SequencePadding, PipelineError> {
    let mut padding = SequencePadding::default();
    if let Some(node) = params.get("lengths") {
        let table = MappingReader::new("`lengths`", node)?;
        let range = parameters::wholes_of(declared::<T>("lengths"));
        padding.lengths = entries(&table, |key, n| table.whole(key, n, range.clone()))?;
    }
    if let Some(node) = params.get("values") {
        let table = MappingReader::new("`values`", node)?;
        padding.values = entries(&table, |key, n| AuthoredNumber::parse(&table, key, n))?;
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
