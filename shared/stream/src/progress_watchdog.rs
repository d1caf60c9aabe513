//! The end of patience: a run that makes no progress while something fails.

use crate::{
    FetchError,
    ledger::{FetchErrorSource, SplitLedger},
    progress::FetcherProgress,
};
use gristmill_ports::{Clock, time_run};
use std::{sync::Arc, time::Duration};

/// Longest interval between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Ends a run that has made no progress for `limit` while calls or reads failed, whichever they were.
///
/// Only time in which this process ran counts. A batch, a byte, a committed split or an indexed file is progress; a
/// call that succeeds is none.
pub(crate) async fn watch_progress(
    clock: Arc<dyn Clock>,
    ledger: Arc<SplitLedger>,
    progress: Arc<FetcherProgress>,
    limit: Duration,
) {
    let reached = || (ledger.advance(), progress.acks().delivered());
    let (mut last, mut left) = (reached(), limit);
    loop {
        let ran = time_run(&*clock, LOOK.min(limit)).await;
        let now = reached();
        if now != last {
            (last, left) = (now, limit);
            ledger.take_failure();
        } else if let Some((of, error)) = ledger.take_failure() {
            left = left.saturating_sub(ran);
            if left.is_zero() {
                let waited_s = limit.as_secs();
                return ledger.fail(if of == FetchErrorSource::Objects {
                    FetchError::BadObject(format!("{error}, for {waited_s} s"))
                } else {
                    FetchError::Unreachable { waited_s, error }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ServedRanks, samples};
    use async_trait::async_trait;
    use gristmill_model::Nonce;
    use gristmill_model::splits::SplitPlace;
    use std::sync::Mutex;

    /// A clock whose sleeps are over at once. `script` gets their numbers, and returns the time that they took.
    struct ScriptedClock<F> {
        now: Mutex<(u32, Duration)>,
        script: F,
    }

    #[async_trait]
    impl<F: Fn(u32) -> Duration + Send + Sync> Clock for ScriptedClock<F> {
        fn now_ms(&self) -> u64 {
            0
        }

        fn monotonic(&self) -> Duration {
            self.now.lock().unwrap().1
        }

        async fn sleep(&self, _: Duration) {
            let (number, now) = *self.now.lock().unwrap();
            assert!(number < 1_000, "the run goes on for ever");
            *self.now.lock().unwrap() = (number + 1, now + (self.script)(number));
        }

        fn nonce(&self) -> Nonce {
            Nonce([0; 8])
        }
    }

    /// Runs until patience of ten seconds is over. `script` acts on the ledger before each look, and returns the seconds that
    /// have passed. Returns the looks, and the error.
    async fn ended(
        script: impl Fn(u32, &SplitLedger) -> u64 + Send + Sync + 'static,
    ) -> (u32, String) {
        let ledger = SplitLedger::new(samples::view(), SplitPlace::start_of(0), Default::default());
        let (ledger, own) =
            (Arc::new(ledger), ServedRanks::one(Nonce([7; 8]), samples::batch(0, 0)));
        let acting = Arc::clone(&ledger);
        let script = move |number: u32| Duration::from_secs(script(number, &acting));
        let clock = Arc::new(ScriptedClock { now: Mutex::default(), script });
        let progress = Arc::new(FetcherProgress::new(own, samples::batch(0, 0)));
        let limit = Duration::from_secs(10);
        watch_progress(Arc::clone(&clock) as _, Arc::clone(&ledger), progress, limit).await;
        let looks = clock.now.lock().unwrap().0;
        (looks, ledger.error().unwrap().to_string())
    }

    fn fail(ledger: &SplitLedger, of: FetchErrorSource) {
        ledger.set_trouble(of, Some(format!("{of:?} fails")));
    }

    #[tokio::test]
    async fn one_trouble_ends_a_run_after_the_limit() {
        let coordinator = ended(|_, ledger| {
            fail(ledger, FetchErrorSource::Coordinator);
            1
        });
        let said = "no answer from the service for 10 s: Coordinator fails";
        assert_eq!(coordinator.await, (10, said.to_owned()));
        let objects = ended(|_, ledger| {
            fail(ledger, FetchErrorSource::Objects);
            1
        });
        assert_eq!(objects.await, (10, "Objects fails, for 10 s".to_owned()));
    }

    #[tokio::test]
    async fn troubles_in_turn_count_together_though_calls_succeed_between_them() {
        let (looks, why) = ended(|number, ledger| {
            let of = if number.is_multiple_of(2) {
                FetchErrorSource::Coordinator
            } else {
                FetchErrorSource::Objects
            };
            fail(ledger, of);
            ledger.set_trouble(of, None);
            1
        })
        .await;
        assert_eq!((looks, &*why), (10, "Objects fails, for 10 s"));
    }

    #[tokio::test]
    async fn progress_begins_the_time_anew() {
        let (looks, _) = ended(|number, ledger| {
            fail(ledger, FetchErrorSource::Objects);
            if number < 50 && number.is_multiple_of(9) {
                ledger.note_fetched(1);
            }
            1
        })
        .await;
        assert_eq!(looks, 56, "the last byte came at look 45");
    }

    #[tokio::test]
    async fn time_in_which_the_process_slept_does_not_count() {
        let (looks, _) = ended(|number, ledger| {
            fail(ledger, FetchErrorSource::Objects);
            if number == 3 { 3_600 } else { 1 }
        })
        .await;
        assert_eq!(looks, 11);
    }

    #[tokio::test]
    async fn a_wait_without_trouble_does_not_count() {
        let (looks, _) = ended(|number, ledger| {
            if number >= 500 {
                fail(ledger, FetchErrorSource::Coordinator);
            }
            1
        })
        .await;
        assert_eq!(looks, 510);
    }

    /// A step of a random sequence: whether something arrives, fails for a moment, and fails until it succeeds; and the
    /// seconds until the next look.
    fn step(
        seed: u64,
        number: u32,
    ) -> (bool, Option<FetchErrorSource>, Option<(FetchErrorSource, bool)>, u64) {
        if number >= 900 {
            return (false, Some(FetchErrorSource::Objects), None, 1);
        }
        let hash = blake3::hash(&[seed.to_le_bytes(), u64::from(number).to_le_bytes()].concat());
        let [what, of, gap, ..] = *hash.as_bytes();
        let of = if of.is_multiple_of(2) {
            FetchErrorSource::Coordinator
        } else {
            FetchErrorSource::Objects
        };
        let gap = [1, 1, 1, 2, 5, 6, 7, 3_600][usize::from(gap % 8)];
        match what % 16 {
            0 | 15 => (true, None, None, gap),
            1..=7 => (false, Some(of), None, gap),
            8..=9 => (false, None, Some((of, true)), gap),
            10..=13 => (false, None, Some((of, false)), gap),
            _ => (false, None, None, gap),
        }
    }

    /// The looks after which patience of ten seconds is over.
    fn looks(seed: u64) -> u32 {
        let (mut standing, mut left) = ([false; 2], 10);
        for number in 0.. {
            let (arrives, moment, lasts, gap) = step(seed, number);
            if let Some((of, fails)) = lasts {
                standing[usize::from(of == FetchErrorSource::Objects)] = fails;
            }
            if let Some(of) = moment {
                standing[usize::from(of == FetchErrorSource::Objects)] = false;
            }
            let has_failed = moment.is_some() || lasts.is_some_and(|(_, fails)| fails);
            if arrives {
                left = 10;
            } else if (has_failed || standing != [false; 2]) && gap <= 6 {
                left = u64::saturating_sub(left, gap);
            }
            if left == 0 {
                return number + 1;
            }
        }
        unreachable!("patience ends")
    }

    #[tokio::test]
    async fn random_troubles_and_sleeps_end_a_run_after_the_time_that_it_ran_without_progress() {
        let mut ends = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let script = move |number, ledger: &SplitLedger| {
                let (arrives, moment, lasts, gap) = step(seed, number);
                if arrives {
                    ledger.note_fetched(1);
                }
                if let Some(of) = moment {
                    fail(ledger, of);
                    ledger.set_trouble(of, None);
                }
                match lasts {
                    Some((of, true)) => fail(ledger, of),
                    Some((of, false)) => ledger.set_trouble(of, None),
                    None => {}
                }
                gap
            };
            let (looked, _) = ended(script).await;
            assert_eq!(looked, looks(seed), "seed {seed}");
            ends.insert(looked);
        }
        assert!(ends.len() > 30, "{ends:?}");
    }
}
