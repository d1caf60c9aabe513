//! Whole splits: exactness, determinism, error policies, and bad records of every kind.

use super::*;
use crate::{InputRange, RecordPick, step::StepAction};
use gristmill_chunk::{Chunk, ChunkFrame, ChunkLimits};
use gristmill_pipeline::Pipeline;
use gristmill_sources::{
    FileIndex, IndexBuilder,
    jsonl::Jsonl,
    samples::{bytes, example, floats, framed, ints},
    tfrecord::TfRecord,
};
use std::{
    cell::Cell as Counter,
    time::{Duration, Instant},
};

mod caching;
mod elements;
mod equality;
mod finishing;
mod fused;
mod ordering;
mod parsing;
mod sequences;
mod together;

const RESNET: &str = "
source:
  tfrecord: x
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - decode
  - random_resized_crop: { size: 24 }
  - flip
  - batch: { size: 4 }
";

/// A smooth image with an edge, so that crops differ and mirroring is visible.
fn picture(seed: u32, width: u16, height: u16, components: usize) -> Vec<u8> {
    let mut pixels = Vec::new();
    for y in 0..u32::from(height) {
        for x in 0..u32::from(width) {
            for c in 0..components as u32 {
                let edge = if x * 3 > u32::from(width) * 2 { 90 } else { 0 };
                pixels.push(((x * (2 + c) + y * 3 + seed * 40 + edge) % 256) as u8);
            }
        }
    }
    pixels
}

fn encode(pixels: &[u8], width: u16, height: u16, color: jpeg_encoder::ColorType) -> Vec<u8> {
    let mut out = Vec::new();
    jpeg_encoder::Encoder::new(&mut out, 92).encode(pixels, width, height, color).unwrap();
    out
}

fn jpeg(seed: u32) -> Vec<u8> {
    let (width, height) = (40 + (seed % 5) as u16 * 7, 30 + (seed % 3) as u16 * 9);
    encode(&picture(seed, width, height, 3), width, height, jpeg_encoder::ColorType::Rgb)
}

fn image_record(image: &[u8], label: i64) -> Vec<u8> {
    example([
        ("image/class/label", ints(&[label])),
        ("image/encoded", bytes(image)),
        ("image/format", bytes(b"JPEG")),
    ])
}

fn image_records(n: u32) -> Vec<Vec<u8>> {
    (0..n).map(|i| image_record(&jpeg(i), i64::from(i) * 10)).collect()
}

/// The index of a TFRecord file.
fn index(file: &[u8]) -> FileIndex {
    let mut builder = IndexBuilder::new(&TfRecord.into()).unwrap();
    builder.push(file).unwrap();
    builder.finish().unwrap()
}

/// A file of records, and a program that runs over it.
struct Bench {
    program: CompiledPipeline,
    file: Bytes,
    index: FileIndex,
    on_error: ErrorPolicy,
}

impl Bench {
    fn new(yaml: &str, records: &[Vec<u8>]) -> Self {
        let file: Vec<u8> = records.iter().flat_map(|record| framed(record)).collect();
        Self::from_file(yaml, file)
    }

    fn from_file(yaml: &str, file: Vec<u8>) -> Self {
        let program =
            CompiledPipeline::compile(&gristmill_operators::parse(yaml).unwrap()).unwrap();
        let index = index(&file);
        Bench { program, file: Bytes::from(file), index, on_error: ErrorPolicy::Fail }
    }

    fn policy(mut self, on_error: ErrorPolicy) -> Self {
        self.on_error = on_error;
        self
    }

    fn input(&self, first: u32, n_records: u32) -> SplitInput<'_> {
        let range = self.index.byte_range(first, n_records).unwrap();
        let part = InputRange {
            first: RecordKey { file: 3, record: first },
            n_records,
            data: self.file.slice(range.start as usize..range.end as usize),
            index: &self.index,
        };
        SplitInput { epoch: 1, seed: 42, on_error: self.on_error, ..SplitInput::whole(part) }
    }

    fn run(&self, first: u32, n_records: u32) -> Result<SplitOutput, ExecError> {
        let mut scratch = self.program.scratch();
        self.program.run_split(&mut scratch, &self.input(first, n_records), &|| false)
    }

    fn all(&self) -> SplitOutput {
        self.run(0, self.index.len()).unwrap()
    }

    /// The reason why the only record fails, and the operator that reports it.
    fn reason(&self) -> (String, String) {
        match self.run(0, 1).unwrap_err() {
            ExecError::Record(SkippedRecord { op, reason, .. }) => {
                assert!(!reason.contains('\n') && reason.len() < 300, "{reason}");
                (op, reason)
            }
            other => panic!("{other}"),
        }
    }
}

fn frames(output: &SplitOutput) -> Vec<ChunkFrame> {
    let chunk = Chunk::open(Bytes::from(output.object.clone()), &ChunkLimits::default()).unwrap();
    (0..chunk.frames().len()).map(|i| chunk.tensors(i).unwrap()).collect()
}

fn values<const N: usize>(frame: &ChunkFrame, name: &str) -> Vec<[u8; N]> {
    frame.get(name).unwrap().values().as_chunks().0.to_vec()
}

fn keys(output: &SplitOutput) -> Vec<u64> {
    let of_frame =
        |frame: &ChunkFrame| values(frame, "__key__").into_iter().map(u64::from_le_bytes);
    frames(output).iter().flat_map(of_frame).collect()
}

/// All rows as (key, image), in the order of the object.
fn rows(output: &SplitOutput) -> Vec<(u64, Vec<u8>)> {
    let mut rows = Vec::new();
    for frame in frames(output) {
        let image = frame.get("image").unwrap();
        let row_bytes = image.values().len() / frame.rows();
        let keys = values(&frame, "__key__").into_iter().map(u64::from_le_bytes);
        rows.extend(keys.zip(image.values().chunks(row_bytes).map(<[u8]>::to_vec)));
    }
    rows
}

#[test]
fn every_record_comes_once_with_its_label_and_key() {
    let bench = Bench::new(RESNET, &image_records(10));
    let output = bench.all();
    assert_eq!((output.rows, output.batches, output.remainder_rows), (10, 2, 2));
    assert_eq!(keys(&output), (0..10).map(|i| 3 << 32 | i).collect::<Vec<_>>());
    let frames = frames(&output);
    assert_eq!(frames.iter().map(ChunkFrame::rows).collect::<Vec<_>>(), [4, 4, 2]);
    let names: Vec<&str> = frames[0].schema().tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["__key__", "label", "__copy__", "image"]);
    let labels = frames.iter().flat_map(|frame| values(frame, "label")).map(i64::from_le_bytes);
    assert_eq!(labels.collect::<Vec<_>>(), (0..10).map(|i| i * 10).collect::<Vec<_>>());
    assert!(frames.iter().all(|f| f.get("__copy__").unwrap().values().iter().all(|b| *b == 0)));
    assert!(output.skipped.is_empty() && output.quarantined.is_empty());
}

#[test]
fn a_split_does_not_depend_on_those_before_it() {
    let bench = Bench::new(RESNET, &image_records(12));
    let fresh: Vec<Vec<u8>> = [0, 5].map(|first| bench.run(first, 6).unwrap().object).to_vec();
    assert_ne!(fresh[0], fresh[1]);
    let mut scratch = bench.program.scratch();
    for first in [5, 0, 0, 5] {
        let output = bench.program.run_split(&mut scratch, &bench.input(first, 6), &|| false);
        let object = output.unwrap().object;
        assert_eq!(object, fresh[usize::from(first == 5)]);
        scratch.recycle(object);
    }
}

#[test]
fn how_records_are_split_and_batched_does_not_change_them() {
    let bench = Bench::new(RESNET, &image_records(12));
    let whole = rows(&bench.all());
    let parts: Vec<_> = [(0, 5), (5, 1), (6, 6)]
        .iter()
        .flat_map(|(at, n)| rows(&bench.run(*at, *n).unwrap()))
        .collect();
    assert_eq!(whole, parts);
    let other = Bench::new(&RESNET.replace("size: 4 ", "size: 7 "), &image_records(12));
    assert_eq!(whole, rows(&other.all()));
}

#[test]
fn seed_and_epoch_change_what_is_drawn() {
    let bench = Bench::new(RESNET, &image_records(4));
    let run = |seed, epoch| {
        let input = SplitInput { seed, epoch, ..bench.input(0, 4) };
        rows(&bench.program.run_split(&mut bench.program.scratch(), &input, &|| false).unwrap())
    };
    let base = run(1, 1);
    assert_eq!(base, run(1, 1));
    assert_ne!(base, run(2, 1));
    assert_ne!(base, run(1, 2));
}

/// Decoded and resized pixels of a fixed dataset. If they change, results of frozen jobs change:
/// increase the version of the responsible operator, or the numerics class if a library is
/// responsible.
#[test]
fn numerics_are_what_they_were() {
    let bench = Bench::new(RESNET, &image_records(10));
    let hash = blake3::hash(&bench.all().object).to_hex();
    if cfg!(target_arch = "x86_64") {
        assert_eq!(
            hash.as_str(),
            "564c4f0633256e92871af43fbeabdf64281bc30e958d1778322a84fde963adfd"
        );
    }
}

#[test]
fn an_operator_more_does_not_move_the_draws_of_others_it_follows() {
    let records = image_records(6);
    let plain = rows(&Bench::new(RESNET, &records).all());
    let slept = RESNET.replace("  - batch", "  - sleep: { ms: 0 }\n  - batch");
    assert_eq!(plain, rows(&Bench::new(&slept, &records).all()));
}

#[test]
fn mirrored_rows_are_mirrors() {
    let records = image_records(6);
    let flips = |p: &str| {
        let yaml = RESNET.replace("  - flip\n", &format!("  - flip: {{ p: {p} }}\n"));
        rows(&Bench::new(&yaml, &records).all())
    };
    for ((_, plain), (_, mirrored)) in flips("0").into_iter().zip(flips("1")) {
        let plain: Vec<[u8; 3]> = plain.as_chunks().0.to_vec();
        let mirrored: Vec<[u8; 3]> = mirrored.as_chunks().0.to_vec();
        for (row, reversed) in plain.chunks(24).zip(mirrored.chunks(24)) {
            assert!(row.iter().eq(reversed.iter().rev()));
        }
        assert_ne!(plain, mirrored);
    }
}

#[test]
fn flipping_before_or_after_a_step_that_keeps_size_is_the_same() {
    let tail = "  - normalise: { mean: [0.5, 0.4, 0.3], std: [0.2, 0.3, 0.4] }\n";
    let yaml = |ops: &str| {
        let head = RESNET.split("ops:").next().unwrap();
        format!(
            "{head}ops:\n  - decode\n  - resize: {{ size: [9, 13] }}\n{ops}  - batch: {{ size: 4 }}\n"
        )
    };
    let records = image_records(5);
    let flip = "  - flip: { p: 1 }\n";
    let before = Bench::new(&yaml(&format!("{flip}{tail}")), &records).all();
    let after = Bench::new(&yaml(&format!("{tail}{flip}")), &records).all();
    assert_eq!(rows(&before), rows(&after));
    assert_eq!(frames(&before)[0].schema().tensors()[3].name, "image");
    let twice = Bench::new(&yaml(&format!("{flip}{tail}{flip}")), &records).all();
    let never = Bench::new(&yaml(tail), &records).all();
    assert_eq!(rows(&twice), rows(&never));
}

#[test]
fn casts_and_normalisation_agree_with_arithmetic() {
    let yaml = |ops: &str| {
        let head = RESNET.split("ops:").next().unwrap();
        format!(
            "{head}ops: [decode, {{ resize: {{ size: 8, antialias: false }} }}, {ops} {{ batch: {{ size: 4 }} }}]"
        )
    };
    let records = image_records(4);
    let pixels = rows(&Bench::new(&yaml(""), &records).all());
    let f32s = Bench::new(&yaml("{ normalise: { mean: [0, 0, 0], std: [1, 1, 1] } },"), &records);
    let bf16s = Bench::new(
        &yaml("{ normalise: { mean: [0, 0, 0], std: [1, 1, 1] } }, { cast: { dtype: bf16 } },"),
        &records,
    );
    let (f32s, bf16s) = (rows(&f32s.all()), rows(&bf16s.all()));
    for ((pixels, f32s), bf16s) in pixels.iter().zip(&f32s).zip(&bf16s) {
        let values = f32s.1.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
        for ((pixel, value), half) in pixels.1.iter().zip(values).zip(bf16s.1.as_chunks::<2>().0) {
            assert!((value - f32::from(*pixel) / 255.0).abs() < 1e-6);
            assert_eq!(half::bf16::from_f32(value).to_le_bytes(), *half);
        }
    }
    // A cast to the same dtype, and a cast to another dtype and back, change nothing.
    let same = Bench::new(&yaml("{ cast: { dtype: u8 } },"), &records).all();
    assert_eq!(pixels, rows(&same));
    let back = Bench::new(&yaml("{ cast: { dtype: f16 } }, { cast: { dtype: u8 } },"), &records);
    assert_eq!(pixels, rows(&back.all()));
}

#[test]
fn grayscale_and_cmyk_become_rgb() {
    let yaml = format!(
        "{}ops: [decode, {{ resize: {{ size: [30, 40] }} }}, {{ batch: {{ size: 4 }} }}]",
        RESNET.split("ops:").next().unwrap()
    );
    let (width, height) = (40, 30);
    let gray = vec![100_u8; 1200];
    let gray = encode(&gray, width, height, jpeg_encoder::ColorType::Luma);
    // The encoder takes ink values and stores them inverted, as Adobe does.
    let ink: Vec<u8> = [0, 128, 255, 0].repeat(1200);
    let cmyk = encode(&ink, width, height, jpeg_encoder::ColorType::Cmyk);
    let ycck = encode(&ink, width, height, jpeg_encoder::ColorType::CmykAsYcck);
    let records: Vec<Vec<u8>> =
        [gray, cmyk, ycck].iter().map(|image| image_record(image, 0)).collect();
    let rows = rows(&Bench::new(&yaml, &records).all());
    let near = |row: &[u8], rgb: [u8; 3]| {
        let pixel = row.as_chunks::<3>().0[700];
        let close = pixel.iter().zip(rgb).all(|(a, b)| a.abs_diff(b) <= 3);
        assert!(close, "{pixel:?} is not near {rgb:?}");
    };
    near(&rows[0].1, [100, 100, 100]);
    near(&rows[1].1, [255, 127, 0]);
    near(&rows[2].1, [255, 127, 0]);
}

const NUMBERS: &str = "
source:
  tfrecord: x
  features:
    id: { key: id, dtype: i64 }
    vec: { key: v, dtype: f32, shape: [2, 3] }
ops:
  - inflate: { field: vec, factor: 2 }
  - flip: { field: vec, p: 1 }
  - cast: { field: id, dtype: f32 }
  - batch: { size: 2 }
";

fn number_record(id: i64) -> Vec<u8> {
    let vec: Vec<f32> = (0..6).map(|i| (id * 10 + i) as f32).collect();
    example([("id", ints(&[id])), ("v", floats(&vec))])
}

#[test]
fn pipelines_without_images_work_and_shapes_follow_inflation() {
    let bench = Bench::new(NUMBERS, &[number_record(1), number_record(2), number_record(3)]);
    let output = bench.all();
    let frames = frames(&output);
    let ids: Vec<f32> =
        frames.iter().flat_map(|f| values(f, "id")).map(f32::from_le_bytes).collect();
    assert_eq!(ids, [1.0, 2.0, 3.0]);
    let vec = frames[1].get("vec").unwrap();
    let floats: Vec<f32> =
        vec.values().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    // [2, 2, 3]: the row of two triples occurs twice, each time with the triples swapped.
    let row = [33.0, 34.0, 35.0, 30.0, 31.0, 32.0];
    assert_eq!(floats, [row, row].concat());
}

#[test]
fn images_of_known_size_in_the_source_can_be_flipped() {
    let yaml = "
source: { tfrecord: x, features: { image: { dtype: f32, shape: [1, 2, 3] } } }
ops: [{ flip: { p: 1 } }, { batch: { size: 1 } }]
";
    let record = example([("image", floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))]);
    let rows = rows(&Bench::new(yaml, &[record]).all());
    let floats: Vec<f32> = rows[0].1.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    assert_eq!(floats, [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
}

fn with_bad_records() -> (Vec<Vec<u8>>, Vec<u32>) {
    let mut records = image_records(11);
    records[0] = image_record(b"rubbish", 0);
    records[5] = image_record(&jpeg(5)[..500], 50);
    records[6] = example([("image/encoded", bytes(&jpeg(6)))]);
    records[10] = image_record(b"", 100);
    (records, vec![0, 5, 6, 10])
}

#[test]
fn fail_names_the_first_bad_record() {
    let (records, _) = with_bad_records();
    let bench = Bench::new(RESNET, &records);
    let error = bench.run(2, 9).unwrap_err();
    assert!(error.to_string().starts_with("file 3 record 5 (decode): bad JPEG"), "{error}");
    let mut scratch = bench.program.scratch();
    assert!(bench.program.run_split(&mut scratch, &bench.input(2, 9), &|| false).is_err());
    // A scratch still works after a failure.
    let output = bench.program.run_split(&mut scratch, &bench.input(1, 4), &|| false).unwrap();
    assert_eq!(output.object, bench.run(1, 4).unwrap().object);
}

#[test]
fn skip_leaves_out_exactly_the_bad_ones() {
    let (records, bad) = with_bad_records();
    let skip = Bench::new(RESNET, &records).policy(ErrorPolicy::Skip).all();
    let listed: Vec<u32> = skip.skipped.iter().map(|record| record.key.record).collect();
    assert_eq!(listed, bad);
    let ops: Vec<&str> = skip.skipped.iter().map(|record| record.op.as_str()).collect();
    assert_eq!(ops, ["decode", "decode", "source", "decode"]);
    assert_eq!(skip.skipped[2].reason, "feature `image/class/label` is missing");
    assert_eq!((skip.rows, skip.batches, skip.remainder_rows), (7, 1, 3));
    assert!(skip.quarantined.is_empty());
    let clean = rows(&Bench::new(RESNET, &image_records(11)).all());
    let kept: Vec<_> = clean.into_iter().filter(|(key, _)| !bad.contains(&(*key as u32))).collect();
    assert_eq!(rows(&skip), kept);
}

#[test]
fn a_split_that_ends_at_a_bad_record_has_what_precedes_it() {
    let (records, bad) = with_bad_records();
    let bench = Bench::new(RESNET, &records);
    let clean = rows(&Bench::new(RESNET, &image_records(11)).all());
    for first in 0..11 {
        let input = SplitInput { ends_at_bad: true, ..bench.input(first, 11 - first) };
        let output = bench.program.run_split(&mut bench.program.scratch(), &input, &|| false);
        let output = output.unwrap();
        let end = *bad.iter().find(|record| **record >= first).unwrap();
        assert_eq!(output.skipped.iter().map(|at| at.key.record).collect::<Vec<_>>(), [end]);
        assert_eq!(rows(&output), clean[first as usize..end as usize]);
    }
}

#[test]
fn quarantine_hands_out_the_raw_records() {
    let (records, bad) = with_bad_records();
    let output = Bench::new(RESNET, &records).policy(ErrorPolicy::Quarantine).all();
    let raw: Vec<(u32, &[u8])> =
        output.quarantined.iter().map(|(key, raw)| (key.record, raw.as_ref())).collect();
    let expected: Vec<(u32, &[u8])> =
        bad.iter().map(|i| (*i, records[*i as usize].as_slice())).collect();
    assert_eq!(raw, expected);
}

#[test]
fn a_split_of_only_bad_records_is_an_empty_object() {
    let records = vec![b"x".to_vec(); 5];
    let output = Bench::new(RESNET, &records).policy(ErrorPolicy::Skip).all();
    assert_eq!((output.rows, output.batches, output.remainder_rows), (0, 0, 0));
    assert_eq!(output.skipped.len(), 5);
    assert!(frames(&output).is_empty());
}

#[test]
fn bad_images_say_what_is_wrong() {
    let reason = |image: &[u8]| Bench::new(RESNET, &[image_record(image, 0)]).reason();
    let good = jpeg(1);
    let (op, why) = reason(&good[..good.len() / 2]);
    assert_eq!(op, "decode");
    assert!(why.starts_with("bad JPEG"), "{why}");
    assert_eq!(reason(b"").1, "the image is empty");
    assert_eq!(
        reason(b"\x89PNG\r\n").1,
        "not a JPEG, PNG, WebP, BMP, GIF, TIFF, PGM or PPM: it starts with [89, 50, 4e, 47]"
    );
    assert!(reason(&[0xff, 0xd8]).1.starts_with("bad JPEG"));
    // A header that claims 65,000 x 65,000 pixels.
    let sof = good.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let mut huge = good.clone();
    huge[sof + 5..sof + 9].copy_from_slice(&[0xfd, 0xe8, 0xfd, 0xe8]);
    let why = reason(&huge).1;
    assert!(why.contains("pixels"), "{why}");
    huge[sof + 5..sof + 9].copy_from_slice(&[0, 0, 0, 0]);
    assert!(reason(&huge).1.starts_with("bad JPEG"));
}

#[test]
fn every_cut_and_many_changes_of_an_image_are_survived() {
    let good = jpeg(2);
    let mut images: Vec<Vec<u8>> = (0..good.len()).step_by(7).map(|n| good[..n].to_vec()).collect();
    for at in (2..good.len()).step_by(3) {
        let mut bad = good.clone();
        bad[at] = bad[at].wrapping_add(1 + (at % 255) as u8);
        images.push(bad);
    }
    let records: Vec<Vec<u8>> = images.iter().map(|image| image_record(image, 1)).collect();
    let bench = Bench::new(RESNET, &records).policy(ErrorPolicy::Skip);
    let output = bench.all();
    assert_eq!(output.rows as usize + output.skipped.len(), records.len());
    // An image cut before its end-of-image marker is never complete.
    let cut = good.len().div_ceil(7);
    let listed = output.skipped.iter().filter(|r| (r.key.record as usize) < cut).count();
    assert_eq!(listed, cut);
    assert!(output.skipped.iter().all(|r| !r.reason.contains("panicked")), "{:?}", output.skipped);
}

#[test]
fn damaged_records_are_bad_records() {
    let records = image_records(4);
    let mut file: Vec<u8> = records.iter().flat_map(|record| framed(record)).collect();
    let payload_crc = file.len() - 1;
    let second = records[0].len() + 16;
    file[payload_crc] ^= 1;
    file[second + 12 + 3] ^= 1;
    let output = Bench::from_file(RESNET, file).policy(ErrorPolicy::Skip).all();
    assert_eq!(output.rows, 2);
    let reasons: Vec<(u32, &str)> =
        output.skipped.iter().map(|r| (r.key.record, r.reason.as_str())).collect();
    let why = "the record's checksum does not match its content";
    assert_eq!(reasons, [(1, why), (3, why)]);
}

#[test]
fn bytes_of_another_range_are_refused() {
    let bench = Bench::new(RESNET, &image_records(4));
    let mut scratch = bench.program.scratch();
    let mut run = |input: SplitInput<'_>| {
        let error = bench.program.run_split(&mut scratch, &input, &|| false).unwrap_err();
        assert!(matches!(error, ExecError::Source(_)), "{error}");
        error.to_string()
    };
    let part = bench.input(1, 2).parts.remove(0);
    let short = part.data.slice(1..);
    assert!(
        run(SplitInput::whole(InputRange { data: short, ..part.clone() })).contains("were read as")
    );
    assert!(
        run(SplitInput::whole(InputRange { n_records: 9, ..part.clone() }))
            .contains("a file of 4 records")
    );
    let picks = Some(vec![RecordPick { part: 0, record: 2, copy: 0 }]);
    assert!(run(SplitInput { picks, ..SplitInput::whole(part) }).contains("was not read"));
}

#[test]
fn picked_records_are_run_in_their_order() {
    let bench = Bench::new(RESNET, &image_records(6));
    let [first, second] = [(0, 2), (3, 3)].map(|(at, n)| bench.input(at, n).parts.remove(0));
    let pick = |part, record, copy| RecordPick { part, record, copy };
    let picks = vec![pick(1, 2, 0), pick(0, 1, 0), pick(1, 2, 1), pick(1, 0, 0)];
    let input = SplitInput { parts: vec![first, second], picks: Some(picks), ..bench.input(0, 1) };
    let mut scratch = bench.program.scratch();
    let picked = rows(&bench.program.run_split(&mut scratch, &input, &|| false).unwrap());
    let alone = |record, copy| {
        let input = SplitInput { copy, ..bench.input(record, 1) };
        let output = bench.program.run_split(&mut bench.program.scratch(), &input, &|| false);
        rows(&output.unwrap())
    };
    let expected = [alone(5, 0), alone(1, 0), alone(5, 1), alone(3, 0)].concat();
    assert_eq!(picked, expected);
}

#[test]
fn cancelling_stops_between_elements() {
    let bench = Bench::new(RESNET, &image_records(8));
    let mut scratch = bench.program.scratch();
    let asked = Counter::new(0);
    let cancelled = || {
        asked.set(asked.get() + 1);
        asked.get() > 5
    };
    let error = bench.program.run_split(&mut scratch, &bench.input(0, 8), &cancelled).unwrap_err();
    assert_eq!(error, ExecError::Cancelled);
    assert_eq!(asked.get(), 6);
    let output = bench.program.run_split(&mut scratch, &bench.input(0, 8), &|| false).unwrap();
    assert_eq!(output.object, bench.all().object);
}

#[test]
fn a_long_sleep_is_interrupted_and_a_short_one_kept() {
    let yaml = "
source: { tfrecord: x, features: { id: { dtype: i64 } } }
ops: [{ sleep: { ms: MS } }, { batch: { size: 2 } }]
";
    let records = vec![example([("id", ints(&[1]))]); 3];
    let long = Bench::new(&yaml.replace("MS", "60000"), &records);
    let started = Instant::now();
    let cancelled = || started.elapsed() > Duration::from_millis(50);
    let mut scratch = long.program.scratch();
    let error = long.program.run_split(&mut scratch, &long.input(0, 3), &cancelled).unwrap_err();
    assert_eq!(error, ExecError::Cancelled);
    let short = Bench::new(&yaml.replace("MS", "2.5"), &records).all();
    assert!(short.metrics[1].active_ns >= 7_500_000, "{:?}", short.metrics);
    assert_eq!(short.rows, 3);
}

#[test]
fn metrics_count_elements_and_bytes() {
    let (records, _) = with_bad_records();
    let bench = Bench::new(RESNET, &records).policy(ErrorPolicy::Skip);
    let output = bench.all();
    let ops: Vec<&str> = output.metrics.iter().map(|m| m.op).collect();
    assert_eq!(ops, ["source", "decode+random_resized_crop", "flip", "batch"]);
    let counts: Vec<u64> = output.metrics.iter().map(|m| m.num_elements).collect();
    // Eleven records: one has no label, three do not decode, and the other seven fill two frames.
    assert_eq!(counts, [10, 7, 7, 2]);
    let row_bytes = 24 * 24 * 3;
    assert_eq!(output.metrics[1].bytes_produced, 7 * row_bytes);
    assert_eq!(output.metrics[3].bytes_produced, 7 * (row_bytes + 8 + 8 + 4));
    assert_eq!(output.metrics[1].bytes_produced, output.metrics[2].bytes_in);
    assert_eq!(output.metrics[3].stage, Some(3));
}

#[test]
fn a_panicking_operator_costs_one_record() {
    use gristmill_kernel::{KernelOutput, OperatorDraws, OutputSize, TransformKernel, ValueView};
    struct Explode;
    impl TransformKernel for Explode {
        fn run(
            &self,
            input: ValueView<'_>,
            _: KernelOutput<'_>,
            _: &mut KernelScratch,
            _: &mut OperatorDraws,
        ) -> Result<OutputSize, String> {
            panic!("boom\nat {}", input.bytes.len())
        }
    }
    let mut bench = Bench::new(RESNET, &image_records(3)).policy(ErrorPolicy::Skip);
    bench.program.steps[0].blame = "my_op";
    bench.program.steps[0].action =
        StepAction::Transform { input: 0, output: 0, kernel: Box::new(Explode), to_row: true };
    let output = bench.all();
    assert_eq!(output.rows, 0);
    assert_eq!(output.skipped[2].op, "my_op");
    assert!(output.skipped[0].reason.starts_with("the operator panicked: boom at "));
}

#[test]
fn programs_can_be_shared_and_scratches_moved() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<CompiledPipeline>();
    moved::<ExecutorScratch>();
}

#[test]
fn a_scratch_of_another_program_is_refused() {
    let images = Bench::new(RESNET, &image_records(1));
    let one = "
source: { tfrecord: x, features: { id: { dtype: i64 } } }
ops: [{ batch: { size: 1 } }]
";
    let one = Bench::new(one, &[example([("id", ints(&[1]))])]);
    let run = one.program.run_split(&mut images.program.scratch(), &one.input(0, 1), &|| false);
    assert!(matches!(run.unwrap_err(), ExecError::Pipeline(_)));
}
