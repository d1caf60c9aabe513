//! Ranks as processes: `examples/train.py --rank` with `gristmill-fetcher --ranks`, killed and started again.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::{Context, Result, bail, ensure};
use gristmill_tests::{Background, TestDir, ensure_python, run_json};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Name of the run that fetchers and ranks belong to, unless a test has several.
const RUN: &str = "r";

/// A service, and ranks on one of its jobs.
struct Training {
    dir: TestDir,
    endpoint: String,
    service: Background,
}

/// Starts a service on the state of the last one, if there was one.
fn start_service(dir: &TestDir) -> Result<(Background, String)> {
    let state = dir.path("state").display().to_string();
    let mut service =
        Background::start(&mut dir.gristmill(&["up", "--json", "--state-dir", &state]))?;
    let ready: Value = serde_json::from_str(&service.line()?)?;
    let endpoint = ready["endpoint"].as_str().context("an endpoint")?.to_owned();
    Ok((service, endpoint))
}

impl Training {
    fn start() -> Result<Self> {
        ensure_python()?;
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        dir.write_numbers()?;
        let (service, endpoint) = start_service(&dir)?;
        Ok(Self { dir, endpoint, service })
    }

    /// A fetcher of `ranks` of two epochs of job `job`, at the socket of that name.
    fn fetcher(&self, job: &str, socket: &str, ranks: &str, more: &[&str]) -> Command {
        let mut fetcher = self.dir.fetcher(&["--endpoint", &self.endpoint, "--job", job, "--json"]);
        fetcher.arg("--pipeline").arg(self.dir.path("p.yaml")).args(["--epochs", "2"]);
        fetcher.args(["--workers", "2", "--on-error", "skip", "--max-skipped", "20%"]);
        // So many splits that hosts are lost between them.
        fetcher.args(["--split-batches", "1"]);
        fetcher.arg("--socket").arg(self.dir.path(socket)).args(["--ranks", ranks]);
        fetcher.args(more);
        if !more.contains(&"--run") {
            fetcher.args(["--run", RUN]);
        }
        fetcher
    }

    /// A rank of `of`; checkpoint and log are named after `job` and the rank.
    fn rank(&self, job: &str, socket: &str, (rank, of): (usize, usize), every: &str) -> Command {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/train.py");
        let (rank, of) = (rank.to_string(), of.to_string());
        let mut train = self.dir.program("python3".as_ref(), &[script, "--run", RUN, "--json"]);
        train.args(["--rank", &rank, "--of", &of, "--step-time", "1ms", "--ack-every", every]);
        train.arg("--socket").arg(self.dir.path(socket));
        train.arg("--checkpoint").arg(self.dir.path(&format!("{job}-{rank}.json")));
        train.arg("--log").arg(self.dir.path(&format!("{job}-{rank}.log")));
        for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"] {
            train.env_remove(name);
        }
        train
    }

    fn log(&self, job: &str, rank: usize) -> String {
        fs::read_to_string(self.dir.path(&format!("{job}-{rank}.log"))).unwrap_or_default()
    }

    /// The last durable checkpoint of a job, as text.
    fn checkpoint(&self, job: &str) -> Result<String> {
        let args = ["status", job, "--checkpoint", "--endpoint", &self.endpoint];
        let output = self.dir.gristmill(&args).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Waits until the checkpoint of a rank is of a step at or after batch `until` of its first epoch.
    fn wait_for_checkpoint(&self, job: &str, rank: usize, until: u64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(120);
        let path = self.dir.path(&format!("{job}-{rank}.json"));
        loop {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let saved: Value = serde_json::from_str(&text).unwrap_or_default();
            let at = (saved["next"][0].as_u64(), saved["next"][1].as_u64());
            if at >= (Some(0), Some(until)) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "rank {rank} saved only {saved}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Batches of each epoch by number, with their keys; repeats are counted apart.
#[derive(Default)]
struct Trained {
    epochs: BTreeMap<u32, BTreeMap<u64, Vec<u64>>>,
    repeats: usize,
}

impl Trained {
    fn add(&mut self, log: &str) -> Result<()> {
        for line in log.lines() {
            let words = line.strip_prefix("repeat ").unwrap_or(line);
            if words != line {
                self.repeats += 1;
                continue;
            }
            let numbers: Vec<u64> = words.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [epoch, index, keys @ ..] = &numbers[..] else { bail!("line {line:?}") };
            let batches = self.epochs.entry(u32::try_from(*epoch)?).or_default();
            ensure!(batches.insert(*index, keys.to_vec()).is_none(), "{line} was trained twice");
        }
        Ok(())
    }

    /// Every record of the epoch, each once.
    fn records(&self, epoch: u32) -> usize {
        let keys: Vec<u64> = self.epochs[&epoch].values().flatten().copied().collect();
        let distinct: BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "a record was trained twice in epoch {epoch}");
        distinct.len()
    }
}

#[test]
fn ranks_and_fetcher_are_killed_and_their_logs_recount_to_exactly_once() -> Result<()> {
    let training = Training::start()?;
    let fetcher = || training.fetcher("k", "k.sock", "0-1", &["--of", "2"]);
    let rank = |rank| training.rank("k", "k.sock", (rank, 2), "3");
    let mut serving = Background::start(&mut fetcher())?;
    let mut ranks = [Background::start(&mut rank(0))?, Background::start(&mut rank(1))?];
    for (round, until) in [6, 20, 34, 48, 62, 76, 90].into_iter().enumerate() {
        training.wait_for_checkpoint("k", round % 2, until)?;
        match round % 3 {
            2 => {
                serving.kill()?;
                serving = Background::start(&mut fetcher())?;
            }
            victim => {
                ranks[victim].kill()?;
                ranks[victim] = Background::start(&mut rank(victim))?;
            }
        }
    }
    for rank in &mut ranks {
        assert_eq!(rank.wait()?, Some(0));
    }
    assert_eq!(serving.wait()?, Some(0));
    let mut trained = Trained::default();
    (0..2).try_for_each(|rank| trained.add(&training.log("k", rank)))?;
    assert_eq!((trained.records(0), trained.records(1)), (1000, 1000));
    // 125 batches: rank 1 repeats one at the end of each epoch.
    assert_eq!(trained.repeats, 2);
    Ok(())
}

#[test]
fn two_fetchers_share_a_run_and_one_is_killed() -> Result<()> {
    let training = Training::start()?;
    let sockets = ["t0.sock", "t1.sock"];
    let fetcher = |host: usize| {
        let ranks = host.to_string();
        training.fetcher("t", sockets[host], &ranks, &["--of", "2"])
    };
    let mut serving = [Background::start(&mut fetcher(0))?, Background::start(&mut fetcher(1))?];
    let rank = |rank: usize| training.rank("t", sockets[rank], (rank, 2), "3");
    let mut ranks = [Background::start(&mut rank(0))?, Background::start(&mut rank(1))?];
    for (host, until) in [(1, 20), (0, 60)] {
        training.wait_for_checkpoint("t", host, until)?;
        serving[host].kill()?;
        serving[host] = Background::start(&mut fetcher(host))?;
    }
    training.wait_for_checkpoint("t", 1, 90)?;
    ranks[1].kill()?;
    ranks[1] = Background::start(&mut rank(1))?;
    for program in ranks.iter_mut().chain(&mut serving) {
        assert_eq!(program.wait()?, Some(0));
    }
    let mut trained = Trained::default();
    (0..2).try_for_each(|rank| trained.add(&training.log("t", rank)))?;
    assert_eq!((trained.records(0), trained.records(1)), (1000, 1000));
    Ok(())
}

#[test]
fn tails_treat_what_filters_and_unreadable_records_leave() -> Result<()> {
    let training = Training::start()?;
    // 930 numbers are left of 1000 and 50 unreadable lines: 117 batches, of which the last has two rows.
    let path = training.dir.path("data").join("unreadable.jsonl");
    fs::write(path, "{\"id\": \"none\"}\n".repeat(50))?;
    let pipeline = "source: { jsonl: data, features: { id: { dtype: i64 } } }\n\
        ops: [{ filter: { field: id, min: 70 } }, { batch: { size: 8 } }]\n";
    fs::write(training.dir.path("p.yaml"), pipeline)?;
    for (tail, steps, repeats, left_out, records) in [
        ("drop", [58, 58], 0, 1, None),
        ("repeat", [59, 59], 1, 0, Some(930)),
        ("uneven", [59, 58], 0, 0, Some(930)),
    ] {
        let socket = format!("{tail}.sock");
        let mut fetcher = training.fetcher(tail, &socket, "0-1", &["--of", "2", "--tail", tail]);
        let mut ranks: Vec<_> = (0..2)
            .map(|rank| Background::start(&mut training.rank(tail, &socket, (rank, 2), "10")))
            .collect::<Result<_>>()?;
        let report = run_json(&mut fetcher)?;
        for rank in &mut ranks {
            assert_eq!(rank.wait()?, Some(0));
        }
        let counted = |name: &str| -> Vec<u64> {
            let ranks = report["ranks"].as_array().unwrap().iter();
            ranks.map(|rank| rank[name].as_u64().unwrap()).collect()
        };
        assert_eq!(counted("steps"), steps.map(|steps| 2 * steps), "{tail}: {report}");
        assert_eq!(counted("repeats").iter().sum::<u64>(), 2 * repeats, "{tail}: {report}");
        for epoch in report["epochs"].as_array().unwrap() {
            assert_eq!((&epoch["left_out"], &epoch["skipped"]), (&left_out.into(), &50.into()));
        }
        let mut trained = Trained::default();
        (0..2).try_for_each(|rank| trained.add(&training.log(tail, rank)))?;
        assert_eq!(trained.repeats as u64, 2 * repeats);
        for epoch in 0..2 {
            let found = trained.records(epoch);
            assert!(records.is_none_or(|records| records == found), "{tail}: {found} records");
        }
    }
    Ok(())
}

/// `examples/train.py`, which writes the checksum of each batch that it receives, except repeats, to the file $SUMS.
const CHECKSUMS: &str = "
import os, sys, zlib
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv.pop(0)
import train

def write_sum(self, magic, epoch, batch_index, payload, then=train.Rank.train):
    with open(os.environ['SUMS'], 'a') as sums:
        if magic != b'GMBR':
            print(epoch, batch_index, zlib.crc32(payload), file=sums)
    then(self, magic, epoch, batch_index, payload)

train.Rank.train = write_sum
sys.exit(train.main())
";

/// A rank of job `d` that writes checksums; the run's name begins the name of their file.
fn start_summed(
    training: &Training,
    socket: &str,
    (rank, of): (usize, usize),
    run: &str,
) -> Result<Background> {
    let args = training.rank("d", socket, (rank, of), "3");
    let mut train = training.dir.program("python3".as_ref(), &["-c", CHECKSUMS]);
    // The last --run counts.
    train.args(args.get_args()).args(["--run", run]);
    train.env("SUMS", training.dir.path(&format!("{run}-{rank}.sums")));
    Background::start(&mut train)
}

/// Two hosts of job `d` and `of` ranks in equal shares, and more options of the fetchers: the processes of all.
fn start_two_hosts(
    training: &Training,
    of: usize,
    run: &str,
    more: &[&str],
) -> Result<Vec<Background>> {
    let mut running = Vec::new();
    let each = of / 2;
    let of_text = of.to_string();
    for host in 0..2 {
        let (socket, first) = (format!("{host}.sock"), host * each);
        let state = training.dir.path(&format!("{host}.state")).display().to_string();
        let own = ["--of", &of_text, "--run", run, "--state", &state];
        let ranks = format!("{first}-{}", first + each - 1);
        let args = [&own, more].concat();
        running.push(Background::start(&mut training.fetcher("d", &socket, &ranks, &args))?);
        for rank in first..first + each {
            running.push(start_summed(training, &socket, (rank, of), run)?);
        }
    }
    Ok(running)
}

/// Kills the processes of two hosts of `of` ranks once all have saved batch 50, and removes the hosts' files. Returns the
/// ranks' logs.
fn lose_two_hosts(
    training: &Training,
    of: usize,
    mut running: Vec<Background>,
) -> Result<Vec<String>> {
    (0..of).try_for_each(|rank| training.wait_for_checkpoint("d", rank, 50))?;
    running.iter_mut().try_for_each(Background::kill)?;
    let logs = (0..of).map(|rank| training.log("d", rank)).collect();
    let hosts = (0..2).flat_map(|host| [format!("{host}.state"), format!("{host}.sock")]);
    let ranks = (0..of).flat_map(|rank| [format!("d-{rank}.json"), format!("d-{rank}.log")]);
    for file in hosts.chain(ranks) {
        fs::remove_file(training.dir.path(&file)).context(file)?;
    }
    Ok(logs)
}

/// The epoch and the next batch of a checkpoint in the first epoch.
fn place_of(checkpoint: &str) -> Result<(u64, u64)> {
    let parsed: Value = serde_json::from_str(checkpoint)?;
    let (epoch, next) = (parsed["epoch"].as_u64().unwrap(), parsed["g"].as_u64().unwrap());
    // The service learns what is durable a moment later.
    assert!(epoch == 0 && (1..=125).contains(&next), "{checkpoint}");
    Ok((epoch, next))
}

/// The lines of a log of batches before that of `epoch` and index `next`.
fn before((epoch, next): (u64, u64), log: &str) -> String {
    let is_before = |line: &&str| {
        let place = line.split(' ').take(2).map(|word| word.parse::<u64>().unwrap());
        place.collect::<Vec<_>>() < vec![epoch, next]
    };
    log.lines().filter(is_before).map(|line| format!("{line}\n")).collect()
}

/// The checksum of each batch, which is the same whenever it is received.
fn add_checksums(sums: &mut BTreeMap<(u32, u64), u32>, path: &Path) -> Result<()> {
    for line in fs::read_to_string(path)?.lines() {
        let words: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [epoch, index, sum] = words[..] else { bail!("line {line:?}") };
        let (at, sum) = ((u32::try_from(epoch)?, index), u32::try_from(sum)?);
        let known = *sums.entry(at).or_insert(sum);
        ensure!(known == sum, "{}: batch {at:?} differs", path.display());
    }
    Ok(())
}

#[test]
fn three_ranks_resume_from_the_checkpoint_that_status_prints_of_two_whose_disks_are_lost()
-> Result<()> {
    let mut training = Training::start()?;
    let pipeline = "source:\n  jsonl: data\n  features: { id: { dtype: i64 } }\n\
        ops: [{ shuffle: { blocks: 4 } }, { batch: { size: 8 } }]\n";
    fs::write(training.dir.path("p.yaml"), pipeline)?;
    let running = start_two_hosts(&training, 2, "two", &[])?;
    let logs = lose_two_hosts(&training, 2, running)?;
    training.service.kill()?;
    (training.service, training.endpoint) = start_service(&training.dir)?;
    let checkpoint = training.checkpoint("d")?;
    let (epoch, next) = place_of(&checkpoint)?;
    let mut trained = Trained::default();
    logs.iter().try_for_each(|log| trained.add(&before((epoch, next), log)))?;
    assert_eq!(trained.epochs[&0].len() as u64, next, "{checkpoint}: a batch before is missing");

    let args = ["--of", "3", "--run", "three", "--resume", &checkpoint];
    let mut serving = Background::start(&mut training.fetcher("d", "d.sock", "0-2", &args))?;
    let ranks = (0..3).map(|rank| start_summed(&training, "d.sock", (rank, 3), "three"));
    for mut rank in ranks.collect::<Result<Vec<_>>>()? {
        assert_eq!(rank.wait()?, Some(0));
    }
    assert_eq!(serving.wait()?, Some(0));
    (0..3).try_for_each(|rank| trained.add(&training.log("d", rank)))?;
    assert_eq!((trained.records(0), trained.records(1)), (1000, 1000));

    // Both runs received the same bytes.
    let mut sums = BTreeMap::new();
    for (run, of) in [("two", 2), ("three", 3)] {
        let mut paths = (0..of).map(|rank| training.dir.path(&format!("{run}-{rank}.sums")));
        paths.try_for_each(|path| add_checksums(&mut sums, &path))?;
    }
    assert_eq!(sums.len(), 250);
    Ok(())
}

/// The text of the first of each `each` neighbours, which all of them have.
fn shared_by_replicas(texts: &[String], each: usize) -> Vec<&str> {
    let shared = texts.chunks(each).map(|peers| {
        assert!(peers.iter().all(|text| *text == peers[0]), "replicas differ: {peers:?}");
        &*peers[0]
    });
    shared.collect()
}

#[test]
fn eight_processes_are_four_ranks_with_two_replicas_and_resume_as_two_with_four() -> Result<()> {
    let training = Training::start()?;
    let running = start_two_hosts(&training, 8, "pairs", &["--replicas", "2"])?;
    let logs = lose_two_hosts(&training, 8, running)?;
    let checkpoint = training.checkpoint("d")?;
    let (epoch, next) = place_of(&checkpoint)?;
    let kept: Vec<_> = logs.iter().map(|log| before((epoch, next), log)).collect();
    let mut trained = Trained::default();
    shared_by_replicas(&kept, 2).into_iter().try_for_each(|log| trained.add(log))?;
    assert_eq!(trained.epochs[&0].len() as u64, next, "{checkpoint}: a batch before is missing");

    let more = ["--replicas", "4", "--resume", &checkpoint];
    for program in &mut start_two_hosts(&training, 8, "fours", &more)? {
        assert_eq!(program.wait()?, Some(0));
    }
    let logs: Vec<_> = (0..8).map(|rank| training.log("d", rank)).collect();
    shared_by_replicas(&logs, 4).into_iter().try_for_each(|log| trained.add(log))?;
    assert_eq!((trained.records(0), trained.records(1)), (1000, 1000));

    // All replicas of both runs received the same bytes.
    let mut sums = BTreeMap::new();
    for run in ["pairs", "fours"] {
        let mut paths = (0..8).map(|rank| training.dir.path(&format!("{run}-{rank}.sums")));
        paths.try_for_each(|path| add_checksums(&mut sums, &path))?;
    }
    assert_eq!(sums.len(), 250);
    Ok(())
}
