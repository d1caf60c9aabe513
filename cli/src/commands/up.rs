//! `gristmill up`: a service on this machine, in its own process.

use super::function;
use crate::{
    output::{self, say},
    program,
};
use gristmill_aws::{Aws, AwsCredentials, AwsEndpoints};
use gristmill_client::{
    Interruption, InterruptionSignals, ProgramFailure, ServiceFile, StartRefusal, needs_aws,
};
use gristmill_host::{ForeignS3, HostError, StateDir, credentials_id, default_state_dir};
use gristmill_local::{
    ExternalStores, MachineService, OWN_BUCKET, ServiceConfig, ServiceStartError, WorkerProgram,
};
use gristmill_model::wire::SpokenVersions;
use gristmill_policy::plan::deployment::{SCALER_CONCURRENCY, coordinator_concurrency};
use gristmill_ports::limits::{ACCOUNT_CONCURRENCY, StackConcurrency};
use rustix::fs::Mode;
use std::{convert::Infallible, num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Start a service on this machine and keep it running until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill up --state-dir state\n  gristmill up --ephemeral --port 4571\n  gristmill up --aws-endpoint-url http://127.0.0.1:4566      # LocalStack, MiniStack\n  gristmill up --aws-endpoint-url-dynamodb http://127.0.0.1:8000      # DynamoDB Local; objects stay here"
)]
pub struct UpArgs {
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
    /// Directory for the service's state [default: the one that `gristmill run` and Python use, below
    /// ~/.cache/gristmill]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Keep nothing: jobs and objects end with the service
    #[arg(long, conflicts_with = "state_dir")]
    pub ephemeral: bool,
    /// Listen on this port of 127.0.0.1, 0 for any free one, instead of on a socket that only you can open
    #[arg(long)]
    pub port: Option<u16>,
    /// Limit of concurrent workers
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: u32,
    /// Memory that a worker assumes, in MB; 1769 is one processor, which computes one split at a
    /// time
    #[arg(long, default_value_t = 1769, value_name = "MB",
          value_parser = clap::value_parser!(u32).range(512..=10_240))]
    pub worker_memory: u32,
    /// Refuse what AWS Lambda refuses: calls above the rate of the coordinator's URL, and workers above the account's
    /// concurrency or the rate at which Lambda adds them
    #[arg(long)]
    pub imitate_lambda: bool,
    #[command(flatten)]
    pub lambda: LambdaOptions,
    /// Print the endpoint as one JSON line when ready
    #[arg(long)]
    pub json: bool,
    /// End when standard input closes (used by demo)
    #[arg(long, hide = true)]
    pub attended: bool,
    /// End when no process uses it (used by run and by Python)
    #[arg(long, hide = true, conflicts_with = "attended")]
    pub shared: bool,
}

/// Sizes of the Lambda that is imitated.
#[derive(Debug, clap::Args)]
pub struct LambdaOptions {
    /// Concurrency of the imitated account: the coordinator reserves what scripts/deploy gives it for --max-workers, the
    /// scaler 5, and workers have the rest
    #[arg(long, value_name = "N", default_value_t = ACCOUNT_CONCURRENCY, requires = "imitate_lambda",
          value_parser = clap::value_parser!(u32).range(30..=1_000_000))]
    concurrency: u32,
    /// Requests a second of the coordinator's URL, instead of ten for each reserved call
    #[arg(long, hide = true, requires = "imitate_lambda",
          value_parser = clap::value_parser!(u32).range(1..))]
    url_rate: Option<u32>,
    /// Workers that are added in 10 s, instead of 1,000
    #[arg(long, hide = true, requires = "imitate_lambda",
          value_parser = clap::value_parser!(u32).range(1..))]
    worker_growth: Option<u32>,
}

impl LambdaOptions {
    /// The concurrency of a stack that is deployed for `max_workers`, or for as many as the account runs.
    fn stack(&self, max_workers: u32) -> StackConcurrency {
        let coordinators = coordinator_concurrency(max_workers.min(self.concurrency));
        let workers = self.concurrency.saturating_sub(coordinators + SCALER_CONCURRENCY);
        let documented = StackConcurrency::documented(coordinators, workers.min(max_workers));
        StackConcurrency {
            url_requests_per_s: self.url_rate.unwrap_or(documented.url_requests_per_s),
            growth: self.worker_growth.unwrap_or(documented.growth),
            ..documented
        }
    }
}

const TABLE: &str = "gristmill";
/// Capacity of the cache on this machine, in GiB.
const CACHE_GIB: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// Keys for services that check none.
const ANY_KEY: &str = "test";

impl UpArgs {
    /// Whether a person started it, and reads what it says.
    pub fn is_by_hand(&self) -> bool {
        !self.attended && !self.shared
    }

    pub async fn run(self) -> Result<(), ProgramFailure> {
        if self.is_by_hand() { run(self).await } else { tell_owner(run(self).await) }
    }
}

/// Starts the service, announces it, and serves until the end is requested.
async fn run(args: UpArgs) -> Result<(), ProgramFailure> {
    // All files are accessible to their owner only.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // The end of a terminal concerns the process that started the service, and not others that use it.
    let _hangups = args
        .shared
        .then(|| signal(SignalKind::hangup()))
        .transpose()
        .map_err(ProgramFailure::failed)?;
    let state = open_state(&args).map_err(failure)?;
    let launcher = program::launcher()?;
    let worker = ["function", function::WORKER, function::LOCAL].map(Into::into);
    let config = ServiceConfig {
        state,
        keeps_jobs: !args.ephemeral,
        port: args.port,
        workers: WorkerProgram {
            program: launcher.program,
            args: launcher.args.into_iter().chain(worker).collect(),
            max: args.max_workers,
        },
        worker_memory_mb: args.worker_memory,
        credentials: args.shared.then(credentials_id),
        cache_gib: CACHE_GIB,
        spoken: SpokenVersions::BUILD,
        lambda: args.imitate_lambda.then(|| args.lambda.stack(args.max_workers)),
        elsewhere: elsewhere(&args).await?,
    };
    let service = MachineService::start(config).await.map_err(|error| match error {
        ServiceStartError::Host(error) => failure(error),
        error => ProgramFailure::failed(error),
    })?;
    // A program that reads that it is ready may end it at once.
    let mut signals = InterruptionSignals::new();
    announce(service.file(), args.json);
    // A service whose endpoint could not be announced is useless.
    let known = output::check();
    let mut ended = None;
    let mut unused = None;
    if known.is_ok() {
        tokio::select! {
            asked = wait_for_end(args.attended, &mut signals) => ended = asked,
            () = service.stopped() => {}
            gone = service.unused(), if args.shared => unused = Some(gone),
            never = tell_trouble(&service), if args.is_by_hand() => match never {},
        }
    }
    if args.imitate_lambda && !args.json {
        let (throttled, expired) = service.refused();
        say!("Lambda as imitated throttled {throttled} calls; {expired} events of workers expired");
    }
    service.shutdown().await;
    // A client that waits for the lock finds that there is no service.
    drop(unused);
    // Only SIGTERM is reported: Ctrl-C is the normal way to end it.
    if ended == Some(Interruption::Terminated) && known.is_ok() {
        return Err(ProgramFailure::Reported(Interruption::Terminated.exit_code()));
    }
    known
}

fn open_state(args: &UpArgs) -> Result<StateDir, HostError> {
    match &args.state_dir {
        _ if args.ephemeral => StateDir::temporary(),
        Some(dir) => StateDir::open(dir),
        None => StateDir::open(&default_state_dir("")?),
    }
}

fn failure(error: HostError) -> ProgramFailure {
    match error {
        HostError::Unusable(_) => ProgramFailure::usage(error),
        HostError::Busy(_) | HostError::Full(_) | HostError::Io { .. } => {
            ProgramFailure::failed(error)
        }
    }
}

/// The table and the objects that other services keep. Creates table and bucket there.
async fn elsewhere(args: &UpArgs) -> Result<ExternalStores, ProgramFailure> {
    let both = &args.aws_endpoint_url;
    let s3 = args.aws_endpoint_url_s3.clone().or_else(|| both.clone());
    let dynamodb = args.aws_endpoint_url_dynamodb.clone().or_else(|| both.clone());
    if s3.is_none() && dynamodb.is_none() {
        return Ok(ExternalStores::default());
    }
    needs_aws("--aws-endpoint-url")?;
    let (access_key_id, secret_access_key) = keys()?;
    let region = std::env::var("AWS_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
    let endpoints = AwsEndpoints { s3: s3.clone(), dynamodb: dynamodb.clone(), lambda: None };
    let credentials = AwsCredentials {
        access_key_id: access_key_id.clone(),
        secret_access_key: secret_access_key.clone(),
        session_token: None,
    };
    let aws = Aws::with(endpoints, region.clone(), credentials).map_err(ProgramFailure::usage)?;
    let mut stored = ExternalStores::default();
    if let Some(at) = dynamodb {
        aws.make_table(TABLE)
            .await
            .map_err(|error| ProgramFailure::failed(format!("{at}: {error}")))?;
        stored.table = Some(aws.table(TABLE));
    }
    if let Some(endpoint) = s3 {
        aws.make_bucket(OWN_BUCKET)
            .await
            .map_err(|error| ProgramFailure::failed(format!("{endpoint}: {error}")))?;
        let s3 = ForeignS3 { endpoint, region, access_key_id, secret_access_key };
        stored.objects = Some((Arc::new(aws.objects()), s3, OWN_BUCKET.to_owned()));
    }
    Ok(stored)
}

/// The keys for other services, from the environment.
fn keys() -> Result<(String, String), ProgramFailure> {
    let get = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if get("AWS_SESSION_TOKEN").is_some() {
        return Err(ProgramFailure::usage(
            "AWS_SESSION_TOKEN is set, and temporary keys expire while the service runs: unset it \
             and use permanent keys",
        ));
    }
    let pair = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
    Ok(pair.unwrap_or_else(|| (ANY_KEY.to_owned(), ANY_KEY.to_owned())))
}

/// Interval of checks for trouble that stops the service.
const TROUBLE_LOOK: Duration = Duration::from_secs(1);

/// Reports on standard error when the service cannot go on, and when it can again.
async fn tell_trouble(service: &MachineService) -> Infallible {
    let mut reported = false;
    loop {
        tokio::time::sleep(TROUBLE_LOOK).await;
        let trouble = service.trouble();
        match &trouble {
            Some(trouble) if !reported => gristmill_client::complain!("gristmill: {trouble}"),
            None if reported => {
                gristmill_client::complain!("gristmill: the trouble is over: jobs continue")
            }
            _ => {}
        }
        reported = trouble.is_some();
    }
}

/// Leaves the report of a failure to the process that started the service.
fn tell_owner(outcome: Result<(), ProgramFailure>) -> Result<(), ProgramFailure> {
    outcome.map_err(|failure| {
        let code = failure.exit_code();
        let refusal = StartRefusal { code, failed: failure.to_string() };
        say!("{}", serde_json::json!(refusal));
        ProgramFailure::Reported(code)
    })
}

fn announce(file: &ServiceFile, json: bool) {
    if json {
        // The line has no secrets: those are in the state directory, for its owner only.
        let line = serde_json::json!({
            "ready": true,
            "endpoint": file.endpoint,
            "s3": file.s3.as_ref().map(|s3| &s3.endpoint),
            "state_dir": file.state_dir,
        });
        say!("{line}");
        return;
    }
    say!("state        {}", file.state_dir.display());
    say!("gristmill is ready at {} (Ctrl-C ends it)", file.endpoint);
    say!("  gristmill run PIPELINE.yaml --endpoint {}", file.endpoint);
}

/// Waits for Ctrl-C or SIGTERM and returns which, or `None` when the owner of an attended service
/// is gone.
async fn wait_for_end(attended: bool, signals: &mut InterruptionSignals) -> Option<Interruption> {
    let abandoned = async {
        if !attended {
            std::future::pending::<()>().await;
        }
        program::owner_ended().await;
    };
    let asked = async {
        loop {
            match signals.next().await {
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
