//! The order of operators that `explain` prints is the one that runs, a function of dataset and pipeline, and no more work
//! than the author's.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_client::{
    AuthoredPipeline, DatasetLocation, ORDER_ELEMENTS, OrderOptions, SizeMeasuring,
    sample::{SampledDatasets, measure},
};
use gristmill_model::{
    Checkpoint, CheckpointError, Fingerprint,
    splits::{Cursor, job::JobState},
    wire::{JobSpec, JobView},
};
use gristmill_tests::{Background, TestDir, read_frames, run_json};
use serde_json::Value;
use std::{fs, path::Path, process::Stdio};

/// Operators on an image, of every effect.
const OPERATORS: [&str; 19] = [
    "flip",
    "vertical_flip",
    "rotate: { degrees: 30 }",
    "shear: { degrees: 10 }",
    "gaussian_blur: { kernel_size: 5, sigma: 1 }",
    "solarize: { threshold: 0.5, p: 1 }",
    "posterize: { bits: 4, p: 1 }",
    "invert",
    "autocontrast",
    "color_jitter: { brightness: 0.4 }",
    "grayscale: { channels: 3 }",
    "random_erasing",
    "random_crop: { size: 28 }",
    "center_crop: { size: 30 }",
    "pad: { padding: 4 }",
    "normalise: { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] }",
    "scale",
    "cast: { dtype: f16 }",
    "resize: { size: [40, 40] }",
];

/// Resizes before and after an image of the dataset.
const RESIZES: [u32; 4] = [16, 32, 64, 90];

/// An order that the sizes of the dataset decide.
const MEASURED: &str =
    "decode|flip|rotate: { degrees: 30 }|resize: { size: [16, 16] }|batch: { size: 8 }";

/// A number below `below`.
fn draw(seed: &mut u64, below: usize) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 20) as usize % below
}

fn yaml(order: &str, ops: &str) -> String {
    let ops: String = ops.split('|').map(|op| format!("  - {op}\n")).collect();
    format!(
        "auto_order: {order}\nsource:\n  webdataset: d.tar\n  features: {{ image: {{ key: ppm, \
         dtype: bytes }} }}\nops:\n{ops}"
    )
}

/// Pipelines of a resize and five other operators that can run, without end.
fn pipelines() -> impl Iterator<Item = String> {
    let mut seed = 0x5eed;
    std::iter::repeat_with(move || {
        let mut ops: Vec<String> = Vec::new();
        for _ in 0..5 {
            ops.push(OPERATORS[draw(&mut seed, OPERATORS.len())].to_owned());
        }
        let size = RESIZES[draw(&mut seed, RESIZES.len())];
        ops.insert(draw(&mut seed, 6), format!("resize: {{ size: [{size}, {size}] }}"));
        format!("decode|{}|padded_batch: {{ size: 8 }}", ops.join("|"))
    })
    .filter(|ops| gristmill_operators::parse(&yaml("false", ops)).is_ok())
}

/// A tar of images of several sizes, more than are measured.
fn write_dataset(path: &Path) {
    let mut tar = Vec::new();
    for i in 0..ORDER_ELEMENTS as usize + 16 {
        let (width, height) = [(50, 38), (40, 30), (64, 48)][i % 3];
        let mut image = format!("P6 {width} {height} 255\n").into_bytes();
        image.extend((0..width * height * 3).map(|at| (at * (i + 3) / 5) as u8));
        let mut header = format!("{:\0<100}{:\0<24}{:011o}\0", format!("{i}.ppm"), "", image.len());
        header += &format!("{:011o}\0{:8}0", 0, "");
        let mut header = header.into_bytes();
        header.resize(512, 0);
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend(header);
        tar.extend(&image);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    fs::write(path, tar).unwrap();
}

fn test_dir() -> TestDir {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill")).unwrap();
    write_dataset(&dir.path("d.tar"));
    dir
}

fn parse(yaml: &str, dir: &TestDir) -> (AuthoredPipeline, DatasetLocation) {
    let authored = AuthoredPipeline::parse(yaml, &dir.path("")).unwrap();
    (authored, DatasetLocation::parse("d.tar", &dir.path("")).unwrap())
}

async fn ordered(yaml: &str, dir: &TestDir, measure: SizeMeasuring) -> AuthoredPipeline {
    let (authored, place) = parse(yaml, dir);
    authored.ordered(&place, &OrderOptions { measure }).await.unwrap().authored
}

/// The report of a run of `p.yaml`.
fn run(dir: &TestDir, more: &[&str]) -> Result<Value> {
    let mut command = dir.gristmill(&["run"]);
    command.arg(dir.path("p.yaml")).args(["--step-time", "0ms", "--json"]);
    run_json(command.args(more))
}

fn explain(dir: &TestDir, more: &[&str]) -> Result<Value> {
    run_json(dir.gristmill(&["explain", "--json"]).arg(dir.path("p.yaml")).args(more))
}

/// The BLAKE3 of all batches that `gristmill-fetcher` sends its trainer.
fn fetched(dir: &TestDir, more: &[&str]) -> Result<String> {
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--state-dir", &state]))?;
    up.line()?;
    let mut fetcher = dir.fetcher(&["--state-dir", &state, "--socket", "-", "--job", "f"]);
    fetcher.arg("--pipeline").arg(dir.path("p.yaml")).args(more).stdin(Stdio::null());
    let mut hasher = blake3::Hasher::new();
    for batch in read_frames(&fetcher.output()?.stdout)?.values() {
        hasher.update(batch);
    }
    Ok(hasher.finalize().to_string())
}

#[test]
fn explain_prints_the_order_that_runs() -> Result<()> {
    let dir = test_dir();
    let data = dir.path("d.tar").display().to_string();
    let mut moved = 0;
    for (ops, order) in pipelines().zip(["exact", "pecan"].into_iter().cycle()).take(24) {
        fs::write(dir.path("p.yaml"), yaml(order, &ops))?;
        let ran = run(&dir, &["--epochs", "1"])?["pipeline"].clone();
        // However it is asked.
        for more in [&["--data", &data][..], &[], &["--sample", "3"]] {
            let explained = explain(&dir, more)?;
            assert_eq!(explained["pipeline"], ran, "{order}: {ops} with {more:?}");
            let after = explained["after"].as_array().unwrap().iter().skip(1);
            let printed: Vec<&Value> = after.map(|edge| &edge["op"]).collect();
            assert_eq!(&printed, &ran.as_array().unwrap().iter().collect::<Vec<_>>());
        }
        let declared = run(&dir, &["--epochs", "1", "--measure", "off"])?["pipeline"].clone();
        assert_eq!(explain(&dir, &["--measure", "off"])?["pipeline"], declared, "{ops}");
        moved += u32::from(declared != ran);
    }
    assert!(moved >= 4, "sizes decide the order of {moved} pipelines only");
    Ok(())
}

#[test]
fn second_hosts_resumed_jobs_and_other_seeds_have_the_same_order() -> Result<()> {
    let dirs = [test_dir(), test_dir()];
    for dir in &dirs {
        fs::write(dir.path("p.yaml"), yaml("pecan", MEASURED))?;
    }
    let expected = serde_json::json!(["decode", "resize", "flip", "rotate", "batch"]);
    let division = ["--epochs", "2", "--split-batches", "1"];
    let [first, second] = [run(&dirs[0], &division)?, run(&dirs[1], &division)?];
    assert_eq!((&first["pipeline"], &second["pipeline"]), (&expected, &expected));
    assert_eq!(first["batches_blake3"], second["batches_blake3"]);
    assert_eq!(fetched(&dirs[1], &division)?, first["batches_blake3"]);
    assert_eq!(run(&dirs[0], &["--seed", "9"])?["pipeline"], expected);
    let paused = run(&dirs[1], &["--job", "j", "--epochs", "1"])?;
    let resumed = run(&dirs[1], &["--job", "j", "--epochs", "2"])?;
    assert_eq!((&paused["pipeline"], &resumed["pipeline"]), (&expected, &expected));
    assert_eq!(resumed["epochs"][0]["epoch"], 1);
    Ok(())
}

/// Bytes that the operators of workers read, each of its field.
async fn bytes_read(authored: &AuthoredPipeline, place: &DatasetLocation) -> u64 {
    let data = SampledDatasets::find(&authored.pipeline, place.clone()).await.unwrap();
    let sample = measure(&authored.pipeline, &authored.assets, &data, ORDER_ELEMENTS).await;
    let metrics = sample.unwrap().1.output.metrics;
    metrics.iter().filter(|metric| metric.stage.is_some()).map(|metric| metric.bytes_in).sum()
}

/// Batches of a split for datasets of few and many records, of small and large ones.
fn divisions(authored: &AuthoredPipeline) -> Vec<u64> {
    let datasets = [(20, 1_000), (5_000, 6_000), (1_000_000, 100_000), (10_000_000, 500)];
    datasets.map(|(records, bytes)| authored.pipeline.split_batches(records, bytes)).into()
}

#[tokio::test]
async fn an_order_is_no_more_work_than_the_authors_and_keeps_its_division() {
    let (dir, copy) = (test_dir(), test_dir());
    let (mut moved, mut saved) = (0, 0);
    for ops in pipelines().take(200) {
        let (written, place) = parse(&yaml("false", &ops), &dir);
        let before = bytes_read(&written, &place).await;
        for order in ["exact", "pecan"] {
            let yaml = yaml(order, &ops);
            let after = ordered(&yaml, &dir, SizeMeasuring::On).await;
            let json = after.pipeline.canonical_json();
            let elsewhere = ordered(&yaml, &copy, SizeMeasuring::On).await;
            assert_eq!(elsewhere.pipeline.canonical_json(), json, "{ops}");
            assert_eq!(divisions(&after), divisions(&written), "{order}: {ops}");
            let bytes = bytes_read(&after, &place).await;
            // Factors of 0.95 to 1.05 count as 1.
            assert!(bytes as f64 <= before as f64 * 1.05, "{ops}: {before} then {bytes}: {json}");
            moved += u32::from(json != written.pipeline.canonical_json());
            saved += u32::from(bytes < before);
        }
    }
    assert!(moved > 100 && saved > 50, "{moved} moved, {saved} saved");
}

#[tokio::test]
async fn the_order_is_part_of_the_checkpoint_if_it_changes_bytes() {
    let (dir, copy) = (test_dir(), test_dir());
    let view = async |order: &str, dir: &TestDir, measure| {
        let authored = ordered(&yaml(order, MEASURED), dir, measure).await;
        let mut spec = JobSpec::new(authored.pipeline.canonical_json());
        spec.settings.split_batches = Some(1);
        JobView {
            job: "j".parse().unwrap(),
            registered_ms: 0,
            spec,
            dataset_version: Fingerprint([7; 32]),
            n_files: 1,
            state: JobState::Running,
            plan: None,
            caching: None,
            changes: Vec::new(),
            resumed: 0,
        }
    };
    use SizeMeasuring::{Off, On};
    let next = Cursor::new(0, 3);
    for (order, is_measured) in [("pecan", true), ("exact", false), ("false", false)] {
        let checkpoint = Checkpoint::new(&view(order, &dir, On).await, next);
        assert_eq!(checkpoint.cursor_in(&view(order, &copy, On).await), Ok(next), "{order}");
        let declared = checkpoint.cursor_in(&view(order, &dir, Off).await);
        let is_other = matches!(declared, Err(CheckpointError::OtherBatches { .. }));
        assert_eq!(is_other, is_measured, "{order}: {declared:?}");
    }
}
