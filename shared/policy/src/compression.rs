//! Whether a worker compresses its objects: processor time spent to relieve its network.

use crate::cost::{FunctionShape, SplitWork};

/// Least part of a split's time to gain: decompression costs the trainer's host as much as a tenth of it.
const MIN_GAIN: f64 = 0.1;

/// Measurements of one split, with some of its frames compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressionSample {
    /// Bytes read from the source.
    pub read_bytes: u64,
    /// Bytes of all frames.
    pub raw_bytes: u64,
    /// Seconds of computing, on one thread.
    pub compute_s: f64,
    /// Bytes of the frames that were compressed.
    pub tried_bytes: u64,
    pub tries: Vec<CompressionTrial>,
}

/// The result of compressing at one level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressionTrial {
    pub level: i32,
    /// Compressed bytes of those frames.
    pub bytes: u64,
    /// Seconds of one thread.
    pub seconds: f64,
}

impl CompressionSample {
    /// The level at which a worker of `shape` takes the least time for a split. `None` if the gain over no compression is
    /// small.
    pub fn best_level(&self, shape: &FunctionShape) -> Option<i32> {
        let plain = SplitWork {
            cpu_s: self.compute_s,
            bytes_in: self.read_bytes as f64,
            bytes_out: self.raw_bytes as f64,
            ..SplitWork::default()
        };
        let scale = self.raw_bytes as f64 / self.tried_bytes.max(1) as f64;
        let packed_s = |tried: &CompressionTrial| {
            let work = SplitWork {
                cpu_s: self.compute_s + tried.seconds * scale,
                bytes_out: tried.bytes as f64 * scale,
                ..plain
            };
            work.worker_s(shape)
        };
        let best = self.tries.iter().min_by(|a, b| packed_s(a).total_cmp(&packed_s(b)))?;
        (packed_s(best) < plain.worker_s(shape) * (1.0 - MIN_GAIN)).then_some(best.level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::MB_PER_VCPU;

    /// 50 MB of frames, read from 25 MB, computed in `compute_s`; compressed at 400 MB/s to `ratio`, and at half that
    /// speed to a tenth less.
    fn split(compute_s: f64, ratio: f64) -> CompressionSample {
        let tried = |level, ratio: f64, seconds| CompressionTrial {
            level,
            bytes: (4e6 * ratio) as u64,
            seconds,
        };
        CompressionSample {
            read_bytes: 25_000_000,
            raw_bytes: 50_000_000,
            compute_s,
            tried_bytes: 4_000_000,
            tries: vec![tried(1, ratio, 0.01), tried(2, ratio * 0.9, 0.02)],
        }
    }

    #[test]
    fn a_slow_network_is_relieved_and_a_busy_processor_is_not_burdened() {
        let one = FunctionShape { network_bytes_per_s: 75e6, ..FunctionShape::default() };
        let two = FunctionShape { memory_mb: 2 * MB_PER_VCPU as u32, ..one };
        // 75 MB at 75 MB/s take 1 s; with half of the frames less it is 0.67 s, with 55 % 0.63 s.
        assert_eq!(split(0.2, 0.5).best_level(&one), Some(2));
        // Compressing takes 0.125 or 0.25 s.
        assert_eq!(split(0.5, 0.5).best_level(&one), Some(1));
        assert_eq!(split(0.9, 0.5).best_level(&one), None);
        assert_eq!(split(1.1, 0.5).best_level(&one), None);
        // 0.61 and 0.68 s of computing.
        assert_eq!(split(1.1, 0.5).best_level(&two), Some(1));
        assert_eq!(split(0.2, 0.98).best_level(&one), None);
        assert_eq!(split(0.2, 2.0).best_level(&one), None);
        let fast = FunctionShape { network_bytes_per_s: 1e12, ..one };
        assert_eq!(split(0.2, 0.5).best_level(&fast), None);
        let nothing = CompressionSample { tried_bytes: 0, tries: Vec::new(), ..split(0.2, 0.5) };
        assert_eq!(nothing.best_level(&one), None);
    }
}
