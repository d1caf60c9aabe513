//! Every pipeline of `examples/` over generated data: the same batches from compressed, plain and
//! cached objects, with `gristmill run` and with `gristmill-fetcher`, and the same as in every
//! earlier version.
//!
//! `examples.json` beside this file has the hash of each. A change that intends to deliver other
//! bytes, or adds an example, rewrites it and says why:
//!
//!     GRISTMILL_WRITE_GOLDEN=1 cargo test --release -p gristmill --test examples

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::{Context, Result, ensure};
use gristmill_pipeline::{Feature, FeatureDType, PipelineSource};
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use gristmill_tests::{Background, TestDir, read_frames, run_json};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

/// More than the 64 records of the largest batch of an example.
const RECORDS: usize = 80;
const FILES: usize = 2;
const SIDES: [u16; 2] = [48, 40];

/// A feature of a record.
enum Made {
    Bytes(Vec<u8>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
}

impl Made {
    /// Text form, for members of archives and values of tables.
    fn text(self) -> Vec<u8> {
        let joined = |values: Vec<String>| values.join(" ").into_bytes();
        match self {
            Made::Bytes(bytes) => bytes,
            Made::Ints(values) => joined(values.iter().map(i64::to_string).collect()),
            Made::Floats(values) => joined(values.iter().map(f32::to_string).collect()),
        }
    }

    fn json(self) -> Value {
        match self {
            Made::Bytes(bytes) => json!(String::from_utf8(bytes).unwrap()),
            Made::Ints(values) => json!(values),
            Made::Floats(values) => json!(values),
        }
    }
}

fn pixels(i: usize, channels: usize) -> Vec<u8> {
    let count = usize::from(SIDES[0]) * usize::from(SIDES[1]) * channels;
    (0..count).map(|at| (at / 9 + i * 11) as u8).collect()
}

fn jpeg(i: usize) -> Vec<u8> {
    let mut jpeg = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut jpeg, 80);
    encoder.encode(&pixels(i, 3), SIDES[0], SIDES[1], jpeg_encoder::ColorType::Rgb).unwrap();
    jpeg
}

fn grey_png(i: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, SIDES[0].into(), SIDES[1].into());
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&pixels(i, 1)).unwrap();
    bytes
}

/// The content of a byte string, chosen by the words of its key.
fn content(key: &str, i: usize) -> Vec<u8> {
    let boxes = || {
        let edge = |k: usize| json!([k, k, k + 20, k + 18]);
        let n = i % 4;
        json!({ "boxes": (0..n).map(edge).collect::<Vec<_>>(), "labels": (0..n).collect::<Vec<_>>() })
    };
    match key {
        "image/encoded" | "jpg" | "jpeg" => jpeg(i),
        "mask.png" | "png" => grey_png(i),
        "json" => boxes().to_string().into_bytes(),
        "caption" | "text" => format!("caption {i}").into_bytes(),
        _ => panic!("say here what a record has under {key:?}"),
    }
}

fn made(feature: &Feature, i: usize) -> Made {
    let inner = feature.inner_values();
    let values = feature.values().unwrap_or((1 + i * 37 % 600) * inner);
    match feature.dtype {
        FeatureDType::Bytes => Made::Bytes(content(first_key(feature), i)),
        FeatureDType::I64 | FeatureDType::U64 => {
            Made::Ints((0..values).map(|k| ((i * 7 + k * k) % 1000) as i64).collect())
        }
        FeatureDType::F32 | FeatureDType::F64 => {
            Made::Floats((0..values).map(|k| ((i + k) % 8) as f32 / 8.0).collect())
        }
    }
}

fn first_key(feature: &Feature) -> &str {
    feature.key.split(';').next().unwrap()
}

fn tfrecord(features: &[&Feature], ids: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = RecordWriter::new(&mut bytes);
    for i in ids {
        let example = features.iter().fold(TfExample::default(), |example, feature| {
            let key = first_key(feature);
            match made(feature, *i) {
                Made::Bytes(bytes) => example.with_bytes(key, bytes),
                Made::Ints(values) if values.len() == 1 => example.with_int(key, values[0]),
                _ => panic!("say here how {key:?} is written"),
            }
        });
        writer.write(&example).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

fn archive(features: &[&Feature], ids: &[usize]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for i in ids {
        for feature in features {
            let content = made(feature, *i).text();
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            let name = format!("{i:05}.{}", first_key(feature));
            builder.append_data(&mut header, name, content.as_slice()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

fn lines(features: &[&Feature], ids: &[usize]) -> Vec<u8> {
    let line = |i: &usize| {
        let value = |feature: &&Feature| {
            let value = made(feature, *i).json();
            let value = if feature.shape.is_empty() { value[0].clone() } else { value };
            (first_key(feature).to_owned(), value)
        };
        let record: BTreeMap<_, _> = features.iter().map(value).collect();
        format!("{}\n", json!(record))
    };
    ids.iter().map(line).collect::<String>().into_bytes()
}

fn table(features: &[&Feature], ids: &[usize]) -> Vec<u8> {
    let names: Vec<_> = features.iter().map(|feature| first_key(feature)).collect();
    let line = |i: &usize| {
        let value = |feature: &&Feature| String::from_utf8(made(feature, *i).text()).unwrap();
        format!("{}\n", features.iter().map(value).collect::<Vec<_>>().join(","))
    };
    let lines: String = ids.iter().map(line).collect();
    format!("{}\n{lines}", names.join(",")).into_bytes()
}

/// A gzip file of one block that is stored as it is.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    out.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
    out.extend_from_slice(bytes);
    out.extend(crc32fast::hash(bytes).to_le_bytes());
    out.extend(u32::from(length).to_le_bytes());
    out
}

/// Writes files where the source expects them.
fn make_data(dir: &TestDir, source: &PipelineSource) -> Result<()> {
    let features: Vec<_> = source.features.values().collect();
    for file in 0..FILES {
        let ids: Vec<_> = (0..RECORDS).filter(|i| i % FILES == file).collect();
        let bytes = match source.format.name() {
            "tfrecord" => tfrecord(&features, &ids),
            "webdataset" => archive(&features, &ids),
            "jsonl" => lines(&features, &ids),
            "csv" => table(&features, &ids),
            other => panic!("say here how files of {other} are written"),
        };
        let [pattern] = &source.paths[..] else {
            panic!("say here where files of several paths lie")
        };
        let path = dir.path(&pattern.replace('*', &file.to_string()));
        fs::create_dir_all(path.parent().unwrap())?;
        let packed = pattern.ends_with(".gz");
        fs::write(path, if packed { gzip(&bytes) } else { bytes })?;
    }
    Ok(())
}

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    found.sort();
    assert!(found.len() > 10, "{found:?}");
    found
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/examples.json");
const WRITE_GOLDEN: &str = "GRISTMILL_WRITE_GOLDEN";
/// Seed, images and order are the defaults.
const DEMO: &str = "demo --images 230 --epochs 2 --batch-size 16 --step-time 0ms --json";

/// Set for the pipelines of the paper, whose operators then have the order of earlier versions.
const AS_IN_PECAN: &str = "auto_order: pecan";
/// The images here are not of the size that these pipelines declare.
const DECLARED: [&str; 2] = ["--measure", "off"];

/// BLAKE3 of all batches in order: the same for every `compress`, with and without a cache, and for
/// both programs that train.
fn one_hash(text: &str) -> Result<String> {
    let pipeline = gristmill_operators::parse(text)?;
    let cached = text.contains("- autocache");
    let mut hashes = BTreeMap::new();
    for compress in ["none", "zstd", "auto"] {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        pipeline.source().members().try_for_each(|source| make_data(&dir, source))?;
        fs::write(dir.path("p.yaml"), text)?;
        fs::write(dir.path("own.yaml"), format!("compress: {compress}\n{text}"))?;
        let mut run = |file: &str, more: &[&str]| -> Result<()> {
            let mut command = dir.gristmill(&["run"]);
            command.arg(dir.path(file)).args(["--epochs", "2", "--step-time", "0ms", "--json"]);
            let report =
                run_json(command.args(["--split-batches", "1"]).args(DECLARED).args(more))?;
            let name = format!("{compress}, {file}, {more:?}: {}", report["epochs"]);
            hashes.insert(name, report["batches_blake3"].as_str().unwrap().to_owned());
            Ok(())
        };
        run("p.yaml", &["--compress", compress])?;
        run("own.yaml", &[])?;
        if cached {
            let other = if compress == "none" { "zstd" } else { "none" };
            run("p.yaml", &["--compress", other])?;
        }
        if compress == "none" {
            hashes.insert("gristmill-fetcher".into(), fetched(&dir, "p.yaml")?);
        }
    }
    let first = hashes.values().next().unwrap().clone();
    assert!(hashes.values().all(|hash| *hash == first), "{hashes:#?}");
    Ok(first)
}

/// So many epochs that keeping the batches for a week pays.
const MANY: [&str; 7] = ["--epochs", "12", "--step-time", "0ms", "--split-batches", "1", "--json"];

#[test]
fn examples_that_cache_deliver_what_they_do_without() -> Result<()> {
    let mut read = 0;
    for example in examples() {
        let text = fs::read_to_string(&example)?;
        let pipeline = gristmill_operators::parse(&text)?;
        if pipeline.cache_points().is_empty() {
            continue;
        }
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        pipeline.source().members().try_for_each(|source| make_data(&dir, source))?;
        let run = |text: &str| -> Result<Value> {
            fs::write(dir.path("p.yaml"), text)?;
            run_json(dir.gristmill(&["run"]).arg(dir.path("p.yaml")).args(MANY))
        };
        let cached = run(&text)?;
        let computed: Vec<_> = text.lines().filter(|line| !line.contains("- autocache")).collect();
        let computed = run(&computed.join("\n"))?;
        assert_eq!(cached["batches_blake3"], computed["batches_blake3"], "{}", example.display());
        let total = |report: &Value| {
            let kinds = report["cost"].as_object().unwrap().values();
            kinds.map(|usd| usd.as_f64().unwrap()).sum::<f64>()
        };
        let modes = cached["epochs"].as_array().unwrap().iter().map(|epoch| &epoch["mode"]);
        if modes.filter(|mode| **mode == "get").count() > 0 {
            assert!(total(&cached) < total(&computed), "{} {}", cached["cost"], computed["cost"]);
            read += 1;
        }
    }
    assert!(read > 0, "no example reads a cache");
    Ok(())
}

/// BLAKE3 of all batches that `gristmill-fetcher` sends its trainer.
fn fetched(dir: &TestDir, pipeline: &str) -> Result<String> {
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--state-dir", &state]))?;
    up.line()?;
    let mut command = dir.fetcher(&["--state-dir", &state, "--socket", "-", "--job", "golden"]);
    command.args(DECLARED);
    command.args(["--epochs", "2", "--split-batches", "1", "--pipeline"]).arg(dir.path(pipeline));
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "gristmill-fetcher: {}: {said}", output.status);
    let mut hasher = blake3::Hasher::new();
    for batch in read_frames(&output.stdout)?.values() {
        hasher.update(batch);
    }
    Ok(hasher.finalize().to_string())
}

fn demo() -> Result<String> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let words: Vec<_> = DEMO.split(' ').collect();
    let report = run_json(&mut dir.gristmill(&words))?;
    Ok(report["batches_blake3"].as_str().unwrap().to_owned())
}

#[test]
fn examples_and_the_demo_deliver_what_they_always_did() -> Result<()> {
    let mut hashes = BTreeMap::new();
    for example in examples() {
        let text = fs::read_to_string(&example)?;
        let hash = |text: &str| one_hash(text).with_context(|| example.display().to_string());
        let name = example.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("pecan-") {
            let of_paper = hash(&format!("{AS_IN_PECAN}\n{text}"))?;
            hashes.insert(format!("{name}, {AS_IN_PECAN}"), of_paper);
        }
        let hash = hash(&text)?;
        hashes.insert(name, hash);
    }
    hashes.insert(format!("gristmill {DEMO}"), demo()?);
    if std::env::var_os(WRITE_GOLDEN).is_some() {
        return Ok(fs::write(GOLDEN, format!("{:#}\n", json!(hashes)))?);
    }
    let golden: BTreeMap<String, String> = serde_json::from_str(&fs::read_to_string(GOLDEN)?)?;
    assert_eq!(hashes, golden, "{GOLDEN} has others: {WRITE_GOLDEN}=1 writes them");
    Ok(())
}

/// Examples that are run wherever batches can be made: an image pipeline with a cache, tables, text. With
/// `GRISTMILL_ALL_EXAMPLES=1` all are.
const PLACED: [&str; 3] = ["autocache.yaml", "csv.yaml", "nlp.yaml"];
const ALL_EXAMPLES: &str = "GRISTMILL_ALL_EXAMPLES";
/// A plan in which local workers make half.
const HALF: &str = r#"{ "placement": { "remote": 1, "local": 1, "share_local": 0.5 } }"#;

/// BLAKE3 of the batches in a sink, in order.
fn stored(sink: &Path) -> Result<String> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(sink)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        hasher.update(&fs::read(path)?);
    }
    Ok(hasher.finalize().to_string())
}

#[test]
fn wherever_batches_are_made_they_are_the_same_while_workers_are_killed() -> Result<()> {
    let all = std::env::var_os(ALL_EXAMPLES).is_some();
    let is_placed = |path: &&PathBuf| all || PLACED.iter().any(|name| path.ends_with(name));
    for example in examples().iter().filter(is_placed) {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        let text = fs::read_to_string(example)?;
        let pipeline = gristmill_operators::parse(&text)?;
        pipeline.source().members().try_for_each(|source| make_data(&dir, source))?;
        fs::write(dir.path("p.yaml"), text)?;
        fs::write(dir.path("half.json"), HALF)?;
        let half = dir.path("half.json").display().to_string();
        let (mut hashes, mut kills) = (BTreeMap::new(), 0);
        for placement in ["remote", "local", "auto", &half] {
            for compress in ["none", "zstd", "auto"] {
                let sink = dir.path(&format!("batches-{}", hashes.len()));
                let mut run = dir.gristmill(&["run", "--epochs", "3", "--step-time", "5ms"]);
                run.args(["--placement", placement, "--compress", compress, "--json"]);
                run.args(["--chaos", "kill-workers", "--chaos-interval", "200ms"]).args(DECLARED);
                run.args(["--split-batches", "1", "--sink"]).arg(&sink).arg(dir.path("p.yaml"));
                let report = run_json(&mut run)?;
                kills += report["kills"].as_u64().unwrap();
                let (hash, name) = (&report["batches_blake3"], example.display());
                assert_eq!(*hash, stored(&sink)?, "{name}, {placement}, {compress}");
                hashes.insert((placement.to_owned(), compress), hash.to_string());
            }
        }
        let first = &hashes[&("remote".to_owned(), "none")];
        println!("{}: {first}, {kills} workers killed", example.display());
        assert!(hashes.values().all(|hash| hash == first), "{}: {hashes:#?}", example.display());
    }
    Ok(())
}

/// Kinds of cost that do not depend on how fast this machine is.
const COUNTED: [&str; 2] = ["requests", "transfer"];

/// Keys of a placement, but for `cache`, which may be null.
const PLACEMENT: [&str; 14] = [
    "order",
    "cut",
    "codec",
    "memory_mb",
    "region",
    "local",
    "remote",
    "share_local",
    "batch_time_s",
    "stall",
    "usd",
    "bound",
    "reasons",
    "alternatives",
];

#[test]
fn a_run_of_each_example_costs_what_its_plan_says() -> Result<()> {
    // Sleeping takes longer the busier the machine is.
    for example in examples().iter().filter(|path| !path.ends_with("sleep.yaml")) {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        let text = fs::read_to_string(example)?;
        let pipeline = gristmill_operators::parse(&text)?;
        pipeline.source().members().try_for_each(|source| make_data(&dir, source))?;
        fs::write(dir.path("p.yaml"), text)?;
        let mut plan = dir.gristmill(&["plan", "--step-time", "1ms", "--json"]);
        let plan = run_json(plan.arg(dir.path("p.yaml")))?;
        let planned = &plan["plan"]["functions"]["cost"];
        let placement = &plan["placement"];
        for key in PLACEMENT {
            assert!(!placement[key].is_null(), "{}: {key} of {placement}", example.display());
        }
        let mut run = dir.gristmill(&["run", "--step-time", "1ms", "--epochs", "1", "--json"]);
        let report = run_json(run.arg(dir.path("p.yaml")))?;
        let (spent, name) = (&report["cost"], example.display());
        assert_eq!(plan["plan"]["splits"], report["splits"], "{name}");
        assert_eq!(*spent, report["epochs"][0]["cost"], "{name}: all epochs are one");
        let near = |planned: f64, spent: f64| (planned - spent).abs() <= 0.1 * planned;
        let usd = |cost: &Value, kind: &str| cost[kind].as_f64().unwrap();
        for kind in COUNTED {
            assert!(near(usd(planned, kind), usd(spent, kind)), "{name}: {kind} {planned} {spent}");
        }
        let total = |cost: &Value| cost.as_object().unwrap().keys().map(|key| usd(cost, key)).sum();
        assert!(near(total(planned), total(spent)), "{name}: planned {planned}, spent {spent}");
        assert!(total(planned) > 0.0, "{name}: {planned}");
    }
    Ok(())
}

#[test]
fn each_example_is_shown_and_profiled_operator_by_operator() -> Result<()> {
    for example in examples() {
        let text = fs::read_to_string(&example)?;
        let pipeline = gristmill_operators::parse(&text)?;
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        pipeline.source().members().try_for_each(|source| make_data(&dir, source))?;
        fs::write(dir.path("p.yaml"), &text)?;
        let shown =
            run_json(dir.gristmill(&["show", "-n", "3", "--json"]).arg(dir.path("p.yaml")))?;
        let steps = shown["steps"].as_array().context("steps")?;
        let names: Vec<_> = steps.iter().map(|step| step["op"].as_str().unwrap()).collect();
        let own = pipeline
            .stages()
            .iter()
            .filter(|stage| stage.op.dataset().is_none() && stage.op.cache_point().is_none());
        let own = own.chain(&pipeline.deliver().stages).map(|stage| stage.op.name());
        let own: Vec<_> = ["source"].into_iter().chain(own).collect();
        assert_eq!(names, own, "{}", example.display());
        for step in steps {
            let elements = step["elements"].as_array().unwrap();
            assert!(!elements.is_empty(), "{}: {}", example.display(), step["op"]);
        }
        let page = dir.gristmill(&["show", "--html", "-"]).arg(dir.path("p.yaml")).output()?;
        assert_eq!(page.status.code(), Some(0));
        let page = String::from_utf8(page.stdout)?;
        assert_eq!(page.contains("<img"), text.contains("decode"), "{}", example.display());
        let profile = run_json(dir.gristmill(&["profile", "--json"]).arg(dir.path("p.yaml")))?;
        assert!(profile["us_per_record"].as_f64().unwrap() > 0.0);
        assert_eq!(profile["ops"][0]["op"], "source");
    }
    Ok(())
}
