//! Reads an object in memory, whole or in part.

use bytes::{Bytes, BytesMut};

use crate::footer::{HEAD_BYTES, u32_at};
use crate::{
    ALIGN_BYTES, ChunkFormatError, ChunkFrame, ChunkFrameKind, ChunkLimits, Footer, FrameInfo,
    MAGIC, VERSION,
};

/// An object, or parts of it, with a verified index. Frames are verified when they are read, or all at once by
/// [`verified`](Self::verified).
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Bytes of the object by their offset in it, in order.
    parts: Vec<(u64, Bytes)>,
    footer: Footer,
    limits: ChunkLimits,
    /// Whether the checksums of all frames in `parts` match.
    verified: bool,
}

impl Chunk {
    /// Checks head, trailer and index.
    ///
    /// # Errors
    /// [`ChunkFormatError::Corrupt`], [`ChunkFormatError::Unsupported`] or [`ChunkFormatError::OverLimit`].
    pub fn open(bytes: Bytes, limits: &ChunkLimits) -> Result<Self, ChunkFormatError> {
        let footer = Footer::parse(&bytes, bytes.len() as u64, limits)?;
        let head = bytes.get(..HEAD_BYTES).unwrap_or_default();
        if !head.starts_with(&MAGIC) {
            return Err(ChunkFormatError::corrupt("it does not start with the magic bytes"));
        }
        match u32_at(head, MAGIC.len()) {
            Some(VERSION) => {}
            version => {
                let version = version.unwrap_or(0);
                return Err(ChunkFormatError::Unsupported { version, supported: VERSION });
            }
        }
        if head[MAGIC.len() + 4..].iter().any(|byte| *byte != 0) {
            return Err(ChunkFormatError::corrupt("its head is not padded with zeros"));
        }
        for (i, info) in footer.frames().iter().enumerate() {
            let end = info.range().end as usize;
            let padding = bytes.get(end..end.next_multiple_of(ALIGN_BYTES)).unwrap_or_default();
            if padding.iter().any(|byte| *byte != 0) {
                return Err(ChunkFormatError::corrupt(format!(
                    "frame {i} is not padded with zeros"
                )));
            }
        }
        Ok(Chunk { parts: vec![(0, bytes)], footer, limits: limits.clone(), verified: false })
    }

    /// The object once the checksums of all its frames are found to match: no byte of it is damaged. Reading a frame
    /// then does not compute its checksum again.
    ///
    /// # Errors
    /// [`ChunkFormatError::Corrupt`] if a frame is not the one that the index has.
    pub fn verified(mut self) -> Result<Self, ChunkFormatError> {
        for info in self.footer.frames() {
            if let Some(stored) = self.stored(info) {
                info.check_stored(&stored)?;
            }
        }
        self.verified = true;
        Ok(self)
    }

    /// Frames of the object that `footer` indexes, out of bytes at these offsets in it. Reading another frame is an
    /// error.
    ///
    /// # Errors
    /// [`ChunkFormatError::Corrupt`] if a frame in these bytes is not the one that the index has.
    pub fn from_parts(
        footer: Footer,
        mut parts: Vec<(u64, Bytes)>,
        limits: &ChunkLimits,
    ) -> Result<Self, ChunkFormatError> {
        parts.sort_unstable_by_key(|(offset, _)| *offset);
        Chunk { parts, footer, limits: limits.clone(), verified: false }.verified()
    }

    /// The frames in order: batches, then at most one remainder.
    pub fn frames(&self) -> &[FrameInfo] {
        self.footer.frames()
    }

    /// Index of the remainder frame, if the split left one.
    pub fn remainder(&self) -> Option<usize> {
        let last = self.frames().len().checked_sub(1)?;
        (self.frames()[last].kind == ChunkFrameKind::Remainder).then_some(last)
    }

    /// The bytes of frame `i`: a safetensors blob. Shares the object's memory if the frame is stored.
    ///
    /// # Errors
    /// [`ChunkFormatError::Corrupt`] if checksum or content size do not match;
    /// [`ChunkFormatError::Invalid`] if there is no such frame.
    pub fn frame(&self, i: usize) -> Result<Bytes, ChunkFormatError> {
        self.frame_with(i, BytesMut::with_capacity, BytesMut::freeze)
    }

    /// As [`frame`](Self::frame), with the caller's buffers: see [`FrameInfo::decode_with`].
    pub fn frame_with(
        &self,
        i: usize,
        take: impl FnOnce(usize) -> BytesMut,
        lend: impl FnOnce(BytesMut) -> Bytes,
    ) -> Result<Bytes, ChunkFormatError> {
        let info = self.info(i)?;
        let absent =
            || ChunkFormatError::invalid(format!("frame {i} is not among those that were read"));
        let stored = self.stored(info).ok_or_else(absent)?;
        if self.verified {
            info.decode_verified(stored, take, lend)
        } else {
            info.decode_with(stored, take, lend)
        }
    }

    /// Frame `i` with a parsed header, checked to have the number of rows in the index.
    ///
    /// # Errors
    /// As [`frame`](Self::frame), and for a frame that is not a valid safetensors blob.
    pub fn tensors(&self, i: usize) -> Result<ChunkFrame, ChunkFormatError> {
        let frame = ChunkFrame::parse(self.frame(i)?, &self.limits)?;
        let rows = self.info(i)?.rows;
        if frame.rows() != rows as usize {
            return Err(ChunkFormatError::corrupt(format!(
                "frame {i} has {} rows, the index says {rows}",
                frame.rows()
            )));
        }
        Ok(frame)
    }

    /// The bytes of a frame, as stored; none if they are not here.
    fn stored(&self, info: &FrameInfo) -> Option<Bytes> {
        let range = info.range();
        let at = self.parts.partition_point(|(offset, _)| *offset <= range.start).checked_sub(1)?;
        let (offset, part) = self.parts.get(at)?;
        let start = usize::try_from(range.start - offset).ok()?;
        let end = usize::try_from(range.end - offset).ok()?;
        (end <= part.len()).then(|| part.slice(start..end))
    }

    fn info(&self, i: usize) -> Result<&FrameInfo, ChunkFormatError> {
        self.frames().get(i).ok_or_else(|| {
            ChunkFormatError::invalid(format!(
                "there is no frame {i} in an object of {} frames",
                self.frames().len()
            ))
        })
    }
}
