//! How batches travel from `gristmill-fetcher` to a trainer over a unix socket or a pipe.
//!
//! All numbers little endian. Server to client, a 24-byte header and a payload:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 4 | magic | `GMB1` batch, `GMBE` end of job, `GMBX` error |
//! | 4 | epoch | u32, zero-based |
//! | 8 | g | u64, number of the batch in its epoch |
//! | 8 | payload_len | u64 |
//!
//! The payload of a batch is one safetensors blob: the element's tensors with a leading batch
//! dimension, plus `__key__` (u64) and `__copy__` (u32). The payload of `GMBE` is a JSON summary,
//! of `GMBX` one line of text. Client to server, 16 bytes: magic `GMA1`, epoch u32, g u64:
//! everything up to and including batch (epoch, g) is safe in a checkpoint and is never sent again.

use gristmill_types::Epoch;

/// Length of a frame header, in bytes.
pub const HEADER_BYTES: usize = 24;
/// Length of an acknowledgement, in bytes.
pub const ACK_BYTES: usize = 16;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    Batch,
    End,
    Error,
}

impl FrameKind {
    const fn magic(self) -> [u8; 4] {
        match self {
            Self::Batch => *b"GMB1",
            Self::End => *b"GMBE",
            Self::Error => *b"GMBX",
        }
    }
}

/// The header of one frame.
pub fn header(kind: FrameKind, epoch: Epoch, g: u64, payload_len: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&kind.magic());
    bytes[4..8].copy_from_slice(&epoch.to_le_bytes());
    bytes[8..16].copy_from_slice(&g.to_le_bytes());
    bytes[16..].copy_from_slice(&(payload_len as u64).to_le_bytes());
    bytes
}

/// Reads an acknowledgement; `None` when it is not one.
pub fn parse_ack(bytes: &[u8; ACK_BYTES]) -> Option<(Epoch, u64)> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (epoch, rest) = rest.split_first_chunk::<4>()?;
    let g = rest.first_chunk::<8>()?;
    (magic == b"GMA1").then(|| (Epoch::from_le_bytes(*epoch), u64::from_le_bytes(*g)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_acks_are_laid_out_as_documented() {
        let bytes = header(FrameKind::Batch, 2, 3, 4);
        assert_eq!(&bytes, b"GMB1\x02\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0");
        assert_eq!(parse_ack(b"GMA1\x02\0\0\0\x03\0\0\0\0\0\0\0"), Some((2, 3)));
        assert_eq!(parse_ack(b"GMB1\x02\0\0\0\x03\0\0\0\0\0\0\0"), None);
    }
}
