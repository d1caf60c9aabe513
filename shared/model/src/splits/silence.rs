//! Signs of life of lease owners: their interval, and the silence after which an owner is presumed
//! dead.
//!
//! Each flush is a sign of life, due after a third of the bundle at the latest. When that takes
//! longer than its splits took so far, the owner renews its lease in between. The lease of an owner
//! that is silent for longer, while others make progress, ends early.

use crate::Attempt;

/// Flushes of one bundle.
const FLUSHES: u64 = 3;
/// Bounds of the interval between an owner's signs of life, for any split time.
const SIGN_MS: (u64, u64) = (1_500, 10_000);
/// Bounds of the silence that is tolerated: well above [`SIGN_MS`], as a call may be sent more than
/// once.
const PATIENCE_MS: (u64, u64) = (2_500, 15_000);
/// From this attempt on, silence does not end a lease early.
const TOO_OFTEN: Attempt = 4;

/// Milliseconds without a flush after which the owner of a bundle of `splits` renews its lease.
/// `split_ms` is the time of one of its splits so far, 0 if there was none.
pub fn sign_of_life_ms(split_ms: u64, splits: usize) -> u64 {
    let to_a_flush = (splits as u64).div_ceil(FLUSHES);
    (split_ms.saturating_mul(to_a_flush) * 3 / 2).clamp(SIGN_MS.0, SIGN_MS.1)
}

/// Milliseconds of silence after which the owner of a bundle of `splits` is presumed dead, if
/// splits take other workers `longest_ms`. The time doubles with each attempt; `None` means that
/// the lease lasts to its end.
pub fn silence_limit_ms(longest_ms: u64, splits: usize, attempt: Attempt) -> Option<u64> {
    let to_a_flush = (splits as u64).div_ceil(FLUSHES);
    let tried = attempt.saturating_sub(1);
    let at_first = longest_ms.saturating_mul(to_a_flush * 3).max(PATIENCE_MS.0);
    (attempt < TOO_OFTEN).then(|| at_first.saturating_mul(1 << tried).min(PATIENCE_MS.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_live_worker_gives_a_sign_of_life_in_time(split_ms in 0u64..100_000, splits in 1usize..=8, attempt in 1u32..6) {
            let sign = sign_of_life_ms(split_ms, splits);
            let limit = silence_limit_ms(split_ms, splits, attempt);
            prop_assert!(limit.is_none_or(|limit| sign + 1_000 <= limit));
            prop_assert_eq!(limit.is_none(), attempt >= TOO_OFTEN);
        }
    }
}
