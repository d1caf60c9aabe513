//! Rows that wait until a batch of them is full: sequences, whose padding depends on the longest.

use crate::program::{Delivered, Program};
use gristmill_format::{ChunkWriter, FormatError, FrameKind, Schema, TensorSpec};

/// The open batches of a split, one for each bucket.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    buckets: Vec<Rows>,
    /// What buckets had left at the end of the split.
    rest: Rows,
}

/// Rows of one open batch: of each delivered field the values, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Key and copy of each row.
    origins: Vec<(u64, u32)>,
    fields: Vec<Column>,
}

#[derive(Debug, Default)]
struct Column {
    values: Vec<u8>,
    /// Where each row ends in `values`.
    ends: Vec<usize>,
}

impl Column {
    fn row(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[start..self.ends[row]]
    }

    fn longest_bytes(&self) -> usize {
        let mut start = 0;
        let lengths = self.ends.iter().map(|&end| end - std::mem::replace(&mut start, end));
        lengths.max().unwrap_or(0)
    }
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.origins.len()
    }

    fn clear(&mut self) {
        self.origins.clear();
        for column in &mut self.fields {
            column.values.clear();
            column.ends.clear();
        }
    }

    /// Starts a row; its fields follow in their order.
    fn begin(&mut self, origin: (u64, u32), fields: usize) {
        self.fields.resize_with(fields, Column::default);
        self.origins.push(origin);
    }

    fn push(&mut self, field: usize, value: &[u8]) {
        let column = &mut self.fields[field];
        column.values.extend_from_slice(value);
        column.ends.push(column.values.len());
    }

    /// Writes all rows as one frame.
    fn write(
        &self,
        program: &Program,
        writer: &mut ChunkWriter,
        kind: FrameKind,
    ) -> Result<(), FormatError> {
        let rows = self.len();
        let padded = match kind {
            FrameKind::Batch => Some(self.padded_schema(program)?),
            FrameKind::Remainder => None,
        };
        writer.begin_frame(padded.as_ref().unwrap_or(&program.schema), rows)?;
        for (row, (key, copy)) in self.origins.iter().enumerate() {
            writer.row_mut(program.key_tensor, row)?.copy_from_slice(&key.to_le_bytes());
            writer.row_mut(program.copy_tensor, row)?.copy_from_slice(&copy.to_le_bytes());
        }
        for (field, column) in program.delivered.iter().zip(&self.fields) {
            for row in 0..rows {
                let value = column.row(row);
                match (&field.sequence, &padded) {
                    (Some(_), None) => writer.push_ragged(field.tensor, value)?,
                    (sequence, _) => {
                        let (start, rest) =
                            writer.row_mut(field.tensor, row)?.split_at_mut(value.len());
                        start.copy_from_slice(value);
                        if let Some(sequence) = sequence {
                            fill(rest, &sequence.pad);
                        }
                    }
                }
            }
        }
        writer.end_frame(kind, rows)
    }

    /// The program's tensors with every sequence as long as the longest of these rows is padded to.
    fn padded_schema(&self, program: &Program) -> Result<Schema, FormatError> {
        let mut tensors: Vec<TensorSpec> = program.schema.tensors().to_vec();
        for (field, column) in program.delivered.iter().zip(&self.fields) {
            let Some(sequence) = &field.sequence else { continue };
            let longest = column.longest_bytes() / sequence.item_bytes;
            let items = program.batching.padded_length(&field.name, longest);
            // Rows that are too long were refused when they came.
            let items = items.unwrap_or(longest);
            let spec = &mut tensors[field.tensor];
            let shape = [items].into_iter().chain(spec.shape.iter().copied()).collect::<Vec<_>>();
            *spec = TensorSpec::fixed(&spec.name, spec.dtype, shape);
        }
        Schema::new(tensors)
    }
}

/// Fills `out` with one value, over and over.
fn fill(out: &mut [u8], value: &[u8]) {
    match value {
        [byte] => out.fill(*byte),
        zeros if zeros.iter().all(|byte| *byte == 0) => out.fill(0),
        _ => out.chunks_exact_mut(value.len()).for_each(|to| to.copy_from_slice(value)),
    }
}

impl Staging {
    /// Forgets all rows; the memory stays.
    pub(crate) fn reset(&mut self) {
        self.buckets.iter_mut().for_each(Rows::clear);
        self.rest.clear();
    }

    /// Takes in a row: `value` gives the bytes of a delivered field. Writes the batch it completes;
    /// returns whether it did.
    ///
    /// # Errors
    /// A row that is longer than its padding allows is the record's error.
    pub(crate) fn push<'v>(
        &mut self,
        program: &Program,
        writer: &mut ChunkWriter,
        origin: (u64, u32),
        value: impl Fn(&Delivered) -> &'v [u8],
    ) -> Result<bool, Refused> {
        let mut bucket = 0;
        for field in &program.delivered {
            let Some(sequence) = &field.sequence else { continue };
            let items = value(field).len() / sequence.item_bytes;
            program.batching.padded_length(&field.name, items).map_err(Refused::Row)?;
            if let Some(buckets) =
                program.batching.buckets.as_ref().filter(|b| b.field == field.name)
            {
                bucket = buckets.of(items);
            }
        }
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, Rows::default);
        }
        let rows = &mut self.buckets[bucket];
        rows.begin(origin, program.delivered.len());
        for (i, field) in program.delivered.iter().enumerate() {
            rows.push(i, value(field));
        }
        write_if_full(rows, program, writer)
    }

    /// Writes what is left: full batches of neighbouring buckets, then the remainder. Returns the
    /// number of batches and the rows of the remainder.
    pub(crate) fn finish(
        &mut self,
        program: &Program,
        writer: &mut ChunkWriter,
    ) -> Result<(u32, u32), FormatError> {
        let Staging { buckets, rest } = self;
        let mut batches = 0;
        for rows in buckets {
            for row in 0..rows.len() {
                rest.begin(rows.origins[row], rows.fields.len());
                for field in 0..rows.fields.len() {
                    rest.push(field, rows.fields[field].row(row));
                }
                if rest.len() == program.batching.size as usize {
                    rest.write(program, writer, FrameKind::Batch)?;
                    rest.clear();
                    batches += 1;
                }
            }
            rows.clear();
        }
        let left = rest.len() as u32;
        if left > 0 {
            rest.write(program, writer, FrameKind::Remainder)?;
            rest.clear();
        }
        Ok((batches, left))
    }
}

/// Why a row was not taken in.
pub(crate) enum Refused {
    Row(String),
    Fatal(FormatError),
}

fn write_if_full(
    rows: &mut Rows,
    program: &Program,
    writer: &mut ChunkWriter,
) -> Result<bool, Refused> {
    if rows.len() < program.batching.size as usize {
        return Ok(false);
    }
    rows.write(program, writer, FrameKind::Batch).map_err(Refused::Fatal)?;
    rows.clear();
    Ok(true)
}
