//! Rows that are joined into batches: those of the current split, and those kept from earlier splits.

use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkFrame, ChunkLimits, join_rows};
use gristmill_model::Position;
use gristmill_model::splits::batches::SplitRows;
use gristmill_ports::BufferPool;
use std::{collections::BTreeMap, ops::Range};

/// Objects in memory, or frames of them, by split.
pub(crate) type SplitChunks = BTreeMap<Position, Chunk>;

/// Rows of one split, copied out of its object so that the object can be freed.
struct Kept {
    /// Index in the split of the first row.
    first: u32,
    frame: ChunkFrame,
}

/// Leftover rows of splits that later batches need.
pub(crate) struct LeftoverRows {
    /// Rows per batch.
    size: u32,
    kept: BTreeMap<Position, Kept>,
    buffers: BufferPool,
}

impl LeftoverRows {
    /// An empty store for batches of `size` rows.
    pub fn new(size: u32, buffers: BufferPool) -> Self {
        Self { size, kept: BTreeMap::new(), buffers }
    }

    /// Joins the rows of `pieces` into one frame; rows of splits that were not kept come from `chunks`.
    pub fn join(
        &self,
        pieces: &[SplitRows],
        chunks: &SplitChunks,
    ) -> Result<Bytes, ChunkFormatError> {
        let mut parts: Vec<(ChunkFrame, Range<usize>)> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(Kept { first, frame }) = self.kept.get(&piece.position) else {
                let missing = || ChunkFormatError::invalid("rows of an earlier split are missing");
                let chunk = chunks.get(&piece.position).ok_or_else(missing)?;
                self.find(chunk, &piece.rows, &mut parts)?;
                continue;
            };
            let missing = || ChunkFormatError::invalid("rows of an earlier split were not kept");
            let start = piece.rows.start.checked_sub(*first).ok_or_else(missing)? as usize;
            parts.push((frame.clone(), start..start + piece.len() as usize));
        }
        let parts: Vec<_> = parts.iter().map(|(frame, rows)| (frame, rows.clone())).collect();
        let joined = join_rows(&parts, &ChunkLimits::default(), |bytes| self.buffers.take(bytes))?;
        Ok(self.buffers.lend(joined))
    }

    /// Keeps rows of a split in `chunks` for later.
    pub fn keep(
        &mut self,
        piece: &SplitRows,
        chunks: &SplitChunks,
    ) -> Result<(), ChunkFormatError> {
        let frame = self.join(std::slice::from_ref(piece), chunks)?;
        let frame = ChunkFrame::parse(frame, &ChunkLimits::default())?;
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
        parts: &mut Vec<(ChunkFrame, Range<usize>)>,
    ) -> Result<(), ChunkFormatError> {
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
