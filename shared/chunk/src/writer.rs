//! Writes an object frame by frame in one buffer.
//!
//! The buffer is longer than its content: bytes after `used` are stale or zero and are overwritten, never cleared, so
//! that a reused buffer costs no extra pass over its memory.

use serde::{Deserialize, Serialize};
use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

use crate::footer::HEAD_BYTES;
use crate::open_frame::OpenFrame;
use crate::{
    Chunk, ChunkFormatError, ChunkFrame, ChunkFrameKind, ChunkLimits, Footer, FrameEncoding,
    FrameInfo, FrameSchema, MAGIC, VERSION, aligned,
};

/// Encoding of frames in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameCodec {
    /// Uncompressed.
    Stored,
    /// Compressed; frames that do not get smaller by a sixteenth are stored.
    Zstd { level: i32 },
}

/// Writes objects one after the other.
///
/// A frame is begun with a number of rows, its rows are written in place, and it is ended with the actual number of
/// rows. Every byte of those rows must be written: memory is reused, so bytes that are not written keep old
/// content.
pub struct ChunkWriter {
    codec: FrameCodec,
    limits: ChunkLimits,
    object: Vec<u8>,
    used: usize,
    /// Frames that will be compressed are assembled here instead of in the object.
    scratch: Vec<u8>,
    compressor: Option<Compressor<'static>>,
    frames: Vec<FrameInfo>,
    open: Option<OpenFrame>,
}

impl ChunkWriter {
    /// A writer that refuses what a reader with the default limits would refuse.
    pub fn new(codec: FrameCodec) -> Self {
        Self::with_limits(codec, ChunkLimits::default())
    }

    pub fn with_limits(codec: FrameCodec, limits: ChunkLimits) -> Self {
        ChunkWriter {
            codec,
            limits,
            object: Vec::new(),
            used: HEAD_BYTES,
            scratch: Vec::new(),
            compressor: None,
            frames: Vec::new(),
            open: None,
        }
    }

    /// Room for an object of this size, so that the buffer need not grow. Costs address space, not
    /// memory, until it is written to. No effect once an object has been begun.
    pub fn reserve(&mut self, object_bytes: usize) {
        if !self.has_begun() && self.object.len() < object_bytes {
            self.object = vec![0; object_bytes.min(self.limits.object_bytes as usize)];
        }
    }

    /// Takes back a buffer that [`finish`](Self::finish) gave out, for the next object. Ignored
    /// once that object has been begun.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if !self.has_begun() && buffer.capacity() > self.object.len() {
            buffer.resize(buffer.capacity(), 0);
            self.object = buffer;
        }
    }

    /// Keeps frames in another way from the next object on. Ignored once one has been begun.
    pub fn set_codec(&mut self, codec: FrameCodec) {
        if !self.has_begun() && self.codec != codec {
            self.codec = codec;
            self.compressor = None;
        }
    }

    /// Forgets the object begun, if any; its buffer stays.
    pub fn reset(&mut self) {
        self.open = None;
        self.frames.clear();
        self.used = HEAD_BYTES;
    }

    /// Starts a frame of up to `rows` rows.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if a frame is open, a remainder has been written or `rows` is 0;
    /// [`ChunkFormatError::OverLimit`] if the frame would be too large.
    pub fn begin_frame(
        &mut self,
        schema: &FrameSchema,
        rows: usize,
    ) -> Result<(), ChunkFormatError> {
        self.check_room(rows)?;
        let open = OpenFrame::new(schema, rows)?;
        let frame_bytes = open.planned().frame_bytes();
        self.limits.check_frame(frame_bytes as u64)?;
        self.grow_frame(frame_bytes)?;
        self.open = Some(open);
        Ok(())
    }

    /// Row `row` of a fixed tensor, for writing all of it. Shape and dtype are the schema's,
    /// little-endian. Tensors are aligned to their dtype in the frame, and in memory as far as the
    /// allocator aligns the buffer.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if no frame is open or there is no such row.
    pub fn row_mut(&mut self, tensor: usize, row: usize) -> Result<&mut [u8], ChunkFormatError> {
        let range = self.open.as_ref().ok_or_else(no_frame)?.row(tensor, row)?;
        Ok(&mut self.frame_mut()[range])
    }

    /// Appends the next row of a ragged tensor: any number of whole items.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if no frame is open, the tensor is not ragged, the bytes are not
    /// whole items or all rows are there; [`ChunkFormatError::OverLimit`] if the frame gets too large.
    pub fn push_ragged(&mut self, tensor: usize, row: &[u8]) -> Result<(), ChunkFormatError> {
        let open = self.open.as_mut().ok_or_else(no_frame)?;
        self.limits.check_frame(open.bytes_with(row.len()))?;
        open.push_ragged(tensor, row)
    }

    /// Takes back all ragged rows from row `rows` on, when a record fails halfway. Rows of fixed
    /// tensors are simply written again.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if no frame is open.
    pub fn truncate_ragged(&mut self, rows: usize) -> Result<(), ChunkFormatError> {
        self.open.as_mut().ok_or_else(no_frame)?.truncate_ragged(rows);
        Ok(())
    }

    /// Ends the frame with its first `rows` rows. Ending with as many as were begun moves nothing.
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if no frame is open, `rows` is 0 or more than begun, or ragged rows
    /// are missing; [`ChunkFormatError::OverLimit`] if object or frame get too large. The frame is gone.
    pub fn end_frame(&mut self, kind: ChunkFrameKind, rows: usize) -> Result<(), ChunkFormatError> {
        let mut open = self.open.take().ok_or_else(no_frame)?;
        let layout = open.final_layout(rows)?;
        let frame_bytes = layout.frame_bytes();
        self.limits.check_frame(frame_bytes as u64)?;
        self.grow_frame(frame_bytes)?;
        open.complete(&layout, self.frame_mut());
        self.seal(kind, rows, frame_bytes)
    }

    /// Drops the open frame, if any.
    pub fn abandon_frame(&mut self) {
        self.open = None;
    }

    /// Writes a frame that is already assembled, as [`join_rows`](crate::join_rows) makes them.
    ///
    /// # Errors
    /// As [`begin_frame`](Self::begin_frame) and [`end_frame`](Self::end_frame).
    pub fn push_frame(
        &mut self,
        kind: ChunkFrameKind,
        frame: &ChunkFrame,
    ) -> Result<(), ChunkFormatError> {
        self.check_room(frame.rows())?;
        let bytes = frame.bytes();
        self.limits.check_frame(bytes.len() as u64)?;
        self.grow_frame(bytes.len())?;
        self.frame_mut()[..bytes.len()].copy_from_slice(bytes);
        self.seal(kind, frame.rows(), bytes.len())
    }

    /// Frames written so far.
    pub fn frames(&self) -> &[FrameInfo] {
        &self.frames
    }

    /// Size of the object if it were finished now, without an open frame.
    pub fn object_bytes(&self) -> usize {
        self.used + Footer::bytes(self.frames.len() as u64) as usize
    }

    /// Ends the object and gives it out. The writer can begin another; see
    /// [`recycle`](Self::recycle).
    ///
    /// # Errors
    /// [`ChunkFormatError::Invalid`] if a frame is open; [`ChunkFormatError::OverLimit`] if the object is
    /// too large.
    pub fn finish(&mut self) -> Result<Vec<u8>, ChunkFormatError> {
        if self.open.is_some() {
            return Err(ChunkFormatError::invalid(
                "an object cannot be finished while a frame is open",
            ));
        }
        let object_bytes = self.object_bytes() as u64;
        ChunkFormatError::within("object size in bytes", object_bytes, self.limits.object_bytes)?;
        self.grow_object(0)?;
        let mut object = std::mem::take(&mut self.object);
        let (head, _) = object.split_at_mut(HEAD_BYTES);
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..].fill(0);
        object.truncate(self.used);
        Footer::write(&self.frames, &mut object);
        self.reset();
        Ok(object)
    }

    fn check_room(&self, rows: usize) -> Result<(), ChunkFormatError> {
        if self.open.is_some() {
            return Err(ChunkFormatError::invalid(
                "a frame is still open; end or abandon it first",
            ));
        }
        if self.frames.last().is_some_and(|frame| frame.kind == ChunkFrameKind::Remainder) {
            return Err(ChunkFormatError::invalid("nothing may follow the remainder frame"));
        }
        if rows == 0 {
            return Err(ChunkFormatError::invalid("a frame has at least one row"));
        }
        ChunkFormatError::within("number of rows", rows as u64, u32::MAX.into())?;
        ChunkFormatError::within(
            "number of frames",
            self.frames.len() as u64 + 1,
            self.limits.frames,
        )
    }

    fn has_begun(&self) -> bool {
        self.open.is_some() || !self.frames.is_empty()
    }

    /// Makes sure that a frame of `frame_bytes` has room where it is assembled.
    fn grow_frame(&mut self, frame_bytes: usize) -> Result<(), ChunkFormatError> {
        match self.codec {
            FrameCodec::Stored => self.grow_object(frame_bytes),
            FrameCodec::Zstd { .. } => {
                grow(&mut self.scratch, frame_bytes);
                Ok(())
            }
        }
    }

    /// Makes sure that `bytes` more, padding and footer have room in the object.
    fn grow_object(&mut self, bytes: usize) -> Result<(), ChunkFormatError> {
        let limit = self.limits.object_bytes;
        let end = self.used.checked_add(bytes).and_then(aligned).unwrap_or(usize::MAX);
        ChunkFormatError::within("object size in bytes", end as u64, limit)?;
        // With the footer, so that finishing does not move the whole object.
        grow(&mut self.object, end + Footer::bytes(self.frames.len() as u64 + 1) as usize);
        Ok(())
    }

    /// Buffer of the open frame.
    fn frame_mut(&mut self) -> &mut [u8] {
        match self.codec {
            FrameCodec::Stored => &mut self.object[self.used..],
            FrameCodec::Zstd { .. } => &mut self.scratch,
        }
    }

    /// Puts the assembled frame into object and index.
    fn seal(
        &mut self,
        kind: ChunkFrameKind,
        rows: usize,
        raw_bytes: usize,
    ) -> Result<(), ChunkFormatError> {
        let (encoding, stored_bytes) = match self.codec {
            FrameCodec::Stored => (FrameEncoding::Stored, raw_bytes),
            FrameCodec::Zstd { level } => self.compress(level, raw_bytes)?,
        };
        let end = self.used + stored_bytes;
        let padded = end.next_multiple_of(crate::ALIGN_BYTES);
        self.object[end..padded].fill(0);
        self.frames.push(FrameInfo {
            kind,
            encoding,
            rows: rows as u32,
            offset: self.used as u64,
            stored_bytes: stored_bytes as u64,
            raw_bytes: raw_bytes as u64,
            crc32c: crate::crc32c(&self.object[self.used..end]),
        });
        self.used = padded;
        Ok(())
    }

    fn compress(
        &mut self,
        level: i32,
        raw_bytes: usize,
    ) -> Result<(FrameEncoding, usize), ChunkFormatError> {
        self.grow_object(compress_bound(raw_bytes))?;
        let raw = &self.scratch[..raw_bytes];
        let room = &mut self.object[self.used..];
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(level).map_err(uncompressed)?),
        };
        let stored_bytes = compressor.compress_to_buffer(raw, room).map_err(uncompressed)?;
        // Less than a sixteenth is not worth a copy and a pass over the frame at every reader.
        if stored_bytes <= raw_bytes - raw_bytes / 16 {
            return Ok((FrameEncoding::Zstd, stored_bytes));
        }
        room[..raw_bytes].copy_from_slice(raw);
        Ok((FrameEncoding::Stored, raw_bytes))
    }
}

/// Encodes the same frames with another codec.
///
/// # Errors
/// As reading the frames, if `chunk` is damaged.
pub fn repack(chunk: &Chunk, codec: FrameCodec) -> Result<Vec<u8>, ChunkFormatError> {
    let mut writer = ChunkWriter::new(codec);
    for (i, info) in chunk.frames().iter().enumerate() {
        writer.push_frame(info.kind, &chunk.tensors(i)?)?;
    }
    writer.finish()
}

/// Bytes of `frame` when it is compressed at `level`.
///
/// # Errors
/// [`ChunkFormatError::Invalid`] if zstd fails.
pub fn compressed_bytes(frame: &[u8], level: i32) -> Result<usize, ChunkFormatError> {
    let compressed = zstd::bulk::compress(frame, level);
    compressed.map(|bytes| bytes.len()).map_err(uncompressed)
}

fn uncompressed(error: std::io::Error) -> ChunkFormatError {
    ChunkFormatError::invalid(format!("zstd cannot compress a frame: {error}"))
}

fn no_frame() -> ChunkFormatError {
    ChunkFormatError::invalid("no frame is open; begin one first")
}

/// Lengthens `buffer` to at least `bytes`, by a quarter more than that so that a row of frames
/// does not grow it each time.
fn grow(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.is_empty() {
        // Comes zeroed from the system without being touched.
        *buffer = vec![0; bytes];
    } else if buffer.len() < bytes {
        buffer.resize(bytes.saturating_add(bytes / 4), 0);
    }
}
