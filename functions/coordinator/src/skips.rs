//! The cap on skipped records: counts skips per epoch from commits of all workers.

use crate::{
    Consumers,
    items::{ItemName, JobItem, SkipCounts},
    scan::WindowScan,
    store::VersionedItem,
};
use gristmill_model::splits::{CommittedSplit, JobProgress, SplitPlace};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CallRefusal, SkippedRecordLocation};
use gristmill_model::{Epoch, ErrorPolicy, JobName};
use gristmill_ports::ObjectPath;
use std::collections::BTreeMap;

/// The count is written after this many delivered splits, or earlier if records were skipped.
const WRITTEN_EVERY: u64 = 64;
/// Number of split reports to read to find the most frequent reason.
const REPORTS: usize = 16;
/// If this many records are skipped and none is left to deliver, presumably all will be.
const ALL_SKIPPED: u64 = 1_000;

/// Counts of an epoch so far, in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    skipped: u64,
    rows: u64,
}

impl Count {
    fn add(&mut self, CommittedSplit { outcome, .. }: &CommittedSplit) {
        self.skipped += u64::from(outcome.skipped_records);
        self.rows += u64::from(outcome.rows);
    }
}

/// Counts from commits, added to the stored count.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counts {
    by_epoch: BTreeMap<Epoch, Count>,
    /// The part of `by_epoch` in splits before this place.
    passed: SplitPlace,
    by_epoch_passed: BTreeMap<Epoch, Count>,
    /// Places of splits with skipped records, beyond the stored count.
    with_skips: Vec<SplitPlace>,
}

impl Counts {
    /// Adds `committed` to the stored count `before`, which leaves out what it already has.
    fn new<'a>(
        before: &SkipCounts,
        delivered: SplitPlace,
        committed: impl Iterator<Item = (SplitPlace, &'a CommittedSplit)>,
    ) -> Self {
        let stored = Count { skipped: before.skipped, rows: before.rows };
        let by_epoch = BTreeMap::from([(before.before.epoch, stored)]);
        let mut counts = Self {
            by_epoch_passed: by_epoch.clone(),
            by_epoch,
            passed: delivered.max(before.before),
            with_skips: Vec::new(),
        };
        for (place, entry) in committed.filter(|(place, _)| *place >= before.before) {
            counts.by_epoch.entry(place.epoch).or_default().add(entry);
            if place < counts.passed {
                counts.by_epoch_passed.entry(place.epoch).or_default().add(entry);
            }
            if entry.outcome.skipped_records > 0 {
                counts.with_skips.push(place);
            }
        }
        counts
    }

    /// The first epoch that skips more than `allowed` of its `records`, or presumably all.
    fn exceeding(&self, allowed: u64, records: u64) -> Option<(Epoch, Count)> {
        let exceeds = |count: &Count| {
            let all = count.rows == 0 && count.skipped >= ALL_SKIPPED && allowed < records;
            count.skipped > allowed || all
        };
        let mut counts = self.by_epoch.iter().map(|(epoch, count)| (*epoch, *count));
        counts.find(|(_, count)| exceeds(count))
    }

    /// The count to store after `before`, if it is worth a write. `first` describes the first skipped record.
    fn to_store(
        &self,
        before: &SkipCounts,
        first: Option<String>,
        n_splits: u32,
    ) -> Option<SkipCounts> {
        let passed = self.passed;
        let moved = passed.linear(n_splits).saturating_sub(before.before.linear(n_splits));
        let Count { skipped, rows } =
            self.by_epoch_passed.get(&passed.epoch).copied().unwrap_or_default();
        let counted = moved > 0 && skipped > before.skipped;
        let is_worth_it = moved >= WRITTEN_EVERY || counted || first != before.first;
        is_worth_it.then_some(SkipCounts { before: passed, skipped, rows, first })
    }
}

impl Consumers {
    /// The stored counts of a job that may skip records; none for other jobs.
    pub(crate) async fn skips(
        &self,
        job: &JobName,
        item: &JobItem,
    ) -> Result<Option<VersionedItem<SkipCounts>>, CallRefusal> {
        match item.spec.settings.on_error {
            ErrorPolicy::Fail => Ok(None),
            _ => self.records.store.read(&ItemName::Skips(job)).await.map(Some),
        }
    }

    /// Counts the skips in `scan`, which begins at or before the end of the stored count. Returns the error
    /// if the job has skipped too much.
    pub(crate) async fn count_skipped(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &WindowScan,
        progress: &JobProgress,
        read: VersionedItem<SkipCounts>,
    ) -> Result<Option<String>, CallRefusal> {
        let Some(plan) = item.plan else { return Ok(None) };
        let before = read.item.clone().unwrap_or_default();
        let counts = Counts::new(&before, progress.horizon().slowest, scan.committed());
        let first = match (&before.first, counts.with_skips.first()) {
            // A poisoned split has no report.
            (None, Some(place)) => {
                let at = self.skipped_at(job, *place).await.first().map(described);
                Some(at.unwrap_or_else(|| "in a split that killed its workers".to_owned()))
            }
            (known, _) => known.clone(),
        };
        let allowed = item.spec.settings.max_skipped.allowed(plan.records);
        if let Some((epoch, count)) = counts.exceeding(allowed, plan.records) {
            let of_epoch = counts.with_skips.iter().filter(|place| place.epoch == epoch);
            let mut looked_at = Vec::new();
            for place in of_epoch.take(REPORTS) {
                looked_at.extend(self.skipped_at(job, *place).await);
            }
            let reports = most_often(&looked_at, count.skipped);
            let first = first.unwrap_or_default();
            return Ok(Some(format!(
                "{} of {} records of epoch {epoch} are skipped so far, and --max-skipped {} allows {allowed}; \
                 {reports}the first: {first}; correct the pipeline or the data, or raise --max-skipped \
                 (`gristmill status {job} --skipped` lists them)",
                count.skipped, plan.records, item.spec.settings.max_skipped,
            )));
        }
        if let Some(skips) = counts.to_store(&before, first, plan.n_splits) {
            let count = |stored: &mut SkipCounts| {
                if stored.before <= skips.before {
                    stored.clone_from(&skips);
                }
            };
            self.records.store.change_or_create_from(&ItemName::Skips(job), read, count).await?;
        }
        Ok(None)
    }

    /// Skipped records of a split, from its worker's report. Best effort: the count does not need them.
    async fn skipped_at(&self, job: &JobName, place: SplitPlace) -> Vec<SkippedRecordLocation> {
        let key = keys::skipped(&self.records.settings.ns, job, place.epoch, place.position);
        let report =
            self.objects.store.get(&ObjectPath::new(&self.records.settings.bucket, key)).await;
        let Ok(report) = report else { return Vec::new() };
        let lines = report.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// The most frequent reason of the skips that were looked at, of all `skipped`.
fn most_often(looked_at: &[SkippedRecordLocation], skipped: u64) -> String {
    let mut reasons = BTreeMap::<_, u64>::new();
    for SkippedRecordLocation { record, .. } in looked_at {
        *reasons.entry((&record.op, &record.reason)).or_default() += 1;
    }
    let most = reasons.into_iter().max_by_key(|(_, times)| *times);
    most.map_or(String::new(), |((op, reason), times)| match looked_at.len() as u64 {
        all if all == skipped => format!("most often ({times} of {all}): {op}: {reason}; "),
        some => format!("most often ({times} of the {some} looked at): {op}: {reason}; "),
    })
}

fn described(at: &SkippedRecordLocation) -> String {
    format!("{} ({}): {}", at.source, at.record.op, at.record.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{N_SPLITS, commit};
    use gristmill_model::{Nonce, RecordKey, SkippedRecord};

    fn place(position: u32) -> SplitPlace {
        SplitPlace { epoch: 0, position }
    }

    fn committed(rows: u32, skipped_records: u32) -> CommittedSplit {
        let mut outcome = commit(0, rows).outcome;
        outcome.skipped_records = skipped_records;
        CommittedSplit { attempt: 1, nonce: Nonce([1; 8]), outcome }
    }

    /// Counts of splits with this many skipped records each, ten rows in all, from position 0 on.
    fn counts(before: &SkipCounts, delivered: u32, skipped: &[u32]) -> Counts {
        let splits: Vec<_> = skipped.iter().map(|&n| committed(10 - n, n)).collect();
        let places = (0..).map(place).zip(&splits);
        Counts::new(before, place(delivered), places)
    }

    #[test]
    fn each_split_counts_once() {
        let none = SkipCounts::default();
        let all = counts(&none, 2, &[1, 0, 3, 0]);
        assert_eq!(all.by_epoch[&0], Count { skipped: 4, rows: 36 });
        assert_eq!(all.with_skips, [place(0), place(2)]);
        let stored = all.to_store(&none, None, N_SPLITS).unwrap();
        assert_eq!((stored.before, stored.skipped, stored.rows), (place(2), 1, 19));
        let again = counts(&stored, 2, &[1, 0, 3, 0]);
        assert_eq!(again.by_epoch, all.by_epoch);
        assert_eq!(again.with_skips, [place(2)]);
        assert_eq!(again.to_store(&stored, None, N_SPLITS), None, "nothing has passed since");
    }

    #[test]
    fn a_count_without_news_is_stored_only_now_and_then() {
        let none = SkipCounts::default();
        let delivered = |splits: u64| {
            let skipped = vec![0; usize::try_from(splits).unwrap()];
            counts(&none, u32::try_from(splits).unwrap(), &skipped).to_store(&none, None, N_SPLITS)
        };
        assert!(delivered(WRITTEN_EVERY - 1).is_none() && delivered(WRITTEN_EVERY).is_some());
        let described = counts(&none, 0, &[1]).to_store(&none, Some("a".into()), N_SPLITS);
        assert_eq!(described.unwrap().first.as_deref(), Some("a"));
    }

    #[test]
    fn the_most_frequent_reason_names_how_many_skips_were_looked_at() {
        let skip = |op: &str, reason: &str| SkippedRecordLocation {
            source: "f record 0".into(),
            record: SkippedRecord {
                key: RecordKey { file: 0, record: 0 },
                op: op.into(),
                reason: reason.into(),
            },
        };
        let reports = [skip("decode", "bad"), skip("source", "bad"), skip("decode", "bad")];
        assert_eq!(most_often(&reports, 3), "most often (2 of 3): decode: bad; ");
        assert_eq!(most_often(&reports, 40), "most often (2 of the 3 looked at): decode: bad; ");
        assert_eq!(most_often(&[], 40), "");
    }

    #[test]
    fn an_epoch_exceeds_the_limit_with_one_record_more_or_with_all_so_far() {
        let counts = counts(&SkipCounts::default(), 0, &[1, 3]);
        assert_eq!(counts.exceeding(4, 1_000), None);
        let count = Count { skipped: 4, rows: 16 };
        assert_eq!(counts.exceeding(3, 1_000), Some((0, count)));
        let stored = SkipCounts { skipped: ALL_SKIPPED, ..SkipCounts::default() };
        let all = Counts::new(&stored, place(0), std::iter::empty());
        assert!(all.exceeding(5_000, 10_000).is_some(), "presumably the rest is skipped too");
        assert_eq!(all.exceeding(10_000, 10_000), None, "all may be skipped");
    }
}
