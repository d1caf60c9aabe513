//! Rows that batches are joined of: those of the split at hand, and those kept of earlier ones.

use bytes::Bytes;
use gristmill_chunk::{Chunk, FormatError, Frame, Limits, join_rows};
use gristmill_model::Position;
use gristmill_model::splits::batches::Piece;
use gristmill_ports::BufferPool;
use std::{collections::BTreeMap, ops::Range};

/// Rows of one split, copied out of its object so that this can be freed.
struct Kept {
    /// The number of its first row in the split.
    first: u32,
    frame: Frame,
}

/// Rows that splits left over and later batches need.
pub(crate) struct Rows {
    /// Rows of a whole batch.
    size: u32,
    kept: BTreeMap<Position, Kept>,
    buffers: BufferPool,
}

impl Rows {
    /// For batches of `size` rows.
    pub fn new(size: u32, buffers: BufferPool) -> Self {
        Self { size, kept: BTreeMap::new(), buffers }
    }

    /// The rows of `pieces` as one frame; those of splits that nothing was kept of are in `chunk`.
    pub fn join(&self, pieces: &[Piece], chunk: Option<&Chunk>) -> Result<Bytes, FormatError> {
        let mut parts: Vec<(Frame, Range<usize>)> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(Kept { first, frame }) = self.kept.get(&piece.position) else {
                let missing = || FormatError::invalid("rows of an earlier split are missing");
                self.find(chunk.ok_or_else(missing)?, &piece.rows, &mut parts)?;
                continue;
            };
            let missing = || FormatError::invalid("rows of an earlier split were not kept");
            let start = piece.rows.start.checked_sub(*first).ok_or_else(missing)? as usize;
            parts.push((frame.clone(), start..start + piece.len() as usize));
        }
        let parts: Vec<_> = parts.iter().map(|(frame, rows)| (frame, rows.clone())).collect();
        let joined = join_rows(&parts, &Limits::default(), |bytes| self.buffers.take(bytes))?;
        Ok(self.buffers.lend(joined))
    }

    /// Keeps rows of the split in `chunk` for later.
    pub fn keep(&mut self, piece: &Piece, chunk: &Chunk) -> Result<(), FormatError> {
        let frame = self.join(std::slice::from_ref(piece), Some(chunk))?;
        let frame = Frame::parse(frame, &Limits::default())?;
        self.kept.insert(piece.position, Kept { first: piece.rows.start, frame });
        Ok(())
    }

    /// Forgets splits before `position`.
    pub fn forget_before(&mut self, position: Position) {
        self.kept = self.kept.split_off(&position);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// The parts of frames that rows of the split in `chunk` are, counted through its frames.
    fn find(
        &self,
        chunk: &Chunk,
        rows: &Range<u32>,
        parts: &mut Vec<(Frame, Range<usize>)>,
    ) -> Result<(), FormatError> {
        let mut row = rows.start;
        while row < rows.end {
            let (index, first) = (row / self.size, row - row % self.size);
            let end = rows.end.min(first.saturating_add(self.size));
            let frame = chunk.tensors(index as usize)?;
            parts.push((frame, (row - first) as usize..(end - first) as usize));
            row = end;
        }
        Ok(())
    }
}
