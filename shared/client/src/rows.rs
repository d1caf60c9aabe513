//! Rows that are joined into batches: those of the current split, and those kept from earlier splits.

use bytes::Bytes;
use gristmill_chunk::{Chunk, FormatError, Frame, Limits, join_rows};
use gristmill_model::Position;
use gristmill_model::splits::batches::Piece;
use gristmill_ports::BufferPool;
use std::{collections::BTreeMap, ops::Range};

/// Objects in memory, or frames of them, by split.
pub(crate) type Chunks = BTreeMap<Position, Chunk>;

/// Rows of one split, copied out of its object so that the object can be freed.
struct Kept {
    /// Index in the split of the first row.
    first: u32,
    frame: Frame,
}

/// Leftover rows of splits that later batches need.
pub(crate) struct Rows {
    /// Rows per batch.
    size: u32,
    kept: BTreeMap<Position, Kept>,
    buffers: BufferPool,
}

impl Rows {
    /// An empty store for batches of `size` rows.
    pub fn new(size: u32, buffers: BufferPool) -> Self {
        Self { size, kept: BTreeMap::new(), buffers }
    }

    /// Joins the rows of `pieces` into one frame; rows of splits that were not kept come from `chunks`.
    pub fn join(&self, pieces: &[Piece], chunks: &Chunks) -> Result<Bytes, FormatError> {
        let mut parts: Vec<(Frame, Range<usize>)> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(Kept { first, frame }) = self.kept.get(&piece.position) else {
                let missing = || FormatError::invalid("rows of an earlier split are missing");
                let chunk = chunks.get(&piece.position).ok_or_else(missing)?;
                self.find(chunk, &piece.rows, &mut parts)?;
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

    /// Keeps rows of a split in `chunks` for later.
    pub fn keep(&mut self, piece: &Piece, chunks: &Chunks) -> Result<(), FormatError> {
        let frame = self.join(std::slice::from_ref(piece), chunks)?;
        let frame = Frame::parse(frame, &Limits::default())?;
        self.kept.insert(piece.position, Kept { first: piece.rows.start, frame });
        Ok(())
    }

    /// Drops splits before `position`.
    pub fn forget_before(&mut self, position: Position) {
        self.kept = self.kept.split_off(&position);
    }

    /// Drops all rows.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// The parts of frames that hold the given rows of the split in `chunk`, counted across its frames.
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
