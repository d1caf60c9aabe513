//! The chunk object: the preprocessed batches of one split in one immutable object.
//!
//! Every batch is a *frame*, and a frame is a complete safetensors blob, so that its bytes can be passed to a
//! trainer, a `.safetensors` file or a hash unchanged. [`ChunkWriter`] assembles frames in place, row by row;
//! [`Chunk`] and [`Footer`] read them back and validate everything; [`ChunkFrame`] and [`join_rows`] access frames and join
//! the remainders of several splits. The byte layout is specified in this crate's `README.md`. Pure: no I/O, no
//! clock, no randomness.

mod chunk;
mod error;
mod footer;
mod frame;
mod join;
mod layout;
mod open_frame;
mod schema;
mod writer;

pub use chunk::Chunk;
pub use error::ChunkFormatError;
pub use footer::{ChunkFrameKind, ChunkLimits, Footer, FrameEncoding, FrameInfo, checksum};
pub use frame::{ChunkFrame, TensorView};
pub use join::{join_rows, replace_tensors};
pub use layout::FrameLayout;
pub use schema::{FrameSchema, TensorDType, TensorSpec};
pub use writer::{ChunkWriter, FrameCodec, compressed_bytes, repack};

/// Frames, and the data section inside each frame, start at multiples of this many bytes: a cache
/// line, and enough for every vector instruction a trainer may load tensors with.
pub const ALIGN_BYTES: usize = 64;

/// First and last eight bytes of every object. The high first byte and the line feed reveal a transfer that stripped
/// the eighth bit or translated line ends.
const MAGIC: [u8; 8] = *b"\x89GRMILL\n";

/// Version of the layout that this crate writes, and the only one it reads.
const VERSION: u32 = 1;

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4), used for frames, footers, indices and TFRecords.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Rounds `bytes` up to the next multiple of [`ALIGN_BYTES`]; `None` on overflow.
fn aligned(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGN_BYTES)
}

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
