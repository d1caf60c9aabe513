//! `gristmill ps`: the services of this user on this machine.

use crate::output::say;
use gristmill_client::ProgramFailure;
use gristmill_host::{
    DiskUse, HostServiceClient, ServiceFile, ServiceStatus, is_alive, registered,
};
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// List your services on this machine, or end them
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A service that `gristmill run` or Python started ends 5 s after the last process that uses it.\n\nExamples:\n  gristmill ps\n  gristmill ps --stop unix:/run/user/1000/gristmill/0f3a5c7e9b1d2f40.sock\n  gristmill ps --stop-all"
)]
pub struct PsArgs {
    /// End the service at this endpoint or of this state directory; its jobs wait for the next one
    #[arg(long, value_name = "SERVICE")]
    pub stop: Vec<String>,
    /// End all of them
    #[arg(long, conflicts_with = "stop")]
    pub stop_all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How long a service may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(50);

struct Listed {
    file: ServiceFile,
    answer: Result<(ServiceStatus, DiskUse), String>,
}

impl PsArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let services = registered();
        if !self.stop_all && self.stop.is_empty() {
            return list(services, self.json).await;
        }
        let is_meant = |file: &ServiceFile, name: &str| {
            file.endpoint == name.trim_end_matches('/')
                || Path::new(name).canonicalize().is_ok_and(|dir| dir == file.state_dir)
        };
        if let Some(unknown) =
            self.stop.iter().find(|name| !services.iter().any(|file| is_meant(file, name)))
        {
            return Err(ProgramFailure::usage(format!(
                "{unknown} is no service of yours: `gristmill ps` lists them"
            )));
        }
        let chosen =
            |file: &ServiceFile| self.stop_all || self.stop.iter().any(|name| is_meant(file, name));
        let chosen: Vec<ServiceFile> = services.into_iter().filter(chosen).collect();
        for file in &chosen {
            stop(file).await?;
            if !self.json {
                say!("ended {}", file.endpoint);
            }
        }
        if self.json {
            let ended: Vec<&str> = chosen.iter().map(|file| file.endpoint.as_str()).collect();
            say!("{}", json!({ "ended": ended }));
        }
        Ok(())
    }
}

async fn list(services: Vec<ServiceFile>, as_json: bool) -> Result<(), ProgramFailure> {
    let mut listed = Vec::new();
    for file in services {
        let calls = HostServiceClient::new(&file);
        let answer = async { Ok((calls.status().await?, calls.disk().await?)) };
        let answer = answer.await.map_err(|error: gristmill_ports::CallError| error.to_string());
        listed.push(Listed { file, answer });
    }
    if as_json {
        say!("{}", json!({ "services": listed.iter().map(Listed::as_json).collect::<Vec<_>>() }));
    } else if listed.is_empty() {
        say!("you have no service on this machine");
    } else {
        listed.iter().for_each(|service| say!("{}", service.as_line()));
    }
    Ok(())
}

impl Listed {
    fn as_json(&self) -> serde_json::Value {
        let Self { file, answer } = self;
        let known = answer.as_ref().ok();
        json!({
            "endpoint": file.endpoint,
            "pid": file.pid,
            "version": file.version,
            "state_dir": file.state_dir,
            "busy_workers": known.map(|(status, _)| status.busy_workers),
            "idle_workers": known.map(|(status, _)| status.idle_workers),
            "trouble": known.map(|(status, _)| &status.trouble),
            "disk_bytes": known.map(|(_, disk)| disk.used_bytes),
            "disk_bound_bytes": known.map(|(_, disk)| disk.bound_bytes),
            "error": answer.as_ref().err(),
        })
    }

    fn as_line(&self) -> String {
        let Self { file, answer } = self;
        let state = match answer {
            Ok((status, disk)) => format!(
                "{} workers at work, {} idle; disk {}{}",
                status.busy_workers,
                status.idle_workers,
                in_words(*disk),
                status.trouble.as_ref().map_or(String::new(), |trouble| format!("; {trouble}")),
            ),
            Err(error) => format!("does not answer: {error}"),
        };
        format!("{}  process {}  {}: {state}", file.endpoint, file.pid, file.state_dir.display())
    }
}

/// Space in use, and its bound.
pub fn in_words(disk: DiskUse) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    format!("{:.2} of at most {:.0} GiB", gib(disk.used_bytes), gib(disk.bound_bytes))
}

async fn stop(file: &ServiceFile) -> Result<(), ProgramFailure> {
    let failed = |why: String| ProgramFailure::failed(format!("{}: {why}", file.endpoint));
    HostServiceClient::new(file).stop().await.map_err(|error| failed(error.to_string()))?;
    let began = Instant::now();
    while is_alive(&file.state_dir) {
        if began.elapsed() > END_TIMEOUT {
            let seconds = END_TIMEOUT.as_secs();
            return Err(failed(format!(
                "it did not end in {seconds} s: kill process {}",
                file.pid
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
