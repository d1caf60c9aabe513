//! The totals that fetchers send at the end of a run.

use gristmill_client::{EpochTotals, server::EpochCounts};
use gristmill_model::Epoch;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The payload of a fetcher's last frames.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Summary {
    /// Whether the job is closed: nothing is left to acknowledge.
    #[serde(default)]
    pub closed: bool,
    #[serde(default)]
    totals: Vec<EpochCounts>,
}

/// Totals of the epochs that some fetcher has seen to their ends. One that was started later lacks the earlier ones.
#[derive(Debug, Clone, Default)]
pub struct KnownTotals(BTreeMap<Epoch, (EpochTotals, u64)>);

impl KnownTotals {
    /// Adds what one fetcher knows.
    pub fn add(&mut self, summary: &Summary) {
        for &EpochCounts { epoch, batches, rows, skipped, left_out } in &summary.totals {
            let totals = EpochTotals { epoch, batches, rows, skipped, ..EpochTotals::default() };
            self.0.insert(epoch, (totals, left_out));
        }
    }

    /// Each known epoch, and how many of its batches no rank got.
    pub fn epochs(&self) -> impl Iterator<Item = (EpochTotals, u64)> {
        self.0.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetchers_add_the_epochs_that_they_know() {
        let one: Summary = serde_json::from_str(
            r#"{"epochs":2,"batches":5,"closed":true,"totals":[
                {"epoch":1,"batches":5,"rows":40,"skipped":1,"left_out":2}]}"#,
        )
        .unwrap();
        assert!(one.closed);
        let none: Summary = serde_json::from_str(r#"{"epochs":2}"#).unwrap();
        assert!(!none.closed);
        let mut known = KnownTotals::default();
        known.add(&one);
        known.add(&none);
        let epochs: Vec<_> = known.epochs().collect();
        let [(EpochTotals { epoch: 1, batches: 5, rows: 40, skipped: 1, .. }, 2)] = epochs[..]
        else {
            panic!("{epochs:?}")
        };
    }
}
