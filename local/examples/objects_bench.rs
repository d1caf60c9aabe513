//! Measures throughput and processor time of the object server: `objects_bench [DIRECTORY]`.
//!
//! One client puts and gets objects of two sizes in sequence through the SDK, as workers and fetchers do. The
//! server is a separate process, so that its processor time can be measured.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Region};
use bytes::Bytes;
use gristmill_local::ObjectServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const BUCKET: &str = "bench";
const TOTAL_BYTES: usize = 4 << 30;
/// Keys in use, bounded so that the disk does not fill.
const KEYS: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("serve"), Some(root)) => serve(Path::new(&root)).await,
        (directory, _) => measure(directory.map(PathBuf::from)).await,
    }
}

async fn serve(root: &Path) -> Result<(), Box<dyn Error>> {
    let server = ObjectServer::builder(root).credentials("key", "secret").bucket(BUCKET).open()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stop = CancellationToken::new();
    let serving = server.serve(listener, stop.clone())?;
    println!("http://{}", serving.address());
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .await??;
    stop.cancel();
    serving.ended().await;
    Ok(())
}

async fn measure(directory: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let root = tempfile::tempdir_in(directory.unwrap_or_else(std::env::temp_dir))?;
    let mut server = Command::new(std::env::current_exe()?)
        .arg("serve")
        .arg(root.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut endpoint = String::new();
    let output = server.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut endpoint)?;
    let client = client(endpoint.trim());
    println!(
        "{:>10} {:>4} {:>9} {:>16} {:>16}",
        "object", "", "MiB/s", "server s/GiB", "client s/GiB"
    );
    for object_bytes in [64 << 10, 1 << 20, 10 << 20, 64 << 20] {
        // Small objects are dominated by the exchange: fewer of them suffice.
        let total = if object_bytes < 1 << 20 { TOTAL_BYTES / 16 } else { TOTAL_BYTES };
        let count = total / object_bytes;
        let body = Bytes::from(vec![0x5a; object_bytes]);
        let report = Report::start(&server, object_bytes);
        for i in 0..count {
            let put =
                client.put_object().bucket(BUCKET).key(format!("{object_bytes}/{}", i % KEYS));
            let put = put.body(body.clone().into());
            put.customize().disable_payload_signing().send().await?;
        }
        report.print(&server, "put", object_bytes * count);
        let report = Report::start(&server, object_bytes);
        for i in 0..count {
            let get =
                client.get_object().bucket(BUCKET).key(format!("{object_bytes}/{}", i % KEYS));
            let mut body = get.send().await?.body;
            let mut found = 0;
            while let Some(bytes) = body.next().await {
                found += bytes?.len();
            }
            assert_eq!(found, object_bytes);
        }
        report.print(&server, "get", object_bytes * count);
    }
    if let Some(peak_kib) = peak_kib(server.id()) {
        println!("server's peak memory: {} MiB", peak_kib / 1024);
    }
    drop(server.stdin.take());
    server.wait()?;
    Ok(())
}

fn client(endpoint: &str) -> Client {
    Client::from_conf(
        aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("us-east-1"))
            .endpoint_url(endpoint)
            .force_path_style(true)
            .credentials_provider(Credentials::new("key", "secret", None, None, "bench"))
            .build(),
    )
}

struct Report {
    object_bytes: usize,
    start: Instant,
    server: Option<f64>,
    client: Option<f64>,
}

impl Report {
    fn start(server: &Child, object_bytes: usize) -> Self {
        let (server, client) = (cpu_seconds(server.id()), cpu_seconds(std::process::id()));
        Self { object_bytes, start: Instant::now(), server, client }
    }

    fn print(&self, server: &Child, what: &str, total_bytes: usize) {
        let mib = total_bytes as f64 / f64::from(1 << 20);
        let speed = mib / self.start.elapsed().as_secs_f64();
        let cost = |before: Option<f64>, id| match (before, cpu_seconds(id)) {
            (Some(before), Some(after)) => format!("{:.3}", (after - before) / mib * 1024.0),
            _ => "?".into(),
        };
        println!(
            "{:>6} KiB {what:>4} {speed:>9.0} {:>16} {:>16}",
            self.object_bytes >> 10,
            cost(self.server, server.id()),
            cost(self.client, std::process::id()),
        );
    }
}

/// User and system time of a process in seconds, from Linux's hundredths.
fn cpu_seconds(id: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn peak_kib(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
