//! Causes of a trainer's waits.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{ops::AddAssign, time::Duration};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchStage {
    /// Its split is not committed.
    Commit,
    /// Its object is being downloaded.
    Fetch,
    /// It is being joined and checked here, or it is ready.
    Decode,
}

/// Time that a trainer waited, by cause; seconds in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeliveryWaits {
    /// No worker had claimed the split.
    #[serde(with = "seconds")]
    pub unclaimed: Duration,
    /// A worker was processing the split.
    #[serde(with = "seconds")]
    pub working: Duration,
    /// The split was committed and its object was being downloaded.
    #[serde(with = "seconds")]
    pub fetch: Duration,
    /// The object had arrived.
    #[serde(with = "seconds")]
    pub decode: Duration,
}

impl DeliveryWaits {
    /// The sum over all causes.
    pub fn total(&self) -> Duration {
        self.unclaimed + self.working + self.fetch + self.decode
    }

    fn cause_mut(&mut self, stage: BatchStage, unclaimed: bool) -> &mut Duration {
        match (stage, unclaimed) {
            (BatchStage::Commit, true) => &mut self.unclaimed,
            (BatchStage::Commit, false) => &mut self.working,
            (BatchStage::Fetch, _) => &mut self.fetch,
            (BatchStage::Decode, _) => &mut self.decode,
        }
    }

    /// The difference from an earlier reading of the clock.
    pub(crate) fn since(&self, before: &DeliveryWaits) -> DeliveryWaits {
        DeliveryWaits {
            unclaimed: self.unclaimed.saturating_sub(before.unclaimed),
            working: self.working.saturating_sub(before.working),
            fetch: self.fetch.saturating_sub(before.fetch),
            decode: self.decode.saturating_sub(before.decode),
        }
    }
}

mod seconds {
    use super::Duration;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    /// Writes a duration as seconds.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    /// Reads a duration from seconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl AddAssign for DeliveryWaits {
    fn add_assign(&mut self, more: DeliveryWaits) {
        self.unclaimed += more.unclaimed;
        self.working += more.working;
        self.fetch += more.fetch;
        self.decode += more.decode;
    }
}

#[derive(Debug)]
struct Inner {
    stage: BatchStage,
    /// Whether no worker had the next split, as of the last answer.
    unclaimed: bool,
    since: Duration,
    spent: DeliveryWaits,
}

impl Inner {
    fn pass(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.since);
        *self.spent.cause_mut(self.stage, self.unclaimed) += passed;
        self.since = now;
    }
}

/// Counts the time spent in each stage, also while no trainer waits; subtract two readings to get the time
/// between them. `now` is a time of a monotonic clock.
#[derive(Debug)]
pub(crate) struct StageClock(Mutex<Inner>);

impl StageClock {
    /// A clock in its first stage since `now`.
    pub fn new(now: Duration) -> Self {
        let (stage, spent) = (BatchStage::Commit, DeliveryWaits::default());
        // Before the first answer no worker can have claimed anything.
        StageClock(Mutex::new(Inner { stage, unclaimed: true, since: now, spent }))
    }

    fn with<T>(&self, now: Duration, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.0.lock();
        inner.pass(now);
        change(&mut inner)
    }

    /// Records a new stage of the next batch.
    pub fn enter(&self, stage: BatchStage, now: Duration) {
        self.with(now, |inner| inner.stage = stage);
    }

    /// Records whether the next split is unclaimed.
    pub fn note_unclaimed(&self, unclaimed: bool, now: Duration) {
        self.with(now, |inner| inner.unclaimed = unclaimed);
    }

    /// The stage of the next batch, and whether no worker has its split.
    pub fn stage(&self) -> (BatchStage, bool) {
        let inner = self.0.lock();
        (inner.stage, inner.unclaimed)
    }

    /// The time spent so far.
    pub fn read(&self, now: Duration) -> DeliveryWaits {
        self.with(now, |inner| inner.spent)
    }
}

/// The waits of one trainer. `now` is a time of a monotonic clock.
#[derive(Debug, Default)]
pub(super) struct TrainerWait {
    /// Whether the trainer computes although its next delivery was requested.
    computes: bool,
    /// Start of the present wait, and the stage clock at that time.
    began: Option<(Duration, DeliveryWaits)>,
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

    #[test]
    fn time_is_counted_by_stage() {
        let s = Duration::from_secs;
        let clock = StageClock::new(s(10));
        clock.note_unclaimed(false, s(11));
        clock.enter(BatchStage::Fetch, s(14));
        let before = clock.read(s(15));
        clock.enter(BatchStage::Decode, s(20));
        let after = clock.read(s(22));
        assert_eq!((after.unclaimed, after.working), (s(1), s(3)));
        let waits = after.since(&before);
        assert_eq!((waits.fetch, waits.decode, waits.total()), (s(5), s(2), s(7)));
        // A clock that goes back costs nothing.
        assert_eq!(clock.read(s(1)), after);
    }

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
