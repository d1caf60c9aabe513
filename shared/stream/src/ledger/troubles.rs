//! Errors of calls that are being retried.

use super::{FetchErrorSource, SplitLedger};

impl SplitLedger {
    /// Records the latest error of a call that is retried; `None` once it succeeds.
    pub fn set_trouble(&self, of: FetchErrorSource, trouble: Option<String>) {
        let mut inner = self.lock();
        match trouble.map(|trouble| inner.folders.in_words(&trouble)) {
            Some(trouble) => {
                if of != FetchErrorSource::Job {
                    inner.failure = Some((of, trouble.clone()));
                }
                inner.troubles.insert(of, trouble);
            }
            None => drop(inner.troubles.remove(&of)),
        }
    }

    /// The latest error of a call or a read since the last look, or one that stands.
    pub fn take_failure(&self) -> Option<(FetchErrorSource, String)> {
        let mut inner = self.lock();
        let stands = [FetchErrorSource::Coordinator, FetchErrorSource::Objects];
        let stands = stands.map(|of| Some((of, inner.troubles.get(&of)?.clone())));
        inner.failure.take().or(stands.into_iter().flatten().next())
    }
}
