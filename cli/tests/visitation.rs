//! Visitation modes: with trainers that die, and with a full visit per worker.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use gristmill_tests::{Background, FrameReader, TestDir, read_sink, run_json};
use serde_json::Value;
use std::{collections::BTreeMap, fs, time::Duration};

/// Records of each of three files; prime, so that nothing divides it.
const RECORDS: i64 = 101;

/// Slow enough that a trainer can die on the way.
const PIPELINE: &str = "
source: { tfrecord: ., features: { id: { dtype: i64 } } }
ops: [sleep: { ms: 3 }, batch: { size: 8 }]
";

struct World {
    dir: TestDir,
    endpoint: String,
    _up: Background,
}

impl World {
    fn new() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        fs::write(dir.path("p.yaml"), PIPELINE)?;
        fs::create_dir(dir.path("data"))?;
        for file in 0..3 {
            let mut bytes = Vec::new();
            let mut writer = RecordWriter::new(&mut bytes);
            for i in 0..RECORDS {
                writer.write(&TfExample::default().with_int("id", file * RECORDS + i))?;
            }
            writer.finish()?;
            fs::write(dir.path(&format!("data/{file}")), bytes)?;
        }
        let state = dir.path("state").display().to_string();
        let mut up =
            Background::start(&mut dir.gristmill(&["up", "--json", "--state-dir", &state]))?;
        let ready: Value = serde_json::from_str(&up.line()?)?;
        let endpoint = ready["endpoint"].as_str().unwrap().to_owned();
        Ok(Self { dir, endpoint, _up: up })
    }

    /// A fetcher without a cursor of its own.
    fn fetcher(&self, job: &str, visitation: &str) -> Result<(Background, FrameReader)> {
        let socket = self.dir.path(&format!("{job}.sock"));
        let mut command = self.dir.fetcher(&["--endpoint", &self.endpoint, "--job", job]);
        command.arg("--pipeline").arg(self.dir.path("p.yaml"));
        command.arg("--data").arg(self.dir.path("data")).arg("--socket").arg(&socket);
        command.args(["--visitation", visitation, "--epochs", "2"]);
        let fetcher = Background::start(&mut command)?;
        let reader = FrameReader::connect(&socket, Duration::from_secs(30))?;
        Ok((fetcher, reader))
    }
}

type Frames = BTreeMap<(u32, u64), Vec<Vec<u8>>>;

/// Takes up to `limit` batches; returns whether the job has ended. Only the last batch is
/// acknowledged.
fn take(reader: &mut FrameReader, frames: &mut Frames, limit: usize) -> bool {
    let mut last = None;
    for _ in 0..limit {
        let Ok(frame) = reader.receive() else { return false };
        match &frame.magic {
            b"GMB1" => {
                last = Some((frame.epoch, frame.g));
                frames.entry((frame.epoch, frame.g)).or_default().push(frame.payload);
            }
            b"GMBE" => {
                // The fetcher may be gone already: it waits for this ack only if the trainer keeps
                // the cursor.
                let _ = last.map(|(epoch, g)| reader.ack(epoch, g));
                return true;
            }
            _ => panic!("error frame: {}", String::from_utf8_lossy(&frame.payload)),
        }
    }
    false
}

/// All batches of a job whose fetcher is killed twice, with no stored cursor.
fn disturbed(world: &World, visitation: &str) -> Result<Frames> {
    let mut frames = Frames::new();
    for batches in [9, 20] {
        let (mut fetcher, mut reader) = world.fetcher(visitation, visitation)?;
        assert!(!take(&mut reader, &mut frames, batches), "the job ended too soon to be disturbed");
        fetcher.kill()?;
        // Batches handed over before the kill are still in the socket.
        take(&mut reader, &mut frames, usize::MAX);
    }
    let (mut fetcher, mut reader) = world.fetcher(visitation, visitation)?;
    assert!(take(&mut reader, &mut frames, usize::MAX));
    assert_eq!(fetcher.wait()?, Some(0));
    Ok(frames)
}

#[test]
fn without_a_cursor_trainers_go_on_where_the_mode_says() -> Result<()> {
    let world = World::new()?;
    let mut calm = Frames::new();
    let (mut fetcher, mut reader) = world.fetcher("calm", "exactly-once")?;
    assert!(take(&mut reader, &mut calm, usize::MAX));
    assert_eq!(fetcher.wait()?, Some(0));
    assert_eq!(calm.len(), 2 * 38);

    let once = disturbed(&world, "at-most-once")?;
    for (name, copies) in &once {
        assert_eq!(copies.len(), 1, "batch {name:?} was handed over twice");
        assert_eq!(copies[0], calm[name][0], "batch {name:?} has other bytes");
    }
    let lost = calm.len() - once.len();
    assert!(lost <= 4, "two trainers took {lost} batches along; two each may be on their way");

    let some = disturbed(&world, "zero-once-or-more")?;
    for (name, copies) in &some {
        assert!(copies.iter().all(|copy| *copy == calm[name][0]), "batch {name:?} has other bytes");
    }
    assert!(some.len() >= calm.len() - 4, "{} of {} batches", some.len(), calm.len());
    Ok(())
}

#[test]
fn unsharded_every_worker_visits_everything() -> Result<()> {
    let world = World::new()?;
    let sink = world.dir.path("sink");
    let mut command = world.dir.gristmill(&["run", "--json", "--endpoint", &world.endpoint]);
    command.arg(world.dir.path("p.yaml")).arg("--data").arg(world.dir.path("data"));
    command.args(["--sharding", "off", "--workers", "2", "--epochs", "1", "--step-time", "0ms"]);
    let report = run_json(command.arg("--sink").arg(&sink))?;
    assert_eq!(report["elements_delivered"], 2 * 3 * RECORDS);
    assert_eq!((&report["lost"], &report["duplicates"]), (&0.into(), &0.into()));
    let delivered = read_sink(&sink)?;
    assert_eq!(delivered.keys[&0].len() as i64, 3 * RECORDS);
    assert!(delivered.keys[&0].values().all(|times| *times == 2));
    Ok(())
}
