//! Behaviour of Lambda, imitated by the function host: whole jobs are checked against the bytes of
//! their batches.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::{Context, Result};
use gristmill_local::{Endpoints, FunctionConfig, Mount, Service, ServiceConfig, UrlConfig};
use gristmill_model::wire::{VERSION, WorkerEvent};
use gristmill_tests::{Background, TestDir, read_sink, run_json};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const GRISTMILL: &str = env!("CARGO_BIN_EXE_gristmill");
/// Not a multiple of the batch size.
const IMAGES: usize = 130;
const JOB: &str = "job";
/// Starts per function in the test of start times, and the largest median allowed.
const STARTS: u64 = 7;
const INIT_MS_MAX: u64 = 150;

/// Stand-ins with our three functions and a dataset as the bucket `data`.
struct Platform {
    dir: TestDir,
    service: Service,
}

impl Platform {
    /// `worker` changes the worker's configuration, `config` that of the service.
    async fn start(
        worker: impl FnOnce(&mut FunctionConfig),
        config: impl FnOnce(&mut ServiceConfig),
    ) -> Result<Self> {
        let dir = TestDir::new(GRISTMILL)?;
        let images = IMAGES.to_string();
        let made = ["demo", "--json", "--images", &images, "--epochs", "1", "--step-time", "0ms"];
        let mut made = dir.gristmill(&made);
        tokio::task::spawn_blocking(move || run_json(&mut made)).await??;
        let datasets = fs::read_dir(dir.path(".cache/gristmill/datasets"))?;
        let mut datasets = datasets.filter_map(|entry| Some(entry.ok()?.path()));
        let path = datasets.find(|path| path.is_dir()).context("the demo makes a dataset")?;
        let mut settings = ServiceConfig::new(dir.path("state"));
        settings.durable = false;
        settings.mounts = vec![Mount { name: "data".to_owned(), path }];
        config(&mut settings);
        let functions = |endpoints: &Endpoints| {
            let mut functions = ["worker", "scaler", "coordinator"].map(|n| function(n, endpoints));
            functions[0].on_failure = Some("coordinator".to_owned());
            functions[2].url = Some(UrlConfig::default());
            worker(&mut functions[0]);
            functions.into()
        };
        let service = Service::start(settings, functions).await?;
        Ok(Self { dir, service })
    }

    /// Trains one epoch with `sleep_ms` of work per record, and checks the delivered batches.
    async fn train(&self, sleep_ms: u32, more: &[&str]) -> Result<()> {
        let (pipeline, sink) = (self.dir.path("slow.yaml"), self.dir.path("sink"));
        let text = format!(
            "source:\n  tfrecord: .\n  features:\n    image: {{ key: image/encoded, dtype: bytes }}\n\
             ops:\n  - decode\n  - resize: {{ size: 8 }}\n  - sleep: {{ ms: {sleep_ms} }}\n  \
             - batch: {{ size: 8 }}\n"
        );
        fs::write(&pipeline, text)?;
        let run = ["run", "--json", "--backend", "aws", "--data", "s3://data/", "--epochs", "1"];
        let run = [run.as_slice(), &["--step-time", "0ms", "--job", JOB], more].concat();
        let mut command = self.dir.gristmill(&run);
        command.arg(&pipeline).arg("--sink").arg(&sink);
        let (endpoints, keys) = (self.service.endpoints(), self.service.credentials());
        command
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL_S3", &endpoints.s3)
            .env("AWS_ACCESS_KEY_ID", &keys.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", &keys.secret_access_key)
            .env("GRISTMILL_BUCKET", "gristmill")
            .env("GRISTMILL_COORDINATOR_URL", &endpoints.coordinator_url);
        tokio::task::spawn_blocking(move || run_json(&mut command)).await??;
        read_sink(&sink)?.assert_exact(1, IMAGES, 8);
        Ok(())
    }

    /// An event as the scaler sends it.
    fn send_worker(&self, worker: u32) {
        let (ns, job) = ("default".parse().unwrap(), JOB.parse().unwrap());
        let event = WorkerEvent { v: VERSION, ns, job, worker };
        let event = serde_json::to_string(&event).unwrap();
        self.service.host().send("worker", event).unwrap();
    }

    fn worker(&self) -> gristmill_local::functions::FunctionStats {
        self.service.host().stats().functions["worker"].clone()
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while !is(self) {
            assert!(Instant::now() < give_up, "{what}: {:?}", self.worker());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn function(name: &str, endpoints: &Endpoints) -> FunctionConfig {
    let variables = [
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoints.dynamodb.as_str()),
        ("AWS_ENDPOINT_URL_S3", &endpoints.s3),
        ("AWS_ENDPOINT_URL_LAMBDA", &endpoints.lambda),
        ("GRISTMILL_TABLE", "gristmill"),
        ("GRISTMILL_BUCKET", "gristmill"),
        ("GRISTMILL_COORDINATOR_URL", &endpoints.coordinator_url),
        ("GRISTMILL_SCALER_FUNCTION", "scaler"),
        ("GRISTMILL_WORKER_FUNCTION", "worker"),
        ("GRISTMILL_METRICS", "emf"),
    ];
    FunctionConfig {
        args: vec!["function".to_owned(), name.to_owned()],
        env: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..FunctionConfig::new(name, GRISTMILL)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_leaves_before_its_time_is_over_and_others_go_on() -> Result<()> {
    // Less than a worker needs for the epoch, but more than the time it reserves for storing.
    let short = |worker: &mut FunctionConfig| worker.timeout = Duration::from_secs(8);
    let platform = Platform::start(short, |_| {}).await?;
    platform.train(60, &["--workers", "1"]).await?;
    let worker = platform.worker();
    assert_eq!((worker.timeouts, worker.crashes), (0, 0), "nobody was killed: {worker:?}");
    assert!(worker.invocations_event >= 2, "more than one had to come: {worker:?}");
    platform.service.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doubled_and_late_events_change_nothing_and_neither_does_freezing() -> Result<()> {
    let platform = Platform::start(|_| {}, |service| service.freeze = true).await?;
    let doubling = async {
        platform.until("a worker is at work", |p| p.worker().invocations_event > 0).await;
        for worker in [0, 0, 1, 7] {
            platform.send_worker(worker);
        }
    };
    let (trained, ()) = tokio::join!(platform.train(10, &["--workers", "2"]), doubling);
    trained?;
    // The job has ended; its environments are frozen, and thaw for this event.
    let before = platform.worker().invocations_event;
    platform.send_worker(0);
    platform
        .until("the late event has run", |p| {
            p.worker().invocations_event > before && p.worker().concurrent == 0
        })
        .await;
    let worker = platform.worker();
    assert_eq!((worker.errors, worker.crashes, worker.timeouts), (0, 0, 0), "{worker:?}");
    platform.service.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_below_the_workers_wanted_is_kept_to() -> Result<()> {
    let one = |worker: &mut FunctionConfig| worker.reserved_concurrency = Some(1);
    let platform = Platform::start(one, |_| {}).await?;
    platform.train(10, &["--workers", "4"]).await?;
    let worker = platform.worker();
    assert_eq!(worker.concurrent_max, 1);
    assert!(worker.throttles > 0, "events had to wait: {worker:?}");
    platform.service.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_of_ten_that_all_share_is_enough() -> Result<()> {
    let ten = |config: &mut ServiceConfig| config.account_concurrency = 10;
    let platform = Platform::start(|_| {}, ten).await?;
    platform.train(10, &["--workers", "40"]).await?;
    let stats = platform.service.host().stats();
    let throttles: u64 = stats.functions.values().map(|function| function.throttles).sum();
    assert!(throttles > 0, "nobody was throttled: {stats:?}");
    platform.service.shutdown().await;
    Ok(())
}

#[test]
fn workers_leave_room_for_those_who_hand_out_work() -> Result<()> {
    for (reserved, most) in [("0", 7), ("4", 6)] {
        let dir = TestDir::new(GRISTMILL)?;
        let up =
            ["up", "--json", "--account-concurrency", "10", "--reserved-concurrency", reserved];
        let mut up = Background::start(&mut dir.gristmill(&up))?;
        let ready: Value = serde_json::from_str(&up.line()?)?;
        let endpoint = ready["endpoint"].as_str().context("an endpoint")?;
        let sink = dir.path("sink");
        let images = IMAGES.to_string();
        let run = ["demo", "--json", "--images", &images, "--epochs", "2", "--batch-size", "8"];
        let more = ["--step-time", "0ms", "--workers", "40", "--endpoint", endpoint, "--sink"];
        let report = run_json(dir.gristmill(&[run.as_slice(), &more].concat()).arg(&sink))?;
        read_sink(&sink)?.assert_exact(2, IMAGES, 8);
        let workers = report["epochs"][0]["workers_max"].as_u64().context("workers")?;
        assert!(workers <= most, "{reserved} reserved: {workers} workers");
        let doctor = ["doctor", "--endpoint", endpoint, "--workers", "40"];
        let said = String::from_utf8(dir.gristmill(&doctor).output()?.stdout)?;
        assert!(said.contains(&format!("{most} workers can run")), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_cannot_start_do_not_stop_those_that_can() -> Result<()> {
    let broken = |worker: &mut FunctionConfig| {
        worker.env.remove("GRISTMILL_BUCKET");
    };
    let platform = Platform::start(broken, |_| {}).await?;
    platform.train(10, &["--workers", "1", "--local-workers", "1"]).await?;
    let worker = platform.worker();
    assert!(worker.init_failures > 0 && worker.events_failed > 0, "{worker:?}");
    let log = fs::read_to_string(platform.dir.path("state/logs/worker.log"))?;
    assert!(log.contains("GRISTMILL_BUCKET is not set"), "{log}");
    platform.service.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_lines_of_their_own() -> Result<()> {
    let platform = Platform::start(|_| {}, |_| {}).await?;
    platform.train(0, &["--workers", "2"]).await?;
    platform.until("the workers have left", |p| p.worker().concurrent == 0).await;
    let logs = platform.dir.path("state/logs");
    platform.service.shutdown().await;
    let mut rows = 0;
    for (function, metric) in
        [("worker", "splits"), ("coordinator", "claim"), ("scaler", "workers_invoked")]
    {
        let log = fs::read_to_string(logs.join(format!("{function}.log")))?;
        let lines = log.lines().filter(|line| line.contains("CloudWatchMetrics"));
        let lines: Vec<serde_json::Value> =
            lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        let of_this = |line: &&serde_json::Value| line[metric].as_u64() > Some(0);
        let found = lines.iter().find(of_this).with_context(|| format!("{function}: {log}"))?;
        assert_eq!((&found["function"], &found["job"]), (&function.into(), &JOB.into()));
        rows += lines.iter().filter_map(|line| line["rows"].as_u64()).sum::<u64>();
    }
    assert_eq!(rows, IMAGES as u64, "each record is counted once");
    Ok(())
}

/// Starts an idle function `STARTS` times, by events that it cannot parse.
async fn start_often(service: &Service, name: &str) -> Result<()> {
    let host = service.host();
    for start in 1..=STARTS {
        host.send(name, "null")?;
        let give_up = Instant::now() + Duration::from_secs(60);
        let stats = || host.stats().functions[name].clone();
        while stats().cold_starts < start || stats().concurrent > 0 {
            assert!(Instant::now() < give_up, "{name}: {:?}", stats());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        host.kill_one(name, |living| Some(living.first()?.pid))?;
        while stats().environments > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

/// The start times in the host's lines of a function's log, ascending.
fn init_ms(log: &Path) -> Result<Vec<u64>> {
    let log = fs::read_to_string(log)?;
    let took = log.lines().filter_map(|line| line.strip_prefix("[host] init took "));
    let ms = took.map(|took| Ok(took.trim_end_matches(" ms").parse()?));
    let mut ms: Vec<u64> = ms.collect::<Result<_>>()?;
    ms.sort_unstable();
    Ok(ms)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs functions as they are deployed: scripts/test-peers"]
async fn functions_as_deployed_start_fast() -> Result<()> {
    let build = env::var_os("GRISTMILL_PEER_BUILD").context("set GRISTMILL_PEER_BUILD")?;
    let build = PathBuf::from(build);
    let dir = TestDir::new(GRISTMILL)?;
    let functions = |endpoints: &Endpoints| {
        let mut functions = ["Coordinator", "Worker", "Scaler"].map(|name| FunctionConfig {
            command: build.join(format!("{name}Function/bootstrap")),
            args: Vec::new(),
            ..function(&name.to_lowercase(), endpoints)
        });
        functions[0].url = Some(UrlConfig::default());
        functions.into()
    };
    let service = Service::start(ServiceConfig::new(dir.path("state")), functions).await?;
    for name in ["coordinator", "worker", "scaler"] {
        start_often(&service, name).await?;
        let ms = init_ms(&dir.path("state/logs").join(format!("{name}.log")))?;
        println!("{name}: init took {ms:?} ms");
        assert_eq!(ms.len() as u64, STARTS);
        assert!(ms[ms.len() / 2] <= INIT_MS_MAX, "{name} takes too long to start");
    }
    service.shutdown().await;
    Ok(())
}
