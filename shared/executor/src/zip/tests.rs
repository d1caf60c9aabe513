//! Compares zipped records with the same fields in one record.

use crate::{
    CompiledPipeline, ExecError, InputRange, RecordPick, SplitInput, SplitOutput, ZippedInput,
};
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits};
use gristmill_model::{ErrorPolicy, RecordKey};
use gristmill_pipeline::FileFormat;
use gristmill_sources::{
    FileIndex, IndexBuilder,
    jsonl::Jsonl,
    samples::{bytes, example, floats, framed, ints},
    tfrecord::TfRecord,
};
use proptest::prelude::*;

const ID: &str = "id: { dtype: i64 }, w: { dtype: f32, shape: [2] }";
const TEXT: &str = "text: { dtype: bytes }, n: { dtype: i64, shape: [-1] }";
const OPS: &str = "ops: [filter: { field: id, min: 2 }, flat_map: { field: n }, batch: { size: 3, ragged: true }]";

/// The fields id, w, text, n.
type Row = (i64, [f32; 2], String, Vec<i64>);

fn program(source: &str) -> CompiledPipeline {
    let pipeline = gristmill_operators::parse(&format!("source: {source}\n{OPS}\n")).unwrap();
    CompiledPipeline::compile(&pipeline).unwrap()
}

fn zip() -> CompiledPipeline {
    program(&format!(
        "{{ zip: [{{ tfrecord: a, features: {{ {ID} }} }}, {{ jsonl: b, features: {{ {TEXT} }} }}] }}"
    ))
}

struct File {
    content: Bytes,
    index: FileIndex,
}

impl File {
    fn new(format: impl Into<FileFormat>, content: Vec<u8>) -> Self {
        let mut builder = IndexBuilder::new(&format.into()).unwrap();
        builder.push(&content).unwrap();
        File { content: content.into(), index: builder.finish().unwrap() }
    }

    fn part(&self, file: u32, first: u32, n_records: u32) -> InputRange<'_> {
        let range = self.index.byte_range(first, n_records).unwrap();
        let data = self.content.slice(range.start as usize..range.end as usize);
        InputRange { first: RecordKey { file, record: first }, n_records, data, index: &self.index }
    }
}

fn records(rows: &[Row], all: bool) -> File {
    let record = |(id, w, text, n): &Row| {
        let own = [("id", ints(&[*id])), ("w", floats(w))];
        let other = [("text", bytes(text.as_bytes())), ("n", ints(n))];
        if all { framed(&example(own.into_iter().chain(other))) } else { framed(&example(own)) }
    };
    File::new(TfRecord, rows.iter().flat_map(record).collect())
}

fn lines(rows: &[Row]) -> File {
    let line = |(_, _, text, n): &Row| {
        format!("{{\"text\":{},\"n\":{n:?}}}\n", serde_json::to_string(text).unwrap())
    };
    File::new(Jsonl, rows.iter().map(line).collect::<String>().into_bytes())
}

fn zipped(parts: Vec<InputRange<'_>>, picks: Option<Vec<RecordPick>>) -> Vec<ZippedInput<'_>> {
    let files = parts.iter().map(|part| format!("text-{}", part.first.file)).collect();
    vec![ZippedInput { parts, files, picks }]
}

fn run(program: &CompiledPipeline, input: &SplitInput<'_>) -> Result<SplitOutput, ExecError> {
    program.run_split(&mut program.scratch(), input, &|| false)
}

/// The values of a field, of all rows.
fn values(output: &SplitOutput, name: &str) -> Vec<u8> {
    let chunk = Chunk::open(Bytes::from(output.object.clone()), &ChunkLimits::default()).unwrap();
    let frames = (0..chunk.frames().len()).map(|frame| chunk.tensors(frame).unwrap());
    frames.flat_map(|frame| frame.get(name).unwrap().values().to_vec()).collect()
}

fn rows(n: i64) -> Vec<Row> {
    let row = |i: i64| (i, [i as f32, 0.5], format!("text {i}"), (0..i % 3).collect());
    (0..n).map(row).collect()
}

fn row() -> impl Strategy<Value = Row> {
    let (floats, text) = (prop::array::uniform2(-1e6_f32..1e6), ".{0,12}");
    (0..9_i64, floats, text, prop::collection::vec(any::<i64>(), 0..5))
}

proptest! {
    #[test]
    fn a_zip_makes_what_one_record_with_all_fields_makes(
        rows in prop::collection::vec(row(), 1..30), cut in any::<prop::sample::Index>(),
    ) {
        let n = rows.len() as u32;
        let (whole, halves, texts) = (records(&rows, true), records(&rows, false), lines(&rows));
        let expected = run(
            &program(&format!("{{ tfrecord: a, features: {{ {ID}, {TEXT} }} }}")),
            &SplitInput::whole(whole.part(0, 0, n)),
        );
        // The parts of the datasets begin and end at different records.
        let cut = cut.index(rows.len()) as u32;
        let parts = vec![texts.part(1, 0, cut), texts.part(1, cut, n - cut)];
        let input = SplitInput {
            zipped: zipped(parts, None),
            ..SplitInput::whole(halves.part(0, 0, n))
        };
        let found = run(&zip(), &input).unwrap();
        prop_assert_eq!(found.object, expected.unwrap().object);
    }
}

#[test]
fn picks_of_each_dataset_are_its_own() {
    let rows = rows(8);
    let (ids, texts) = (records(&rows, false), lines(&rows[..3]));
    // Texts 0, 1, 2, 0, 1 go with ids 7, 6, 5, 4, 3.
    let pick = |record| RecordPick { part: 0, record, copy: 0 };
    let input = SplitInput {
        picks: Some((0..5).map(|i| pick(7 - i)).collect()),
        zipped: zipped(vec![texts.part(1, 0, 3)], Some((0..5).map(|i| pick(i % 3)).collect())),
        ..SplitInput::whole(ids.part(0, 0, 8))
    };
    let found = run(&zip(), &input).unwrap();
    let expected: Vec<Row> = (0..5)
        .map(|i| {
            let ((id, w, ..), (_, _, text, n)) = (rows[7 - i].clone(), rows[i % 3].clone());
            (id, w, text, n)
        })
        .collect();
    let expected = records(&expected, true);
    let alone = program(&format!("{{ tfrecord: a, features: {{ {ID}, {TEXT} }} }}"));
    let expected = run(&alone, &SplitInput::whole(expected.part(0, 0, 5))).unwrap();
    // Keys are those of the picked records.
    for name in ["id", "w", "text", "n"] {
        assert_eq!(values(&found, name), values(&expected, name), "{name}");
    }
    assert_eq!(values(&found, "__key__").len(), 8 * found.rows as usize);
}

#[test]
fn a_bad_record_of_any_dataset_is_one_of_the_pair() {
    let rows = rows(6);
    let ids = records(&rows, false);
    let mut text = lines(&rows).content.to_vec();
    let third = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0 + 1;
    text[third] = b'!';
    let texts = File::new(Jsonl, text);
    let zip = zip();
    let input = |on_error| SplitInput {
        on_error,
        zipped: zipped(vec![texts.part(4, 0, 6)], None),
        ..SplitInput::whole(ids.part(0, 0, 6))
    };
    let left_out = run(&zip, &input(ErrorPolicy::Quarantine)).unwrap();
    let [skipped] = left_out.skipped.as_slice() else { panic!("{:?}", left_out.skipped) };
    assert_eq!((skipped.key, skipped.op.as_str()), (RecordKey { file: 0, record: 2 }, "source"));
    let why = "text-4 record 2, which goes with it: not valid JSON";
    assert!(skipped.reason.starts_with(why), "{}", skipped.reason);
    let aside: Vec<RecordKey> = left_out.quarantined.iter().map(|(key, _)| *key).collect();
    assert_eq!(aside, [0, 4].map(|file| RecordKey { file, record: 2 }));
    assert!(left_out.quarantined[1].1.starts_with(b"!\"text\":"));
    let failed = run(&zip, &input(ErrorPolicy::Fail)).unwrap_err();
    assert!(matches!(failed, ExecError::Record(record) if record == *skipped));
}

#[test]
fn zipped_reads_of_other_lengths_are_refused() {
    let rows = rows(6);
    let (ids, texts) = (records(&rows, false), lines(&rows));
    let zip = zip();
    let refused = |zipped: Vec<ZippedInput<'_>>| {
        let input = SplitInput { zipped, ..SplitInput::whole(ids.part(0, 0, 6)) };
        run(&zip, &input).unwrap_err().to_string()
    };
    assert!(refused(Vec::new()).contains("1 datasets are zipped with the first, but 0 were read"));
    let fewer = refused(zipped(vec![texts.part(1, 0, 5)], None));
    assert!(fewer.contains("5 records were read for 6"), "{fewer}");
    let short = texts.part(1, 0, 6);
    let short = InputRange { data: short.data.slice(1..), ..short };
    assert!(refused(zipped(vec![short], None)).contains("were read as"));
    let pick = RecordPick { part: 0, record: 9, copy: 0 };
    let elsewhere = refused(zipped(vec![texts.part(1, 0, 6)], Some(vec![pick; 6])));
    assert!(elsewhere.contains("record 9 of part 0 was not read"), "{elsewhere}");
}
