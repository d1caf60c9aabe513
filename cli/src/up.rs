//! `gristmill up`: stand-ins and functions as a service of their own.

use crate::{
    args::UpArgs,
    failure::Failure,
    function::{LOCAL_FOLDERS, LOCAL_S3},
    output::{self, say},
};
use gristmill_aws::Settings;
use gristmill_client::{
    ServiceFile, aws_of,
    signals::{Interruption, interruption},
};
use gristmill_local::{
    Credentials, Endpoints, FunctionConfig, Others, Schedule, Service, ServiceConfig, UrlConfig,
};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::io::AsyncReadExt;

pub const WORKER: &str = "worker";
pub const COORDINATOR: &str = "coordinator";
pub const SCALER: &str = "scaler";
const TABLE: &str = "gristmill";
/// With a dot, which hardly a bucket on S3 has: one of the same name there could not be read.
const BUCKET: &str = "gristmill.local";
const NAMESPACE: &str = "default";
const UPKEEP_EVERY: Duration = Duration::from_secs(600);

/// Starts the service, says so, and serves until it is told to end.
pub async fn run(args: UpArgs) -> Result<(), Failure> {
    // All that is kept is for its owner alone, whoever writes it.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
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
        functions(&executable, endpoints, &region, &room, memory_mb)
    });
    let service = service.await.map_err(Failure::failed)?;
    let file = describe(&service, &region);
    if by_others && let Err(failure) = provision(&args, &file).await {
        service.shutdown().await;
        return Err(failure);
    }
    let published = file.publish(kept.path()).map_err(Failure::failed)?;
    announce(&file, args.json, kept.path());
    // A service that nobody knows of serves nobody.
    let known = output::check();
    let mut ended = None;
    if known.is_ok() {
        tokio::select! {
            asked = wait_for_end(args.attended) => ended = asked,
            never = tell_trouble(&service), if !args.attended => match never {},
        }
    }
    // Clients must not find a service that is going away.
    for path in published {
        let _ = std::fs::remove_file(path);
    }
    service.shutdown().await;
    // Ctrl-C is how a person ends it.
    if ended == Some(Interruption::Terminated) && known.is_ok() {
        let code = Interruption::Terminated.exit_code();
        return Err(Failure { code, message: String::new() });
    }
    known
}

/// Services of others that keep table and objects.
fn others(args: &UpArgs) -> Others {
    let both = &args.aws_endpoint_url;
    Others {
        s3: args.aws_endpoint_url_s3.clone().or_else(|| both.clone()),
        dynamodb: args.aws_endpoint_url_dynamodb.clone().or_else(|| both.clone()),
    }
}

/// The keys that the environment names for the services of others, if it names any.
fn keys() -> Result<Option<Credentials>, Failure> {
    let get = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if get("AWS_SESSION_TOKEN").is_some() {
        return Err(Failure::usage(
            "AWS_SESSION_TOKEN is set: a service outlives keys that end; unset it, and give keys that last",
        ));
    }
    let pair = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
    Ok(pair
        .map(|(access_key_id, secret_access_key)| Credentials { access_key_id, secret_access_key }))
}

/// Makes table and bucket where others are to keep them.
async fn provision(args: &UpArgs, file: &ServiceFile) -> Result<(), Failure> {
    let (aws, others) = (aws_of(file), others(args));
    let told = |at: String| move |error| Failure::failed(format!("{at}: {error}"));
    if let Some(at) = others.dynamodb {
        aws.make_table(TABLE).await.map_err(told(at))?;
    }
    if let Some(at) = others.s3 {
        aws.make_bucket(BUCKET).await.map_err(told(at))?;
    }
    Ok(())
}

/// Between two looks at what keeps the service from its work.
const TROUBLE_LOOK: Duration = Duration::from_secs(1);

/// Says on standard error when the service cannot go on, and when it can again.
async fn tell_trouble(service: &Service) -> Infallible {
    let mut told = false;
    loop {
        tokio::time::sleep(TROUBLE_LOOK).await;
        match service.trouble() {
            Some(trouble) if !told => eprintln!("gristmill: {trouble}"),
            None if told => eprintln!("gristmill: there is room again: jobs go on"),
            _ => {}
        }
        told = service.trouble().is_some();
    }
}

/// What an attended service answers its owner when it could not serve.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub code: u8,
    pub failed: String,
}

/// Leaves it to the owner of an attended service to say why that failed.
pub fn tell_owner(outcome: Result<(), Failure>) -> Result<(), Failure> {
    outcome.map_err(|Failure { code, message }| {
        let refusal = Refusal { code, failed: message };
        say!("{}", serde_json::json!(refusal));
        Failure { code, message: String::new() }
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

/// Places that workers leave to coordinator and scaler where nothing is reserved for these.
const HEADROOM: u32 = 3;

/// How many invocations may run at a time: of all functions, and reserved for one.
#[derive(Debug, PartialEq, Eq)]
struct Concurrency {
    account: u32,
    coordinator: Option<u32>,
    worker: Option<u32>,
    scaler: Option<u32>,
    /// Most workers of a job, where the account is small.
    max_workers: Option<NonZeroU32>,
}

impl Concurrency {
    fn of(args: &UpArgs) -> Result<Self, Failure> {
        let Some(account) = args.account_concurrency else {
            // Calls beyond it are throttled and sent again; more processes would only contend.
            let coordinator = 8;
            return Ok(Self {
                account: args.max_workers.saturating_add(coordinator + 1000),
                coordinator: Some(coordinator),
                worker: Some(args.max_workers),
                scaler: None,
                max_workers: None,
            });
        };
        let reserved = args.reserved_concurrency;
        if reserved == 1 || reserved >= account {
            return Err(Failure::usage(format!(
                "--reserved-concurrency {reserved}: coordinator and scaler take at least 2, and workers 1 of the {account} there are"
            )));
        }
        let workers = match reserved {
            0 => account.saturating_sub(HEADROOM),
            reserved => account - reserved,
        };
        Ok(Self {
            account,
            coordinator: (reserved > 0).then(|| reserved - 1),
            worker: None,
            scaler: (reserved > 0).then_some(1),
            max_workers: NonZeroU32::new(workers.min(args.max_workers)),
        })
    }
}

/// Room for what a laptop caches, in GiB, unless the environment says otherwise.
const CACHE_GIB: u32 = 16;

fn functions(
    executable: &Path,
    endpoints: &Endpoints,
    region: &str,
    room: &Concurrency,
    worker_memory_mb: u32,
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
        max_workers: room.max_workers,
        private_sources: true,
        // Nobody collects them here: the admin route has counters.
        metrics: false,
    };
    let settings: BTreeMap<String, String> =
        settings.to_variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let env = |variables: &[(&str, &str)]| {
        let mut env = settings.clone();
        env.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        env
    };
    let stack = [
        ("AWS_ENDPOINT_URL_S3", endpoints.s3.as_str()),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoints.dynamodb),
        ("AWS_ENDPOINT_URL_LAMBDA", &endpoints.lambda),
        ("AWS_REGION", region),
    ];
    let function = |name: &str| FunctionConfig {
        args: vec!["function".to_owned(), name.to_owned()],
        env: env(&stack),
        ..FunctionConfig::new(name, executable)
    };
    vec![
        FunctionConfig {
            url: Some(UrlConfig::default()),
            timeout: Duration::from_secs(30),
            reserved_concurrency: room.coordinator,
            ..function(COORDINATOR)
        },
        FunctionConfig {
            on_failure: Some(COORDINATOR.to_owned()),
            reserved_concurrency: room.worker,
            memory_mb: worker_memory_mb,
            // It reads what the user may read: other people's buckets too.
            ambient: true,
            env: env(&[(LOCAL_S3, &endpoints.s3), (LOCAL_FOLDERS, &endpoints.folders)]),
            ..function(WORKER)
        },
        FunctionConfig {
            timeout: Duration::from_secs(60),
            reserved_concurrency: room.scaler,
            ..function(SCALER)
        },
    ]
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

/// Returns at Ctrl-C or SIGTERM, and says which, or when whoever started an attended service is gone.
async fn wait_for_end(attended: bool) -> Option<Interruption> {
    let abandoned = async {
        if !attended {
            std::future::pending::<()>().await;
        }
        let mut byte = [0];
        while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1)) {}
    };
    let asked = async {
        loop {
            match interruption().await {
                // An attended service is ended by its owner, who gets the same Ctrl-C.
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
