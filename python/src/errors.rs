//! Exceptions of `gristmill.errors`, raised from failures.

use gristmill_client::{Interruption, ProgramFailure};
use gristmill_model::CheckpointError;
use gristmill_pipeline::PipelineError;
use gristmill_stream::FetchError;
use pyo3::{prelude::*, types::PyType};

/// An exception of class `name`; `line` is one of its attributes, if it is given.
fn raise(py: Python<'_>, name: &str, message: &str, line: Option<u32>) -> PyErr {
    let made = || -> PyResult<Bound<'_, PyAny>> {
        let class = py.import("gristmill.errors")?.getattr(name)?.cast_into::<PyType>()?;
        let error = class.call1((message,))?;
        if let Some(line) = line {
            error.setattr("line", line)?;
        }
        Ok(error)
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// An exception of class `name`.
pub fn error(py: Python<'_>, name: &str, message: impl ToString) -> PyErr {
    raise(py, name, &message.to_string(), None)
}

/// `PipelineError`, with the line of the file.
pub fn pipeline_error(py: Python<'_>, error: &PipelineError) -> PyErr {
    raise(py, "PipelineError", &error.to_string(), error.line)
}

/// `CheckpointError`.
pub fn checkpoint_error(py: Python<'_>, error: &CheckpointError) -> PyErr {
    self::error(py, "CheckpointError", error)
}

/// The exception of a stream that ended early.
pub fn fetch_error(py: Python<'_>, failed: &FetchError) -> PyErr {
    let class = match failed {
        FetchError::JobFailed(_) => "DataError",
        FetchError::JobStopped | FetchError::Fenced(_) => "JobError",
        FetchError::Misplaced(_) | FetchError::Collected(_) | FetchError::RunBegan { .. } => {
            "CheckpointError"
        }
        FetchError::Refused(_) => "OptionError",
        FetchError::Unreachable { .. } | FetchError::Unusable(_) | FetchError::BadObject(_) => {
            "ServiceError"
        }
    };
    error(py, class, failed)
}

/// The exception of a request that failed.
pub fn failure_error(py: Python<'_>, failure: &ProgramFailure) -> PyErr {
    match failure {
        ProgramFailure::Usage(why) => error(py, "OptionError", why),
        ProgramFailure::Fetch(failed) => fetch_error(py, failed),
        ProgramFailure::Interrupted(Interruption::Interrupted) => {
            pyo3::exceptions::PyKeyboardInterrupt::new_err(())
        }
        failure => error(py, "ServiceError", failure.line().unwrap_or_default()),
    }
}
