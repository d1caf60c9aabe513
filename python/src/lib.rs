//! The extension module of the Python package: connections, jobs and streams for its loaders, and the whole command
//! line, which also is the program of a service that a trainer starts.

mod batch;
mod errors;
mod job;
mod log;
mod opening;
mod service;
mod stream;
mod tree;
mod wait;

use gristmill_client::{AuthoredPipeline, ServiceLauncher};
use gristmill_operators::{describe::describe, registry};
use gristmill_sources::FORMATS;
use gristmill_syntax::SyntaxNode;
use gristmill_synthetic::DatasetSpec;
use pyo3::prelude::*;
use std::{ffi::OsString, ops::ControlFlow, path::PathBuf};

/// Runs the command line `args`, whose first is the program's name; returns the exit code. `program` starts this
/// program again.
#[pyfunction]
fn main(py: Python<'_>, program: Vec<OsString>, args: Vec<OsString>) -> u8 {
    let mut program = program.into_iter();
    let launcher = ServiceLauncher {
        program: program.next().map(PathBuf::from).unwrap_or_default(),
        args: program.collect(),
    };
    py.detach(|| gristmill::main_of(launcher, args, registry().clone()))
}

/// The canonical JSON of a pipeline file's text; its asset files are relative to `base`.
#[pyfunction]
fn canonical(py: Python<'_>, yaml: &str, base: PathBuf) -> PyResult<String> {
    let authored = AuthoredPipeline::parse(yaml, &base);
    let authored = authored.map_err(|error| errors::of_pipeline(py, &error))?;
    Ok(authored.pipeline.canonical_json())
}

/// A pipeline file's text as JSON, `[tree, lines]`: the line of each operator, from 1.
#[pyfunction]
fn pipeline_tree(py: Python<'_>, yaml: &str) -> PyResult<String> {
    let tree = SyntaxNode::parse(yaml).map_err(|error| errors::of_pipeline(py, &error))?;
    let lines = tree::lines_of_ops(&tree);
    Ok(serde_json::json!([tree::json(&tree), lines]).to_string())
}

/// Generates a dataset unless it is there: "images" like ImageNet's, or "ints". Returns the directory of its TFRecord files,
/// below `dir` or in the user's cache.
#[pyfunction]
#[pyo3(signature = (content, records, seed=0, dir=None))]
fn generate(
    py: Python<'_>,
    content: &str,
    records: u64,
    seed: u64,
    dir: Option<PathBuf>,
) -> PyResult<PathBuf> {
    let spec = match content {
        "images" => DatasetSpec::images(records, seed),
        "ints" => DatasetSpec::ints(records, seed),
        other => {
            let why = format!("content={other:?}: it is \"images\" or \"ints\"");
            return Err(errors::error(py, "OptionError", why));
        }
    };
    let failed =
        |why: &dyn std::fmt::Display| errors::error(py, "Error", format!("no dataset: {why:#}"));
    let dir = match dir {
        Some(dir) => dir,
        None => gristmill_synthetic::default_dir(&spec).map_err(|why| failed(&why))?,
    };
    let progress = |_, _| match Python::attach(|py| py.check_signals()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let made = py.detach(|| gristmill_synthetic::ensure(&dir, &spec, &progress));
    py.check_signals()?;
    made.map_err(|why| failed(&why))?;
    Ok(dir)
}

/// The operators and sources with their parameters, as JSON.
#[pyfunction]
fn operators() -> String {
    serde_json::json!({ "operators": describe(registry()), "sources": FORMATS }).to_string()
}

/// Keeps the memory of the fetcher's buffer around `address`, so that it can be registered with a device: its first address
/// and its length in bytes. None if no buffer of the fetcher's pools is there.
#[pyfunction]
fn keep_buffer(address: usize) -> Option<(usize, usize)> {
    gristmill_ports::keep_buffer(address).map(|place| (place.start, place.bytes))
}

/// The buffer that begins at `start` is registered no more: its memory may be freed.
#[pyfunction]
fn let_go_buffer(start: usize) {
    gristmill_ports::let_go_buffer(start);
}

/// First addresses of the kept buffers that no fetcher uses any more.
#[pyfunction]
fn unused_buffers() -> Vec<usize> {
    gristmill_ports::unused_buffers()
}

#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<batch::PyBatch>()?;
    module.add_class::<batch::PyEpochEnd>()?;
    module.add_class::<job::PyJob>()?;
    module.add_class::<service::PyService>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_class::<wait::PyInterrupt>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(canonical, module)?)?;
    module.add_function(wrap_pyfunction!(operators, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline_tree, module)?)?;
    module.add_function(wrap_pyfunction!(job::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(generate, module)?)?;
    module.add_function(wrap_pyfunction!(keep_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(let_go_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(unused_buffers, module)?)?;
    Ok(())
}
