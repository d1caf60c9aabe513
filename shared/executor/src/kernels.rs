//! The kernels of a pipeline in a bare loop: what no engine built on them can go below. For benchmarks.

use crate::{
    ExecError, Program, Scratch,
    cell::Cell,
    random::DrawKey,
    split::Part,
    step::{Action, Tools},
};
use gristmill_types::{Epoch, RecordKey};

/// Where values are copied to that a batch would hold: rows one over the other.
struct Rows(Vec<Vec<u8>>);

/// What is the same for all steps of an element.
#[derive(Clone, Copy)]
struct Bare<'a> {
    record: &'a [u8],
    key: RecordKey,
    epoch: Epoch,
    copy: u32,
    level: usize,
}

impl Program {
    /// Parses every record of `part`, runs the operators' kernels over it, and copies what is delivered,
    /// sequences as they are. No batches are laid out, nothing is measured and nothing kept: what is left
    /// out is the engine. Returns the bytes copied.
    ///
    /// # Errors
    /// [`ExecError::Source`] for the first record that is bad, or if an operator is no kernel: those that
    /// make lists into elements, or cache.
    pub fn run_kernels(
        &self,
        scratch: &mut Scratch,
        part: &Part<'_>,
        epoch: Epoch,
    ) -> Result<u64, ExecError> {
        part.check()?;
        let mut rows = Rows(vec![Vec::new(); self.delivered.len()]);
        let mut copied = 0;
        for (i, range) in part.records() {
            let stored = &part.data[range];
            let Scratch { cells, tools, .. } = scratch;
            let read = self.reader.read(stored, cells).map_err(ExecError::Source)?;
            let key = RecordKey { record: part.first.record + i, ..part.first };
            let element = Bare { record: read.0, key, epoch, copy: 0, level: 0 };
            let bytes = self.bare(0, element, (cells, tools), &mut rows);
            copied += bytes.map_err(ExecError::Source)?;
        }
        Ok(copied)
    }

    fn bare(
        &self,
        from: usize,
        element: Bare<'_>,
        (cells, tools): (&mut [Cell], &mut Tools),
        rows: &mut Rows,
    ) -> Result<u64, String> {
        let Bare { record, key, epoch, copy, level } = element;
        for (i, step) in self.steps.iter().enumerate().skip(from) {
            match &step.action {
                Action::Duplicate { copies } => {
                    cells.iter_mut().for_each(|cell| cell.hold(level));
                    let places: Vec<_> =
                        cells.iter().map(|cell| (cell.place.clone(), cell.size)).collect();
                    let mut copied = 0;
                    for copy in 0..*copies {
                        for (cell, (place, size)) in cells.iter_mut().zip(&places) {
                            cell.place.clone_from(place);
                            cell.size = *size;
                        }
                        let element = Bare { copy, level: level + 1, ..element };
                        copied += self.bare(i + 1, element, (cells, tools), rows)?;
                    }
                    return Ok(copied);
                }
                Action::FlatMap { .. } | Action::Filter { .. } | Action::Point(_) => {
                    return Err(format!("`{}` is no kernel", step.name));
                }
                _ => {
                    let ordinal = step.ordinal;
                    let draw = DrawKey { seed: 0, epoch, record: key, repeat: 0, copy, ordinal };
                    let row: &mut [u8] = match step.in_row(cells) {
                        Some(cell) => rows.of(self, cell)?,
                        None => &mut [],
                    };
                    step.apply(cells, (record, row), tools, || draw.draw())?;
                }
            }
        }
        let mut copied = 0;
        for (field, row) in self.delivered.iter().zip(&mut rows.0) {
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

impl Rows {
    /// The row of a field of known size.
    fn of(&mut self, program: &Program, cell: usize) -> Result<&mut [u8], String> {
        let field = program.delivered.iter().position(|field| field.cell == cell);
        let field = field.ok_or("a field that is written is not delivered")?;
        let bytes = program.schema.item_bytes(program.delivered[field].tensor).unwrap_or(0);
        self.0[field].resize(bytes, 0);
        Ok(&mut self.0[field])
    }
}
