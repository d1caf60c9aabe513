//! The memory of a simulation: how large its objects count, and the bounds on them.

use fastrand::Rng;
use gristmill_model::splits::ObjectSizes;
use gristmill_runner::ComputeMode;
use gristmill_stream::{JobStatistics, PrefetchMemory};
use std::time::Duration;

/// The largest modelled object.
const LARGEST_BYTES: u64 = 200_000_000;
/// The largest object that is made.
const LARGEST_REAL_BYTES: u64 = 64 << 10;
/// Prefetched chunks where their real bytes count: few, so that trainers wait for each other's budgets.
const PREFETCH_BYTES: u64 = 4 << 10;
/// Results of one worker beyond the bound: the split that is finished when the store becomes full, and the next one,
/// which begins before the first is stored.
const BEYOND_THE_BOUND: u64 = 2;

/// Sizes and bounds, and how long the work on an object takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelledMemory {
    pub sizes: ObjectSizes,
    /// The bound of each reader.
    pub prefetch: PrefetchMemory,
    /// Bytes that may be ready beyond the trainer.
    pub window_bytes: u64,
    /// Longest time that a slow trainer takes for a batch, in milliseconds; 0 for a fast one.
    pub pause_ms: u64,
    pub compute: ComputeMode,
}

impl ModelledMemory {
    /// Real bytes, and bounds that seldom matter.
    pub fn usual() -> Self {
        Self {
            sizes: ObjectSizes::Real,
            prefetch: PrefetchMemory::Bytes(PREFETCH_BYTES),
            window_bytes: 2 << 30,
            pause_ms: 0,
            compute: ComputeMode::Inline,
        }
    }

    /// Objects of 1 B to 200 MB in three simulations of four; bounds from 1 B; slow trainers and slow workers.
    pub fn draw(random: &mut Rng) -> Self {
        let sizes = match random.u8(0..4) {
            0 => ObjectSizes::Real,
            _ => ObjectSizes::Modelled { seed: random.u64(..), most: LARGEST_BYTES },
        };
        let prefetch = match (random.u8(0..4), sizes) {
            (0, _) => PrefetchMemory::AsNeeded { most: 1 << random.u32(0..36) },
            (_, ObjectSizes::Real) => PrefetchMemory::Bytes(1 << random.u32(0..16)),
            _ => PrefetchMemory::Bytes(1 << random.u32(0..34)),
        };
        let window_bytes = [1, LARGEST_BYTES, 2 << 30][random.usize(0..3)];
        let pause_ms = [0, 0, 500, 5_000][random.usize(0..4)];
        let compute = match random.u8(0..2) {
            0 => ComputeMode::Inline,
            _ => ComputeMode::Modelled(Duration::from_millis(random.u64(1..1_000))),
        };
        Self { sizes, prefetch, window_bytes, pause_ms, compute }
    }

    /// The same with the tightest bounds.
    #[must_use]
    pub fn tightest(self) -> Self {
        Self { prefetch: PrefetchMemory::Bytes(1), ..self }
    }

    /// The largest object.
    fn largest(&self) -> u64 {
        match self.sizes {
            ObjectSizes::Real => LARGEST_REAL_BYTES,
            ObjectSizes::Modelled { most, .. } => most,
        }
    }

    /// Whether so many ready objects may fill half of the window by their bytes, so that no workers are woken.
    pub fn may_be_half_full(&self, ready: u32) -> bool {
        u64::from(ready) * self.largest() > self.window_bytes / 2
    }

    /// Whether splits that a fetcher with so many local workers holds and that its stream has not taken exceed what they
    /// may: the bound, and what is finished when it is reached.
    pub fn exceeds(&self, snapshot: &JobStatistics, local_workers: u32) -> bool {
        // One more may work for the stream alone.
        let more = BEYOND_THE_BOUND * (u64::from(local_workers) + 1) * self.largest();
        snapshot.local_bytes > snapshot.prefetch_bytes.saturating_add(more)
    }
}
