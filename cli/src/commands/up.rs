//! `gristmill up`: stand-ins and functions as a service in their own process.

mod functions;

use crate::{
    output::{self, say},
    own_program, owner,
};
use gristmill_client::{
    Failure, ServiceFile, StartRefusal, aws_of,
    signals::{Interruption, interruption},
};
use functions::{Concurrency, functions};
use gristmill_local::{Credentials, Others, Schedule, Service, ServiceConfig};
use rustix::fs::Mode;
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    time::Duration,
};

/// Start the local service and keep it running until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill up --state-dir state\n  gristmill up --aws-endpoint-url http://127.0.0.1:4566      # LocalStack, MiniStack\n  gristmill up --aws-endpoint-url-dynamodb http://127.0.0.1:8000      # DynamoDB Local; objects stay here"
)]
pub struct Args {
    /// Keep table and objects in the DynamoDB- and S3-compatible services at this address, and run
    /// only functions here. Signs with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY if they are set
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub aws_endpoint_url: Option<String>,
    /// The same for S3 only
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub aws_endpoint_url_s3: Option<String>,
    /// The same for DynamoDB only
    #[arg(long, value_name = "URL", value_parser = parse_endpoint)]
    pub aws_endpoint_url_dynamodb: Option<String>,
    /// Directory for the service's state, so that jobs continue after a restart [default: nothing
    /// is kept]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Port of the endpoint; 0: the state directory's last port, or any free one
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Limit of concurrent workers
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: u32,
    /// Imitate an account with this limit of concurrent invocations: calls beyond it are throttled
    /// (429), and coordinator and scaler keep their share of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=100_000))]
    pub account_concurrency: Option<u32>,
    /// Concurrency reserved for coordinator and scaler; 0: none, as on new accounts
    #[arg(long, value_name = "N", default_value_t = 0, requires = "account_concurrency",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub reserved_concurrency: u32,
    /// Memory that a worker assumes, in MB; 1769 is one processor, which computes one split at a
    /// time
    #[arg(long, default_value_t = 1769, value_name = "MB",
          value_parser = clap::value_parser!(u32).range(512..=10_240))]
    pub worker_memory: u32,
    /// Print the endpoints as one JSON line when ready
    #[arg(long)]
    pub json: bool,
    /// End when standard input closes (used by demo and run)
    #[arg(long, hide = true)]
    pub attended: bool,
    /// Keep the table in memory even with a state directory (used by demo and run)
    #[arg(long, hide = true)]
    pub table_in_memory: bool,
}

pub const WORKER: &str = "worker";
pub const COORDINATOR: &str = "coordinator";
pub const SCALER: &str = "scaler";
const TABLE: &str = "gristmill";
/// Named with a dot, as few buckets on S3 are: one of the same name there could not be read.
const BUCKET: &str = "gristmill.local";
const NAMESPACE: &str = "default";
const UPKEEP_EVERY: Duration = Duration::from_secs(600);

impl Args {
    pub async fn run(self) -> Result<(), Failure> {
        match self.attended {
            true => tell_owner(run(self).await),
            false => run(self).await,
        }
    }
}

/// Starts the service, announces it, and serves until the end is requested.
async fn run(args: Args) -> Result<(), Failure> {
    // All files are accessible to their owner only.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let kept = StateDir::open(args.state_dir.as_deref())?;
    let mut config = ServiceConfig::new(kept.path());
    config.durable = args.state_dir.is_some() && !args.table_in_memory;
    config.ports.lambda = args.port;
    TABLE.clone_into(&mut config.table);
    BUCKET.clone_into(&mut config.bucket);
    COORDINATOR.clone_into(&mut config.url_function);
    // Workers of a paused job stay warm for the next job.
    config.idle_timeout = Duration::from_secs(120);
    config.schedules = vec![upkeep()];
    let launcher = own_program::get()?;
    config.others = others(&args);
    let by_others = config.others != Others::default();
    if by_others {
        config.credentials = keys()?;
        config.region = std::env::var("AWS_REGION").unwrap_or(config.region);
    }
    let region = config.region.clone();
    let room = Concurrency::of(&args)?;
    config.account_concurrency = room.account;
    let memory_mb = args.worker_memory;
    let service = Service::start(config, |endpoints| {
        functions(&launcher, endpoints, &region, &room, memory_mb)
    });
    let service = service.await.map_err(Failure::failed)?;
    let file = describe(&service, &region);
    if by_others && let Err(failure) = provision(&args, &file).await {
        service.shutdown().await;
        return Err(failure);
    }
    let published = file.publish(kept.path()).map_err(Failure::failed)?;
    announce(&file, args.json, kept.path());
    // A service whose endpoint could not be announced is useless.
    let known = output::check();
    let mut ended = None;
    if known.is_ok() {
        tokio::select! {
            asked = wait_for_end(args.attended) => ended = asked,
            never = tell_trouble(&service), if !args.attended => match never {},
        }
    }
    // Clients must not find a service that is ending.
    for path in published {
        let _ = std::fs::remove_file(path);
    }
    service.shutdown().await;
    // Only SIGTERM is reported: Ctrl-C is the normal way to end it.
    if ended == Some(Interruption::Terminated) && known.is_ok() {
        return Err(Failure::Reported(Interruption::Terminated.exit_code()));
    }
    known
}

/// Foreign services that keep table and objects.
fn others(args: &Args) -> Others {
    let both = &args.aws_endpoint_url;
    Others {
        s3: args.aws_endpoint_url_s3.clone().or_else(|| both.clone()),
        dynamodb: args.aws_endpoint_url_dynamodb.clone().or_else(|| both.clone()),
    }
}

/// The keys for foreign services, if the environment has any.
fn keys() -> Result<Option<Credentials>, Failure> {
    let get = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if get("AWS_SESSION_TOKEN").is_some() {
        return Err(Failure::usage(
            "AWS_SESSION_TOKEN is set, and temporary keys expire while the service runs: unset it \
             and use permanent keys",
        ));
    }
    let pair = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
    Ok(pair
        .map(|(access_key_id, secret_access_key)| Credentials { access_key_id, secret_access_key }))
}

/// Creates table and bucket in foreign services.
async fn provision(args: &Args, file: &ServiceFile) -> Result<(), Failure> {
    let (aws, others) = (aws_of(file), others(args));
    let named = |at: String| move |error| Failure::failed(format!("{at}: {error}"));
    if let Some(at) = others.dynamodb {
        aws.make_table(TABLE).await.map_err(named(at))?;
    }
    if let Some(at) = others.s3 {
        aws.make_bucket(BUCKET).await.map_err(named(at))?;
    }
    Ok(())
}

/// Interval of checks for trouble that stops the service.
const TROUBLE_LOOK: Duration = Duration::from_secs(1);

/// Reports on standard error when the service cannot go on, and when it can again.
async fn tell_trouble(service: &Service) -> Infallible {
    let mut reported = false;
    loop {
        tokio::time::sleep(TROUBLE_LOOK).await;
        match service.trouble() {
            Some(trouble) if !reported => eprintln!("gristmill: {trouble}"),
            None if reported => eprintln!("gristmill: the disk has space again: jobs continue"),
            _ => {}
        }
        reported = service.trouble().is_some();
    }
}

/// Leaves the report of a failure to the owner of an attended service.
fn tell_owner(outcome: Result<(), Failure>) -> Result<(), Failure> {
    outcome.map_err(|failure| {
        let code = failure.exit_code();
        let refusal = StartRefusal { code, failed: failure.to_string() };
        say!("{}", serde_json::json!(refusal));
        Failure::Reported(code)
    })
}

/// The state directory; a temporary one is removed at the end.
enum StateDir {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl StateDir {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            Some(path) => Ok(Self::Kept(path.to_owned())),
            None => {
                let made = tempfile::Builder::new().prefix("gristmill-").tempdir();
                made.map(Self::Temporary).map_err(Failure::failed)
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(dir) => dir.path(),
        }
    }
}

fn describe(service: &Service, region: &str) -> ServiceFile {
    let (endpoints, credentials) = (service.endpoints(), service.credentials());
    ServiceFile {
        endpoint: endpoints.lambda.clone(),
        s3: endpoints.s3.clone(),
        folders: endpoints.folders.clone(),
        dynamodb: endpoints.dynamodb.clone(),
        coordinator_url: endpoints.coordinator_url.clone(),
        region: region.to_owned(),
        namespace: NAMESPACE.to_owned(),
        table: TABLE.to_owned(),
        bucket: BUCKET.to_owned(),
        worker_function: WORKER.to_owned(),
        scaler_function: SCALER.to_owned(),
        access_key_id: credentials.access_key_id.clone(),
        secret_access_key: credentials.secret_access_key.clone(),
        pid: std::process::id(),
    }
}

fn announce(file: &ServiceFile, json: bool, state_dir: &Path) {
    if json {
        // The line has no secrets: those are in the state directory, for its owner only.
        let line = serde_json::json!({
            "ready": true,
            "endpoint": file.endpoint,
            "s3": file.s3,
            "dynamodb": file.dynamodb,
            "coordinator_url": file.coordinator_url,
            "state_dir": state_dir,
        });
        say!("{line}");
        return;
    }
    say!("objects      {}", file.s3);
    say!("table        {}", file.dynamodb);
    say!("coordinator  {}", file.coordinator_url);
    say!("state        {}", state_dir.display());
    say!("gristmill is ready at {} (Ctrl-C ends it)", file.endpoint);
    say!("  gristmill run PIPELINE.yaml --endpoint {}", file.endpoint);
}

/// Background maintenance, which a schedule invokes on AWS as well.
fn upkeep() -> Schedule {
    let payload = br#"{"upkeep":true}"#.as_slice().into();
    Schedule { every: UPKEEP_EVERY, function: COORDINATOR.to_owned(), payload }
}

/// Waits for Ctrl-C or SIGTERM and returns which, or `None` when the owner of an attended service
/// is gone.
async fn wait_for_end(attended: bool) -> Option<Interruption> {
    let abandoned = async {
        if !attended {
            std::future::pending::<()>().await;
        }
        owner::gone().await;
    };
    let asked = async {
        loop {
            match interruption().await {
                // An attended service is ended by its owner, which gets the same Ctrl-C.
                Interruption::Interrupted if attended => {}
                asked => return asked,
            }
        }
    };
    tokio::select! {
        asked = asked => Some(asked),
        () = abandoned => None,
    }
}

/// An address of services, without a path.
fn parse_endpoint(text: &str) -> Result<String, String> {
    let endpoint = text.trim_end_matches('/');
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    match rest {
        Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']) => {
            Ok(endpoint.to_owned())
        }
        _ => Err("an endpoint looks like http://127.0.0.1:4566".to_owned()),
    }
}
