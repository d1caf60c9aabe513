//! Reads a whole object in memory.

use bytes::{Bytes, BytesMut};

use crate::footer::{HEAD_BYTES, u32_at};
use crate::{
    ALIGN_BYTES, Footer, FormatError, Frame, FrameInfo, FrameKind, Limits, MAGIC, VERSION,
};

/// An object with verified head and index. Frames are verified when they are read.
#[derive(Clone, Debug)]
pub struct Chunk {
    bytes: Bytes,
    footer: Footer,
    limits: Limits,
}

impl Chunk {
    /// Checks head, trailer and index.
    ///
    /// # Errors
    /// [`FormatError::Corrupt`], [`FormatError::Unsupported`] or [`FormatError::OverLimit`].
    pub fn open(bytes: Bytes, limits: &Limits) -> Result<Self, FormatError> {
        let footer = Footer::parse(&bytes, bytes.len() as u64, limits)?;
        let head = bytes.get(..HEAD_BYTES).unwrap_or_default();
        if !head.starts_with(&MAGIC) {
            return Err(FormatError::corrupt("it does not start with the magic bytes"));
        }
        match u32_at(head, MAGIC.len()) {
            Some(VERSION) => {}
            version => {
                let version = version.unwrap_or(0);
                return Err(FormatError::Unsupported { version, supported: VERSION });
            }
        }
        if head[MAGIC.len() + 4..].iter().any(|byte| *byte != 0) {
            return Err(FormatError::corrupt("its head is not padded with zeros"));
        }
        for (i, info) in footer.frames().iter().enumerate() {
            let end = info.range().end as usize;
            let padding = bytes.get(end..end.next_multiple_of(ALIGN_BYTES)).unwrap_or_default();
            if padding.iter().any(|byte| *byte != 0) {
                return Err(FormatError::corrupt(format!("frame {i} is not padded with zeros")));
            }
        }
        Ok(Chunk { bytes, footer, limits: limits.clone() })
    }

    /// The frames in order: batches, then at most one remainder.
    pub fn frames(&self) -> &[FrameInfo] {
        self.footer.frames()
    }

    /// Index of the remainder frame, if the split left one.
    pub fn remainder(&self) -> Option<usize> {
        let last = self.frames().len().checked_sub(1)?;
        (self.frames()[last].kind == FrameKind::Remainder).then_some(last)
    }

    /// The bytes of frame `i`: a safetensors blob. Shares the object's memory if the frame is stored.
    ///
    /// # Errors
    /// [`FormatError::Corrupt`] if checksum or content size do not match;
    /// [`FormatError::Invalid`] if there is no such frame.
    pub fn frame(&self, i: usize) -> Result<Bytes, FormatError> {
        self.frame_with(i, BytesMut::with_capacity, BytesMut::freeze)
    }

    /// As [`frame`](Self::frame), with the caller's buffers: see [`FrameInfo::decode_with`].
    ///
    /// # Errors
    /// As [`frame`](Self::frame).
    pub fn frame_with(
        &self,
        i: usize,
        take: impl FnOnce(usize) -> BytesMut,
        lend: impl FnOnce(BytesMut) -> Bytes,
    ) -> Result<Bytes, FormatError> {
        let info = self.info(i)?;
        // The index has been checked to lie within the object, which fits in memory.
        let range = info.range();
        let stored = self.bytes.slice(range.start as usize..range.end as usize);
        info.decode_with(stored, take, lend)
    }

    /// Frame `i` with a parsed header, checked to have the number of rows in the index.
    ///
    /// # Errors
    /// As [`frame`](Self::frame), and for a frame that is not a valid safetensors blob.
    pub fn tensors(&self, i: usize) -> Result<Frame, FormatError> {
        let frame = Frame::parse(self.frame(i)?, &self.limits)?;
        let rows = self.info(i)?.rows;
        if frame.rows() != rows as usize {
            return Err(FormatError::corrupt(format!(
                "frame {i} has {} rows, the index says {rows}",
                frame.rows()
            )));
        }
        Ok(frame)
    }

    fn info(&self, i: usize) -> Result<&FrameInfo, FormatError> {
        self.frames().get(i).ok_or_else(|| {
            FormatError::invalid(format!(
                "there is no frame {i} in an object of {} frames",
                self.frames().len()
            ))
        })
    }
}
