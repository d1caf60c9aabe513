//! `sleep`: a wait that can be cancelled.

use std::time::{Duration, Instant};

/// Interval between checks for cancellation.
const SLICE: Duration = Duration::from_millis(20);

/// Waits for `duration`. Returns false if `cancelled` became true meanwhile.
pub(crate) fn sleep(duration: Duration, cancelled: &dyn Fn() -> bool) -> bool {
    let started = Instant::now();
    loop {
        let left = duration.saturating_sub(started.elapsed());
        if left.is_zero() {
            return true;
        }
        if left > SLICE && cancelled() {
            return false;
        }
        std::thread::sleep(left.min(SLICE));
    }
}
