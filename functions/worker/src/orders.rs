//! A worker process of a service on this machine: one order a line on its standard input, one answer a line on what was
//! its standard output. It ends when its input does, however the service ended.

use crate::{WorkerFunction, wiring::host_objects};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_host::{HostObjects, HostServiceClient, WorkerAnswer, WorkerOrder, WorkerSetup};
use gristmill_pipeline::OperatorRegistry;
use gristmill_ports::{
    ChangeStamp, FunctionMetrics, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome,
    SystemClock,
};
use gristmill_runner::{ComputeMode, Runner, RunnerConfig};
use gristmill_web::{AllowedServers, WebRoutedStore};
use std::{
    error::Error,
    fs::File,
    io::{self, BufRead as _, Write as _},
    ops::Range,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::mpsc;

/// Why a worker process cannot work.
type OrderError = Box<dyn Error + Send + Sync>;

/// Works for the service that started this process, with `operators`.
pub async fn serve_orders(operators: Arc<OperatorRegistry>) -> Result<(), OrderError> {
    let answers = Answers::take_stdout()?;
    let mut lines = lines();
    let setup = lines.recv().await.ok_or("standard input has no setup")?;
    let worker = worker(&serde_json::from_str(&setup)?, operators, answers.clone())?;
    while let Some(line) = lines.recv().await {
        let WorkerOrder { event, request, deadline_ms } = serde_json::from_str(&line)?;
        answers.say(&match worker.handle(&event, request, deadline_ms).await {
            Ok(report) => WorkerAnswer::Done(report.ended),
            Err(error) => WorkerAnswer::Failed(error.to_string()),
        });
    }
    Ok(())
}

/// The way back to the service; clones share it.
#[derive(Clone)]
struct Answers(Arc<File>);

impl Answers {
    /// Takes standard output. What operators print from now on goes to standard error, and so into the log.
    fn take_stdout() -> io::Result<Self> {
        let own = io::stdout().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Self(Arc::new(File::from(own))))
    }

    fn say(&self, answer: &WorkerAnswer) {
        let Ok(mut line) = serde_json::to_vec(answer) else { return };
        line.push(b'\n');
        // If the service is gone, so is this process soon.
        let _ = (&*self.0).write_all(&line);
    }
}

/// The lines of standard input, read by a thread that ends the process with them: a split in progress must not keep a
/// worker alive whose service is gone.
fn lines() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    lines
}

fn worker(
    setup: &WorkerSetup,
    operators: Arc<OperatorRegistry>,
    answers: Answers,
) -> Result<WorkerFunction, OrderError> {
    let WorkerSetup { service, memory_mb } = setup;
    let objects = host_objects(service)?;
    let objects = Telling { objects, answers, is_in_trouble: AtomicBool::new(false) };
    let config = RunnerConfig {
        ns: service.namespace.clone(),
        bucket: service.bucket.clone(),
        local: false,
        // Objects stay on this machine.
        shape: None,
    };
    let runner = Runner {
        coordinator: Arc::new(HostServiceClient::new(service)),
        // The user's own machine reads what the user may read.
        objects: Arc::new(WebRoutedStore::from_env(Arc::new(objects), AllowedServers::Any)?),
        clock: Arc::new(SystemClock),
        compute: ComputeMode::from_function_memory(Some(*memory_mb)),
        operators,
        config,
    };
    Ok(WorkerFunction::new(runner, FunctionMetrics::default()))
}

/// Objects whose failing puts are reported to the service: its clients only see that no batch comes.
struct Telling {
    objects: HostObjects,
    answers: Answers,
    is_in_trouble: AtomicBool,
}

#[async_trait]
impl ObjectStore for Telling {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        let outcome = self.objects.put_if_absent(path, body, put_id).await;
        match &outcome {
            Err(ObjectError::Unavailable(why)) => {
                self.is_in_trouble.store(true, Ordering::Relaxed);
                self.answers.say(&WorkerAnswer::Trouble(Some(why.clone())));
            }
            _ if self.is_in_trouble.swap(false, Ordering::Relaxed) => {
                self.answers.say(&WorkerAnswer::Trouble(None))
            }
            _ => {}
        }
        outcome
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.objects.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.objects.get_range(path, range, etag).await
    }

    async fn change_stamp(&self, path: &ObjectPath) -> Result<Option<ChangeStamp>, ObjectError> {
        self.objects.change_stamp(path).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.objects.list(bucket, prefix).await
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        self.objects.delete(bucket, keys).await
    }
}
