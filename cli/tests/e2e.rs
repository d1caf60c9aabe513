//! Whole runs on real JPEGs, with processes killed: delivery is checked against the delivered
//! bytes.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{
    Background, Delivered, FrameReader, TestDir, files_below, read_numbers, read_sink, run_json,
};
use serde_json::Value;
use std::{fs, path::Path, time::Duration};

fn test_dir() -> Result<TestDir> {
    TestDir::new(env!("CARGO_BIN_EXE_gristmill"))
}

/// Images of the small dataset; not a multiple of anything.
const IMAGES: usize = 230;

fn demo(dir: &TestDir, sink: &str, more: &[&str]) -> Result<(Value, Delivered)> {
    let sink = dir.path(sink);
    let images = IMAGES.to_string();
    let mut args =
        vec!["demo", "--json", "--images", &images, "--epochs", "2", "--batch-size", "16"];
    args.extend(["--step-time", "0ms", "--sink"]);
    let mut command = dir.gristmill(&args);
    command.arg(&sink).args(more);
    let report = run_json(&mut command)?;
    Ok((report, read_sink(&sink)?))
}

fn number(report: &Value, field: &str) -> u64 {
    report[field].as_u64().unwrap_or_else(|| panic!("{field} of {report}"))
}

/// The resnet pipeline with a sleep, so slow that a run can be disturbed.
fn slow_pipeline(dir: &TestDir, sleep_ms: u32) -> Result<String> {
    let path = dir.path("slow.yaml");
    let text = format!(
        "source:\n  tfrecord: .\n  features:\n    image: {{ key: image/encoded, dtype: bytes }}\n\
         ops:\n  - decode\n  - random_resized_crop: {{ size: 32 }}\n  \
         - sleep: {{ ms: {sleep_ms} }}\n  - batch: {{ size: 16 }}\n"
    );
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

#[test]
fn any_mix_of_workers_delivers_every_record_once_with_one_hash() -> Result<()> {
    let dir = test_dir()?;
    let (report, delivered) = demo(&dir, "one", &["--workers", "1"])?;
    delivered.assert_exact(2, IMAGES, 16);
    assert_eq!(report["batches_blake3"], delivered.blake3, "the printed hash is the files' hash");
    assert_eq!(number(&report, "elements_expected"), 2 * IMAGES as u64);
    assert_eq!(number(&report, "elements_delivered"), 2 * IMAGES as u64);
    assert_eq!((number(&report, "lost"), number(&report, "duplicates")), (0, 0));
    for (sink, more) in [
        ("many", ["--workers", "5"].as_slice()),
        ("local", &["--workers", "0", "--local-workers", "2"]),
        ("both", &["--workers", "1", "--local-workers", "1"]),
    ] {
        let (other, delivered) = demo(&dir, sink, more)?;
        delivered.assert_exact(2, IMAGES, 16);
        assert_eq!(other["batches_blake3"], report["batches_blake3"], "{more:?} give other bytes");
    }
    let (other, _) = demo(&dir, "seed", &["--seed", "1", "--data", &data_dir(&dir)?])?;
    assert_ne!(other["batches_blake3"], report["batches_blake3"], "another seed, another order");
    Ok(())
}

#[test]
fn a_worker_of_three_processors_makes_the_batches_of_one() -> Result<()> {
    let dir = test_dir()?;
    let (report, _) = demo(&dir, "one", &["--workers", "1", "--split-batches", "1"])?;
    let state = dir.path("state").display().to_string();
    let up = ["up", "--json", "--state-dir", &state, "--worker-memory", "5307"];
    let mut up = Background::start(&mut dir.gristmill(&up))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    let endpoint = ready["endpoint"].as_str().unwrap();
    let (data, pipeline) = (data_dir(&dir)?, dir.path("resnet.yaml"));
    // The demo's pipeline.
    let text = include_str!("../../examples/resnet50.yaml").replace("size: 64", "size: 16");
    fs::write(&pipeline, text)?;
    let sink = dir.path("three");
    let mut command = dir.gristmill(&["run", "--json", "--epochs", "2", "--endpoint", endpoint]);
    command.arg(&pipeline).args(["--data", &data, "--step-time", "0ms", "--workers", "1"]);
    command.args(["--split-batches", "1"]).arg("--sink").arg(&sink);
    let three = run_json(&mut command)?;
    read_sink(&sink)?.assert_exact(2, IMAGES, 16);
    assert_eq!(three["batches_blake3"], report["batches_blake3"]);
    Ok(())
}

/// The generated dataset of this test's home.
fn data_dir(dir: &TestDir) -> Result<String> {
    let datasets = dir.path(".cache/gristmill/datasets");
    let mut found = fs::read_dir(&datasets)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = found.find(|path| path.is_dir());
    Ok(found.unwrap_or(datasets).display().to_string())
}

#[test]
fn remote_and_local_workers_set_damaged_records_aside() -> Result<()> {
    let dir = test_dir()?;
    demo(&dir, "whole", &[])?;
    let shards = files_below(Path::new(&data_dir(&dir)?))?;
    let shard = shards.iter().find(|path| path.to_string_lossy().contains("train-00000"));
    let mut bytes = fs::read(shard.unwrap())?;
    bytes[200] ^= 1;
    fs::write(dir.path("damaged"), &bytes)?;
    // The content starts after the length and its checksum.
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let raw = &bytes[12..12 + length];
    let data = dir.path("damaged").display().to_string();
    for (who, workers, local) in [("remote", "1", "0"), ("local", "0", "1")] {
        let state = dir.path(&format!("{who}-state"));
        let mut more = vec![
            "--data",
            &data,
            "--on-error",
            "quarantine",
            "--max-skipped",
            "100%",
            "--workers",
            workers,
        ];
        more.extend(["--local-workers", local, "--state-dir", state.to_str().unwrap()]);
        let (report, _) = demo(&dir, who, &more)?;
        assert_eq!(number(&report, "skipped"), 2, "{who}: one an epoch");
        let kept = files_below(&state)?;
        let mut kept = kept.iter().filter(|path| path.to_string_lossy().contains("quarantine"));
        // The store appends its metadata to the bytes of an object.
        assert!(kept.any(|path| fs::read(path).unwrap().starts_with(raw)), "{who}");
    }
    Ok(())
}

#[test]
fn killed_processes_lose_nothing_and_double_nothing() -> Result<()> {
    let dir = test_dir()?;
    let pipeline = slow_pipeline(&dir, 10)?;
    let slow = ["--pipeline", pipeline.as_str(), "--workers", "3"];
    let (calm, delivered) = demo(&dir, "calm", &slow)?;
    delivered.assert_exact(2, IMAGES, 16);
    for chaos in ["kill-workers", "kill-coordinator"] {
        let more = [slow.as_slice(), &["--chaos", chaos, "--chaos-interval", "300ms"]].concat();
        let (report, delivered) = demo(&dir, chaos, &more)?;
        delivered.assert_exact(2, IMAGES, 16);
        assert_eq!(report["batches_blake3"], calm["batches_blake3"], "{chaos}");
        assert!(number(&report, "kills") >= 3, "{chaos}: {report}");
        assert_eq!(number(&report, "skipped"), 0, "{chaos}: nothing is poisoned");
    }
    Ok(())
}

/// A running service and the fetcher arguments for it.
struct Streaming<'a> {
    dir: &'a TestDir,
    state: String,
}

impl Streaming<'_> {
    fn up(&self) -> Result<Background> {
        let args = ["up", "--json", "--state-dir", &self.state];
        let mut up = Background::start(&mut self.dir.gristmill(&args))?;
        assert!(up.line()?.contains("\"ready\":true"));
        Ok(up)
    }

    fn fetcher(&self, job: &str) -> Result<Background> {
        let (socket, cursor) = (self.socket(job), self.dir.path(&format!("{job}.cursor")));
        let pipeline = slow_pipeline(self.dir, 4)?;
        let data = data_dir(self.dir)?;
        let mut command = self.dir.fetcher(&["--state-dir", &self.state, "--job", job]);
        command.args(["--pipeline", &pipeline, "--data", &data, "--epochs", "2"]);
        command.arg("--socket").arg(&socket).arg("--state").arg(&cursor);
        Background::start(&mut command)
    }

    fn socket(&self, job: &str) -> std::path::PathBuf {
        self.dir.path(&format!("{job}.sock"))
    }

    fn connect(&self, job: &str) -> Result<FrameReader> {
        FrameReader::connect(&self.socket(job), Duration::from_secs(30))
    }
}

type Frames = std::collections::BTreeMap<(u32, u64), Vec<u8>>;

/// Takes up to `limit` batches, acknowledging every `ack_every`-th; returns whether the job has
/// ended.
fn take(
    reader: &mut FrameReader,
    frames: &mut Frames,
    limit: usize,
    ack_every: u64,
) -> Result<bool> {
    let mut last = None;
    for _ in 0..limit {
        let frame = reader.receive()?;
        match &frame.magic {
            b"GMB1" => {
                let name = (frame.epoch, frame.g);
                if let Some(before) = frames.insert(name, frame.payload) {
                    assert_eq!(before, frames[&name], "batch {name:?} came again with other bytes");
                }
                if frame.g % ack_every == 0 {
                    reader.ack(frame.epoch, frame.g)?;
                }
                last = Some(name);
            }
            b"GMBE" => {
                if let Some((epoch, g)) = last {
                    reader.ack(epoch, g)?;
                }
                return Ok(true);
            }
            _ => anyhow::bail!("error frame: {}", String::from_utf8_lossy(&frame.payload)),
        }
    }
    Ok(false)
}

fn recounted(frames: &Frames) -> Result<Delivered> {
    let mut delivered = Delivered::default();
    for ((epoch, g), bytes) in frames {
        delivered.add(*epoch, *g, bytes)?;
    }
    Ok(delivered)
}

#[test]
fn killed_fetchers_and_services_go_on_where_they_were() -> Result<()> {
    let dir = test_dir()?;
    demo(&dir, "made", &["--workers", "2"])?; // makes the dataset
    let state = dir.path("state").display().to_string();
    let streaming = Streaming { dir: &dir, state };

    let mut up = streaming.up()?;
    let mut calm = Frames::new();
    let mut fetcher = streaming.fetcher("calm")?;
    assert!(take(&mut streaming.connect("calm")?, &mut calm, usize::MAX, 4)?);
    assert_eq!(fetcher.wait()?, Some(0));
    recounted(&calm)?.assert_exact(2, IMAGES, 16);

    let mut frames = Frames::new();
    let mut fetcher = streaming.fetcher("killed")?;
    assert!(!take(&mut streaming.connect("killed")?, &mut frames, 7, 3)?);
    fetcher.kill()?;
    let mut fetcher = streaming.fetcher("killed")?;
    assert!(!take(&mut streaming.connect("killed")?, &mut frames, 9, 3)?);
    // The trainer disconnects and reconnects to the same fetcher.
    let mut reader = streaming.connect("killed")?;
    assert!(!take(&mut reader, &mut frames, 5, 3)?);
    // The whole service is killed under both, and restarts on its state directory.
    up.kill()?;
    let _up = streaming.up()?;
    assert!(take(&mut reader, &mut frames, usize::MAX, 3)?);
    assert_eq!(fetcher.wait()?, Some(0));
    assert!(frames == calm, "the two runs together differ from an undisturbed one");
    Ok(())
}

#[test]
fn a_checkpoint_older_than_what_is_deleted_is_served_the_same_batches() -> Result<()> {
    let dir = test_dir()?;
    demo(&dir, "made", &["--workers", "2"])?; // makes the dataset
    let state = dir.path("state").display().to_string();
    let streaming = Streaming { dir: &dir, state };
    let _up = streaming.up()?;
    let mut fetcher = streaming.fetcher("old")?;
    let mut reader = streaming.connect("old")?;
    let mut first = Frames::new();
    assert!(!take(&mut reader, &mut first, 28, 1)?);
    // The fetcher reports its trainer's progress once a second; then most objects behind it are
    // deleted.
    std::thread::sleep(Duration::from_secs(3));
    fetcher.kill()?;
    let mut saved: Value = serde_json::from_slice(&fs::read(dir.path("old.cursor"))?)?;
    (saved["epoch"], saved["batch_index"]) = (0.into(), 1.into());
    fs::write(dir.path("old.cursor"), saved.to_string())?;
    let mut fetcher = streaming.fetcher("old")?;
    let mut again = Frames::new();
    assert!(take(&mut streaming.connect("old")?, &mut again, usize::MAX, 4)?);
    assert_eq!(fetcher.wait()?, Some(0));
    let (at, frame) = first.iter().next().unwrap();
    again.insert(*at, frame.clone());
    recounted(&again)?.assert_exact(2, IMAGES, 16);
    assert!(first.iter().all(|(at, frame)| again[at] == *frame), "a batch is another");
    Ok(())
}

#[test]
fn a_job_can_be_looked_at_and_stopped() -> Result<()> {
    let dir = test_dir()?;
    demo(&dir, "made", &["--workers", "2"])?; // makes the dataset
    let state = dir.path("state").display().to_string();
    let streaming = Streaming { dir: &dir, state: state.clone() };
    let _up = streaming.up()?;
    let mut fetcher = streaming.fetcher("looked-at")?;
    let mut reader = streaming.connect("looked-at")?;
    assert!(!take(&mut reader, &mut Frames::new(), 3, 1)?);
    let ask = |command: &str, job: &str| {
        dir.gristmill(&[command, job, "--json", "--state-dir", &state]).output()
    };
    let status =
        |job: &str| -> Result<Value> { Ok(serde_json::from_slice(&ask("status", job)?.stdout)?) };
    let running = status("looked-at")?;
    assert_eq!((&running["state"], &running["epochs"]), (&"running".into(), &2.into()));
    assert_eq!(running["workers"]["desired"], 2);
    assert_eq!(ask("status", "unheard-of")?.status.code(), Some(2));
    assert_eq!(ask("stop", "looked-at")?.status.code(), Some(0));
    assert_eq!(status("looked-at")?["state"], "stopped");
    // The trainer acknowledges nothing: the fetcher still reports the error and exits.
    let error = take(&mut reader, &mut Frames::new(), usize::MAX, u64::MAX);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("stopped"), "{error}");
    assert_eq!(fetcher.wait()?, Some(1));
    Ok(())
}

#[test]
fn a_named_run_that_is_killed_or_taken_over_goes_on_where_it_was() -> Result<()> {
    let dir = test_dir()?;
    dir.write_numbers()?;
    let (pipeline, state) = (dir.path("p.yaml"), dir.path("state"));
    let run = |sink: &str| {
        // Splits that outlast the kills: a run that has all batches reports its progress every two seconds only.
        let options = ["--job", "j", "--epochs", "2", "--split-batches", "1", "--json"];
        let mut command = dir.gristmill(&["run"]);
        command.args(options);
        command.args(["--step-time", "20ms", "--patience", "20s", "--sink"]).arg(dir.path(sink));
        command.arg("--state-dir").arg(&state).arg(&pipeline);
        command
    };
    let has_begun = |sink: &str| {
        let delivered = || std::fs::read_dir(dir.path(sink)).map_or(0, Iterator::count);
        while delivered() < 70 {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut first = Background::start(&mut run("first"))?;
    has_begun("first");
    first.kill()?;
    let mut second = Background::start(&mut run("second"))?;
    has_begun("second");
    let last = run_json(&mut run("last"))?;
    assert_eq!(second.wait()?, Some(1), "another run has taken over");
    assert!(number(&last, "elements_delivered") < 2_000 - 70 * 8, "{last}");
    let mut all = std::collections::BTreeMap::<u32, std::collections::BTreeSet<i64>>::new();
    for sink in ["first", "second", "last"] {
        for (epoch, numbers) in read_numbers(&dir.path(sink), "id")? {
            all.entry(epoch).or_default().extend(numbers);
        }
    }
    assert_eq!(all.values().map(|numbers| numbers.len()).collect::<Vec<_>>(), [1000, 1000]);
    Ok(())
}

#[test]
fn ctrl_c_leaves_nothing_behind() -> Result<()> {
    let dir = test_dir()?;
    let mut up = Background::start(&mut dir.gristmill(&["up", "--json", "--ephemeral"]))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    let state = ready["state_dir"].as_str().unwrap_or_default().to_owned();
    assert!(Path::new(&state).is_dir());
    assert_eq!(up.interrupt()?, Some(0));
    assert!(!Path::new(&state).exists(), "{state} is left behind");
    Ok(())
}

#[test]
fn mistakes_are_one_line_and_exit_code_2() -> Result<()> {
    let dir = test_dir()?;
    fs::write(
        dir.path("typo.yaml"),
        "source: { tfrecord: x, features: { image: { key: k, dtype: bytes } } }\nops:\n  - decod\n  - batch: { size: 4 }\n",
    )?;
    fs::write(
        dir.path("no-data.yaml"),
        "source: { tfrecord: nothing/here, features: { image: { key: k, dtype: bytes } } }\nops:\n  - decode\n  - resize: { size: 8 }\n  - batch: { size: 4 }\n",
    )?;
    let path = |name: &str| dir.path(name).display().to_string();
    let cases = [
        (vec!["run".to_owned(), path("typo.yaml")], "line 3"),
        (vec!["run".to_owned(), path("missing.yaml")], "missing.yaml"),
        (vec!["run".to_owned(), path("no-data.yaml")], "nothing/here"),
        (
            vec![
                "demo".to_owned(),
                "--endpoint".into(),
                "http://127.0.0.1:1".into(),
                "--images".into(),
                "8".into(),
            ],
            "gristmill up",
        ),
    ];
    for (args, expected) in cases {
        let output = dir.gristmill(&args).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        let line = errors.lines().find(|line| line.starts_with("gristmill: "));
        assert!(line.is_some_and(|line| line.contains(expected)), "{args:?}: {errors}");
    }
    Ok(())
}
