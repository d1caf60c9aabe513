//! The functions of a local service, and their concurrency.

use super::{Args, BUCKET, COORDINATOR, NAMESPACE, SCALER, TABLE, WORKER};
use crate::commands::function::{LOCAL_FOLDERS, LOCAL_S3};
use gristmill_aws::Settings;
use gristmill_client::{Failure, Launcher};
use gristmill_local::{Endpoints, FunctionConfig, UrlConfig};
use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

/// Concurrency that workers leave to coordinator and scaler when none is reserved.
const HEADROOM: u32 = 3;

/// Concurrency of invocations: over all functions, and reserved for one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Concurrency {
    pub(super) account: u32,
    coordinator: Option<u32>,
    worker: Option<u32>,
    scaler: Option<u32>,
    /// Most workers of a job, if the account is small.
    max_workers: Option<NonZeroU32>,
}

impl Concurrency {
    pub(super) fn of(args: &Args) -> Result<Self, Failure> {
        let Some(account) = args.account_concurrency else {
            // Further calls are throttled and sent again; more processes would only contend.
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

/// Default capacity of the cache on this machine, in GiB.
const CACHE_GIB: u32 = 16;

/// The arguments with which `launcher` runs the function `name`.
fn arguments(launcher: &Launcher, name: &str) -> Vec<String> {
    let before = launcher.args.iter().map(|arg| arg.to_string_lossy().into_owned());
    before.chain(["function".to_owned(), name.to_owned()]).collect()
}

/// The functions of a service, all run by this program.
pub(super) fn functions(
    launcher: &Launcher,
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
        // Nobody collects them here; the admin route has counters.
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
        args: arguments(launcher, name),
        env: env(&stack),
        ..FunctionConfig::new(name, &launcher.program)
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
            // It may read what the user may read, including foreign buckets.
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
