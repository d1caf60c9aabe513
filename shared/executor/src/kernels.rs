//! Runs the kernels of a pipeline in a bare loop: a lower bound on engine time, for benchmarks.

use crate::{
    CompiledPipeline, ExecError, ExecutorScratch,
    element::ElementContext,
    split::{InputRange, InputRecord, records},
    step::StepAction,
};

use gristmill_kernel::{DrawKey, FieldCell, KernelScratch};
use gristmill_model::Epoch;

impl CompiledPipeline {
    /// Parses every record of `part`, runs the kernels on it, and copies the delivered fields,
    /// sequences unpadded. It skips the engine's work: no batches, no metrics, no output. Returns
    /// the bytes copied.
    ///
    /// # Errors
    /// [`ExecError::Source`] for the first bad record, or if an operator is not a kernel: one that
    /// filters, makes lists into elements, or caches.
    pub fn run_kernels(
        &self,
        scratch: &mut ExecutorScratch,
        part: &InputRange<'_>,
        epoch: Epoch,
    ) -> Result<u64, ExecError> {
        part.check()?;
        // One row per tensor, which every element overwrites.
        let row = |tensor| vec![0; self.schema.item_bytes(tensor).unwrap_or(0)];
        let mut rows: Vec<Vec<u8>> = (0..self.schema.tensors().len()).map(row).collect();
        let ExecutorScratch { cells, tools, .. } = scratch;
        let mut copied = 0;
        for record in records(std::slice::from_ref(part), None, 0) {
            let input = record?;
            let InputRecord { key, copy, .. } = input;
            let (record, _) = input.read(&self.reader, cells).map_err(ExecError::Source)?;
            let element = ElementContext { key, record, copy, level: 0 };
            let bytes = self.bare(0, element, epoch, cells, tools, &mut rows);
            copied += bytes.map_err(ExecError::Source)?;
        }
        Ok(copied)
    }

    fn bare(
        &self,
        from: usize,
        element: ElementContext<'_>,
        epoch: Epoch,
        cells: &mut [FieldCell],
        tools: &mut KernelScratch,
        rows: &mut [Vec<u8>],
    ) -> Result<u64, String> {
        let ElementContext { key, record, copy, level } = element;
        for (i, step) in self.steps.iter().enumerate().skip(from) {
            match &step.action {
                StepAction::Duplicate { copies } => {
                    cells.iter_mut().for_each(|cell| cell.hold(level));
                    let places: Vec<_> =
                        cells.iter().map(|cell| (cell.place.clone(), cell.size)).collect();
                    let mut copied = 0;
                    for copy in 0..*copies {
                        for (cell, (place, size)) in cells.iter_mut().zip(&places) {
                            cell.place.clone_from(place);
                            cell.size = *size;
                        }
                        let element = ElementContext { copy, level: level + 1, ..element };
                        copied += self.bare(i + 1, element, epoch, cells, tools, rows)?;
                    }
                    return Ok(copied);
                }
                StepAction::FlatMap { .. } | StepAction::Filter { .. } | StepAction::Point(_) => {
                    return Err(format!("`{}` is no kernel", step.name));
                }
                _ => {
                    let ordinal = step.ordinal;
                    let draw = DrawKey { seed: 0, epoch, record: key, repeat: 0, copy, ordinal };
                    let row: &mut [u8] = match step.in_row(cells) {
                        Some(cell) => rows.get_mut(self.tensor_of(cell)).ok_or("no such row")?,
                        None => &mut [],
                    };
                    step.apply(cells, record, row, tools, || draw.draw())?;
                }
            }
        }
        let mut copied = 0;
        for field in &self.delivered {
            let row = &mut rows[field.tensor];
            if field.copied {
                let value = cells[field.cell].value(record, &[]);
                row.clear();
                row.extend_from_slice(value);
            }
            copied += row.len() as u64;
        }
        Ok(copied)
    }
}
