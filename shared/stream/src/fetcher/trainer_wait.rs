//! Time in which the trainer waits, apart from the time in which it computes.

use crate::waits::{DeliveryWaits, StageClock};
use std::time::Duration;

/// The waits of one trainer. `now` is a time of a monotonic clock.
#[derive(Debug, Default)]
pub(super) struct TrainerWait {
    /// Whether the trainer computes although its next delivery was requested.
    computes: bool,
    /// Start of the present wait, and the stage clock at that time.
    began: Option<(Duration, DeliveryWaits)>,
    /// Waits that are over.
    total: Duration,
}

impl TrainerWait {
    /// The next delivery is requested, now or earlier: the trainer waits, unless it computes.
    pub fn request(&mut self, now: Duration, stages: &StageClock) {
        if !self.computes {
            self.began.get_or_insert_with(|| (now, stages.read(now)));
        }
    }

    /// Records whether the trainer computes.
    pub fn set_computes(&mut self, computes: bool) {
        self.computes = computes;
        if computes {
            self.began = None;
        }
    }

    /// The next delivery is ready. Returns the length of the wait, and its causes.
    pub fn end(&mut self, now: Duration, stages: &StageClock) -> (Duration, DeliveryWaits) {
        let Some((since, before)) = self.began.take() else { return Default::default() };
        let waited = now.saturating_sub(since);
        self.total += waited;
        (waited, stages.read(now).since(&before))
    }

    /// Another trainer takes the stream: time without a trainer is no wait.
    pub fn restart(&mut self) {
        (self.computes, self.began) = (false, None);
    }

    /// The length of the present wait.
    pub fn present(&self, now: Duration) -> Duration {
        self.began.map_or(Duration::ZERO, |(since, _)| now.saturating_sub(since))
    }

    /// The length of all waits, the present one included.
    pub fn total(&self, now: Duration) -> Duration {
        self.total + self.present(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_wait_lasts_from_the_request_to_the_delivery() {
        let (stages, mut wait) = (StageClock::new(s(0)), TrainerWait::default());
        wait.request(s(10), &stages);
        // A request after a cancelled one continues its wait.
        wait.request(s(12), &stages);
        assert_eq!((wait.present(s(13)), wait.total(s(13))), (s(3), s(3)));
        let (waited, causes) = wait.end(s(14), &stages);
        assert_eq!((waited, causes.total()), (s(4), s(4)));
        assert_eq!((wait.present(s(20)), wait.total(s(20))), (s(0), s(4)));
    }

    #[test]
    fn time_in_which_the_trainer_computes_is_no_wait() {
        let (stages, mut wait) = (StageClock::new(s(0)), TrainerWait::default());
        wait.set_computes(true);
        wait.request(s(10), &stages);
        assert_eq!(wait.end(s(15), &stages).0, s(0), "it was ready before the trainer was");
        wait.request(s(20), &stages);
        wait.set_computes(false);
        wait.request(s(27), &stages);
        let (waited, causes) = wait.end(s(30), &stages);
        assert_eq!((waited, causes.total(), wait.total(s(30))), (s(3), s(3), s(3)));
    }

    #[test]
    fn time_without_a_trainer_is_no_wait() {
        let (stages, mut wait) = (StageClock::new(s(0)), TrainerWait::default());
        wait.request(s(1), &stages);
        wait.restart();
        wait.request(s(50), &stages);
        assert_eq!(wait.end(s(51), &stages).0, s(1));
    }
}
