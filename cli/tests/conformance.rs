//! The cases of tf.data service's own tests, with the same small datasets. Those that differ on purpose say why.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::{Result, ensure};
use gristmill_tests::{Background, TestDir, read_numbers, run_json};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A folder of datasets of numbers.
struct Cluster(TestDir);

impl Cluster {
    /// One folder for each dataset, with a file for the numbers from each first to before each end.
    fn new(datasets: &[(&str, &[(i64, i64)])]) -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        for (name, files) in datasets {
            fs::create_dir(dir.path(name))?;
            for (number, &(first, end)) in files.iter().enumerate() {
                let lines = (first..end).map(|id| format!("{{\"id\": {id}}}\n"));
                fs::write(dir.path(&format!("{name}/{number}.jsonl")), lines.collect::<String>())?;
            }
        }
        Ok(Self(dir))
    }

    /// A run of `ops` over the datasets of `source`.
    fn command(&self, source: &str, ops: &str, more: &[&str]) -> Result<Command> {
        let pipeline = self.0.path("p.yaml");
        fs::write(&pipeline, format!("source: {source}\nops: [{ops}]\n"))?;
        let mut command = self.0.gristmill(&["run", "--json", "--step-time", "0ms"]);
        if !more.contains(&"--epochs") {
            command.args(["--epochs", "1"]);
        }
        command.arg(pipeline).args(more);
        Ok(command)
    }

    /// The numbers of each epoch, in order.
    fn epochs(
        &self,
        source: &str,
        ops: &str,
        more: &[&str],
    ) -> Result<(BTreeMap<u32, Vec<i64>>, Value)> {
        let sink = self.0.path("sink");
        let mut command = self.command(source, ops, more)?;
        let report = run_json(command.arg("--sink").arg(&sink))?;
        let epochs = read_numbers(&sink, "id")?;
        fs::remove_file(&sink).or_else(|_| fs::remove_dir_all(&sink))?;
        Ok((epochs, report))
    }

    /// The numbers of one epoch, in order.
    fn epoch(&self, source: &str, ops: &str, more: &[&str]) -> Result<(Vec<i64>, Value)> {
        let (mut epochs, report) = self.epochs(source, ops, more)?;
        Ok((epochs.remove(&0).unwrap_or_default(), report))
    }

    /// Begins a run whose sink is `name`, and whose errors are in `name.err`.
    fn begin(&self, name: &str, source: &str, ops: &str, more: &[&str]) -> Result<Background> {
        let mut command = self.command(source, ops, more)?;
        command.arg("--sink").arg(self.0.path(name));
        command.stderr(fs::File::create(self.0.path(&format!("{name}.err")))?);
        Background::start(&mut command)
    }

    /// The numbers in the sink `name`, which is of one epoch.
    fn numbers(&self, name: &str) -> Result<Vec<i64>> {
        Ok(read_numbers(&self.0.path(name), "id")?.into_values().flatten().collect())
    }

    /// Waits until so many batches are in the sink `name`.
    fn wait_for_batches(&self, name: &str, count: usize) {
        let sink = self.0.path(name);
        wait_for("batches", || fs::read_dir(&sink).is_ok_and(|files| files.count() >= count));
    }

    /// A service that keeps its state in the folder `state`.
    fn up(&self) -> Result<Background> {
        let mut command = self.0.gristmill(&["up", "--json", "--state-dir"]);
        let mut up = Background::start(command.arg(self.0.path("state")))?;
        up.line()?;
        Ok(up)
    }

    /// The end of a command about the job `a` of that service.
    fn ask(&self, about: &str) -> Result<Value> {
        let mut command = self.0.gristmill(&[about, "a", "--json", "--state-dir"]);
        run_json(command.arg(self.0.path("state")))
    }

    /// The decisions of a simulated run.
    fn simulate(&self, scenario: &str, policy: &str) -> Result<Vec<Value>> {
        let path = self.0.path("scenario.toml");
        fs::write(&path, scenario)?;
        let mut command = self.0.gristmill(&["simulate", "--json", "--policy", policy]);
        let simulated = run_json(command.arg(path))?;
        Ok(simulated["run"]["ticks"].as_array().unwrap().clone())
    }

    /// The order of operators that `explain` gives, and its notes.
    fn explain(&self, ops: &str) -> Result<(Vec<String>, Value)> {
        let path = self.0.path("images.yaml");
        let source = "{ tfrecord: x, features: { image: { dtype: bytes } } }";
        fs::write(&path, format!("auto_order: pecan\nsource: {source}\nops: [{ops}]\n"))?;
        let explained = run_json(self.0.gristmill(&["explain", "--json"]).arg(path))?;
        let after = explained["after"].as_array().unwrap().iter();
        let order = after.map(|op| op["op"].as_str().unwrap().to_owned()).collect();
        Ok((order, explained["passes"].clone()))
    }

    /// The one line with which a run is refused, and its exit code.
    fn refusal(&self, source: &str, ops: &str, more: &[&str]) -> Result<(Option<i32>, String)> {
        let output = self.command(source, ops, more)?.output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// The dataset in the folder `name`.
fn jsonl(name: &str) -> String {
    format!("{{ jsonl: '{name}/*.jsonl', features: {{ id: {{ dtype: i64 }} }} }}")
}

fn wait_for(awaited: &str, mut is_there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < PATIENCE, "no {awaited}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal by its name, such as STOP.
fn signal(pid: u32, name: &str) -> Result<()> {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status()?;
    ensure!(sent.success(), "no process {pid}");
    Ok(())
}

/// The processes that a process has started.
fn children(pid: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = fs::read_to_string(thread?.path().join("children"))?;
        found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(found)
}

/// Longer than anything here takes, and shorter than a lease.
const PATIENCE: Duration = Duration::from_secs(20);
const ONE: &str = "batch: { size: 1 }";
const IN_ORDER: &str = "in_order, batch: { size: 1 }";

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn case_01_without_sharding_each_worker_gives_every_element() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let off = ["--workers", "2", "--sharding", "off"];
    let (numbers, _) = cluster.epoch(&jsonl("data"), ONE, &off)?;
    assert_eq!(sorted(numbers), sorted((0..20).chain(0..20).collect()));
    Ok(())
}

#[test]
fn case_02_with_dynamic_sharding_each_element_comes_once() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let (numbers, _) = cluster.epoch(&jsonl("data"), ONE, &["--workers", "2"])?;
    assert_eq!(sorted(numbers), (0..20).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_03_a_repeated_dataset_gives_each_element_so_often() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let ops = format!("repeat: {{ count: 5 }}, {ONE}");
    let (numbers, _) = cluster.epoch(&jsonl("data"), &ops, &["--workers", "2"])?;
    assert_eq!(sorted(numbers), sorted((0..20).collect::<Vec<_>>().repeat(5)));
    Ok(())
}

#[test]
fn case_04_reads_go_on_while_workers_stop() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 1)])])?;
    let ops = format!("sleep: {{ ms: 20 }}, {ONE}");
    let more = ["--workers", "5", "--epochs", "200"];
    let chaos = ["--chaos", "kill-workers", "--chaos-interval", "100ms"];
    let more = [&more[..], &chaos].concat();
    let (epochs, report) = cluster.epochs(&jsonl("data"), &ops, &more)?;
    assert_eq!(epochs, (0..200).map(|epoch| (epoch, vec![0])).collect());
    assert!(report["kills"].as_u64() >= Some(4), "{report}");
    Ok(())
}

#[test]
fn case_05_a_zip_ends_with_its_shortest_dataset() -> Result<()> {
    let cluster = Cluster::new(&[("fifty", &[(0, 50)]), ("ten", &[(0, 10)])])?;
    let ten = "{ jsonl: 'ten/*.jsonl', repeat: 10, features: { other: { key: id, dtype: i64 } } }";
    let source = format!("{{ zip: [{}, {ten}] }}", jsonl("fifty"));
    let (numbers, _) = cluster.epoch(&source, IN_ORDER, &["--workers", "2"])?;
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_06_concatenated_datasets_keep_their_order() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 10), (10, 15)]), ("more", &[(15, 30)])])?;
    let source = "{ jsonl: ['data/*.jsonl', 'more/*.jsonl'], features: { id: { dtype: i64 } } }";
    let (numbers, _) = cluster.epoch(source, IN_ORDER, &["--workers", "1"])?;
    assert_eq!(numbers, (0..30).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_07_file_sharding_with_too_few_files() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 10), (10, 20), (20, 30), (30, 40)])])?;
    let by_file = ["--shard", "0/5", "--shard-by", "file"];
    let (code, said) = cluster.refusal(&jsonl("data"), ONE, &by_file)?;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("4 files are not enough for 5 shards"), "{said}");
    Ok(())
}

#[test]
fn case_08_an_empty_dataset_ends_at_once() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let ops = format!("skip: {{ count: 20 }}, {ONE}");
    let (numbers, report) = cluster.epoch(&jsonl("data"), &ops, &[])?;
    assert_eq!((numbers, &report["lost"]), (vec![], &0.into()));
    Ok(())
}

#[test]
fn case_09_a_source_that_cannot_be_split_is_refused() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let made = Command::new("mkfifo").arg(cluster.0.path("data/pipe")).status()?;
    assert!(made.success());
    for (path, reason) in [("data/pipe", "data/pipe: a pipe"), ("/dev/zero", "/dev/zero: a device")]
    {
        let source = format!("{{ jsonl: {path}, features: {{ id: {{ dtype: i64 }} }} }}");
        let (code, said) = cluster.refusal(&source, ONE, &["--sharding", "dynamic"])?;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("cannot read ") && said.contains(reason), "{said}");
    }
    Ok(())
}

/// Clients of one job name share its stream there. Here a stream has one position, which a checkpoint keeps, so a second
/// trainer of the name takes it over where the first has come to, and the first ends with an error. Trainers that share
/// a job are its ranks.
#[test]
fn case_10_a_second_trainer_of_one_name_takes_the_stream_over() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 400)])])?;
    let state = cluster.0.path("state").display().to_string();
    let job = ["--state-dir", &state, "--job", "a", "--split-batches", "4"];
    let ops = "in_order, sleep: { ms: 10 }, batch: { size: 1 }";
    let mut first = cluster.begin("first", &jsonl("data"), ops, &job)?;
    cluster.wait_for_batches("first", 20);
    let mut second = cluster.begin("second", &jsonl("data"), ops, &job)?;
    assert_eq!((first.wait()?, second.wait()?), (Some(1), Some(0)));
    let said = fs::read_to_string(cluster.0.path("first.err"))?;
    assert!(said.contains("another trainer reads this job now"), "{said}");
    let (first, second) = (cluster.numbers("first")?, cluster.numbers("second")?);
    let began = second[0];
    assert!(began <= first.len() as i64 && first.len() < 400, "{began}, {}", first.len());
    assert_eq!(first, (0..first.len() as i64).collect::<Vec<_>>());
    assert_eq!(second, (began..400).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_11_jobs_of_other_names_each_get_everything() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let state = cluster.0.path("state").display().to_string();
    for job in ["a", "b"] {
        let named = ["--state-dir", &state, "--job", job];
        let (numbers, _) = cluster.epoch(&jsonl("data"), ONE, &named)?;
        assert_eq!(sorted(numbers), (0..20).collect::<Vec<_>>(), "{job}");
    }
    Ok(())
}

#[test]
fn case_12_one_name_with_other_parameters_is_refused_with_both_values() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)]), ("other", &[(0, 30)])])?;
    let state = cluster.0.path("state").display().to_string();
    let named = ["--state-dir", &state, "--job", "a"];
    cluster.epoch(&jsonl("data"), ONE, &named)?;
    let seeded = [&named[..], &["--seed", "7"]].concat();
    for (source, ops, more, values) in [
        ("data", "batch: { size: 2 }", &named[..], ["batch size", "(1, not 2)"]),
        ("data", ONE, &seeded, ["0", "7"]),
        ("other", ONE, &named, ["dataset", "a"]),
    ] {
        let (code, said) = cluster.refusal(&jsonl(source), ops, more)?;
        assert_eq!(code, Some(2), "{said}");
        assert!(values.iter().all(|value| said.contains(value)), "{said}");
    }
    Ok(())
}

/// A client that is silent is dropped there. Here silence ends nothing for days; but if the job ends meanwhile, the trainer ends
/// with a message that says so as soon as it asks again.
#[test]
fn case_14_a_silent_trainer_whose_job_is_unknown_ends_with_that_message() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 400)])])?;
    let _up = cluster.up()?;
    let state = cluster.0.path("state").display().to_string();
    let ops = "sleep: { ms: 20 }, batch: { size: 1 }";
    let job = ["--state-dir", &state, "--job", "a", "--split-batches", "4"];
    let mut trainer = cluster.begin("sink", &jsonl("data"), ops, &job)?;
    cluster.wait_for_batches("sink", 8);
    signal(trainer.pid(), "STOP")?;
    cluster.ask("stop")?;
    cluster.ask("forget")?;
    signal(trainer.pid(), "CONT")?;
    assert_eq!(trainer.wait()?, Some(1));
    let said = fs::read_to_string(cluster.0.path("sink.err"))?;
    assert!(said.contains("there is no job a here"), "{said}");
    Ok(())
}

/// Serves these lines as a file, and counts the requests for them.
fn serve(lines: String) -> Result<(String, Arc<AtomicU32>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}/numbers.jsonl", listener.local_addr()?);
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    thread::spawn(move || {
        for connection in listener.incoming() {
            let answered =
                connection.is_ok_and(|stream| answer(stream, lines.as_bytes()).is_some());
            counted.fetch_add(u32::from(answered), Ordering::SeqCst);
        }
    });
    Ok((address, requests))
}

fn answer(mut stream: TcpStream, content: &[u8]) -> Option<()> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).ok()?;
    let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="))?;
    let (first, last) = range.split_once('-')?;
    let first = first.parse::<usize>().ok()?;
    let (size, last) = (content.len(), last.parse::<usize>().ok()?.min(content.len() - 1));
    let body = content.get(first..=last)?;
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\n\
         content-range: bytes {first}-{last}/{size}\r\netag: \"0\"\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}

/// The dataset is one split, and its server tells when a worker holds it: a worker that dropped it would ask for it again.
#[test]
fn case_15_workers_finish_what_they_hold_without_the_coordinator() -> Result<()> {
    let cluster = Cluster::new(&[])?;
    let lines = (0..100).map(|id| format!("{{\"id\": {id}}}\n")).collect();
    let (address, requests) = serve(lines)?;
    let source = format!("{{ jsonl: '{address}', features: {{ id: {{ dtype: i64 }} }} }}");
    let ops = "in_order, sleep: { ms: 30 }, batch: { size: 1 }";
    let more = ["--workers", "0", "--local-workers", "1", "--split-batches", "100"];
    let (expected, report) = cluster.epoch(&source, ops, &more)?;
    assert_eq!((expected, &report["splits"]), ((0..100).collect(), &1.into()));
    let needed = requests.swap(0, Ordering::SeqCst);
    let mut up = cluster.up()?;
    let state = cluster.0.path("state").display().to_string();
    let more = [&more[..], &["--state-dir", &state]].concat();
    let mut trainer = cluster.begin("sink", &source, ops, &more)?;
    wait_for("worker at work", || requests.load(Ordering::SeqCst) == needed);
    up.kill()?;
    let _up = cluster.up()?;
    assert_eq!(trainer.wait()?, Some(0));
    assert_eq!(cluster.numbers("sink")?, (0..100).collect::<Vec<_>>());
    assert_eq!(requests.load(Ordering::SeqCst), needed, "the split was computed twice");
    Ok(())
}

#[test]
fn case_16_a_coordinator_that_restarts_loses_and_repeats_nothing() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 400)])])?;
    let ops = "sleep: { ms: 5 }, batch: { size: 2 }";
    let (expected, calm) = cluster.epoch(&jsonl("data"), ops, &[])?;
    let chaos = ["--chaos", "kill-coordinator", "--chaos-interval", "300ms"];
    let (numbers, killed) = cluster.epoch(&jsonl("data"), ops, &chaos)?;
    assert_eq!(sorted(numbers.clone()), (0..400).collect::<Vec<_>>());
    assert_eq!(numbers, expected);
    assert_eq!(killed["batches_blake3"], calm["batches_blake3"]);
    assert!(killed["kills"].as_u64() > Some(0), "{killed}");
    Ok(())
}

/// The only worker is stopped with a split in its hands, so nobody but the added one can make any.
#[test]
fn case_17_an_added_worker_makes_splits_while_others_hold_theirs() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 200)])])?;
    let up = cluster.up()?;
    let state = cluster.0.path("state").display().to_string();
    let ops = "sleep: { ms: 20 }, batch: { size: 1 }";
    let job = ["--state-dir", &state, "--job", "a", "--split-batches", "2", "--workers"];
    let mut first = cluster.begin("first", &jsonl("data"), ops, &[&job[..], &["1"]].concat())?;
    cluster.wait_for_batches("first", 6);
    let made = |status: &Value| {
        status["delivered"]["position"].as_u64().unwrap() + status["splits_ready"].as_u64().unwrap()
    };
    let workers = children(up.pid())?;
    assert_eq!(workers.len(), 1);
    signal(workers[0], "STOP")?;
    let before = made(&cluster.ask("status")?);
    let mut second = cluster.begin("second", &jsonl("data"), ops, &[&job[..], &["2"]].concat())?;
    // One more may have been on its way.
    wait_for("split of the added worker", || made(&cluster.ask("status").unwrap()) > before + 2);
    assert_eq!(cluster.ask("status")?["workers"]["desired"], 2);
    signal(workers[0], "CONT")?;
    assert_eq!((first.wait()?, second.wait()?), (Some(1), Some(0)));
    let mut all = [cluster.numbers("first")?, cluster.numbers("second")?].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    Ok(())
}

/// Without noise.
const CALM: &str = r#"
name = "calm"
[trainer]
step = "100ms"
noise = 0.0
[worker]
compute = "420ms"
noise = 0.0
[report]
noise = 0.0
[run]
batches = 4000
"#;

#[test]
fn case_23_an_improvement_below_the_threshold_is_taken_back() -> Result<()> {
    let cluster = Cluster::new(&[])?;
    // The source is the limit. If it were the trainer, workers would leave, and Cachew would measure nothing.
    let source = "[data]\nsource_batch = \"2MB\"\n[limits]\nsource = \"10MB/s\"\n";
    let scenario = format!("{}{source}", CALM.replace("420ms", "900ms"));
    let ticks = cluster.simulate(&scenario, "cachew")?;
    let end = ticks.iter().position(|tick| tick["has_converged"] == true).unwrap();
    // The last report at a count is the one that decides.
    let times: BTreeMap<u64, f64> = ticks[..=end]
        .iter()
        .map(|tick| (tick["before"].as_u64().unwrap(), tick["batch_time_s"].as_f64().unwrap()))
        .collect();
    let tried = times.len() as u64;
    assert!(tried > 3 && times.keys().copied().eq(1..=tried), "{times:?}");
    for count in 2..tried {
        assert!(times[&count] < 0.97 * times[&(count - 1)], "{count} of {times:?}");
    }
    assert!(times[&tried] > 0.97 * times[&(tried - 1)], "{times:?}");
    assert_eq!(ticks[end]["target"], tried - 1, "{times:?}");
    Ok(())
}

/// An epoch is extended there until the number of workers is found. Here each has every element once, and the search goes on in
/// the next: a report of 100 batches takes longer than two epochs.
#[test]
fn case_24_the_search_for_workers_outlasts_an_epoch() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 40)])])?;
    let ops = format!("sleep: {{ ms: 10 }}, {ONE}");
    let more = ["--workers", "auto", "--policy", "cachew", "--epochs", "12"];
    let (epochs, report) = cluster.epochs(&jsonl("data"), &ops, &more)?;
    let epochs: Vec<_> = epochs.into_values().map(sorted).collect();
    assert_eq!(epochs, vec![(0..40).collect::<Vec<_>>(); 12]);
    let mut decisions = report["scaling"].as_array().unwrap().iter();
    assert!(decisions.any(|decision| decision["batch"].as_u64() > Some(40)), "{report}");
    Ok(())
}

#[test]
fn case_25_no_operator_crosses_one_that_keeps_its_position() -> Result<()> {
    let cluster = Cluster::new(&[])?;
    let ops = |flip: &str, size: u32| {
        let before = "decode: { typical_size: 100 }, flip";
        format!("{before}{flip}, resize: {{ size: {size} }}, batch: {{ size: 4 }}")
    };
    let as_written = ["source", "decode", "flip", "resize", "batch"];
    let (order, _) = cluster.explain(&ops("", 50))?;
    assert_eq!(order, ["source", "decode", "resize", "flip", "batch"]);
    let (order, notes) = cluster.explain(&ops(": { keep_position: true }", 50))?;
    assert_eq!(order, as_written);
    assert_eq!(notes[0]["change"], "refused", "{notes}");
    // 102 x 102 pixels are 1.04 times 100 x 100, and 98 x 98 are 0.96 times.
    for size in [98, 102] {
        assert_eq!(
            cluster.explain(&ops("", size))?,
            (as_written.map(String::from).to_vec(), json!([]))
        );
    }
    Ok(())
}

#[test]
fn case_26_nothing_is_offloaded_if_the_host_keeps_up() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 200)])])?;
    let host = "[host]\ncores = 8\ntrainer_cores = 1\n[policy]\nplacement = \"fastflow\"\n";
    let remote = |compute: &str| -> Result<u64> {
        let scenario = format!("{}{host}", CALM.replace("420ms", compute));
        let ticks = cluster.simulate(&scenario, "coverage")?;
        Ok(ticks.iter().filter_map(|tick| tick["target"].as_u64()).max().unwrap())
    };
    assert_eq!(remote("50ms")?, 0, "local workers keep up within a tenth");
    assert!(remote("900ms")? > 1, "eight local workers make less than nine in ten batches");
    Ok(())
}

/// Both workers are equally fast: without the share, each would make half.
#[test]
fn case_26_local_workers_stay_within_a_split_of_their_share() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 200)])])?;
    let plan = cluster.0.path("plan.json").display().to_string();
    let quarter = json!({ "placement": { "remote": 1, "local": 1, "share_local": 0.25 } });
    fs::write(&plan, quarter.to_string())?;
    let ops = format!("sleep: {{ ms: 10 }}, {ONE}");
    let more = ["--placement", &plan, "--split-batches", "2"];
    let (numbers, report) = cluster.epoch(&jsonl("data"), &ops, &more)?;
    assert_eq!(sorted(numbers), (0..200).collect::<Vec<_>>());
    let local = report["epochs"][0]["local_splits"].as_u64().unwrap();
    assert!((1..=26).contains(&local), "{local} of {}", report["splits"]);
    Ok(())
}

#[test]
fn case_27_fifty_workers_lose_nothing_to_a_throttled_partition() -> Result<()> {
    let cluster = Cluster::new(&[])?;
    let mut command = cluster.0.gristmill(&["bench", "readers", "--json", "--readers", "1"]);
    let report = run_json(command.args(["--workers", "50", "--seconds", "20"]))?;
    let facts = &report["rows"][0]["facts"];
    // Ranks that take 200 ms for a step never wait.
    assert!(facts["steps a second"].as_f64() > Some(4.9), "{facts}");
    // All partitions together have less to do than one can.
    assert!(facts["all read units a second"].as_f64() < Some(3_000.0), "{facts}");
    assert!(facts["all write units a second"].as_f64() < Some(1_000.0), "{facts}");
    assert_eq!(facts["requests rejected"], 0.0, "{facts}");
    assert_eq!(report["holds"], true, "{report}");
    Ok(())
}

#[test]
fn case_28_killed_workers_change_no_byte() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 400)])])?;
    let ops = "sleep: { ms: 2 }, batch: { size: 4 }";
    let (expected, calm) = cluster.epoch(&jsonl("data"), ops, &["--workers", "3"])?;
    let chaos = ["--workers", "3", "--chaos", "kill-workers", "--chaos-interval", "100ms"];
    let (numbers, killed) = cluster.epoch(&jsonl("data"), ops, &chaos)?;
    assert_eq!(numbers, expected);
    assert_eq!(killed["batches_blake3"], calm["batches_blake3"]);
    assert!(killed["kills"].as_u64() > Some(0), "{killed}");
    Ok(())
}
