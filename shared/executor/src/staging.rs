//! Stages rows until their batch is full: the longest sequence of a batch determines its padding.

use crate::program::{CompiledPipeline, DeliveredField};
use bytes::BytesMut;
use gristmill_chunk::{
    ChunkFormatError, ChunkFrame, ChunkFrameKind, ChunkLimits, ChunkWriter, FrameSchema,
    TensorDType, TensorSpec, TensorView,
};
use gristmill_pipeline::KeyGroups;
use std::collections::BTreeMap;

/// The open batches of a split, one per bucket.
#[derive(Debug, Default)]
pub(crate) struct BatchStaging {
    buckets: Vec<StagedRows>,
    /// The index in `buckets` of each key.
    keys: BTreeMap<i128, usize>,
    /// Rows staged in this split, written ones included.
    staged: u32,
    /// Rows left in the buckets at the end of the split.
    rest: StagedRows,
}

/// Rows of one open batch, stored by field.
#[derive(Debug, Default)]
pub(crate) struct StagedRows {
    /// Key and copy of each row.
    origins: Vec<(u64, u32)>,
    fields: Vec<Column>,
}

#[derive(Debug, Default)]
struct Column {
    values: Vec<u8>,
    /// The end of each row in `values`.
    ends: Vec<usize>,
}

impl Column {
    fn row(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[start..self.ends[row]]
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.truncate(rows);
        self.values.truncate(self.ends.last().copied().unwrap_or(0));
    }

    fn longest_bytes(&self) -> usize {
        let mut start = 0;
        let lengths = self.ends.iter().map(|&end| end - std::mem::replace(&mut start, end));
        lengths.max().unwrap_or(0)
    }
}

impl StagedRows {
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

    /// Starts a row. The caller then pushes its fields in order.
    fn begin(&mut self, origin: (u64, u32), fields: usize) {
        self.fields.resize_with(fields, Column::default);
        self.origins.push(origin);
    }

    fn push(&mut self, field: usize, value: &[u8]) {
        let column = &mut self.fields[field];
        column.values.extend_from_slice(value);
        column.ends.push(column.values.len());
    }

    /// Adds the row `row` of `from`.
    fn copy_row(&mut self, from: &StagedRows, row: usize) {
        self.begin(from.origins[row], from.fields.len());
        for (field, column) in from.fields.iter().enumerate() {
            self.push(field, column.row(row));
        }
    }

    fn truncate(&mut self, rows: usize) {
        self.origins.truncate(rows);
        self.fields.iter_mut().for_each(|column| column.truncate(rows));
    }

    fn write(
        &self,
        program: &CompiledPipeline,
        writer: &mut ChunkWriter,
        kind: ChunkFrameKind,
    ) -> Result<(), ChunkFormatError> {
        let rows = self.len();
        let padded = match kind {
            ChunkFrameKind::Batch => Some(self.padded_schema(program)?),
            ChunkFrameKind::Remainder => None,
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

    fn padded_schema(&self, program: &CompiledPipeline) -> Result<FrameSchema, ChunkFormatError> {
        program.padded_schema(|field| self.fields[field].longest_bytes())
    }
}

impl CompiledPipeline {
    /// Whether batches have padded sequences. Remainder frames never have.
    pub fn pads(&self) -> bool {
        self.batching.padding.is_some() && self.schema.has_ragged()
    }

    /// Whether padding is left to the joining of splits, for full batches too. A row's padding
    /// depends on the other rows of its batch, and with batches in order these may be in the
    /// previous split.
    pub fn pads_late(&self) -> bool {
        self.pads() && self.in_order
    }

    /// Whether rows are staged until their batch is full.
    pub(crate) fn stages(&self) -> bool {
        self.batching.padding.is_some() && !self.in_order
    }

    /// Pads the rows of `frame` to a batch, as a worker would have made it of the same rows. The
    /// frame has this program's tensors with unpadded sequences. `buffer` gets a size in bytes and
    /// returns an empty buffer for it.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if the frame has other tensors, [`ChunkFormatError::OverLimit`] if the
    /// padded frame would exceed `limits`.
    pub fn pad(
        &self,
        frame: &ChunkFrame,
        limits: &ChunkLimits,
        buffer: impl FnOnce(usize) -> BytesMut,
    ) -> Result<BytesMut, ChunkFormatError> {
        if *frame.schema() != self.schema {
            return Err(ChunkFormatError::invalid("the frame is not of this pipeline"));
        }
        // A frame that was read may have its tensors in another order.
        let views = self.schema.tensors().iter().map(|spec| frame.get(&spec.name));
        let views: Option<Vec<TensorView<'_>>> = views.collect();
        let views = views.ok_or_else(|| ChunkFormatError::invalid("the frame lacks a tensor"))?;
        let longest = |field: usize| {
            let view = &views[self.delivered[field].tensor];
            let rows = (0..frame.rows()).filter_map(|row| view.row(row));
            rows.map(<[u8]>::len).max().unwrap_or(0)
        };
        let schema = self.padded_schema(longest)?;
        let layout = schema.layout(frame.rows(), &vec![0; schema.tensors().len()])?;
        let bytes = layout.frame_bytes();
        ChunkFormatError::within("frame size in bytes", bytes as u64, limits.frame_bytes)?;
        let mut padded = buffer(bytes);
        padded.resize(bytes, 0);
        padded[..layout.header().len()].copy_from_slice(layout.header());
        for (tensor, view) in views.iter().enumerate() {
            let Some(range) = layout.values(tensor) else { continue };
            let field = self.delivered.iter().find(|field| field.tensor == tensor);
            let Some(sequence) = field.and_then(|field| field.sequence.as_ref()) else {
                padded[range].copy_from_slice(view.values());
                continue;
            };
            let row_bytes = range.len() / frame.rows().max(1);
            for (row, to) in padded[range].chunks_exact_mut(row_bytes.max(1)).enumerate() {
                let value = view.row(row).unwrap_or_default();
                let (start, rest) = to.split_at_mut(value.len());
                start.copy_from_slice(value);
                fill(rest, &sequence.pad);
            }
        }
        Ok(padded)
    }

    /// Schema of a padded batch: every sequence gets the padded length of its longest row.
    /// `longest` returns the bytes of that row by index of the field.
    fn padded_schema(
        &self,
        longest: impl Fn(usize) -> usize,
    ) -> Result<FrameSchema, ChunkFormatError> {
        let mut tensors: Vec<TensorSpec> = self.schema.tensors().to_vec();
        for (i, field) in self.delivered.iter().enumerate() {
            let Some(sequence) = &field.sequence else { continue };
            let longest = longest(i) / sequence.item_bytes;
            let items = self.batching.padded_length(&field.name, longest);
            // `push` has refused rows that are too long.
            let items = items.unwrap_or(longest);
            let spec = &mut tensors[field.tensor];
            let shape = [items].into_iter().chain(spec.shape.iter().copied()).collect::<Vec<_>>();
            *spec = TensorSpec::fixed(&spec.name, spec.dtype, shape);
        }
        FrameSchema::new(tensors)
    }
}

/// Fills `out` with copies of one value.
fn fill(out: &mut [u8], value: &[u8]) {
    match value {
        [byte] => out.fill(*byte),
        zeros if zeros.iter().all(|byte| *byte == 0) => out.fill(0),
        _ => out.chunks_exact_mut(value.len()).for_each(|to| to.copy_from_slice(value)),
    }
}

impl BatchStaging {
    /// Drops all rows and keeps the memory.
    pub(crate) fn reset(&mut self) {
        self.buckets.iter_mut().for_each(StagedRows::clear);
        self.rest.clear();
        self.keys.clear();
        self.staged = 0;
    }

    /// Rows of the split so far.
    pub(crate) fn rows(&self) -> u32 {
        self.staged
    }

    /// Adds a row; `value` returns the bytes of a delivered field. Writes the batch if the row
    /// completes it, and returns whether it did. Fails with [`RowRefusal::Row`] if a sequence is longer
    /// than its padding allows; the record is bad then.
    pub(crate) fn push<'v>(
        &mut self,
        program: &CompiledPipeline,
        writer: &mut ChunkWriter,
        origin: (u64, u32),
        value: impl Fn(&DeliveredField) -> &'v [u8],
    ) -> Result<bool, RowRefusal> {
        let mut bucket = 0;
        for field in &program.delivered {
            let Some(sequence) = &field.sequence else { continue };
            let items = value(field).len() / sequence.item_bytes;
            program.batching.padded_length(&field.name, items).map_err(RowRefusal::Row)?;
            if let Some(buckets) =
                program.batching.buckets.as_ref().filter(|b| b.field == field.name)
            {
                bucket = buckets.bucket_index(items);
            }
        }
        let mut size = program.batching.size_in(bucket);
        if let Some(groups) = &program.batching.groups {
            let key = program.group_key(groups, &value).map_err(RowRefusal::Row)?;
            let next = self.keys.len();
            bucket = *self.keys.entry(key).or_insert(next);
            // Keys between boundaries are their indices; others have one size.
            size = program.batching.size_in(usize::try_from(key).unwrap_or(usize::MAX));
        }
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, StagedRows::default);
        }
        let rows = &mut self.buckets[bucket];
        rows.begin(origin, program.delivered.len());
        for (i, field) in program.delivered.iter().enumerate() {
            rows.push(i, value(field));
        }
        self.staged += 1;
        write_if_full(rows, size, program, writer)
    }

    /// Writes the remaining rows: full batches across neighbouring buckets, then the remainder.
    /// Returns the number of batches and the rows of the remainder.
    pub(crate) fn finish(
        &mut self,
        program: &CompiledPipeline,
        writer: &mut ChunkWriter,
    ) -> Result<(u32, u32), ChunkFormatError> {
        if program.batching.groups.is_some() {
            return self.finish_groups(program, writer);
        }
        if program.batching.has_sizes() {
            return self.finish_sizes(program, writer);
        }
        let BatchStaging { buckets, rest, .. } = self;
        let mut batches = 0;
        for rows in buckets {
            for row in 0..rows.len() {
                rest.copy_row(rows, row);
                if rest.len() == program.batching.size as usize {
                    rest.write(program, writer, ChunkFrameKind::Batch)?;
                    rest.clear();
                    batches += 1;
                }
            }
            rows.clear();
        }
        let left = rest.len() as u32;
        if left > 0 {
            rest.write(program, writer, ChunkFrameKind::Remainder)?;
            rest.clear();
        }
        Ok((batches, left))
    }
}

impl BatchStaging {
    /// As [`finish`](Self::finish) for buckets of several batch sizes. Goes from the longest rows to the shortest, so that
    /// no batch has more rows than the bucket of its longest row allows. The last batch may have fewer, and only rows for
    /// less than the smallest size are the remainder.
    fn finish_sizes(
        &mut self,
        program: &CompiledPipeline,
        writer: &mut ChunkWriter,
    ) -> Result<(u32, u32), ChunkFormatError> {
        let BatchStaging { buckets, rest, .. } = self;
        let (mut batches, mut size) = (0, 0);
        for (bucket, rows) in buckets.iter_mut().enumerate().rev() {
            for row in 0..rows.len() {
                if rest.len() == 0 {
                    size = program.batching.size_in(bucket) as usize;
                }
                rest.copy_row(rows, row);
                if rest.len() == size {
                    rest.write(program, writer, ChunkFrameKind::Batch)?;
                    rest.clear();
                    batches += 1;
                }
            }
            rows.clear();
        }
        let left = rest.len() % program.batching.size.max(1) as usize;
        let whole = rest.len() - left;
        let mut tail = StagedRows::default();
        (whole..rest.len()).for_each(|row| tail.copy_row(rest, row));
        rest.truncate(whole);
        if whole > 0 {
            rest.write(program, writer, ChunkFrameKind::Batch)?;
            batches += 1;
        }
        rest.clear();
        if left > 0 {
            tail.write(program, writer, ChunkFrameKind::Remainder)?;
        }
        Ok((batches, left as u32))
    }
}

impl BatchStaging {
    /// Writes a short batch of each key that has rows left, by key. Rows of two keys are never in one batch, so there is no
    /// remainder.
    fn finish_groups(
        &mut self,
        program: &CompiledPipeline,
        writer: &mut ChunkWriter,
    ) -> Result<(u32, u32), ChunkFormatError> {
        let mut batches = 0;
        for bucket in self.keys.values() {
            // A bad record may have taken a number without leaving a row.
            let Some(rows) = self.buckets.get_mut(*bucket).filter(|rows| rows.len() > 0) else {
                continue;
            };
            rows.write(program, writer, ChunkFrameKind::Batch)?;
            rows.clear();
            batches += 1;
        }
        self.keys.clear();
        Ok((batches, 0))
    }
}

impl CompiledPipeline {
    /// The key of an element, of which `value` returns the bytes of a delivered field.
    fn group_key<'v>(
        &self,
        groups: &KeyGroups,
        value: impl Fn(&DeliveredField) -> &'v [u8],
    ) -> Result<i128, String> {
        let missing = || format!("`{}` is missing: please report this", groups.field);
        let field = self.delivered.iter().find(|field| field.name == groups.field);
        let field = field.ok_or_else(missing)?;
        let bytes = value(field);
        let number = match &field.sequence {
            Some(sequence) => Some((bytes.len() / sequence.item_bytes.max(1)) as i128),
            None => whole_number(self.schema.tensors()[field.tensor].dtype, bytes),
        };
        number.map(|number| groups.key(number)).ok_or_else(missing)
    }
}

/// The whole number that `bytes` are; none of another type.
fn whole_number(dtype: TensorDType, bytes: &[u8]) -> Option<i128> {
    Some(match dtype {
        TensorDType::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        TensorDType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        TensorDType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        TensorDType::U64 => u64::from_le_bytes(bytes.try_into().ok()?).into(),
        TensorDType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        TensorDType::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
        _ => return None,
    })
}

/// Reason why a row was not added.
pub(crate) enum RowRefusal {
    Row(String),
    Fatal(ChunkFormatError),
}

fn write_if_full(
    rows: &mut StagedRows,
    size: u32,
    program: &CompiledPipeline,
    writer: &mut ChunkWriter,
) -> Result<bool, RowRefusal> {
    if rows.len() < size as usize {
        return Ok(false);
    }
    rows.write(program, writer, ChunkFrameKind::Batch).map_err(RowRefusal::Fatal)?;
    rows.clear();
    Ok(true)
}
