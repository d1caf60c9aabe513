//! Cache points: a split resumed from its cache object equals the computed split byte for byte, in
//! every epoch, and other objects are refused.

use super::*;
use crate::ResumeInput;
use gristmill_chunk::{TensorDType, TensorSpec};
use gristmill_kernel::{
    Kernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, TransformKernel, ValueView,
};
use gristmill_pipeline::{
    CachePoint, KernelInput, MappingReader, Operator, OperatorDeclaration, OperatorDefinition,
    Parameter, PipelineError, Randomness, SchemaFlow, TouchedFields,
};
use proptest::prelude::*;

mod strangers;

/// Maps u8 of any shape to the same plus a drawn number. Some draws refuse the element or panic.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Moody(String);

impl OperatorDefinition for Moody {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        randomness: Randomness::Random,
        ..OperatorDeclaration::new("test.moody", 1)
    };
    const PARAMETERS: &'static [Parameter] = &[];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Moody(params.field()?))
    }
}

impl Operator for Moody {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let same = flow.field("test.moody", &self.0)?.clone();
        flow.write("test.moody", &self.0, same);
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Replaces(&self.0)
    }

    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::transform(Mood))
    }
}

struct Mood;

impl TransformKernel for Mood {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        _: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let made = output.take(input.bytes.len())?;
        let mood = draw.up_to(19) as u8;
        match mood {
            0 => panic!("it is in a bad mood"),
            1 | 2 => return Err(format!("it is in mood {mood}")),
            _ => {}
        }
        made.iter_mut().zip(input.bytes).for_each(|(to, from)| *to = from.wrapping_add(mood));
        Ok(OutputSize { bytes: input.bytes.len(), size: input.size })
    }
}

struct Cached {
    bench: Bench,
    pipeline: Pipeline,
}

impl Cached {
    fn new(yaml: &str, records: &[Vec<u8>]) -> Self {
        let operators = gristmill_operators::registry().clone().with::<Moody>().unwrap();
        let parsed = Pipeline::parse(yaml, &operators);
        let pipeline = parsed.unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let program = CompiledPipeline::compile(&pipeline).unwrap();
        let file: Vec<u8> = records.iter().flat_map(|record| framed(record)).collect();
        let index = index(&file);
        let (file, on_error) = (Bytes::from(file), ErrorPolicy::Skip);
        Cached { bench: Bench { program, file, index, on_error }, pipeline }
    }

    /// Runs all records. `twice` runs them from last to first, each followed by its second
    /// occurrence in the epoch.
    fn run(&self, epoch: Epoch, put: Option<u32>, twice: bool) -> SplitOutput {
        let input = self.input(epoch, put, twice, self.bench.index.len());
        let mut scratch = self.bench.program.scratch();
        self.bench.program.run_split(&mut scratch, &input, &|| false).unwrap()
    }

    fn input(&self, epoch: Epoch, put: Option<u32>, twice: bool, n_records: u32) -> SplitInput<'_> {
        let picks = (0..n_records)
            .rev()
            .flat_map(|record| [0, 1].map(|copy| RecordPick { part: 0, record, copy }));
        let picks = twice.then(|| picks.collect());
        SplitInput { epoch, put, picks, ..self.bench.input(0, n_records) }
    }

    /// Runs all records in portions of `size`.
    fn portions(&self, epoch: Epoch, put: Option<u32>, size: u32) -> SplitOutput {
        let Bench { program, index, .. } = &self.bench;
        let (mut scratch, mut so_far, mut first) = (program.scratch(), None, 0);
        while first < index.len() {
            let n_records = size.min(index.len() - first);
            let input = SplitInput { epoch, put, ..self.bench.input(first, n_records) };
            first += n_records;
            let more = index.len() - first;
            let ran = program.run_portion(&mut scratch, so_far, &input, more, &|| false);
            so_far = Some(ran.unwrap());
        }
        program.end_split(&mut scratch, so_far.unwrap()).unwrap()
    }

    fn resume(&self, point: u32, object: &[u8], epoch: Epoch) -> Result<SplitOutput, ExecError> {
        let on_error = self.bench.on_error;
        let object = Bytes::copy_from_slice(object);
        let input = ResumeInput { point, object, epoch, seed: 42, on_error, ends_at_bad: false };
        self.bench.program.resume_split(&mut self.bench.program.scratch(), &input, &|| false)
    }

    /// Checks the promises of this module at every cache point before the batch.
    fn check(&self, twice: bool) {
        let points = self.pipeline.cache_points();
        for (at, point) in (0..).zip(points.iter().filter(|point| !point.whole)) {
            let put = self.run(2, Some(at), twice);
            if !twice {
                for size in [1, 3, 7] {
                    let portions = self.portions(2, Some(at), size);
                    same(&put, &portions);
                    assert_eq!(put.cached, portions.cached, "in portions of {size}");
                }
            }
            same(&self.run(0, None, twice), &self.run(0, Some(at), twice));
            if !point.random {
                same(&self.run(2, None, twice), &put);
            }
            self.check_parts(at, twice, &put);
            let object = put.cached.as_ref().unwrap();
            for epoch in [2, 3] {
                let computed = self.run(epoch, Some(at), twice);
                assert_eq!(computed.cached.as_ref(), Some(object), "the same in every epoch");
                let resumed = self.resume(at, object, epoch).unwrap();
                same(&computed, &resumed);
                self.check_metrics(point, &put, &resumed);
            }
        }
    }

    /// Checks that a capture in parts of any size gives the same output, and resumes the same.
    fn check_parts(&self, point: u32, twice: bool, whole: &SplitOutput) {
        for bytes in [1, 1000] {
            let parts = self.in_parts(2, point, bytes, twice);
            same(whole, &parts);
            self.check_turns(point, bytes, twice, &parts);
            let Bench { program, on_error, .. } = &self.bench;
            let objects = parts.cached_before.iter().chain(&parts.cached);
            let objects: Vec<&Vec<u8>> = objects.collect();
            let (mut scratch, mut so_far) = (program.scratch(), None);
            for (i, object) in objects.iter().enumerate() {
                let object = Bytes::copy_from_slice(object);
                let on_error = *on_error;
                let input =
                    ResumeInput { point, object, epoch: 2, seed: 42, on_error, ends_at_bad: false };
                let is_last = i + 1 == objects.len();
                let ran = program.resume_part(&mut scratch, so_far, &input, is_last, &|| false);
                so_far = Some(ran.unwrap());
            }
            let resumed = program.end_split(&mut scratch, so_far.unwrap()).unwrap();
            same(&parts, &resumed);
        }
    }

    /// Checks that taking the parts in turns, one at a time, gives the same parts.
    fn check_turns(&self, point: u32, put_bytes: usize, twice: bool, whole: &SplitOutput) {
        let Bench { program, index, .. } = &self.bench;
        let (mut scratch, mut so_far, mut parts) = (program.scratch(), None, Vec::new());
        let mut begin = 0;
        loop {
            let input = self.input(2, Some(point), twice, index.len());
            let input = SplitInput { put_bytes, begin, in_turns: true, ..input };
            let all = input.picks.as_ref().map_or(index.len(), |picks| picks.len() as u32);
            let ran = program.run_portion(&mut scratch, so_far, &input, 0, &|| false);
            let mut ran = ran.unwrap();
            begin = ran.ran();
            let taken = ran.take_cached();
            assert!(taken.len() == 1 || begin == all, "more than one part at a time");
            parts.extend(taken);
            so_far = Some(ran);
            if begin == all {
                break;
            }
        }
        let output = program.end_split(&mut scratch, so_far.unwrap()).unwrap();
        same(whole, &output);
        assert!(output.cached_before.is_empty());
        assert_eq!((&parts, &output.cached), (&whole.cached_before, &whole.cached));
    }

    /// Like `run`, with a capture in parts that end after the record with which they reach
    /// `put_bytes`.
    fn in_parts(&self, epoch: Epoch, point: u32, put_bytes: usize, twice: bool) -> SplitOutput {
        let n_records = self.bench.index.len();
        let put = Some(point);
        let input = SplitInput { put_bytes, ..self.input(epoch, put, twice, n_records) };
        let mut scratch = self.bench.program.scratch();
        self.bench.program.run_split(&mut scratch, &input, &|| false).unwrap()
    }

    fn check_metrics(&self, point: &CachePoint, put: &SplitOutput, resumed: &SplitOutput) {
        let stage = Some(point.stage as u32);
        let here = put.metrics.iter().find(|metric| metric.stage == stage).unwrap();
        let cache = &resumed.metrics[0];
        assert_eq!((cache.op, cache.stage), ("cache", None));
        assert!(cache.num_elements <= here.num_elements);
        assert!(resumed.metrics[1..].iter().all(|metric| metric.stage > stage));
        let after = put.metrics.iter().filter(|metric| metric.stage > stage).count();
        assert_eq!(resumed.metrics.len(), after + 1);
        if resumed.skipped.is_empty() {
            let (elements, bytes) = (here.num_elements, here.bytes_produced);
            assert_eq!((cache.num_elements, cache.bytes_produced), (elements, bytes));
        }
    }
}

#[track_caller]
fn same(one: &SplitOutput, other: &SplitOutput) {
    assert_eq!(one.skipped, other.skipped);
    let counts = |output: &SplitOutput| (output.rows, output.batches, output.remainder_rows);
    assert_eq!(counts(one), counts(other));
    assert!(one.object == other.object, "the objects differ");
    let ours = |record: &SkippedRecord| record.reason.contains("please report");
    assert!(!one.skipped.iter().any(ours), "{:?}", one.skipped);
}

/// A pipeline of the given operators and the batch. A set bit adds a cache point before its
/// operator.
fn pipeline(source: &str, ops: &[Option<String>], points: u32, batch: &str) -> String {
    let mut yaml = format!("{source}ops:\n");
    let mut before = false;
    for (i, op) in ops.iter().enumerate() {
        // Two cache points in a row are invalid.
        if points >> i & 1 == 1 && !before {
            yaml.push_str("  - autocache: { reuse_random: true }\n");
            before = true;
        }
        if let Some(op) = op {
            yaml.push_str(&format!("  - {op}\n"));
            before = false;
        }
    }
    if !before {
        yaml.push_str("  - autocache: { reuse_random: true }\n");
    }
    format!("{yaml}  - {batch}\n  - autocache: {{ reuse_random: true }}\n")
}

fn maybe(op: &str) -> impl Strategy<Value = Option<String>> + use<> {
    prop_oneof![Just(None), Just(Some(op.to_owned()))]
}

fn one_of(ops: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop::sample::select(ops).prop_map(|op| Some(op.to_owned()))
}

const IMAGES: &str = "source: { tfrecord: x, features: { image: { key: image/encoded, dtype: bytes }, label: { key: image/class/label, dtype: i64 } } }\n";

fn image_ops() -> impl Strategy<Value = Vec<Option<String>>> {
    let before = (
        maybe("filter: { field: label, min: 20 }"),
        maybe("duplicate"),
        one_of(&["decode", "decode: { channels: 1 }"]),
        maybe("test.moody: { field: image }"),
        maybe("flip"),
        maybe("resize_shorter: { size: 9 }"),
    );
    let after = (
        maybe("duplicate: { copies: 3 }"),
        one_of(&[
            "random_resized_crop: { size: 8 }",
            "resize: { size: [6, 9] }",
            "resize: { size: 7 }\n  - inflate: { field: image, factor: 2 }\n  - flat_map: { field: image }",
        ]),
        maybe("test.moody: { field: image }"),
        maybe("vertical_flip\n  - random_crop: { size: 5 }"),
        maybe("copy: { field: image, into: view }\n  - solarize: { field: view }"),
        maybe("scale"),
        maybe("layout: { to: chw }"),
    );
    (before, after).prop_map(|((a, b, c, d, e, f), (g, h, i, j, k, l, m))| {
        vec![a, b, c, d, e, f, g, h, i, j, k, l, m]
    })
}

const LINES: &str =
    "source: { tfrecord: x, features: { line: { dtype: bytes }, id: { dtype: i64 } } }\n";

fn line_ops() -> impl Strategy<Value = Vec<Option<String>>> {
    let before = (
        maybe("filter: { field: id, min: 2 }"),
        maybe("duplicate: { copies: 2 }"),
        one_of(&[
            "parse_json: { field: line, features: { tokens: { dtype: i64, shape: [-1] }, weights: { dtype: f32, shape: [2] }, text: { dtype: bytes } } }",
            "parse_json: { field: line, keep: true, features: { tokens: { dtype: i64, shape: [-1] }, weights: { dtype: f32, shape: [2] }, text: { dtype: bytes } } }",
        ]),
        maybe("test.moody: { field: text }"),
    );
    let after = (
        maybe("length: { field: tokens, into: items }"),
        maybe("truncate: { field: tokens, length: 4 }"),
        maybe("filter: { field: tokens, min: 1 }"),
        maybe("flat_map: { field: weights }"),
        maybe("test.moody: { field: text }"),
        maybe("duplicate: { copies: 2 }"),
        maybe("pad_sequence: { field: tokens, length: 5, value: -1 }"),
    );
    (before, after)
        .prop_map(|((a, b, c, d), (e, f, g, h, i, j, k))| vec![a, b, c, d, e, f, g, h, i, j, k])
}

/// Records of which every third cannot be parsed.
fn line_records() -> Vec<Vec<u8>> {
    let record = |i: i64| {
        let tokens: Vec<i64> = (0..i % 8).collect();
        let line = match i % 3 {
            2 => "{ \"tokens\": nothing }".into(),
            _ => format!("{{\"tokens\":{tokens:?},\"weights\":[{i},0.5],\"text\":\"text {i}\"}}"),
        };
        example([("line", bytes(line.as_bytes())), ("id", ints(&[i]))])
    };
    (0..14).map(record).collect()
}

/// Seven records, two of which are not images.
fn picture_records() -> Vec<Vec<u8>> {
    let record = |i: u32| match i {
        2 => image_record(b"no image", 50),
        5 => image_record(&jpeg(i)[..200], 50),
        _ => image_record(&jpeg(i), i64::from(i) * 10),
    };
    (0..7).map(record).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn images_resume_as_they_are_computed(ops in image_ops(), points in any::<u32>(), twice: bool) {
        let yaml = pipeline(IMAGES, &ops, points, "batch: { size: 3 }");
        Cached::new(&yaml, &picture_records()).check(twice);
    }

    #[test]
    fn sequences_resume_as_they_are_computed(
        ops in line_ops(),
        points in any::<u32>(),
        twice: bool,
        batch in prop::sample::select(&[
            "batch: { size: 3, ragged: true }",
            "padded_batch: { size: 4, values: { text: 46 } }",
            "bucket_by_sequence_length: { field: text, boundaries: [4, 7], size: 2 }",
        ][..]),
    ) {
        let yaml = pipeline(LINES, &ops, points, batch);
        Cached::new(&yaml, &line_records()).check(twice);
    }
}

const RESIZED: &str = "  - decode
  - resize: { size: 16 }
  - autocache
  - flip
  - batch: { size: 4 }
";

#[test]
fn points_tell_what_caching_there_would_store() {
    let cached = Cached::new(&format!("{IMAGES}ops:\n  - autocache\n{RESIZED}"), &image_records(6));
    let output = cached.run(1, None, false);
    assert!(output.cached.is_none());
    let points: Vec<&OpMetrics> =
        output.metrics.iter().filter(|metric| metric.op == "autocache").collect();
    let images: usize = (0..6).map(|i| jpeg(i).len()).sum();
    // Label, key, copy, record and repeat; for images of different lengths also an offset.
    assert_eq!(points[0].bytes_produced, (images + 6 * (8 + 8 + 4 + 4 + 4 + 8)) as u64);
    assert_eq!(points[1].bytes_produced, 6 * (16 * 16 * 3 + 8 + 8 + 4 + 4 + 4));
    for (at, point) in (0..).zip(points) {
        assert_eq!(point.num_elements, 6);
        let object = cached.run(1, Some(at), false).cached.unwrap().len() as u64;
        assert!((point.bytes_produced..point.bytes_produced + 2000).contains(&object), "{object}");
    }
}

#[test]
fn a_random_prefix_draws_as_in_epoch_0_and_what_follows_draws_anew() {
    let ops = "ops:\n  - decode\n  - random_resized_crop: { size: 8 }\n  - autocache: { reuse_random: true }\n  - drop: { fields: [label] }\n  - batch: { size: 9 }\n";
    let cached = Cached::new(&format!("{IMAGES}{ops}"), &image_records(6));
    assert_ne!(cached.run(0, None, false).object, cached.run(1, None, false).object);
    assert_eq!(cached.run(0, None, false).object, cached.run(1, Some(0), false).object);
    let ops = RESIZED.replace("  - flip\n", "  - test.moody: { field: image }\n");
    let cached = Cached::new(&format!("{IMAGES}ops:\n{ops}"), &image_records(6));
    let object = cached.run(0, Some(0), false).cached.unwrap();
    let resumed = |epoch| cached.resume(0, &object, epoch).unwrap().object;
    assert_ne!(resumed(0), resumed(1));
    assert_eq!(resumed(0), resumed(0));
}

#[test]
fn elements_that_fail_after_the_point_are_captured_with_their_record() {
    // All three copies of a record are captured, even if one of them fails later.
    let ops = "ops:\n  - decode\n  - resize: { size: 8 }\n  - duplicate: { copies: 3 }\n  - autocache\n  - test.moody: { field: image }\n  - batch: { size: 4 }\n";
    let cached = Cached::new(&format!("{IMAGES}{ops}"), &image_records(12));
    let output = cached.run(1, Some(0), false);
    assert!(!output.skipped.is_empty());
    let chunk = Chunk::open(output.cached.unwrap().into(), &ChunkLimits::default()).unwrap();
    let rows: u32 = chunk.frames().iter().map(|frame| frame.rows).sum();
    assert_eq!((rows, chunk.remainder()), (36, None));
}

#[test]
fn large_splits_are_several_frames() {
    let frames = |cached: &Cached| {
        let object = cached.run(0, Some(0), false).cached.unwrap();
        let chunk = Chunk::open(object.into(), &ChunkLimits::default()).unwrap();
        chunk.frames().iter().map(|frame| frame.rows).collect::<Vec<_>>()
    };
    // At 750 kB each, a frame is planned with as many rows as fit.
    let ops = "ops:\n  - decode\n  - resize: { size: 500 }\n  - autocache\n  - resize: { size: 4 }\n  - batch: { size: 4 }\n";
    let cached = Cached::new(&format!("{IMAGES}{ops}"), &picture_records());
    assert_eq!(frames(&cached), [2, 2, 1, 2], "the last are the records left out");
    cached.check(true);
    // The same with ragged values: a frame ends when it is full.
    let line =
        |i: i64| example([("line", bytes(&vec![7; 700_000 + i as usize])), ("id", ints(&[i]))]);
    let ops = "ops:\n  - autocache\n  - truncate: { field: line, length: 5 }\n  - padded_batch: { size: 4 }\n";
    let cached = Cached::new(&format!("{LINES}{ops}"), &(0..7).map(line).collect::<Vec<_>>());
    assert_eq!(frames(&cached), [3, 3, 1]);
    cached.check(false);
}

#[test]
fn a_bad_record_in_the_cache_fails_a_job_that_wants_no_bad_records() {
    let mut cached = Cached::new(&format!("{IMAGES}ops:\n{RESIZED}"), &picture_records());
    let put = cached.run(1, Some(0), false);
    assert_eq!(put.skipped.len(), 2);
    cached.bench.on_error = ErrorPolicy::Fail;
    let error = cached.resume(0, put.cached.as_ref().unwrap(), 1).unwrap_err();
    assert_eq!(error, ExecError::Record(put.skipped[0].clone()));
    cached.bench.on_error = ErrorPolicy::Quarantine;
    let resumed = cached.resume(0, put.cached.as_ref().unwrap(), 1).unwrap();
    assert_eq!(resumed.skipped, put.skipped);
    assert!(resumed.quarantined.is_empty(), "its payload is not there");
}

#[test]
fn nothing_is_put_aside_after_the_batch_and_cancelling_ends_a_resumed_split() {
    let cached = Cached::new(
        &format!("{IMAGES}ops:\n{RESIZED}  - autocache: {{ reuse_random: true }}\n"),
        &image_records(3),
    );
    let input = SplitInput { put: Some(1), ..cached.bench.input(0, 3) };
    let program = &cached.bench.program;
    let error = program.run_split(&mut program.scratch(), &input, &|| false).unwrap_err();
    assert!(error.to_string().contains("there is no `autocache` 1"), "{error}");
    let object = cached.run(1, Some(0), false).cached.unwrap().into();
    let on_error = ErrorPolicy::Fail;
    let input = ResumeInput { point: 0, object, epoch: 1, seed: 42, on_error, ends_at_bad: false };
    let left = Counter::new(2);
    let cancelled = || left.replace(left.get() - 1) == 0;
    let error = program.resume_split(&mut program.scratch(), &input, &cancelled).unwrap_err();
    assert_eq!(error, ExecError::Cancelled);
}
