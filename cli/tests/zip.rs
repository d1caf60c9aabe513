//! Zipped datasets end to end: pairing of records, length, and reports of bad records.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use gristmill_tests::{TestDir, read_numbers, run_json};
use parquet::{
    data_type::Int64Type, file::writer::SerializedFileWriter, schema::parser::parse_message_type,
};
use serde_json::Value;
use std::{collections::BTreeMap, fs, ops::Range, path::PathBuf, process::Command};

/// Records of each file: 37 and 43.
const IMAGES: [usize; 3] = [17, 0, 20];
const CAPTIONS: [usize; 4] = [5, 30, 0, 8];
/// The caption at place i has this number and i.
const CAPTION: i64 = 7000;

struct Place {
    dir: TestDir,
    runs: std::cell::Cell<u32>,
}

impl Place {
    fn new() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        fs::create_dir(dir.path("images"))?;
        fs::create_dir(dir.path("captions"))?;
        let mut ids = 0..;
        for (file, records) in IMAGES.into_iter().enumerate() {
            let mut content = Vec::new();
            let mut writer = RecordWriter::new(&mut content);
            for id in ids.by_ref().take(records) {
                writer.write(&TfExample::default().with_int("id", id))?;
            }
            writer.finish()?;
            fs::write(dir.path(&format!("images/train-{file}")), content)?;
        }
        let mut numbers = CAPTION..;
        for (file, records) in CAPTIONS.into_iter().enumerate() {
            let lines = numbers.by_ref().take(records).map(|n| format!("{{\"n\": {n}}}\n"));
            let name = format!("captions/part-{file}.jsonl");
            fs::write(dir.path(&name), lines.collect::<String>())?;
        }
        Ok(Place { dir, runs: std::cell::Cell::default() })
    }

    fn pipeline(&self, zip: &str, ops: &str) -> Result<PathBuf> {
        let run = self.runs.replace(self.runs.get() + 1);
        let path = self.dir.path(&format!("{run}.yaml"));
        let ops = format!("ops: [{ops}batch: {{ size: 4 }}]\n");
        fs::write(&path, format!("source:\n  zip: [{zip}]\n{ops}"))?;
        Ok(path)
    }

    fn command(&self, zip: &str, ops: &str, more: &[&str]) -> Result<(Command, PathBuf)> {
        let pipeline = self.pipeline(zip, ops)?;
        let sink = pipeline.with_extension("sink");
        let mut command = self.dir.gristmill(&["run"]);
        command.arg(pipeline).args(["--epochs", "2", "--step-time", "0ms", "--json"]);
        command.args(more);
        command.arg("--sink").arg(&sink);
        Ok((command, sink))
    }

    /// The records of each of two epochs, as pairs of the first field and the second; and the
    /// report.
    fn pairs(&self, zip: &str, ops: &str, more: &[&str]) -> Result<(Epochs, Value)> {
        let (mut command, sink) = self.command(zip, ops, more)?;
        let report = run_json(&mut command)?;
        assert_eq!((report["lost"].as_u64(), report["duplicates"].as_u64()), (Some(0), Some(0)));
        let (ids, numbers) = (read_numbers(&sink, "id")?, read_numbers(&sink, "n")?);
        let pairs = ids.into_iter().map(|(epoch, ids)| {
            let numbers = &numbers[&epoch];
            assert_eq!(ids.len(), numbers.len());
            (epoch, ids.into_iter().zip(numbers.iter().copied()).collect())
        });
        Ok((pairs.collect(), report))
    }

    /// The error of a run that does not start, or fails.
    fn refusal(&self, mut command: Command, code: i32) -> Result<String> {
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        Ok(said)
    }
}

type Epochs = BTreeMap<u32, Vec<(i64, i64)>>;

const BOTH: &str = "{ tfrecord: images/train-*, features: { id: { dtype: i64 } } }, \
                    { jsonl: captions, features: { n: { dtype: i64 } } }";

/// The pairs of a zip of the two lists.
fn expected() -> Vec<(i64, i64)> {
    (0..37).map(|i| (i, CAPTION + i)).collect()
}

fn sorted(mut pairs: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    pairs.sort_unstable();
    pairs
}

#[test]
fn records_at_the_same_place_come_together() -> Result<()> {
    let place = Place::new()?;
    let (in_order, _) = place.pairs(BOTH, "in_order, ", &[])?;
    assert_eq!(in_order, [0, 1].map(|epoch| (epoch, expected())).into());
    let (plain, report) = place.pairs(BOTH, "", &["--split-batches", "2"])?;
    assert_eq!(sorted(plain[&0].clone()), expected());
    assert_ne!(plain[&0], plain[&1], "splits in another order each epoch");
    // The pairs are the same with local workers and after operators on the sequence.
    let local = ["--workers", "0", "--local-workers", "2", "--split-batches", "2"];
    let (_, again) = place.pairs(BOTH, "", &local)?;
    assert_eq!(again["batches_blake3"], report["batches_blake3"]);
    let ops = "shuffle: { blocks: 4 }, repeat: { count: 2 }, ";
    let (shuffled, _) = place.pairs(BOTH, ops, &["--split-batches", "3"])?;
    assert_eq!(sorted(shuffled[&1].clone()), sorted([expected(), expected()].concat()));
    let ops = "skip: { count: 3 }, take: { count: 20 }, in_order, ";
    assert_eq!(place.pairs(BOTH, ops, &[])?.0[&0], expected()[3..23]);
    let (thrice, _) = place.pairs(BOTH, "", &["--sharding", "off", "--workers", "3"])?;
    assert_eq!(sorted(thrice[&0].clone()), sorted(expected().repeat(3)));
    Ok(())
}

/// A file of numbers in a column `id`, a few to a row group.
fn parquet(ids: Range<i64>) -> Result<Vec<u8>> {
    let schema = parse_message_type("message m { required int64 id; }")?.into();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Default::default())?;
    let ids: Vec<i64> = ids.collect();
    for ids in ids.chunks(7) {
        let mut group = writer.next_row_group()?;
        let mut column = group.next_column()?.unwrap();
        column.typed::<Int64Type>().write_batch(ids, None, None)?;
        column.close()?;
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

/// An archive of numbers, each beside a file that the pipeline does not read.
fn archive(numbers: Range<i64>) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in numbers {
        for (name, content) in [("n", number.to_string()), ("txt", "rest".repeat(200))] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, format!("{number}.{name}"), content.as_bytes())?;
        }
    }
    Ok(builder.into_inner()?)
}

#[test]
fn members_are_zipped_in_every_kind_of_container() -> Result<()> {
    let place = Place::new()?;
    for (file, ids) in [0..17, 17..17, 17..37].into_iter().enumerate() {
        fs::write(place.dir.path(&format!("images/rows-{file}.parquet")), parquet(ids)?)?;
    }
    for (file, numbers) in
        [CAPTION..CAPTION + 30, CAPTION + 30..CAPTION + 43].into_iter().enumerate()
    {
        fs::write(place.dir.path(&format!("captions/shard-{file}.tar")), archive(numbers)?)?;
    }
    let zip = "{ parquet: images/rows-*, features: { id: { dtype: i64 } } }, \
               { webdataset: captions/shard-*, features: { n: { dtype: i64 } } }";
    let (in_order, _) = place.pairs(zip, "in_order, ", &["--split-batches", "2"])?;
    assert_eq!(in_order, [0, 1].map(|epoch| (epoch, expected())).into());
    let (plain, _) = place.pairs(zip, "", &["--split-batches", "2", "--workers", "3"])?;
    assert_eq!(sorted(plain[&1].clone()), expected());
    Ok(())
}

#[test]
fn a_zip_is_as_long_as_its_shortest_dataset() -> Result<()> {
    let dir = Place::new()?;
    for (name, key, records) in [("fifty", "id", 50), ("ten", "n", 10)] {
        let lines = (0..records).map(|i| format!("{{\"{key}\": {i}}}\n"));
        fs::write(dir.dir.path(name), lines.collect::<String>())?;
    }
    // zip(50, 10.repeat(10)): 50 outputs.
    let fifty = "{ jsonl: fifty, features: { id: { dtype: i64 } } }";
    let ten = "{ jsonl: ten, features: { n: { dtype: i64 } }, repeat: 10 }";
    let expected: Vec<(i64, i64)> = (0..50).map(|i| (i, i % 10)).collect();
    for zip in [format!("{fifty}, {ten}"), format!("{ten}, {fifty}")] {
        let (epochs, report) = dir.pairs(&zip, "in_order, ", &[])?;
        assert_eq!(epochs, [0, 1].map(|epoch| (epoch, expected.clone())).into());
        assert_eq!(report["elements_delivered"], 100);
    }
    let (once, _) = dir.pairs(&format!("{fifty}, {}", ten.replace("10 }", "1 }")), "", &[])?;
    assert_eq!(sorted(once[&0].clone()), expected[..10]);
    Ok(())
}

#[test]
fn a_bad_record_of_either_dataset_leaves_out_the_pair() -> Result<()> {
    let place = Place::new()?;
    // The caption at place 12 is the eighth of its file.
    let path = place.dir.path("captions/part-1.jsonl");
    let text = fs::read_to_string(&path)?.replace("{\"n\": 7012}", "rubbish");
    fs::write(&path, text)?;
    let (command, _) = place.command(BOTH, "", &[])?;
    let said = place.refusal(command, 1)?;
    let named = "captions/part-1.jsonl record 7, which goes with it: not valid JSON";
    assert!(said.contains("images/train-0 record 12 (source): ") && said.contains(named), "{said}");

    let (epochs, report) =
        place.pairs(BOTH, "", &["--on-error", "skip", "--max-skipped", "100%"])?;
    let without: Vec<_> = expected().into_iter().filter(|pair| pair.0 != 12).collect();
    assert_eq!(sorted(epochs[&0].clone()), without);
    assert_eq!(report["skipped"], 2);
    let [left_out] = report["skipped_records"].as_array().unwrap().as_slice() else {
        panic!("{report}")
    };
    let root = fs::canonicalize(place.dir.path("images"))?;
    let root = root.parent().unwrap().display().to_string();
    assert_eq!(left_out["source"], format!("{root}/images/train-0 record 12"));
    let reason = left_out["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("{root}/{named}")), "{reason}");
    Ok(())
}

#[test]
fn caches_of_a_zip_depend_on_all_of_its_datasets() -> Result<()> {
    let place = Place::new()?;
    let path = place.pipeline(BOTH, "sleep: { ms: 2 }, autocache, ")?;
    let run = || {
        let mut command = place.dir.gristmill(&["run"]);
        command.arg(&path).args([
            "--epochs",
            "2",
            "--step-time",
            "0ms",
            "--json",
            "--workers",
            "1",
        ]);
        command.arg("--sink").arg(path.with_extension("sink"));
        run_json(&mut command)
    };
    let first = run()?;
    assert_eq!((first["lost"].as_u64(), first["duplicates"].as_u64()), (Some(0), Some(0)));
    let numbers = read_numbers(&path.with_extension("sink"), "n")?;
    let explained =
        |path: &PathBuf| run_json(place.dir.gristmill(&["cache", "explain", "--json"]).arg(path));
    // The same pipeline with other captions is another dataset.
    let line = |n: i64| format!("{{\"n\": {n}}}\n");
    let lines = (0..43).map(|i| line(CAPTION + 500 + i)).collect::<String>();
    fs::write(place.dir.path("captions/part-0.jsonl"), lines)?;
    fs::remove_dir_all(path.with_extension("sink"))?;
    run()?;
    let other = read_numbers(&path.with_extension("sink"), "n")?;
    assert_eq!(numbers[&1].len(), 37);
    assert!(other[&1].iter().all(|n| *n >= CAPTION + 500), "{other:?}");
    assert!(explained(&path)?["points"].is_array());
    Ok(())
}

#[test]
fn datasets_that_cannot_be_zipped_are_refused_in_a_line() -> Result<()> {
    let place = Place::new()?;
    let data = place.dir.path("images").display().to_string();
    let (command, _) = place.command(BOTH, "", &["--data", &data])?;
    let said = place.refusal(command, 2)?;
    assert!(said.contains("the pipeline zips datasets, and its file names their paths"), "{said}");
    let missing = BOTH.replace("captions", "nothing-*");
    let said = place.refusal(place.command(&missing, "", &[])?.0, 2)?;
    assert!(said.contains("no file matches") && said.contains("nothing-*"), "{said}");
    let said = place.refusal(place.command(BOTH, "interleave, ", &[])?.0, 2)?;
    assert!(said.contains("line 3: `interleave` takes the files of one dataset"), "{said}");
    let same = BOTH.replace("n:", "id:");
    let said = place.refusal(place.command(&same, "", &[])?.0, 2)?;
    assert!(said.contains("datasets 1 and 2 of `zip` both have the field `id`"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    Ok(())
}

#[test]
fn explain_and_plan_know_all_datasets_of_a_zip() -> Result<()> {
    let place = Place::new()?;
    let repeated = BOTH.replace("dtype: i64 } } }, {", "dtype: i64 } }, repeat: 2 }, {");
    let path = place.pipeline(&repeated, "")?;
    let explained = place.dir.gristmill(&["explain"]).arg(&path).output()?;
    let text = String::from_utf8_lossy(&explained.stdout);
    let lines: Vec<String> =
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let both = ["zip of", "tfrecord, 2 times id: i64", "jsonl n: i64"];
    assert!(lines.windows(3).any(|three| three == both), "{text}");
    let explained = run_json(place.dir.gristmill(&["explain", "--json"]).arg(&path))?;
    assert_eq!(explained["before"][0]["zip"][1]["format"], "jsonl");
    assert_eq!(explained["before"][0]["zip"][0]["repeat"], 2);
    let sampled =
        run_json(place.dir.gristmill(&["explain", "--json", "--sample", "3"]).arg(&path))?;
    assert_eq!(sampled["sampled_elements"], 3);
    // The first file of each dataset: 17 records twice, limited by the 5 of the other.
    let mut plan = place.dir.gristmill(&["plan", "--json", "--step-time", "10ms"]);
    let plan = run_json(plan.arg(&path))?;
    assert_eq!(plan["profile"]["records"], 5.0, "{plan}");
    assert!(plan["profile"]["source_bytes"].as_f64().unwrap() > 5.0 * 20.0, "{plan}");
    let said = place.refusal(
        {
            let mut command = place.dir.gristmill(&["explain", "--data", "images"]);
            command.arg(&path);
            command
        },
        2,
    )?;
    assert!(said.contains("leave out `--data`"), "{said}");
    Ok(())
}
