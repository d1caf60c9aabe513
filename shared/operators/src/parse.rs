//! Operators that read a byte string: `parse_json`, `parse_csv` and `parse_example` find several fields in it, and
//! `parse_raw` takes it for numbers.

use crate::prelude::*;

use gristmill_sources::{SourceFormat, csv, jsonl::Jsonl, tfrecord::TfRecord};

/// Parses the parameter `features`, with keys that the format `F` checks.
pub(crate) fn features<F: SourceFormat>(
    params: &mut MappingReader<'_>,
) -> Result<BTreeMap<String, Feature>, PipelineError> {
    gristmill_sources::features(params.require("features")?, F::check)
}

/// Infers the schema: adds `features`, and removes the byte string in `field` unless `keep` is set.
pub(crate) fn infer(
    flow: &mut SchemaFlow,
    op: &'static str,
    field: &str,
    features: &BTreeMap<String, Feature>,
    keep: bool,
) -> Result<(), String> {
    if flow.field(op, field)?.dtype != FieldDType::Bytes {
        return Err(flow.needs(op, "a byte string", field));
    }
    if !keep {
        flow.remove(field);
    }
    if let Some(name) = features.keys().find(|name| flow.schema().field(name).is_some()) {
        return Err(format!(
            "`{op}` makes `{name}`, but the element has a field of that name{}; call it otherwise \
             and say where it is found: `OTHER: {{ key: {}, .. }}`",
            flow.origin(name),
            features[name].key
        ));
    }
    for (name, feature) in features {
        let Feature { dtype, shape, .. } = feature;
        let (dtype, shape) = (dtype.dtype(), shape.clone());
        flow.write(op, name, FieldSchema { dtype, shape, range: None });
    }
    Ok(())
}

const FEATURES: Parameter = required(
    "features",
    ParameterKind::Features,
    "By the name of the new field: `{ key, dtype, shape }`, as the `features` of a source.",
);
const KEEP: Parameter = switch("keep", "Whether the byte string stays a field of the element.");

/// An operator whose parameters are the field, its features and whether the field is kept.
macro_rules! parsing_operator {
    ($name:ident, $op:literal, $format:ty, $extractor:path) => {
        impl OperatorDefinition for $name {
            const DECLARATION: OperatorDeclaration = element_wise($op, 1).costs(500, 2_000);

            const PARAMETERS: &'static [Parameter] =
                &[required("field", ParameterKind::Field, "The byte string."), FEATURES, KEEP];

            fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
                let field = required_field(params)?;
                let features = features::<$format>(params)?;
                Ok($name { field, features, keep: params.read_flag("keep")? })
            }
        }

        impl Operator for $name {
            fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
                infer(flow, $op, &self.field, &self.features, self.keep)
            }

            fn fields(&self) -> TouchedFields<'_> {
                TouchedFields::Parses {
                    field: &self.field,
                    into: self.features.keys().map(String::as_str).collect(),
                }
            }

            #[cfg(feature = "kernels")]
            fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
                use $extractor as Extractor;
                Ok(Kernel::Extract(Box::new(Extractor::new(&self.features))))
            }
        }
    };
}

/// bytes (one JSON object, RFC 8259) -> a field for each of `features`, found and typed as by the source
/// `jsonl`: `a.b` is `b` of the object under `a`; whole numbers, `true` and `false` are i64, numbers f32,
/// and strings their UTF-8. A null, a missing value or one of another kind is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseJson {
    pub field: String,
    pub features: BTreeMap<String, Feature>,
    pub keep: bool,
}

parsing_operator!(ParseJson, "parse_json", Jsonl, gristmill_sources::jsonl::JsonlRecordReader);

/// Most columns of a line.
const MAX_COLUMNS: usize = 4096;

/// bytes (one line of comma-separated values, RFC 4180) -> a field for each of `features`. Values may be
/// quoted with `"`, and then contain delimiters, line ends and `""` for `"`. i64 and f32 are decimal text;
/// spaces or commas separate several numbers in one value. The number of values must equal that of
/// `columns`. Otherwise, or with an unterminated quote or an invalid number, the record is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseCsv {
    pub field: String,
    pub columns: Vec<String>,
    pub delimiter: char,
    pub features: BTreeMap<String, Feature>,
    pub keep: bool,
}

impl OperatorDefinition for ParseCsv {
    const DECLARATION: OperatorDeclaration = element_wise("parse_csv", 1).costs(300, 2_000);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The line."),
        required(
            "columns",
            ParameterKind::List(&ParameterKind::Text),
            "The names of all values of a line, in order: what the `key` of a feature names.",
        ),
        or(
            "delimiter",
            ParameterKind::Text,
            ",",
            "One ASCII character between values; `\"\\t\"` for tabs.",
        ),
        FEATURES,
        KEEP,
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let node = params.require("columns")?;
        let columns = columns(params, node)?;
        let delimiter = match params.get("delimiter") {
            Some(node) => csv::delimiter("`parse_csv` `delimiter`", node)?.into(),
            None => ',',
        };
        // Keys may be any text, as those of a JSON object.
        let features = features::<Jsonl>(params)?;
        for Feature { key, .. } in features.values() {
            let named = columns.iter().filter(|column| *column == key).count();
            if named != 1 {
                let found = if named == 0 { "is none" } else { "is more than one" };
                return Err(
                    node.error(format!("key {} of `features` {found} of `columns`", shown(key)))
                );
            }
        }
        let keep = params.read_flag("keep")?;
        Ok(ParseCsv { field, columns, delimiter, features, keep })
    }
}

impl Operator for ParseCsv {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        infer(flow, "parse_csv", &self.field, &self.features, self.keep)
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Parses {
            field: &self.field,
            into: self.features.keys().map(String::as_str).collect(),
        }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Extract(Box::new(kernel::CsvLineParser::new(self))))
    }
}

fn columns(params: &MappingReader<'_>, node: &SyntaxNode) -> Result<Vec<String>, PipelineError> {
    match &node.value {
        NodeValue::Seq(items) if (1..=MAX_COLUMNS).contains(&items.len()) => {
            items.iter().map(|item| params.text("columns", item)).collect()
        }
        _ => Err(node.error(format!(
            "`parse_csv` `columns` must be a list of 1 to {MAX_COLUMNS} names, one for each value \
             of a line"
        ))),
    }
}

/// bytes (one serialised `tf.train.Example` or `SequenceExample`) -> a field for each of `features`, read as by the
/// source `tfrecord`: with a `shape` as TensorFlow's `FixedLenFeature`, with `[-1]` as its `RaggedFeature`.
/// A missing feature, or one of another type, is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseExample {
    pub field: String,
    pub features: BTreeMap<String, Feature>,
    pub keep: bool,
}

parsing_operator!(
    ParseExample,
    "parse_example",
    TfRecord,
    gristmill_sources::tfrecord::example::ExampleExtractor
);

/// Most numbers of a byte string.
const MAX_RAW_VALUES: u32 = 1 << 28;

/// bytes -> the numbers `[shape]` of `dtype` that they are, little-endian and in the order of the dimensions, as
/// `numpy.frombuffer(value, dtype).reshape(shape)`. The first dimension may be `-1`: it follows from the length. A
/// byte string of another length is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseRaw {
    pub field: String,
    pub dtype: FieldDType,
    #[serde(serialize_with = "gristmill_sources::serialize_shape")]
    pub shape: Vec<Option<u32>>,
}

impl ParseRaw {
    fn output(&self) -> FieldSchema {
        FieldSchema { dtype: self.dtype, shape: self.shape.clone(), range: None }
    }
}

impl OperatorDefinition for ParseRaw {
    const DECLARATION: OperatorDeclaration = element_wise("parse_raw", 1).costs(100, 100);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The byte string."),
        required(
            "dtype",
            ParameterKind::Choice(&[
                "u8", "u16", "u32", "u64", "i32", "i64", "f16", "bf16", "f32", "f64",
            ]),
            "The type of the numbers.",
        ),
        required(
            "shape",
            ParameterKind::Other("a list of dimensions"),
            "The dimensions: whole numbers, of which the first may be -1 where elements differ; `[]` for one number.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        use FieldDType::{BF16, F16, F32, F64, I32, I64, U8, U16, U32, U64};
        let field = required_field(params)?;
        let dtype =
            params.read_choice("dtype", &[U8, U16, U32, U64, I32, I64, F16, BF16, F32, F64])?;
        let node = params.require("shape")?;
        let shape = gristmill_sources::dimensions("`parse_raw`", node, MAX_RAW_VALUES)?;
        Ok(ParseRaw { field, dtype, shape })
    }
}

impl Operator for ParseRaw {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        if flow.field("parse_raw", &self.field)?.dtype != FieldDType::Bytes {
            return Err(flow.needs("parse_raw", "a byte string", &self.field));
        }
        flow.write("parse_raw", &self.field, self.output());
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let (field, schema) = (self.field.clone(), self.output());
        Ok(transform(move |ValueView { bytes, size }, output, _, _| {
            kernel::check_raw(&schema, bytes.len()).map_err(|what| format!("`{field}` {what}"))?;
            output.take(bytes.len())?.copy_from_slice(bytes);
            Ok(OutputSize { bytes: bytes.len(), size })
        }))
    }
}

#[cfg(feature = "kernels")]
pub(crate) mod kernel {
    use super::*;

    use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
    use gristmill_kernel::*;
    use gristmill_sources::words;

    /// Checks that so many bytes are numbers of a shape.
    pub(super) fn check_raw(schema: &FieldSchema, bytes: usize) -> Result<(), String> {
        let (of_all, of_item) = (schema.element_bytes(), schema.item_bytes());
        match (of_all, of_item) {
            (Some(all), _) if bytes as u64 != all => {
                Err(format!("has {bytes} bytes, and {schema} takes {all}"))
            }
            (None, Some(item)) if !(bytes as u64).is_multiple_of(item) => {
                Err(format!("has {bytes} bytes, and each item of {schema} takes {item}"))
            }
            _ => Ok(()),
        }
    }

    /// A reader reused from line to line: building its tables takes longer than reading most lines.
    #[derive(Debug, Default)]
    struct LineReader {
        made: Option<(u8, Reader)>,
    }

    impl LineReader {
        /// The reader at the start of a line.
        fn reader_for(&mut self, delimiter: u8) -> &mut Reader {
            let make = || (delimiter, ReaderBuilder::new().delimiter(delimiter).build());
            if self.made.as_ref().is_some_and(|(other, _)| *other != delimiter) {
                self.made = None;
            }
            let (_, reader) = self.made.get_or_insert_with(make);
            reader.reset();
            reader
        }
    }

    /// A line -> the features found in its columns; feature i goes to cell i.
    #[derive(Debug)]
    pub(crate) struct CsvLineParser {
        delimiter: u8,
        columns: usize,
        /// In the order of the field names: a feature and its column.
        wanted: Vec<(Feature, usize)>,
    }

    impl CsvLineParser {
        pub(crate) fn new(op: &ParseCsv) -> Self {
            // The pipeline checked that the delimiter is ASCII, and that each key is one of the columns.
            let delimiter = op.delimiter as u8;
            let column =
                |feature: &Feature| op.columns.iter().position(|name| *name == feature.key);
            let wanted = op.features.values();
            let wanted = wanted.filter_map(|feature| Some((feature.clone(), column(feature)?)));
            CsvLineParser { delimiter, columns: op.columns.len(), wanted: wanted.collect() }
        }

        /// Writes the unquoted values of `line` one after the other to `pixels`, and the end of each to `ends`.
        fn split(&self, line: &[u8], tools: &mut KernelScratch) -> Result<(), String> {
            let KernelScratch { pixels: values, ends, state, .. } = tools;
            let only_ends = |text: &[u8]| text.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
            if only_ends(line) {
                return Err("the line is blank".into());
            }
            let wrong = |found: usize| {
                let (found, columns) = (found.min(self.columns + 1), self.columns);
                let more = if found > columns { " or more" } else { "" };
                Err(format!(
                    "the line has {found}{more} values, the pipeline reads {columns} columns"
                ))
            };
            // One more end than there are columns detects a line with too many values. Unquoting never
            // lengthens a value; the room for the line end keeps the buffer from being empty.
            ends.clear();
            ends.resize(self.columns + 1, 0);
            let room = line.len() + 2;
            let memory = values.try_reserve(room.saturating_sub(values.len()));
            memory.map_err(|_| format!("there is no memory for {room} bytes"))?;
            values.resize(room.max(values.len()), 0);
            let reader = state.get::<LineReader>().reader_for(self.delimiter);
            let (result, read, written, found) = reader.read_record(line, values, ends);
            match result {
                ReadRecordResult::Record if found == self.columns => {
                    return if only_ends(&line[read..]) {
                        Ok(())
                    } else {
                        Err("it is more than one line".into())
                    };
                }
                ReadRecordResult::InputEmpty if found <= self.columns => {}
                _ => return wrong(found),
            }
            // A line may lack its line end, so add one; within quotes it does not end the record.
            let (result, _, _, more) =
                reader.read_record(b"\n", &mut values[written..], &mut ends[found..]);
            match result {
                ReadRecordResult::Record if found + more == self.columns => Ok(()),
                ReadRecordResult::Record | ReadRecordResult::OutputEndsFull => wrong(found + more),
                _ => Err("a quote does not end".into()),
            }
        }
    }

    impl ExtractKernel for CsvLineParser {
        fn extract(
            &self,
            input: &[u8],
            found: &mut [FieldCell],
            tools: &mut KernelScratch,
        ) -> Result<usize, String> {
            self.split(input, tools)?;
            let KernelScratch { pixels: values, ends, .. } = tools;
            let mut bytes = 0;
            for ((feature, column), cell) in self.wanted.iter().zip(found) {
                let start = column.checked_sub(1).map_or(0, |before| ends[before]);
                let value = &values[start..ends[*column]];
                bytes += match feature.dtype {
                    FeatureDType::Bytes => {
                        cell.fill(|buffer| {
                            buffer.extend_from_slice(value);
                            Ok::<_, String>(())
                        })?;
                        value.len()
                    }
                    _ => words::numbers(feature, value, cell)
                        .map_err(|what| format!("column `{}` {what}", feature.key))?,
                };
            }
            Ok(bytes)
        }
    }
}
