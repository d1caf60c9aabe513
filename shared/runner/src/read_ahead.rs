//! How many splits are read before they are needed.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Most splits read ahead: several connections carry more than one, up to what a function's network
/// allows.
const MAX_SPLITS: usize = 4;
/// Memory for what is read ahead, in bytes, however many splits that is.
const MAX_BYTES: u64 = 128 << 20;
/// A split that waited less than this share of its compute time was read early enough.
const WAIT_SHARE: f64 = 0.1;

/// Found out while a job is worked on, and kept from lease to lease: one split ahead hides a read that
/// takes no longer than computing; where reading is slower, more of them at a time.
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
    /// Splits to be on their way while one is computed.
    pub(crate) fn splits(&self) -> usize {
        self.splits.load(Ordering::Relaxed)
    }

    /// Takes in what a split that had been read ahead still `waited`, and how much there was to read.
    pub(crate) fn observe(&self, waited: Duration, computed: Duration, read_bytes: u64) {
        let fits = (MAX_BYTES / read_bytes.max(1)).clamp(1, MAX_SPLITS as u64) as usize;
        let splits = self.splits();
        let late = waited.as_secs_f64() > WAIT_SHARE * computed.as_secs_f64();
        let wanted = if late { splits + 1 } else { splits };
        self.splits.store(wanted.min(fits), Ordering::Relaxed);
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
        // Larger splits came.
        ahead.observe(Duration::from_millis(80), COMPUTED, 64 << 20);
        assert_eq!(ahead.splits(), 2);
        ahead.observe(Duration::from_millis(80), COMPUTED, 1 << 40);
        assert_eq!(ahead.splits(), 1);
    }
}
