//! Malformed input: one line that names the fault and its place, the right exit code, and no other
//! failure. Faults of single records are skipped if the user asks for it.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample, masked_crc32c};
use gristmill_tests::TestDir;
use std::{fs, path::Path, process::Stdio};

/// Records of each file, one of which may be bad.
const RECORDS: usize = 12;
const BAD: usize = 5;

/// The JPEG from which all malformed input is made.
fn jpeg() -> Vec<u8> {
    let (width, height) = (48_u16, 32_u16);
    let pixels: Vec<u8> = (0..u32::from(width) * u32::from(height) * 3)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut jpeg = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut jpeg, 80);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    jpeg
}

fn example(image: &[u8]) -> TfExample {
    TfExample::default()
        .with_bytes("image/encoded", image.to_vec())
        .with_int("image/class/label", 1)
}

fn framed(example: &TfExample) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = RecordWriter::new(&mut file);
    writer.write(example).unwrap();
    writer.finish().unwrap();
    file
}

/// Any payload in correct framing.
fn framed_bytes(payload: &[u8], length: u64) -> Vec<u8> {
    let length = length.to_le_bytes();
    let mut file = length.to_vec();
    file.extend(masked_crc32c(&length).to_le_bytes());
    file.extend(payload);
    file.extend(masked_crc32c(payload).to_le_bytes());
    file
}

/// A file of good records with `bad` in the middle.
fn file_with(bad: &[u8]) -> Vec<u8> {
    let good = framed(&example(&jpeg()));
    let records = (0..RECORDS).map(|i| if i == BAD { bad } else { &good });
    records.flatten().copied().collect()
}

/// The JPEG with another size in its header.
fn jpeg_of_size(height: u16, width: u16) -> Vec<u8> {
    let mut jpeg = jpeg();
    let start_of_frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[start_of_frame + 5..][..2].copy_from_slice(&height.to_be_bytes());
    jpeg[start_of_frame + 7..][..2].copy_from_slice(&width.to_be_bytes());
    jpeg
}

const PIPELINE: &str = "
source:
  tfrecord: .
  features:
    image: { key: image/encoded, dtype: bytes }
    label: { key: image/class/label, dtype: i64 }
ops:
  - decode
  - resize: { size: 16 }
  - batch: { size: 4 }
";

/// The end of a run: exit code, standard error, report.
struct Ended {
    code: Option<i32>,
    said: String,
    report: serde_json::Value,
}

fn run(dir: &TestDir, pipeline: &Path, data: &Path, more: &[&str]) -> Result<Ended> {
    let mut command = dir.gristmill(&["run"]);
    command.arg(pipeline).arg("--data").arg(data);
    command.args(["--workers", "1", "--epochs", "1", "--step-time", "0ms", "--json"]).args(more);
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let report = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    Ok(Ended { code: output.status.code(), said, report: report.unwrap_or_default() })
}

/// Asserts that the program printed one line, which names each of `words`.
fn assert_says(name: &str, ended: &Ended, code: i32, words: &[&str]) {
    let Ended { code: was, said, .. } = ended;
    assert_eq!(*was, Some(code), "{name}: {said}");
    assert_eq!(said.lines().count(), 1, "{name}: {said}");
    assert!(said.starts_with("gristmill: ") && said.len() < 600, "{name}: {said}");
    for word in words {
        assert!(said.contains(word), "{name}: {word:?} is not in {said:?}");
    }
}

#[test]
fn bad_records_fail_the_job_or_are_skipped() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let pipeline = dir.path("p.yaml");
    fs::write(&pipeline, PIPELINE)?;
    let mut wrong_crc = framed(&example(&jpeg()));
    *wrong_crc.last_mut().unwrap() ^= 1;
    let no_image = TfExample::default().with_int("image/class/label", 1);
    let truncated_message = &framed(&example(&jpeg()))[12..40];
    for (name, bad, word) in [
        ("half a JPEG", framed(&example(&jpeg()[..jpeg().len() / 2])), "decode"),
        ("an enormous header", framed(&example(&jpeg_of_size(65_000, 65_000))), "65000 x 65000"),
        ("a header without rows", framed(&example(&jpeg_of_size(0, 16))), "decode"),
        ("text for a JPEG", framed(&example(b"hello, world")), "not a JPEG"),
        ("no JPEG at all", framed(&example(b"")), "decode"),
        ("no image", framed(&no_image), "image/encoded"),
        ("no message", framed_bytes(&[0xff; 40], 40), "tf.Example"),
        ("half a message", framed_bytes(truncated_message, 28), "tf.Example"),
        ("an empty record", framed_bytes(b"", 0), "image/encoded"),
        ("a wrong checksum", wrong_crc, "checksum"),
    ] {
        let data = dir.path("bad-00000");
        fs::write(&data, file_with(&bad))?;
        let ended = run(&dir, &pipeline, &data, &[])?;
        assert_says(name, &ended, 1, &["bad-00000", "record 5", word]);
        let ended = run(&dir, &pipeline, &data, &["--on-error", "skip", "--max-skipped", "100%"])?;
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.said);
        let count = |field: &str| ended.report[field].as_u64();
        assert_eq!(count("skipped"), Some(1), "{name}");
        assert_eq!(count("elements_delivered"), Some(RECORDS as u64 - 1), "{name}");
    }
    Ok(())
}

#[test]
fn bad_files_fail_the_job_or_give_what_lies_before() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let pipeline = dir.path("p.yaml");
    fs::write(&pipeline, PIPELINE)?;
    let good = file_with(&framed(&example(&jpeg())));
    let mut wrong_length_crc = framed(&example(&jpeg()));
    wrong_length_crc[9] ^= 1;
    for (name, file, words) in [
        ("a file cut short", good[..good.len() - 7].to_vec(), ["record 11", "cut short"]),
        ("half a header", good[..5].to_vec(), ["record 0", "cut short"]),
        ("a length of 2^63", file_with(&framed_bytes(b"x", 1 << 63)), ["record 5", "limit"]),
        ("a length of 2^40", file_with(&framed_bytes(b"x", 1 << 40)), ["record 5", "limit"]),
        ("a wrong length", file_with(&wrong_length_crc), ["record 5", "checksum"]),
        ("a text", b"once upon a time\n".repeat(99), ["record 0", "TFRecord"]),
        ("zeros", vec![0; 100_000], ["record 0", "TFRecord"]),
    ] {
        let data = dir.path("bad-00000");
        fs::write(&data, file)?;
        assert_says(name, &run(&dir, &pipeline, &data, &[])?, 1, &words);
        let ended = run(&dir, &pipeline, &data, &["--on-error", "skip", "--max-skipped", "100%"])?;
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.said);
        let skipped = &ended.report["skipped_records"];
        assert_eq!(skipped.as_array().map(Vec::len), Some(1), "{name}: {skipped}");
        let before = ended.report["elements_delivered"].as_u64().unwrap();
        let damaged = format!("the file is damaged: record {before} at byte ");
        assert!(skipped.to_string().contains(&damaged), "{name}: {skipped}");
    }
    let data = dir.path("bad-00000");
    fs::write(&data, "")?;
    let ended = run(&dir, &pipeline, &data, &[])?;
    assert_eq!(ended.code, Some(0), "no bytes: {}", ended.said);
    let why = ended.report["empty"].as_str().unwrap_or_default();
    assert!(
        why.contains("the dataset has no records") && ended.said.contains(why),
        "{}",
        ended.said
    );
    let empty = dir.path("empty");
    fs::create_dir(&empty)?;
    assert_says("no files", &run(&dir, &pipeline, &empty, &[])?, 2, &["no file matches"]);
    let missing = dir.path("missing");
    assert_says("missing", &run(&dir, &pipeline, &missing, &[])?, 2, &["missing"]);
    Ok(())
}

#[test]
fn bad_pipelines_are_refused_where_they_are_wrong() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let data = dir.path("data-00000");
    fs::write(&data, file_with(&framed(&example(&jpeg()))))?;
    let with_ops = |ops: &str| {
        let (source, _) = PIPELINE.split_once("ops:").unwrap();
        format!("{source}ops: [{ops}]\n")
    };
    let batch = "batch: { size: 4 }";
    let aliases = (0..9).fold("a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, i| {
        let many = format!("*a{i}, ").repeat(10);
        format!("{text}b{i}: &a{} [{many}]\n", i + 1)
    });
    for (name, text, word) in [
        ("an unknown op", with_ops(&format!("frobnicate, {batch}")), "frobnicate"),
        ("a wrong type", with_ops("decode, batch: { size: many }"), "size"),
        ("batch 0", with_ops("decode, resize: { size: 16 }, batch: { size: 0 }"), "size"),
        ("a batch of billions", with_ops("batch: { size: 4000000000 }"), "size"),
        ("NaN", with_ops(&format!("decode, flip: {{ p: .nan }}, {batch}")), "NaN"),
        ("infinity", with_ops(&format!("sleep: {{ ms: .inf }}, {batch}")), "inf"),
        ("no batch", with_ops("decode"), "batch"),
        ("aliases that explode", aliases, "more than 100000 values"),
        ("a megabyte of nesting", "[".repeat(1 << 20), "YAML"),
        ("nested keys", (0..2000).map(|i| " ".repeat(i) + "a:\n").collect(), "YAML"),
        ("a graph over 4 MB", with_ops(&format!("{}{batch}", "flip, ".repeat(800_000))), "4194304"),
        ("control characters", "\u{0}\u{1}".to_owned(), "YAML"),
        ("a number", "42\n".to_owned(), "mapping"),
        ("nothing", String::new(), "empty"),
    ] {
        let pipeline = dir.path("bad.yaml");
        fs::write(&pipeline, text)?;
        assert_says(name, &run(&dir, &pipeline, &data, &[])?, 2, &["bad.yaml", word]);
    }
    Ok(())
}
