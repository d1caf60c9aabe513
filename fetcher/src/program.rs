//! Joins or starts a job on a running service and serves its batches over a unix socket or standard output.

use crate::{options::Options, ranked, socket::Socket};
use gristmill_client::{
    Failure, Job, JobConfig, Service, connect,
    cursor::{CursorFile, CursorStore, Identity, NoCursor, Saved},
    log_to_stderr,
    report::{Observer, Report, Usage},
    return_large_buffers,
    server::{Activity, ServeError, Server},
    signals::{interruption, survive_size_limits},
    waiting::{Waiting, Watcher, while_saying},
};
use gristmill_pipeline::Registry;
use std::{cell::RefCell, process::ExitCode, sync::Arc, time::Instant};

/// Events that go to standard error.
pub const LOG: &str = "warn,gristmill_client=info,gristmill_fetcher=info";

/// Runs this process as `gristmill-fetcher`, with operators of users beside ours.
pub fn main_with(operators: Registry) -> ExitCode {
    // Before there are other threads.
    return_large_buffers();
    log_to_stderr(LOG);
    serve(operators)
}

#[tokio::main]
async fn serve(operators: Registry) -> ExitCode {
    survive_size_limits();
    match run_with(Options::read(), Arc::new(operators)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(line) = failure.line() {
                gristmill_client::complain!("gristmill-fetcher: {line}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Serves the job that `options` name, until it is delivered, or Ctrl-C or SIGTERM.
///
/// # Errors
/// Why it ended before the job was delivered.
pub async fn run_with(options: Options, operators: Arc<Registry>) -> Result<(), Failure> {
    tokio::select! {
        outcome = run(options, operators) => outcome,
        ended = interruption() => {
            gristmill_client::complain!("gristmill-fetcher: {ended}; the job continues when a fetcher is started \
                       again");
            Err(Failure::Reported(ended.exit_code()))
        }
    }
}

async fn run(options: Options, operators: Arc<Registry>) -> Result<(), Failure> {
    options.check()?;
    options.report.report.as_deref().map(Report::check_page).transpose()?;
    let service = connect(&options.service, operators).await?;
    tokio::select! {
        served = serve_job(&options, &service) => served,
        failure = service.given_up(options.stream.patience) => Err(failure),
    }
}

/// A stream that is open, and what serves it.
struct Serving {
    job: Job,
    server: Server<Box<dyn CursorStore>>,
    socket: Option<Socket>,
    watcher: Watcher,
    before: Usage,
}

async fn serve_job(options: &Options, service: &Service) -> Result<(), Failure> {
    if let Some(own) = options.ranks.own()? {
        return ranked::serve(options, service, own).await;
    }
    let link = &service.link;
    let starting = start(options, service);
    let Serving { job, mut server, socket, watcher, before } =
        while_saying(starting, || Some(link.waiting()), say).await?;
    let activity = RefCell::new(server.activity());
    let waiting = || {
        let mut activity = activity.borrow_mut();
        // Another wait than the one before.
        if activity.has_changed().is_ok_and(|changed| changed) {
            activity.mark_unchanged();
            return None;
        }
        let activity = *activity.borrow();
        waiting(activity, link.or(watcher.waiting()), options)
    };
    let serving = async {
        let Some(socket) = &socket else {
            return server.write_all(&mut tokio::io::stdout()).await;
        };
        let (visitors, arriving) = tokio::sync::mpsc::channel(1);
        tokio::select! {
            served = server.serve(arriving) => served,
            () = socket.accept(visitors, 1) => Ok(()),
        }
    };
    while_saying(serving, waiting, say).await.map_err(failure_of)?;
    drop(socket);
    report(options, &job, server, &before).await
}

/// Prints and writes what the run came to, if anybody asked.
async fn report(
    options: &Options,
    job: &Job,
    server: Server<Box<dyn CursorStore>>,
    before: &Usage,
) -> Result<(), Failure> {
    let Some(observed) = server.into_observed() else { return Ok(()) };
    let report = Report::new(job, observed, before).await?;
    if let Some(path) = &options.report.report {
        report.write_page(path)?;
        gristmill_client::complain!("wrote {}", path.display());
    }
    let printed = match options.is_stdout() {
        true => report.print("gristmill-fetcher", false, &mut std::io::stderr()),
        false => {
            report.print("gristmill-fetcher", options.report.json, &mut std::io::stdout().lock())
        }
    };
    printed.map_err(|error| Failure::failed(format!("the report cannot be printed: {error}")))?;
    report.verdict()
}

pub(crate) fn say(what: &str) {
    gristmill_client::complain!("gristmill-fetcher: waiting for {what}");
}

/// The wait to report: none while the trainer works.
fn waiting(activity: Activity, waiting: Waiting, options: &Options) -> Option<Waiting> {
    match activity {
        Activity::Alone if waiting.is_fault => Some(waiting),
        Activity::Alone => {
            let path = options.socket.display();
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

/// Joins or starts the job, and opens its stream where the state file says.
async fn start(options: &Options, service: &Service) -> Result<Serving, Failure> {
    let began = Instant::now();
    let mut cursors = open_state(options)?;
    // Before anything is started: what cannot be served should not begin.
    if !options.is_stdout() {
        Socket::check(&options.socket).map_err(Failure::usage)?;
    }
    let before = Usage::now(service).await;
    let job = open_job(options, service).await?;
    let cursor = Server::position(&mut cursors, &Identity::of(&job.view)).map_err(failure_of)?;
    let socket = match options.is_stdout() {
        true => None,
        false => Some(Socket::bind(&options.socket).map_err(Failure::usage)?),
    };
    let fetcher = job.open_at(cursor, &options.stream).await?;
    let watcher = fetcher.watcher();
    let mut server = Server::new(fetcher, cursors, cursor)?;
    if options.is_reported() {
        let observer = Observer::new(&job, server.fetcher(), began).await;
        server.observed_by(observer);
    }
    if socket.is_some() {
        let at = options.socket.display();
        tracing::info!(job = %job.view.job, epoch = cursor.epoch, batch_index = cursor.batch_index, "serving {at}");
    }
    Ok(Serving { job, server, socket, watcher, before })
}

/// The job that the options name: started, if they name a pipeline.
pub(crate) async fn open_job(options: &Options, service: &Service) -> Result<Job, Failure> {
    let patience = options.stream.patience;
    let Some(path) = &options.pipeline else {
        let job =
            service.join(options.name()?, patience).await.map_err(|failure| match failure {
                Failure::Usage(why) => {
                    Failure::Usage(format!("{why}; give --pipeline to start it"))
                }
                failure => failure,
            })?;
        return Ok(Job { local_workers: options.job.settings.local_workers, ..job });
    };
    let config = JobConfig::read(path, options.job.clone(), service)?;
    let job = service.submit(config, patience).await?;
    if !job.left_out.is_empty() {
        tracing::warn!("{}", job.left_out);
    }
    Ok(job)
}

/// The state file, which must be of this job.
pub(crate) fn open_state(options: &Options) -> Result<Box<dyn CursorStore>, Failure> {
    let Some(path) = &options.state else { return Ok(Box::new(NoCursor)) };
    let mut file = CursorFile::open(path).map_err(Failure::usage)?;
    let job = options.name()?.to_string();
    // Before anything is started: the rest is known once the job is.
    if let Some(Saved { identity, .. }) = file.load().map_err(Failure::usage)?
        && let Some(why) = identity
            .mismatch(&Identity { job, ..identity.clone() }, &file.name().unwrap_or_default())
    {
        return Err(Failure::Usage(why));
    }
    Ok(Box::new(file))
}

pub(crate) fn failure_of(error: ServeError) -> Failure {
    match error {
        ServeError::State(why) => Failure::Usage(why),
        ServeError::Fetch(error) => error.into(),
        error => Failure::failed(error),
    }
}
