//! Frames of a fetcher, as its client reads them.

use super::{HEADER_BYTES, SocketFrameKind};
use bytes::Bytes;
use gristmill_model::splits::Cursor;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Most bytes of a frame: a batch is far below.
const MAX_PAYLOAD_BYTES: u64 = 4 << 30;

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFrame {
    pub kind: SocketFrameKind,
    pub at: Cursor,
    pub payload: Bytes,
}

impl SocketFrame {
    /// The payload as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Reads the next frame.
///
/// # Errors
/// The connection ended, or what came is not a frame.
pub async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<SocketFrame> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await?;
    let mut fields = &header[..];
    let mut magic = [0; 4];
    fields.read_exact(&mut magic).await?;
    let at =
        Cursor { epoch: fields.read_u32_le().await?, batch_index: fields.read_u64_le().await? };
    let bytes = fields.read_u64_le().await?;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let kind = SocketFrameKind::from_magic(magic)
        .ok_or_else(|| invalid(format!("{:?} begins no frame", String::from_utf8_lossy(&magic))))?;
    if bytes > MAX_PAYLOAD_BYTES {
        return Err(invalid(format!("a frame of {bytes} bytes")));
    }
    // Memory grows with what arrives, not with what a header says.
    let mut payload = Vec::new();
    reader.take(bytes).read_to_end(&mut payload).await?;
    if payload.len() as u64 == bytes {
        Ok(SocketFrame { kind, at, payload: payload.into() })
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::header;

    #[tokio::test]
    async fn frames_are_read_as_they_are_written() {
        let at = Cursor { epoch: 2, batch_index: 7 };
        let mut bytes = header(SocketFrameKind::Batch, at, 3).to_vec();
        bytes.extend_from_slice(b"abc");
        let frame = read_frame(&mut &bytes[..]).await.unwrap();
        assert_eq!(
            frame,
            SocketFrame { kind: SocketFrameKind::Batch, at, payload: Bytes::from_static(b"abc") }
        );
        for length in [0, 10, HEADER_BYTES, bytes.len() - 1] {
            let ended = read_frame(&mut &bytes[..length]).await.unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[tokio::test]
    async fn other_bytes_are_refused() {
        let mut strange = header(SocketFrameKind::End, Cursor::default(), 0);
        strange[..4].copy_from_slice(b"HTTP");
        let mut huge = header(SocketFrameKind::Batch, Cursor::default(), 0);
        huge[16..].fill(0xff);
        for bytes in [strange, huge] {
            let refused = read_frame(&mut &bytes[..]).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }
}
