//! How many splits to read ahead.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Most splits to read ahead: concurrent reads are faster, up to the limit of a function's network.
const MAX_SPLITS: usize = 4;
/// Memory for splits read ahead, in bytes; it limits their number further.
const MAX_BYTES: u64 = 128 << 20;
/// A wait below this share of the compute time counts as early enough.
const WAIT_SHARE: f64 = 0.1;

/// The number of splits to read ahead, learned while a job runs and kept from lease to lease. One split
/// hides a read that takes no longer than computing; slower reads need more at a time.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    splits: AtomicUsize,
}

impl Default for ReadAhead {
    fn default() -> Self {
        ReadAhead { splits: AtomicUsize::new(1) }
    }
}

impl ReadAhead {
    /// Number of splits to read while one is computed.
    pub(crate) fn splits(&self) -> usize {
        self.splits.load(Ordering::Relaxed)
    }

    /// Learns from a split: how long the computation waited for its source, how long it was `computed`, and
    /// how many bytes were read. Reads one more split ahead if the wait was long and memory allows.
    pub(crate) fn observe(&self, waited: Duration, computed: Duration, read_bytes: u64) {
        let fits = (MAX_BYTES / read_bytes.max(1)).clamp(1, MAX_SPLITS as u64) as usize;
        let splits = self.splits();
        let late = waited.as_secs_f64() > WAIT_SHARE * computed.as_secs_f64();
        let target = if late { splits + 1 } else { splits };
        self.splits.store(target.min(fits), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTED: Duration = Duration::from_millis(700);

    #[test]
    fn it_grows_while_splits_wait_and_as_far_as_memory_goes() {
        let ahead = ReadAhead::default();
        ahead.observe(Duration::from_millis(60), COMPUTED, 16 << 20);
        assert_eq!(ahead.splits(), 1);
        for expected in [2, 3, 4, 4] {
            ahead.observe(Duration::from_millis(80), COMPUTED, 16 << 20);
            assert_eq!(ahead.splits(), expected);
        }
        // Larger splits leave room for fewer.
        ahead.observe(Duration::from_millis(80), COMPUTED, 64 << 20);
        assert_eq!(ahead.splits(), 2);
        ahead.observe(Duration::from_millis(80), COMPUTED, 1 << 40);
        assert_eq!(ahead.splits(), 1);
    }
}
