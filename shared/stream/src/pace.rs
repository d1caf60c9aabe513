//! The interval between polls.

use std::time::Duration;

/// The shortest poll interval, used after news.
pub(crate) const FASTEST: Duration = Duration::from_millis(50);
/// An answer with this many splits was truncated; the next one has more.
const MANY: usize = 1_000;
/// Longest interval while the trainer has batches.
const SLOWEST: Duration = Duration::from_secs(2);
/// Longest interval while the trainer has none.
const SLOWEST_STARVING: Duration = Duration::from_millis(500);
/// How long after the latest news a waiting trainer still polls fast.
const IMPATIENT: Duration = Duration::from_secs(2);

/// The interval between polls: short after news, then growing.
#[derive(Debug)]
pub(crate) struct PollInterval<T> {
    wait: Duration,
    /// The last answer, and the time since when it has not changed.
    answer: Option<(T, Duration)>,
}

impl<T: PartialEq> PollInterval<T> {
    pub fn new() -> Self {
        Self { wait: FASTEST, answer: None }
    }

    /// The current interval.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Resets the interval after a local event.
    pub fn hurry(&mut self) {
        (self.wait, self.answer) = (FASTEST, None);
    }

    /// The coordinator did not answer.
    pub fn failed(&mut self) {
        self.wait = (self.wait * 2).clamp(FASTEST, SLOWEST_STARVING);
    }

    /// Records an answer that came at `now` with `splits` splits; the trainer `starves` if it has no batch.
    pub fn answered(&mut self, answer: T, now: Duration, splits: usize, starves: bool) {
        let since = match &self.answer {
            Some((last, since)) if *last == answer && splits == 0 => *since,
            _ => now,
        };
        self.answer = Some((answer, since));
        let is_quiet = now.saturating_sub(since) >= IMPATIENT;
        let doubled = (self.wait * 2).max(FASTEST);
        self.wait = match (splits, starves) {
            (MANY.., true) => Duration::ZERO,
            (1.., _) => FASTEST,
            (0, true) if !is_quiet => FASTEST,
            (0, true) => doubled.min(SLOWEST_STARVING),
            (0, false) => doubled.min(SLOWEST),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of the polls within `seconds`, given the answers of `answer`.
    fn polls(seconds: u64, starves: bool, answer: impl Fn(Duration) -> u32) -> Vec<Duration> {
        let (mut pace, mut now, mut polls) = (PollInterval::new(), Duration::ZERO, Vec::new());
        while now < Duration::from_secs(seconds) {
            polls.push(now);
            pace.answered(answer(now), now, 0, starves);
            now += pace.wait();
        }
        polls
    }

    #[test]
    fn two_polls_a_second_while_nothing_changes() {
        let polls = polls(60, true, |_| 7);
        let late = polls.iter().filter(|at| **at >= Duration::from_secs(10)).count();
        assert!(late <= 100, "{late} polls in 50 s");
        let early = polls.iter().filter(|at| **at < Duration::from_secs(2)).count();
        assert!(early >= 39, "{early} polls in the first 2 s");
    }

    #[test]
    fn any_change_makes_a_waiting_trainer_impatient() {
        let polls = polls(60, true, |now| u32::from(now >= Duration::from_secs(30)));
        let soon = polls.iter().filter(|at| (31..32).contains(&at.as_secs())).count();
        assert!(soon >= 19, "{soon} polls in the second after a change");
    }

    #[test]
    fn a_trainer_with_batches_asks_rarely() {
        assert!(polls(60, false, |_| 7).len() < 40);
    }

    #[test]
    fn news_keep_the_interval_short() {
        let mut pace = PollInterval::new();
        for i in 0..100 {
            pace.answered(7, Duration::from_secs(i), 1, false);
            assert_eq!(pace.wait(), FASTEST);
        }
        pace.answered(7, Duration::from_secs(100), MANY, true);
        assert_eq!(pace.wait(), Duration::ZERO, "there are more of them");
        pace.answered(7, Duration::from_secs(100), MANY, false);
        pace.failed();
        assert_eq!(pace.wait(), FASTEST * 2);
        pace.hurry();
        assert_eq!(pace.wait(), FASTEST);
    }
}
