//! The extension module of the Python package: connections, jobs and streams for its loaders, and the whole command
//! line, which also is the program of a service that a trainer starts.

mod batch;
mod errors;
mod log;
mod service;
mod stream;
mod wait;

use gristmill_client::{AuthoredPipeline, ServiceLauncher};
use gristmill_operators::registry;
use gristmill_sources::FORMATS;
use gristmill_syntax::SyntaxNode;
use gristmill_syntax::node::NodeValue;
use gristmill_synthetic::DatasetSpec;
use pyo3::prelude::*;
use serde_json::{Map, Number, json};
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
    let authored = authored.map_err(|error| errors::pipeline_error(py, &error))?;
    Ok(authored.pipeline.canonical_json())
}

/// A pipeline file's text as JSON, `[tree, lines]`: the line of each operator, from 1.
#[pyfunction]
fn pipeline_tree(py: Python<'_>, yaml: &str) -> PyResult<String> {
    let tree = SyntaxNode::parse(yaml).map_err(|error| errors::pipeline_error(py, &error))?;
    let lines = lines_of_ops(&tree);
    Ok(serde_json::json!([json(&tree), lines]).to_string())
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
    serde_json::json!({ "operators": registry().entries(), "sources": FORMATS }).to_string()
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
    module.add_class::<service::PyJob>()?;
    module.add_class::<service::PyService>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_class::<wait::PyInterrupt>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(canonical, module)?)?;
    module.add_function(wrap_pyfunction!(operators, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline_tree, module)?)?;
    module.add_function(wrap_pyfunction!(service::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(generate, module)?)?;
    module.add_function(wrap_pyfunction!(keep_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(let_go_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(unused_buffers, module)?)?;
    Ok(())
}

// The tree of a pipeline file as JSON, for the builder in Python.

/// The tree without lines. Numbers beyond JSON's become texts, which the pipeline's reader then refuses.
pub fn json(node: &SyntaxNode) -> serde_json::Value {
    match &node.value {
        NodeValue::Null => serde_json::Value::Null,
        NodeValue::Bool(value) => json!(value),
        NodeValue::Int(value) => match Number::from_i128(*value) {
            Some(number) => number.into(),
            None => json!(value.to_string()),
        },
        NodeValue::Float(value) => match Number::from_f64(*value) {
            Some(number) => number.into(),
            None => json!(value.to_string()),
        },
        NodeValue::Str(text) => json!(text),
        NodeValue::Seq(items) => items.iter().map(json).collect(),
        NodeValue::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| (key_of(key), json(value)));
            entries.collect::<Map<_, _>>().into()
        }
    }
}

/// A key as text.
fn key_of(key: &SyntaxNode) -> String {
    match &key.value {
        NodeValue::Str(text) => text.clone(),
        _ => json(key).to_string(),
    }
}

/// The line of each item of the list `ops`.
pub fn lines_of_ops(tree: &SyntaxNode) -> Vec<Option<u32>> {
    let NodeValue::Map(entries) = &tree.value else { return Vec::new() };
    let ops = entries.iter().find(|(key, _)| key_of(key) == "ops");
    match ops.map(|(_, ops)| &ops.value) {
        Some(NodeValue::Seq(items)) => items.iter().map(|item| item.line).collect(),
        _ => Vec::new(),
    }
}
