//! `gristmill-fetcher`: the trainer's side of a job as a program of its own. Joins or starts a job
//! on a running service and serves its batches over a unix socket or standard output.

use crate::socket::Socket;
use anyhow::Context;
use clap::Parser;
use gristmill_aws::{Aws, Settings};
use gristmill_client::{
    Authored, Fetcher, FetcherConfig, FetcherPorts, Folders, Listing, ServiceFile, Source, aws_of,
    cursor::{CursorFile, CursorStore, Identity, NoCursor, Saved},
    give_up, log_to_stderr, parse_patience, return_large_buffers,
    server::{Activity, ServeError, Server},
    signals::interruption,
    waiting::{Link, Waiting, Watcher, while_saying},
};
use gristmill_executor::user::Operators;
use gristmill_model::wire::{JobSpec, Register};
use gristmill_model::{
    Compression, ErrorPolicy, JobName, Namespace, Sharding, SkipLimit, Visitation,
};
use gristmill_pipeline::passes::{Measured, optimise};
use gristmill_ports::Objects;
use gristmill_web::{Reach, WithWeb};
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// Serve the batches of a gristmill job to a training loop.
///
/// Joins the job of that name, or starts it if --pipeline is given. Frames and acknowledgements are
/// described in the README ("Reading batches from any language"); examples/train.py reads them with
/// numpy alone.
#[derive(Debug, Parser)]
#[command(name = "gristmill-fetcher", version, max_term_width = 100)]
struct Args {
    /// Job to join or start: a-z, 0-9 and '-'
    #[arg(long)]
    job: JobName,
    /// Service to use: the address that `gristmill up` prints
    #[arg(long, conflicts_with = "state_dir")]
    endpoint: Option<String>,
    /// Service to use, by its state directory
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// Unix socket to serve (readable by you only); `-` writes frames to standard output
    #[arg(long, default_value = "gristmill.sock")]
    socket: PathBuf,
    /// Keeps the cursor: a restart continues after the last acknowledged batch
    #[arg(long)]
    state: Option<PathBuf>,
    /// Pipeline file: starts the job if it does not exist
    #[arg(long)]
    pipeline: Option<PathBuf>,
    /// Dataset: a directory, file or glob ({000..146} too) on this machine, relative to the current
    /// directory, or s3://bucket/prefix; default: the pipeline's source, relative to its file
    #[arg(long, requires = "pipeline")]
    data: Option<String>,
    /// Passes over the dataset
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Decides order and augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Records of a batch; default: the pipeline's
    #[arg(long)]
    batch_size: Option<u32>,
    /// Remote workers to hold while there is work
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Let the service decide how many remote workers training needs, at most --workers
    #[arg(long)]
    autoscale: bool,
    /// Workers inside this process
    #[arg(long, default_value_t = 0)]
    local_workers: u32,
    /// What to do with a record that cannot be decoded: fail, skip or quarantine
    #[arg(long, default_value_t)]
    on_error: ErrorPolicy,
    /// Most records of an epoch that --on-error skip and quarantine leave out before the job fails after
    /// all: a number, or a share, which allows one at least
    #[arg(long, default_value_t, value_name = "N|P%")]
    max_skipped: SkipLimit,
    /// What a trainer that dies and comes back is given: exactly-once, at-most-once or zero-once-or-more
    #[arg(long, default_value_t)]
    visitation: Visitation,
    /// What an epoch is: the dataset (dynamic), or the dataset once for each worker (off)
    #[arg(long, default_value_t)]
    sharding: Sharding,
    /// How workers keep what they store: none, zstd or auto, which compresses where their network is what they wait for;
    /// default: the pipeline's
    #[arg(long, value_name = "HOW")]
    compress: Option<Compression>,
    /// Memory for objects fetched ahead, in MiB; room for two is always taken
    #[arg(long, default_value_t = 64)]
    prefetch_mib: u64,
    /// How long service and object store may fail before the fetcher gives up, such as 90s or 10m
    #[arg(long, default_value = "120s", value_parser = parse_patience)]
    patience: Duration,
}

/// Runs this process as `gristmill-fetcher`, with operators of users beside ours.
pub fn main_with(operators: Operators) -> ExitCode {
    // Before there are other threads.
    return_large_buffers();
    log_to_stderr("warn,gristmill_client=info,gristmill_fetcher=info");
    serve(operators)
}

#[tokio::main]
async fn serve(operators: Operators) -> ExitCode {
    let args = Args::parse();
    tokio::select! {
        outcome = run(args, operators) => match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Names of files may hold anything: what is no text goes to no terminal.
                let line = format!("{error:#}").replace(|c: char| c.is_control(), " ");
                eprintln!("gristmill-fetcher: {line}");
                let usage = error.downcast_ref::<Usage>().is_some();
                ExitCode::from(if usage { 2 } else { 1 })
            }
        },
        ended = interruption() => {
            eprintln!("gristmill-fetcher: {ended}; the job goes on when a fetcher comes back");
            ExitCode::from(ended.exit_code())
        }
    }
}

/// Marks an error as one of usage: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

struct Place {
    aws: Aws,
    ns: Namespace,
    bucket: String,
    coordinator_url: String,
    /// The local service; none on AWS.
    local: Option<ServiceFile>,
}

async fn find(args: &Args) -> anyhow::Result<Place> {
    let file = match (&args.endpoint, &args.state_dir) {
        (Some(endpoint), _) => Some(ServiceFile::of_endpoint(endpoint)?),
        (None, Some(dir)) => Some(ServiceFile::of_state_dir(dir)?),
        (None, None) => None,
    };
    let Some(file) = file else {
        let settings = Settings::from_lookup(|name| std::env::var(name).ok())?;
        let name_one = "name a service with --endpoint or --state-dir, or set GRISTMILL_COORDINATOR_URL and GRISTMILL_BUCKET";
        let coordinator_url = settings.coordinator_url().context(name_one)?.to_owned();
        let bucket = settings.bucket()?.to_owned();
        return Ok(Place {
            aws: Aws::from_env().await?,
            ns: settings.ns,
            bucket,
            coordinator_url,
            local: None,
        });
    };
    Ok(Place {
        aws: aws_of(&file),
        ns: file.namespace.parse()?,
        bucket: file.bucket.clone(),
        coordinator_url: file.coordinator_url.clone(),
        local: Some(file),
    })
}

async fn run(args: Args, operators: Operators) -> anyhow::Result<()> {
    let place = find(&args).await?;
    let service = place.local.as_ref().map(|file| place.aws.local_service(&file.endpoint));
    let trouble = service.as_ref().map(|service| async || service.trouble().await.ok());
    let coordinator = place.aws.coordinator(&place.coordinator_url, place.ns.clone())?;
    let link = Arc::new(Link::new(Arc::new(coordinator)));
    let patience = args.patience;
    tokio::select! {
        served = serve_job(args, &place, &link, operators) => served,
        why = give_up(trouble, &link, patience) => Err(anyhow::Error::msg(why)),
    }
}

async fn serve_job(
    args: Args,
    place: &Place,
    link: &Arc<Link>,
    operators: Operators,
) -> anyhow::Result<()> {
    let objects: Arc<dyn Objects> = match &place.local {
        Some(file) => Arc::new(place.aws.objects_beside(&file.bucket, &file.folders)),
        None => Arc::new(place.aws.objects()),
    };
    let web = WithWeb::from_env(objects, Reach::Any).map_err(Usage)?;
    let objects: Arc<dyn Objects> = Arc::new(web);
    let ports = FetcherPorts {
        operators: Arc::new(operators),
        ..FetcherPorts::new(Arc::clone(link) as _, objects)
    };
    let starting = start(&args, place, &ports);
    let (server, socket, watcher) = while_saying(starting, || Some(link.waiting()), say).await?;
    let activity = RefCell::new(server.activity());
    let waiting = || {
        let mut activity = activity.borrow_mut();
        // Another wait than the one before.
        if activity.has_changed().is_ok_and(|changed| changed) {
            activity.mark_unchanged();
            return None;
        }
        let activity = *activity.borrow();
        waiting(activity, link.or(watcher.waiting()), &args)
    };
    let serving = async {
        let Some(socket) = socket else {
            return server.write_all(&mut tokio::io::stdout()).await;
        };
        let (visitors, arriving) = tokio::sync::mpsc::channel(1);
        tokio::select! {
            served = server.serve(arriving) => served,
            () = socket.accept(visitors) => Ok(()),
        }
    };
    while_saying(serving, waiting, say).await.map_err(usage_of_state)
}

fn say(what: &str) {
    eprintln!("gristmill-fetcher: waiting for {what}");
}

/// What the fetcher waits for, if it is not the trainer that works.
fn waiting(activity: Activity, waiting: Waiting, args: &Args) -> Option<Waiting> {
    match activity {
        Activity::Alone if waiting.is_fault => Some(waiting),
        Activity::Alone => {
            let path = args.socket.display();
            Some(Waiting::patiently(format!("a trainer to connect to {path}")))
        }
        Activity::Fetching => Some(waiting),
        Activity::Sending | Activity::Over => None,
        Activity::LastAck => Some(Waiting::patiently("the trainer to acknowledge the last batch")),
        Activity::Closing => Some(match waiting.is_fault {
            true => waiting,
            false => Waiting::patiently("the service to close the job"),
        }),
    }
}

type Started = (Server<Box<dyn CursorStore>>, Option<Socket>, Watcher);

/// Joins or starts the job, and opens its stream where the state file says.
async fn start(args: &Args, place: &Place, ports: &FetcherPorts) -> anyhow::Result<Started> {
    let mut cursors = open_state(args)?;
    // Before anything is started: what cannot be served should not begin.
    let unusable = |error: std::io::Error| Usage(error.to_string());
    let is_stdout = args.socket.as_os_str() == "-";
    if !is_stdout {
        Socket::check(&args.socket).map_err(unusable)?;
    }
    let (view, folders) = match &args.pipeline {
        Some(path) => {
            let (register, source) = registration(args, place, ports, path).await?;
            let folders = source.folders();
            let registered =
                Fetcher::register(ports, (&place.ns, &place.bucket), register, args.patience).await;
            (registered.map_err(|error| error.in_words(&folders))?, folders)
        }
        None => {
            let known = Fetcher::describe(ports, &args.job, args.patience).await;
            let folders = match &place.local {
                Some(file) => {
                    let service = place.aws.local_service(&file.endpoint);
                    Folders::new(service.mounts().await.unwrap_or_default())
                }
                None => Folders::default(),
            };
            (known.context("give --pipeline to start it")?, folders)
        }
    };
    let cursor = Server::position(&mut cursors, &Identity::of(&view)).map_err(usage_of_state)?;
    let config = FetcherConfig {
        local_workers: args.local_workers,
        prefetch_bytes: args.prefetch_mib << 20,
        resume: (cursor.epoch, cursor.g),
        patience: args.patience,
        folders,
        ..FetcherConfig::new(place.ns.clone(), place.bucket.clone(), args.job.clone())
    };
    let socket = match is_stdout {
        true => None,
        false => Some(Socket::bind(&args.socket).map_err(unusable)?),
    };
    let fetcher = Fetcher::open(ports.clone(), config).await?;
    let watcher = fetcher.watcher();
    let server = Server::new(fetcher, cursors, cursor)?;
    if socket.is_some() {
        let at = args.socket.display();
        tracing::info!(job = %args.job, epoch = cursor.epoch, g = cursor.g, "serving {at}");
    }
    Ok((server, socket, watcher))
}

/// The state file, which must be of this job.
fn open_state(args: &Args) -> anyhow::Result<Box<dyn CursorStore>> {
    let Some(path) = &args.state else { return Ok(Box::new(NoCursor)) };
    let usage = |error: std::io::Error| Usage(error.to_string());
    let mut file = CursorFile::open(path).map_err(usage)?;
    let job = args.job.to_string();
    // Before anything is started: the rest is known once the job is.
    if let Some(Saved { identity, .. }) = file.load().map_err(usage)?
        && let Some(why) = identity
            .mismatch(&Identity { job, ..identity.clone() }, &file.name().unwrap_or_default())
    {
        return Err(Usage(why).into());
    }
    Ok(Box::new(file))
}

fn usage_of_state(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::State(why) => Usage(why).into(),
        error => error.into(),
    }
}

async fn registration(
    args: &Args,
    place: &Place,
    ports: &FetcherPorts,
    path: &Path,
) -> anyhow::Result<(Register, Source)> {
    if args.autoscale && args.sharding == Sharding::Off {
        let what = "`--sharding off` visits the dataset once for each worker, and `--autoscale` does not \
                    say how many those are: leave it out";
        return Err(Usage(what.to_owned()).into());
    }
    let base = path.parent().unwrap_or(Path::new("."));
    let authored = Authored::read(path, &ports.operators.signatures()).map_err(Usage)?;
    authored.store(&*ports.objects, &place.ns, &place.bucket).await?;
    let numerics = authored.numerics(args.local_workers, place.local.is_some());
    let mut pipeline = authored.pipeline;
    if let Some(batch_size) = args.batch_size {
        pipeline =
            pipeline.with_batch_size(batch_size).map_err(|error| Usage(error.to_string()))?;
    }
    let pipeline = optimise(&pipeline, &Measured::new()).pipeline;
    let data = match &args.data {
        Some(data) => Source::parse(data, Path::new(".")),
        None => Source::parse_all(&pipeline.source_paths(), base),
    };
    let data = data.map_err(|error| Usage(error.to_string()))?;
    let local = place.local.as_ref().map(|file| place.aws.local_service(&file.endpoint));
    let mount =
        local.map(|local| async move |name: &str, root: &Path| local.mount(name, root).await);
    let listing =
        data.clone().list(&*ports.objects, &place.ns, &place.bucket, pipeline.source(), mount);
    let Listing { dataset, left_out } = listing.await.map_err(|error| match error.is_usage() {
        true => anyhow::Error::new(Usage(error.to_string())),
        false => error.into(),
    })?;
    if !left_out.is_empty() {
        tracing::warn!("{left_out}");
    }
    let spec = JobSpec {
        seed: args.seed,
        epochs: args.epochs,
        on_error: args.on_error,
        max_skipped: args.max_skipped,
        numerics,
        workers: args.workers,
        autoscale: args.autoscale,
        local_workers: args.local_workers,
        visitation: args.visitation,
        sharding: args.sharding,
        compress: args.compress.unwrap_or(pipeline.compression()),
        ..JobSpec::new(pipeline.canonical_json())
    };
    Ok((Register::new(args.job.clone(), spec, dataset), data))
}
