//! Connections to services.

use crate::{
    errors,
    job::{LoaderOptions, PyJob},
    log,
    wait::{self, ProcessLocal, PyInterrupt},
};
use gristmill_client::{
    AuthoredPipeline, DatasetLocation, JobConfig, ServiceBackend, ServiceLauncher, ServiceOptions,
    operators,
};
use gristmill_model::Checkpoint;
use pyo3::prelude::*;
use std::path::PathBuf;

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
            wait::apart(py, interrupt, started)?.map_err(|why| errors::of_failure(py, &why))?;
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
            wait::apart(py, None, connected)?.map_err(|why| errors::of_failure(py, &why))?;
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
            checkpoint.map_err(|error| errors::of_checkpoint(py, &error))?;
        let job = job.resuming(checkpoint.map(|checkpoint| checkpoint.split_batches));
        let registry = &self.service.ports.operators;
        let authored = AuthoredPipeline::parse_with(yaml, &base, registry);
        let authored = authored.map_err(|error| errors::of_pipeline(py, &error))?;
        let source = match &job.data {
            Some(data) => DatasetLocation::parse(data, ".".as_ref()),
            None => DatasetLocation::parse_all(&authored.pipeline.source_paths(), &base),
        };
        let source = source.map_err(|error| errors::error(py, "OptionError", error))?;
        let prepared = authored.prepared(job.batch_size);
        let (authored, _) = prepared.map_err(|why| errors::of_failure(py, &why))?;
        let config = JobConfig::new(authored, source, job);
        let submitted = self.service.submit(config, stream.patience);
        let job = wait::until(py, interrupt, submitted, || Some(self.service.link.waiting()))?;
        let job = job.map_err(|why| errors::of_failure(py, &why))?;
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
        let job = job.map_err(|why| errors::of_failure(py, &why))?;
        Ok(PyJob::new(job))
    }

    /// Leaves the service. Does nothing in a fork.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if wait::is_fork() { Ok(()) } else { wait::wait(py, self.service.close(), || None) }
    }
}
