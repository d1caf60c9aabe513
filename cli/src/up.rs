//! `gristmill up`: stand-ins and functions as a service of their own.

use crate::output::say;
use crate::{args::UpArgs, failure::Failure};
use gristmill_aws::Settings;
use gristmill_fetcher::ServiceFile;
use gristmill_local::{Endpoints, FunctionConfig, Schedule, Service, ServiceConfig, UrlConfig};
use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::io::AsyncReadExt;

pub const WORKER: &str = "worker";
pub const COORDINATOR: &str = "coordinator";
pub const SCALER: &str = "scaler";
const TABLE: &str = "gristmill";
const BUCKET: &str = "gristmill";
const NAMESPACE: &str = "default";
const UPKEEP_EVERY: Duration = Duration::from_secs(600);

/// Starts the service, says so, and serves until it is told to end.
pub async fn run(args: UpArgs) -> Result<(), Failure> {
    let kept = StateDir::open(args.state_dir.as_deref())?;
    let mut config = ServiceConfig::new(kept.path());
    config.durable = args.state_dir.is_some() && !args.table_in_memory;
    config.ports.lambda = args.port;
    TABLE.clone_into(&mut config.table);
    BUCKET.clone_into(&mut config.bucket);
    COORDINATOR.clone_into(&mut config.url_function);
    // A worker of a paused job stays warm for the next one.
    config.idle_timeout = Duration::from_secs(120);
    config.schedules = vec![upkeep()];
    let executable = std::env::current_exe().map_err(Failure::failed)?;
    let region = config.region.clone();
    let workers = (args.max_workers, args.worker_memory);
    let service =
        Service::start(config, |endpoints| functions(&executable, endpoints, &region, workers));
    let service = service.await.map_err(Failure::failed)?;
    let file = describe(&service, &region);
    let published = file.publish(kept.path()).map_err(Failure::failed)?;
    announce(&file, args.json, kept.path());
    wait_for_end(args.attended).await;
    // Clients must not find a service that is going away.
    for path in published {
        let _ = std::fs::remove_file(path);
    }
    service.shutdown().await;
    Ok(())
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

/// Room for what a laptop caches, in GiB, unless the environment says otherwise.
const CACHE_GIB: u32 = 16;

fn functions(
    executable: &Path,
    endpoints: &Endpoints,
    region: &str,
    (max_workers, worker_memory_mb): (u32, u32),
) -> Vec<FunctionConfig> {
    let settings = Settings {
        ns: NAMESPACE.parse().unwrap_or_else(|_| unreachable!("the default namespace is valid")),
        table: Some(TABLE.into()),
        bucket: Some(BUCKET.into()),
        coordinator_url: Some(endpoints.coordinator_url.clone()),
        worker_function: Some(WORKER.into()),
        scaler_function: Some(SCALER.into()),
        retention_days: None,
        cache_gib: NonZeroU32::new(CACHE_GIB),
        // Nobody collects them here: the admin route has counters.
        metrics: false,
    };
    let mut env: BTreeMap<String, String> =
        settings.to_variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (name, value) in [
        ("AWS_ENDPOINT_URL_S3", &endpoints.s3),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoints.dynamodb),
        ("AWS_ENDPOINT_URL_LAMBDA", &endpoints.lambda),
    ] {
        env.insert(name.to_owned(), value.clone());
    }
    env.insert("AWS_REGION".to_owned(), region.to_owned());
    let function = |name: &str| FunctionConfig {
        args: vec!["function".to_owned(), name.to_owned()],
        env: env.clone(),
        ..FunctionConfig::new(name, executable)
    };
    vec![
        FunctionConfig {
            url: Some(UrlConfig::default()),
            timeout: Duration::from_secs(30),
            // Calls beyond it are throttled and sent again; more processes would only contend.
            reserved_concurrency: Some(8),
            ..function(COORDINATOR)
        },
        FunctionConfig {
            on_failure: Some(COORDINATOR.to_owned()),
            reserved_concurrency: Some(max_workers),
            memory_mb: worker_memory_mb,
            ..function(WORKER)
        },
        FunctionConfig { timeout: Duration::from_secs(60), ..function(SCALER) },
    ]
}

fn describe(service: &Service, region: &str) -> ServiceFile {
    let (endpoints, credentials) = (service.endpoints(), service.credentials());
    ServiceFile {
        endpoint: endpoints.lambda.clone(),
        s3: endpoints.s3.clone(),
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
        // No secrets: those are in the state directory, for its owner.
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

/// What nobody asks for is done now and then, as a schedule does it on AWS.
fn upkeep() -> Schedule {
    let payload = br#"{"upkeep":true}"#.as_slice().into();
    Schedule { every: UPKEEP_EVERY, function: COORDINATOR.to_owned(), payload }
}

/// Returns at Ctrl-C or SIGTERM, or when whoever started an attended service is gone.
async fn wait_for_end(attended: bool) {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    let abandoned = async {
        if !attended {
            std::future::pending::<()>().await;
        }
        let mut byte = [0];
        while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1)) {}
    };
    let interrupted = async {
        // An attended service is ended by its owner, who gets the same Ctrl-C.
        match attended {
            true => std::future::pending().await,
            false => drop(tokio::signal::ctrl_c().await),
        }
    };
    tokio::select! {
        () = terminated => {}
        () = abandoned => {}
        () = interrupted => {}
    }
}
