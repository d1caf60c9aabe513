//! Kicks of the scaler that were of no use: another within a second would be of none either.

use gristmill_protocol::ScaleState;
use gristmill_types::JobName;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Least time between two kicks of one job, unless the scaler did something in between.
const APART_MS: u64 = 1_000;

/// The latest kick of each job, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Kicks {
    latest: Mutex<BTreeMap<JobName, Kick>>,
}

#[derive(Debug)]
struct Kick {
    at_ms: u64,
    /// The scaler's item before it.
    scale: ScaleState,
    /// Why the scaler could not be kicked.
    error: Option<String>,
}

impl Kicks {
    /// Whether another kick has to wait: the answer to the latest then.
    pub(crate) fn recent(
        &self,
        job: &JobName,
        scale: &ScaleState,
        now_ms: u64,
    ) -> Option<Option<String>> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let kick = latest.get(job)?;
        let recent = now_ms.abs_diff(kick.at_ms) < APART_MS && kick.scale == *scale;
        recent.then(|| kick.error.clone())
    }

    pub(crate) fn note(
        &self,
        job: &JobName,
        scale: &ScaleState,
        now_ms: u64,
        error: Option<String>,
    ) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|_, kick| now_ms.abs_diff(kick.at_ms) < APART_MS);
        latest.insert(job.clone(), Kick { at_ms: now_ms, scale: scale.clone(), error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_kicked_once_a_second_unless_the_scaler_has_done_something() {
        let kicks = Kicks::default();
        let (job, other) = ("a".parse::<JobName>().unwrap(), "b".parse::<JobName>().unwrap());
        let idle = ScaleState::default();
        assert_eq!(kicks.recent(&job, &idle, 5_000), None);
        kicks.note(&job, &idle, 5_000, Some("no room".into()));
        assert_eq!(kicks.recent(&job, &idle, 5_999), Some(Some("no room".into())));
        assert_eq!(kicks.recent(&other, &idle, 5_100), None);
        assert_eq!(kicks.recent(&job, &idle, 6_000), None);
        let ran = ScaleState { target: 1, ..idle };
        assert_eq!(kicks.recent(&job, &ran, 5_100), None);
        kicks.note(&other, &ran, 9_000, None);
        assert_eq!(kicks.latest.lock().unwrap().len(), 1, "those that are over are forgotten");
    }
}
