//! How a worker compresses the frames that it stores.

use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits, FrameCodec, compressed_bytes};
use gristmill_executor::OpMetrics;
use gristmill_model::Compression;
use gristmill_policy::{
    compression::{CompressionSample, CompressionTrial},
    cost::FunctionShape,
};
use std::{
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Level for `compress: zstd`. On f32 pixels, the output of level 1 is a third larger, and level 3 takes
/// half as long again.
const LEVEL: i32 = 2;
/// Levels that workers may choose from.
pub const LEVELS: RangeInclusive<i32> = 1..=3;
/// Bytes of frames to try compression on.
const TRIED_BYTES: usize = 2 << 20;

/// An uncompressed split, to learn from.
#[derive(Clone, Copy)]
pub(crate) struct UncompressedSplit<'a> {
    pub object: &'a Bytes,
    pub read_bytes: u64,
    pub metrics: &'a [OpMetrics],
}

/// The codec for frames, once it is decided.
#[derive(Debug)]
pub(crate) struct CodecChoice {
    /// None until the first split was examined; that one is stored uncompressed.
    codec: Mutex<Option<FrameCodec>>,
    shape: Option<FunctionShape>,
}

impl CodecChoice {
    /// The packing for a worker on a function of `shape`; none for a machine whose objects stay there.
    pub fn new(asked: Compression, shape: Option<FunctionShape>) -> Self {
        let codec = match (asked, shape) {
            (Compression::Zstd, _) => Some(FrameCodec::Zstd { level: LEVEL }),
            (Compression::None, _) | (Compression::Auto, None) => Some(FrameCodec::Stored),
            (Compression::Auto, Some(_)) => None,
        };
        Self { codec: Mutex::new(codec), shape }
    }

    pub fn codec(&self) -> FrameCodec {
        self.decided().unwrap_or(FrameCodec::Stored)
    }

    fn decided(&self) -> Option<FrameCodec> {
        *self.codec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides the codec from an uncompressed split, if it is undecided. `now` is a monotonic clock.
    pub fn learn(&self, split: UncompressedSplit<'_>, now: impl Fn() -> Duration) {
        let (None, Some(shape)) = (self.decided(), self.shape) else { return };
        let Some(sample) = sample(split, now) else { return };
        let level = sample.best_level(&shape);
        let codec = level.map_or(FrameCodec::Stored, |level| FrameCodec::Zstd { level });
        tracing::info!(?codec, ?sample, "how frames are kept from here on");
        *self.codec.lock().unwrap_or_else(PoisonError::into_inner) = Some(codec);
    }
}

/// Compresses the first frames of a split at every level; none if it has no frame.
fn sample(split: UncompressedSplit<'_>, now: impl Fn() -> Duration) -> Option<CompressionSample> {
    let UncompressedSplit { object, read_bytes, metrics } = split;
    let chunk = Chunk::open(object.clone(), &ChunkLimits::default()).ok()?;
    let raw_bytes = chunk.frames().iter().map(|frame| frame.raw_bytes).sum();
    let (mut tried, mut tried_bytes) = (Vec::new(), 0);
    for i in 0..chunk.frames().len() {
        let frame = chunk.frame(i).ok()?;
        let frame = frame.slice(..frame.len().min(TRIED_BYTES - tried_bytes));
        tried_bytes += frame.len();
        tried.push(frame);
        if tried_bytes == TRIED_BYTES {
            break;
        }
    }
    let attempt = |level| {
        let began = now();
        let bytes = tried.iter().map(|frame| compressed_bytes(frame, level).unwrap_or(frame.len()));
        let bytes = bytes.sum::<usize>() as u64;
        CompressionTrial { level, bytes, seconds: now().saturating_sub(began).as_secs_f64() }
    };
    let compute_ns: u64 = metrics.iter().map(|op| op.active_ns).sum();
    (tried_bytes > 0).then(|| CompressionSample {
        read_bytes,
        raw_bytes,
        compute_s: compute_ns as f64 / 1e9,
        tried_bytes: tried_bytes as u64,
        tries: LEVELS.map(attempt).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_chunk::{ChunkFrameKind, ChunkWriter, FrameSchema, TensorDType, TensorSpec};

    /// Learns from one frame of 1 MiB of zeros, with a clock that stands still.
    fn learn(packing: &CodecChoice) {
        let schema =
            FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [1 << 20])]).unwrap();
        let mut writer = ChunkWriter::new(FrameCodec::Stored);
        writer.begin_frame(&schema, 1).unwrap();
        writer.row_mut(0, 0).unwrap().fill(0);
        writer.end_frame(ChunkFrameKind::Batch, 1).unwrap();
        let object = Bytes::from(writer.finish().unwrap());
        packing.learn(UncompressedSplit { object: &object, read_bytes: 0, metrics: &[] }, || {
            Duration::ZERO
        });
    }

    #[test]
    fn auto_learns_from_the_first_split_where_a_network_is_short() {
        let shape = Some(FunctionShape::default());
        for (asked, codec) in [
            (Compression::None, FrameCodec::Stored),
            (Compression::Zstd, FrameCodec::Zstd { level: LEVEL }),
        ] {
            let packing = CodecChoice::new(asked, shape);
            assert_eq!(packing.codec(), codec);
            learn(&packing);
            assert_eq!(packing.codec(), codec);
        }
        let packing = CodecChoice::new(Compression::Auto, shape);
        assert_eq!(packing.codec(), FrameCodec::Stored);
        learn(&packing);
        assert!(matches!(packing.codec(), FrameCodec::Zstd { .. }));
        let here = CodecChoice::new(Compression::Auto, None);
        learn(&here);
        assert_eq!(here.codec(), FrameCodec::Stored);
    }
}
