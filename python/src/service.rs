//! Connections to services.

use crate::{
    errors, log,
    stream::PyStream,
    wait::{self, ProcessLocal, PyInterrupt},
};
use clap::Parser;
use gristmill_client::{
    AuthoredPipeline, DatasetLocation, JobConfig, JobOptions, RankOptions, ResumeError,
    ServiceBackend, ServiceLauncher, ServiceOptions, StreamOptions, operators,
};
use gristmill_model::Checkpoint;
use gristmill_model::splits::Cursor;
use gristmill_model::wire::JobState;
use gristmill_stream::waiting::WaitReason;
use pyo3::prelude::*;
use std::{path::PathBuf, time::Duration};

/// A connection to a service.
#[pyclass(frozen, name = "Service", module = "gristmill._native")]
pub struct PyService {
    service: ProcessLocal<gristmill_client::ServiceConnection>,
}

#[pymethods]
impl PyService {
    /// Connects to the service on this machine that processes share; `program` starts it if it does not run.
    #[staticmethod]
    #[pyo3(signature = (program, state_dir=None, interrupt=None))]
    fn start(
        py: Python<'_>,
        program: Vec<PathBuf>,
        state_dir: Option<PathBuf>,
        interrupt: Option<&PyInterrupt>,
    ) -> PyResult<Self> {
        log::begin();
        let Some((program, args)) = program.split_first() else {
            return Err(errors::error(py, "OptionError", "no program starts the service"));
        };
        let args = args.iter().map(|arg| arg.clone().into_os_string()).collect();
        let launcher = ServiceLauncher { program: program.clone(), args };
        let started = async move {
            gristmill_client::start_local(&launcher, state_dir.as_deref(), operators()).await
        };
        let service =
            wait::apart(py, interrupt, started)?.map_err(|why| errors::failure_error(py, &why))?;
        Ok(Self { service: ProcessLocal::new(service) })
    }

    /// Connects to a running service: of `endpoint`, of `state_dir`, or deployed on AWS.
    #[staticmethod]
    #[pyo3(signature = (endpoint=None, state_dir=None, backend="local"))]
    fn connect(
        py: Python<'_>,
        endpoint: Option<String>,
        state_dir: Option<PathBuf>,
        backend: &str,
    ) -> PyResult<Self> {
        log::begin();
        let backend = match backend {
            "local" => ServiceBackend::Local,
            "aws" => ServiceBackend::Aws,
            other => {
                let why = format!("backend={other:?}: it is \"local\" or \"aws\"");
                return Err(errors::error(py, "OptionError", why));
            }
        };
        let options = ServiceOptions { backend, endpoint, state_dir };
        let connected = async move { gristmill_client::connect(&options, operators()).await };
        let service =
            wait::apart(py, None, connected)?.map_err(|why| errors::failure_error(py, &why))?;
        Ok(Self { service: ProcessLocal::new(service) })
    }

    /// The address of a service on this machine; none of a deployed one.
    #[getter]
    fn endpoint(&self) -> Option<String> {
        self.service.local.as_ref().map(|local| local.calls.endpoint().to_owned())
    }

    /// Starts a job of the pipeline `yaml`, whose paths are relative to `base`, with the splits of `checkpoint`; or joins it.
    #[pyo3(signature = (yaml, base, options, checkpoint=None, interrupt=None))]
    fn submit(
        &self,
        py: Python<'_>,
        yaml: &str,
        base: PathBuf,
        options: Vec<String>,
        checkpoint: Option<&str>,
        interrupt: Option<&PyInterrupt>,
    ) -> PyResult<PyJob> {
        let LoaderOptions { job, stream, .. } = LoaderOptions::read(py, &options)?;
        let checkpoint = checkpoint.map(str::parse).transpose();
        let checkpoint: Option<Checkpoint> =
            checkpoint.map_err(|error| errors::checkpoint_error(py, &error))?;
        let job = job.resuming(checkpoint.map(|checkpoint| checkpoint.split_batches));
        let registry = &self.service.ports.operators;
        let authored = AuthoredPipeline::parse_with(yaml, &base, registry);
        let authored = authored.map_err(|error| errors::pipeline_error(py, &error))?;
        let source = match &job.data {
            Some(data) => DatasetLocation::parse(data, ".".as_ref()),
            None => DatasetLocation::parse_all(&authored.pipeline.source_paths(), &base),
        };
        let source = source.map_err(|error| errors::error(py, "OptionError", error))?;
        let submitted = async {
            let authored = authored.shaped(&source, &job).await?;
            let ordered = authored.ordered(&source, &job.order).await?;
            let config = JobConfig::new(ordered.authored, source, job);
            self.service.submit(config, stream.patience).await
        };
        let job = wait::until(py, interrupt, submitted, || Some(self.service.link.waiting()))?;
        let job = job.map_err(|why| errors::failure_error(py, &why))?;
        if !job.left_out.is_empty() {
            log::say(py, "WARNING", &job.left_out.to_string())?;
        }
        Ok(PyJob::new(job))
    }

    /// Joins the job `name` as it is.
    fn join(&self, py: Python<'_>, name: &str) -> PyResult<PyJob> {
        let name = name.parse().map_err(|error| errors::error(py, "OptionError", error))?;
        let LoaderOptions { job, stream, .. } = LoaderOptions::read(py, &[])?;
        let joined = self.service.join(&name, &job, stream.patience);
        let job = wait::wait(py, joined, || Some(self.service.link.waiting()))?;
        let job = job.map_err(|why| errors::failure_error(py, &why))?;
        Ok(PyJob::new(job))
    }

    /// Leaves the service. Does nothing in a fork.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if wait::is_fork() { Ok(()) } else { wait::wait(py, self.service.close(), || None) }
    }
}

/// Options of a loader, under the names of the command line's flags.
#[derive(Parser)]
#[command(
    no_binary_name = true, disable_help_flag = true,
    // A loader that starts a job reads until it is closed.
    mut_arg("epochs", |arg| arg.default_value("1000000")),
)]
pub struct LoaderOptions {
    #[command(flatten)]
    pub ranks: RankOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub stream: StreamOptions,
}

impl LoaderOptions {
    /// Reads flags of the command line; an `OptionError` has the first line of the message.
    pub fn read(py: Python<'_>, flags: &[String]) -> PyResult<Self> {
        Self::try_parse_from(flags).map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            errors::error(py, "OptionError", in_python(line.trim_start_matches("error: ")))
        })
    }
}

/// An error about flags, in the names of Python: `on_error` for `'--on-error <HOW>'`.
fn in_python(text: &str) -> String {
    let words = text.split('\'').map(|quoted| match quoted.strip_prefix("--") {
        Some(flag) => {
            let name = flag.split([' ', '=']).next().unwrap_or_default();
            format!("`{}`", name.replace('-', "_"))
        }
        None => quoted.to_owned(),
    });
    words.collect::<Vec<_>>().join("'").replace("'`", "`").replace("`'", "`")
}

/// Checks the options of a loader, given as flags.
#[pyfunction]
pub fn check_options(py: Python<'_>, flags: Vec<String>) -> PyResult<()> {
    let LoaderOptions { ranks, job, .. } = LoaderOptions::read(py, &flags)?;
    ranks.range().map_err(|why| errors::error(py, "OptionError", why))?;
    job.check().map_err(|why| errors::error(py, "OptionError", why))
}

/// How long a question about a job may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A job of a service.
#[pyclass(frozen, name = "Job", module = "gristmill._native")]
pub struct PyJob {
    job: ProcessLocal<gristmill_client::JobHandle>,
}

impl PyJob {
    /// The Python object of `job`.
    pub fn new(job: gristmill_client::JobHandle) -> Self {
        Self { job: ProcessLocal::new(job) }
    }
}

#[pymethods]
impl PyJob {
    #[getter]
    fn name(&self) -> String {
        self.job.view.job.to_string()
    }

    #[getter]
    fn epochs(&self) -> u32 {
        self.job.view.spec.epochs
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.job.view.spec.seed
    }

    /// The canonical JSON of the pipeline that the job runs.
    #[getter]
    fn pipeline(&self) -> &str {
        &self.job.view.spec.pipeline
    }

    /// The batches of the trainer, as JSON: batch size, whether a last partial batch is left out, and the fields of an element.
    fn schema(&self, py: Python<'_>) -> PyResult<String> {
        let pipeline = self.job.pipeline();
        let pipeline = pipeline.map_err(|error| errors::pipeline_error(py, &error))?;
        let schema = serde_json::json!({
            "batch_size": pipeline.batch_size(),
            "drop_remainder": pipeline.drop_remainder(),
            "fields": pipeline.delivered_schema(),
        });
        Ok(schema.to_string())
    }

    /// Whether the job was done when it was joined.
    #[getter]
    fn is_done(&self) -> bool {
        self.job.view.state == JobState::Done
    }

    /// The text of the checkpoint whose next batch is batch `g` of `epoch`.
    fn checkpoint(&self, epoch: u32, g: u64) -> String {
        self.job.checkpoint(Cursor::new(epoch, g)).to_string()
    }

    /// The place `(epoch, g)` of the text of a checkpoint of this job.
    fn position(&self, py: Python<'_>, checkpoint: &str) -> PyResult<(u32, u64)> {
        let checkpoint: Checkpoint =
            checkpoint.parse().map_err(|error| errors::checkpoint_error(py, &error))?;
        let place = self.job.place_of(&checkpoint, TIMEOUT);
        let of_index = || Some(WaitReason::patiently("the index of the dataset"));
        let cursor = wait::wait(py, place, of_index)?.map_err(|error| match error {
            ResumeError::Checkpoint(error) => errors::checkpoint_error(py, &error),
            ResumeError::Fetch(error) => errors::fetch_error(py, &error),
        })?;
        Ok((cursor.epoch, cursor.batch_index))
    }

    /// The place `(epoch, g)` up to which the service knows all to be in a checkpoint.
    fn durable(&self, py: Python<'_>) -> PyResult<(u32, u64)> {
        let status = wait::wait(py, self.job.status(TIMEOUT), || None)?;
        let status = status.map_err(|error| errors::fetch_error(py, &error))?;
        Ok((status.durable.epoch, status.durable.batch_index))
    }

    /// The batches from `at` on, `(epoch, g)`, or from where the job's last trainer was.
    #[pyo3(signature = (options, at=None, interrupt=None))]
    fn open(
        &self,
        py: Python<'_>,
        options: Vec<String>,
        at: Option<(u32, u64)>,
        interrupt: Option<&PyInterrupt>,
    ) -> PyResult<PyStream> {
        let LoaderOptions { stream, ranks, .. } = LoaderOptions::read(py, &options)?;
        let at = at.map(|(epoch, g)| Cursor::new(epoch, g));
        PyStream::open(py, &self.job, at, &ranks, &stream, interrupt)
    }

    /// Stops the job: no worker continues it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let stopped = wait::wait(py, self.job.stop(TIMEOUT), || None)?;
        stopped.map_err(|error| errors::fetch_error(py, &error))
    }
}
