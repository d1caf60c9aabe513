//! `length`, `truncate` and `pad_sequence`: sequences of numbers.

use crate::prelude::*;

/// A sequence `[n, ..]` or byte string of n bytes -> i64 scalar n in the new field `into`, a name that the
/// element must not have yet. The sequence stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Length {
    pub field: String,
    pub into: String,
}

impl OperatorDefinition for Length {
    const DECLARATION: OperatorDeclaration = element_wise("length", 1).costs(100, 0);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence or byte string."),
        required("into", ParameterKind::Field, "The new field."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Length { field: required_field(params)?, into: into(params, "length")? })
    }
}

impl Operator for Length {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("length", &self.field)?;
        if !input.is_sequence() && input.shape.is_empty() {
            return Err(flow.needs("length", "a sequence", &self.field));
        }
        if input.item_bytes().is_none() {
            return Err(format!("`length` of `{}` is not known: it is {input}", self.field));
        }
        flow.write_new("length", &self.into, FieldSchema::fixed(FieldDType::I64, []))
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Derives { field: &self.field, into: &self.into }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let item_bytes = item_bytes_of(input.field()?);
        Ok(transform(move |input, output, _, _| {
            let items = (input.bytes.len() / item_bytes) as i64;
            output.take(8)?.copy_from_slice(&items.to_le_bytes());
            Ok(OutputSize { bytes: 8, size: [0, 0] })
        }))
    }
}

/// A sequence `[n, ..]` or byte string -> its first `length` items; shorter ones stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Truncate {
    pub field: String,
    pub length: u32,
}

impl OperatorDefinition for Truncate {
    const DECLARATION: OperatorDeclaration = element_wise("truncate", 1).costs(100, 50);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence or byte string."),
        required("length", from_to(1, MAX_LENGTH), "Most items that are kept."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        Ok(Truncate { length: params.read_whole("length")?, field })
    }
}

impl Operator for Truncate {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("truncate", &self.field)?;
        if !input.is_sequence() {
            return Err(flow.needs("truncate", "a sequence", &self.field));
        }
        let output = input.clone();
        flow.write("truncate", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let most_bytes = (self.length as usize).saturating_mul(item_bytes_of(given));
        Ok(Kernel::Shorten { most_bytes })
    }
}

/// A sequence `[n, ..]` of numbers -> `[length, ..]`, padded with `value` at its end. A longer sequence is
/// an error of its record, unless `truncate` cuts it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PadSequence {
    pub field: String,
    pub length: u32,
    pub truncate: bool,
    pub value: AuthoredNumber,
}

impl OperatorDefinition for PadSequence {
    const DECLARATION: OperatorDeclaration = element_wise("pad_sequence", 2).costs(200, 100);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence."),
        required("length", from_to(1, MAX_LENGTH), "Items of every sequence that comes out."),
        or(
            "value",
            ANY_NUMBER,
            "0",
            "What is filled in; the field's dtype must be able to hold it, as floats do `.nan` and `.inf`.",
        ),
        switch("truncate", "Whether only the first `length` items of a longer sequence are kept."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let length = params.read_whole("length")?;
        let truncate = params.read_flag("truncate")?;
        let value = params.get("value");
        let value =
            value.map(|node| AuthoredNumber::parse_padding(params, "value", node)).transpose()?;
        let value = value.unwrap_or(AuthoredNumber::ZERO);
        Ok(PadSequence { field, length, truncate, value })
    }
}

impl Operator for PadSequence {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("pad_sequence", &self.field)?;
        let (field, origin) = (&self.field, flow.origin(&self.field));
        let items = input.shape.split_first().filter(|_| input.item_bytes().is_some());
        let Some((first, item)) = items.filter(|_| input.dtype != FieldDType::Bytes) else {
            return Err(flow.needs("pad_sequence", "a sequence of numbers", field));
        };
        if first.is_some_and(|first| first > self.length) && !self.truncate {
            return Err(format!(
                "`pad_sequence` to {} cannot hold `{field}`, which is {input}{origin}; say \
                 `truncate: true` if it may be cut",
                self.length
            ));
        }
        self.value.fits(input.dtype).map_err(|wanted| {
            let value = self.value;
            format!(
                "`pad_sequence` `value` must be {wanted}, not {value}: `{field}` is {input}{origin}"
            )
        })?;
        let shape = [Some(self.length)].into_iter().chain(item.iter().copied()).collect();
        let range = input.range.map(|range| widened(range, self.value.real()));
        let output = FieldSchema { dtype: input.dtype, shape, range };
        flow.write("pad_sequence", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let (item_bytes, length) = (item_bytes_of(given), self.length as usize);
        let (truncate, value) = (self.truncate, self.value.bytes(given.dtype));
        Ok(transform(move |input, output, _, _| {
            let bytes = length.saturating_mul(item_bytes);
            if input.bytes.len() > bytes && !truncate {
                return Err(format!(
                    "a sequence of {} items does not fit {length}; `truncate: true` cuts it",
                    input.bytes.len() / item_bytes
                ));
            }
            let given = input.bytes.len().min(bytes);
            let (start, rest) = output.take(bytes)?.split_at_mut(given);
            start.copy_from_slice(&input.bytes[..given]);
            if value.iter().all(|byte| *byte == 0) {
                rest.fill(0);
            } else {
                rest.chunks_exact_mut(value.len()).for_each(|to| to.copy_from_slice(&value));
            }
            Ok(OutputSize { bytes, size: [0, 0] })
        }))
    }
}
