//! A batch as Python sees it: one writable buffer, and the tensors in it.
#![allow(unsafe_code, reason = "the buffer protocol hands out a pointer")]

use bytes::Bytes;
use gristmill_chunk::{ChunkFrame, FrameLayout};
use gristmill_model::splits::Cursor;
use pyo3::{exceptions::PyBufferError, ffi, prelude::*};
use std::ffi::c_int;

/// A tensor in the buffer of a batch: name, safetensors dtype, shape, first byte.
type Tensor = (String, &'static str, Vec<usize>, usize);

/// The batch of one step. Its buffer is the fetcher's own: no byte is copied, and nobody else reads or writes it.
#[pyclass(frozen, name = "Batch", module = "gristmill._native")]
pub struct PyBatch {
    bytes: Bytes,
    layout: FrameLayout,
    #[pyo3(get)]
    epoch: u32,
    #[pyo3(get)]
    index: u64,
    #[pyo3(get)]
    rows: usize,
    /// The next batch after this one, for checkpoints.
    #[pyo3(get)]
    next: (u32, u64),
    #[pyo3(get)]
    repeated_for: Option<u64>,
}

impl PyBatch {
    /// `frame` must be the only reader of its bytes.
    pub fn new(frame: &ChunkFrame, at: Cursor, next: Cursor, repeated_for: Option<u64>) -> Self {
        let (bytes, layout) = (frame.bytes().clone(), frame.layout().clone());
        let Cursor { epoch, batch_index: index } = at;
        let (rows, next) = (layout.rows(), (next.epoch, next.batch_index));
        Self { bytes, layout, epoch, index, rows, next, repeated_for }
    }
}

#[pymethods]
impl PyBatch {
    #[getter]
    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        for (index, spec) in self.layout.schema().tensors().iter().enumerate() {
            let (Some(values), Some(item_bytes)) =
                (self.layout.values(index), self.layout.schema().item_bytes(index))
            else {
                continue;
            };
            let offsets = self.layout.offsets(index);
            let items = if spec.ragged { values.len() / item_bytes.max(1) } else { self.rows };
            let shape = [&[items], spec.shape.as_slice()].concat();
            tensors.push((spec.name.clone(), spec.dtype.name(), shape, values.start));
            if let (true, Some(offsets)) = (spec.ragged, offsets) {
                let name = format!("{}.offsets", spec.name);
                tensors.push((name, "U64", vec![self.rows + 1], offsets.start));
            }
        }
        tensors
    }

    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    /// Fills `view` with the whole buffer.
    ///
    /// # Safety
    /// Called by Python alone, with a view that it owns.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view"));
        }
        let bytes = &slf.get().bytes;
        let size = ffi::Py_ssize_t::try_from(bytes.len())
            .map_err(|_| PyBufferError::new_err("the batch is too large"))?;
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: `view` is valid. The bytes live as long as the object, which the view refers to. They are memory of the
        // heap that no Rust code reads any more: `new` was given their only reader, and this type never looks at them.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, size, 0, flags) };
        if filled != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }

    /// # Safety
    /// Called by Python alone.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// The end of an epoch.
#[derive(Default)]
#[pyclass(frozen, get_all, name = "EpochEnd", module = "gristmill._native")]
pub struct PyEpochEnd {
    pub batches: u64,
    /// Last batches, which are too few for a step and which no rank gets.
    pub left_out: u64,
    /// Why the epoch has no batch, if it has none.
    pub why_empty: Option<String>,
}
