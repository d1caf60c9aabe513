//! A frame being filled.
//!
//! Rows of fixed tensors are written in their final place. Tensors are moved, once, only if fewer rows are written
//! than planned, or ragged tensors take space.

use std::ops::Range;

use crate::schema::TensorPartRole;
use crate::{ChunkFormatError, FrameLayout, FrameSchema};

/// The rows of one ragged tensor so far.
#[derive(Debug, Default)]
struct RaggedRows {
    values: Vec<u8>,
    /// End of each row in `values`.
    ends: Vec<usize>,
}

/// A planned layout, and the ragged values that have no place in it yet.
#[derive(Debug)]
pub(crate) struct OpenFrame {
    planned: FrameLayout,
    /// Per tensor; empty for fixed ones.
    ragged: Vec<RaggedRows>,
}

impl OpenFrame {
    pub(crate) fn new(schema: &FrameSchema, rows: usize) -> Result<Self, ChunkFormatError> {
        let planned = schema.layout(rows, &[])?;
        let ragged = schema.tensors().iter().map(|_| RaggedRows::default()).collect();
        Ok(OpenFrame { planned, ragged })
    }

    pub(crate) fn planned(&self) -> &FrameLayout {
        &self.planned
    }

    pub(crate) fn row(&self, tensor: usize, row: usize) -> Result<Range<usize>, ChunkFormatError> {
        self.planned.row(tensor, row).ok_or_else(|| {
            let (rows, ragged) = (self.planned.rows(), &self.ragged);
            ChunkFormatError::invalid(format!(
                "no row {row} of fixed tensor {tensor} in a frame of {rows} rows and {} tensors",
                ragged.len()
            ))
        })
    }

    /// Upper bound of the frame's size with `more` bytes of ragged values.
    pub(crate) fn bytes_with(&self, more: usize) -> u64 {
        let ragged: usize = self.ragged.iter().map(|column| column.values.len()).sum();
        self.planned.frame_bytes() as u64 + ragged as u64 + more as u64
    }

    pub(crate) fn push_ragged(
        &mut self,
        tensor: usize,
        row: &[u8],
    ) -> Result<(), ChunkFormatError> {
        let schema = self.planned.schema();
        let (Some(spec), Some(item_bytes)) =
            (schema.tensors().get(tensor).filter(|spec| spec.ragged), schema.item_bytes(tensor))
        else {
            return Err(ChunkFormatError::invalid(format!("tensor {tensor} is not a ragged one")));
        };
        let column = &mut self.ragged[tensor];
        if !row.len().is_multiple_of(item_bytes) {
            return Err(ChunkFormatError::invalid(format!(
                "a row of {} bytes is not made of items of tensor {:?}, {item_bytes} bytes each",
                row.len(),
                spec.name
            )));
        }
        if column.ends.len() == self.planned.rows() {
            return Err(ChunkFormatError::invalid(format!(
                "tensor {:?} already has all its {} rows",
                spec.name,
                self.planned.rows()
            )));
        }
        column.values.extend_from_slice(row);
        column.ends.push(column.values.len());
        Ok(())
    }

    pub(crate) fn truncate_ragged(&mut self, rows: usize) {
        for column in &mut self.ragged {
            column.ends.truncate(rows);
            column.values.truncate(column.ends.last().copied().unwrap_or(0));
        }
    }

    /// The layout for the rows that were written.
    pub(crate) fn final_layout(&mut self, rows: usize) -> Result<FrameLayout, ChunkFormatError> {
        if rows == 0 || rows > self.planned.rows() {
            return Err(ChunkFormatError::invalid(format!(
                "a frame begun with {} rows cannot end with {rows}",
                self.planned.rows()
            )));
        }
        self.truncate_ragged(rows);
        let schema = self.planned.schema();
        if rows == self.planned.rows() && !schema.has_ragged() {
            return Ok(self.planned.clone());
        }
        let mut items = vec![0; self.ragged.len()];
        for (tensor, spec) in schema.tensors().iter().enumerate().filter(|(_, spec)| spec.ragged) {
            let column = &self.ragged[tensor];
            if column.ends.len() != rows {
                return Err(ChunkFormatError::invalid(format!(
                    "ragged tensor {:?} has {} of {rows} rows",
                    spec.name,
                    column.ends.len()
                )));
            }
            items[tensor] = column.values.len() / schema.item_bytes(tensor).unwrap_or(1);
        }
        schema.layout(rows, &items)
    }

    /// Moves the frame in `bytes` from the planned to the final layout and completes it. `bytes` is at least as long as
    /// either.
    pub(crate) fn complete(&self, layout: &FrameLayout, bytes: &mut [u8]) {
        self.move_fixed(layout, bytes);
        bytes[..layout.header().len()].copy_from_slice(layout.header());
        for part in layout.schema().parts() {
            let column = &self.ragged[part.tensor];
            if part.role == TensorPartRole::Offsets {
                let values = layout.values(part.tensor).unwrap_or_default();
                bytes[values].copy_from_slice(&column.values);
                let item_bytes = layout.schema().item_bytes(part.tensor).unwrap_or(1);
                let offsets = &mut bytes[layout.offsets(part.tensor).unwrap_or_default()];
                let ends = std::iter::once(&0).chain(&column.ends);
                for (slot, end) in offsets.as_chunks_mut::<8>().0.iter_mut().zip(ends) {
                    *slot = ((end / item_bytes) as u64).to_le_bytes();
                }
            }
        }
    }

    /// Tensors keep their order, so moving those that go down in ascending order, then those that go up in descending
    /// order, overwrites none before it has moved.
    fn move_fixed(&self, layout: &FrameLayout, bytes: &mut [u8]) {
        let schema = layout.schema();
        let moves = schema.parts().iter().filter(|part| !schema.tensors()[part.tensor].ragged).map(
            |part| {
                let from = self.planned.values(part.tensor).unwrap_or_default().start;
                (from, layout.values(part.tensor).unwrap_or_default())
            },
        );
        for (from, to) in moves.clone().filter(|(from, to)| to.start < *from) {
            bytes.copy_within(from..from + to.len(), to.start);
        }
        for (from, to) in moves.rev().filter(|(from, to)| to.start > *from) {
            bytes.copy_within(from..from + to.len(), to.start);
        }
    }
}
