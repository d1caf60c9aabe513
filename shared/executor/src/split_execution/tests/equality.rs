//! The same elements give the same values and the same objects in every format.

use crate::{CompiledPipeline, InputRange, SplitInput};
use bytes::Bytes;
use gristmill_kernel::FieldCell;
use gristmill_model::RecordKey;
use gristmill_pipeline::{Feature, FeatureDType};
use gristmill_sources::{
    FORMATS, FileFormat, FileIndex, IndexBuilder, ParsedSource, RecordReader, RecordReaderInput,
    samples::{SampleRow, SampleValue, packed},
};
use proptest::prelude::*;

/// One element: any number of integers, two floats, and a text.
#[derive(Clone, Debug)]
struct Element {
    tokens: Vec<i64>,
    weights: [f32; 2],
    text: String,
}

fn elements() -> impl Strategy<Value = Vec<Element>> {
    let element =
        (prop::collection::vec(any::<i64>(), 0..9), -1e6_f32..1e6, -1.0_f32..1.0, ".{0,12}");
    let element =
        element.prop_map(|(tokens, a, b, text)| Element { tokens, weights: [a, b], text });
    prop::collection::vec(element, 1..40)
}

impl Element {
    fn row(&self) -> SampleRow {
        let Element { tokens, weights, text } = self.clone();
        vec![
            ("tokens", SampleValue::Ints(tokens)),
            ("weights", SampleValue::Floats(weights.to_vec())),
            ("text", SampleValue::Text(text)),
        ]
    }
}

/// Files of these elements in every format that can hold them, and in every packing where that is allowed.
fn files(elements: &[Element]) -> Vec<(FileFormat, Bytes)> {
    let rows: Vec<SampleRow> = elements.iter().map(Element::row).collect();
    let mut files = Vec::new();
    for definition in FORMATS {
        let format = FileFormat::with_defaults(definition.name).unwrap();
        let Some(file) = format.sample(&rows) else { continue };
        let file = Bytes::from(file);
        if index(&format, &file).is_contiguous() {
            let packed = packed(&file).into_iter().map(Bytes::from);
            files.extend(packed.map(|file| (format.clone(), file)));
        }
        files.push((format, file));
    }
    files
}

fn index(format: &FileFormat, file: &Bytes) -> FileIndex {
    let mut builder = IndexBuilder::new(format).unwrap();
    file.chunks(100).for_each(|piece| builder.push(piece).unwrap());
    builder.finish().unwrap()
}

fn source(format: &FileFormat) -> ParsedSource {
    let feature = |key: &str, dtype, shape: &[Option<u32>]| {
        (
            key.to_owned(),
            Feature { key: key.to_owned(), dtype, shape: shape.to_vec(), default: None },
        )
    };
    let features = [
        feature("tokens", FeatureDType::I64, &[None]),
        feature("weights", FeatureDType::F32, &[Some(2)]),
        feature("text", FeatureDType::Bytes, &[]),
    ];
    ParsedSource { paths: Vec::new(), format: format.clone(), features: features.into() }
}

/// The records of a split, as a worker gets them.
fn open<'a>(
    index: &FileIndex,
    file: &Bytes,
    first: u32,
    n: u32,
    source: impl Into<RecordReaderInput<'a>>,
) -> (Bytes, FileIndex) {
    let source = source.into();
    let ranges = index.stored_ranges(first, n, source).unwrap();
    let part = |range: &std::ops::Range<u64>| file.slice(range.start as usize..range.end as usize);
    let parts: Vec<Bytes> = ranges.iter().map(part).collect();
    let records = index.open(first, n, source, &parts).unwrap();
    (records.data, records.index.unwrap_or_else(|| index.clone()))
}

/// The values of all elements, read in splits.
fn values(format: &FileFormat, file: &Bytes, split: u32) -> Vec<Vec<Vec<u8>>> {
    let (index, source) = (index(format, file), source(format));
    let reader = RecordReader::new(&source);
    let mut values = Vec::new();
    for first in (0..index.len()).step_by(split as usize) {
        let n = split.min(index.len() - first);
        let (data, within) = open(&index, file, first, n, &source);
        let base = within.byte_range(first, 0).unwrap().start;
        for record in first..first + n {
            let range = within.byte_range(record, 1).unwrap();
            let record = &data[(range.start - base) as usize..(range.end - base) as usize];
            let mut cells: Vec<FieldCell> =
                source.features.iter().map(|_| FieldCell::default()).collect();
            let (record, bytes) = reader.read(record, &mut cells).unwrap();
            let cells = cells.iter_mut().map(|cell| cell.split(record, None).unwrap().0.to_vec());
            let cells: Vec<Vec<u8>> = cells.collect();
            assert_eq!(bytes, cells.iter().map(Vec::len).sum::<usize>());
            values.push(cells);
        }
    }
    values
}

/// The objects of all splits of a pipeline over these files.
fn objects(format: &FileFormat, file: &Bytes) -> Vec<Vec<u8>> {
    let yaml = format!(
        "source: {{ {}: x, features: {{ weights: {{ dtype: f32, shape: [2] }} }} }}\n\
         ops: [batch: {{ size: 3 }}]",
        format.name()
    );
    let pipeline = gristmill_operators::parse(&yaml).unwrap();
    let (program, index) = (CompiledPipeline::compile(&pipeline).unwrap(), index(format, file));
    let mut scratch = program.scratch();
    let splits = (0..index.len()).step_by(6).map(|first| {
        let n_records = 6.min(index.len() - first);
        let (data, within) = open(&index, file, first, n_records, pipeline.source());
        let first = RecordKey { file: 0, record: first };
        let part = InputRange { first, n_records, data, index: &within };
        let input = SplitInput { seed: 7, ..SplitInput::whole(part) };
        program.run_split(&mut scratch, &input, &|| false).unwrap().object
    });
    splits.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn elements_are_the_same_in_every_format(elements in elements(), split in 1_u32..50) {
        let expected: Vec<Vec<Vec<u8>>> = elements
            .iter()
            .map(|Element { tokens, weights, text }| {
                vec![
                    text.clone().into_bytes(),
                    tokens.iter().flat_map(|token| token.to_le_bytes()).collect(),
                    weights.iter().flat_map(|weight| weight.to_le_bytes()).collect(),
                ]
            })
            .collect();
        let files = files(&elements);
        prop_assert!(files.len() > 8, "formats have no samples");
        let first = objects(&files[0].0, &files[0].1);
        for (format, file) in &files {
            prop_assert_eq!(&values(format, file, split), &expected);
            prop_assert_eq!(&objects(format, file), &first);
        }
    }
}
