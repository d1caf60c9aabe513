//! The cap on skipped records: counts skips per epoch from commits of all workers.

use crate::{
    Coordinator,
    items::{ItemName, JobItem, Skips},
    scan::Scan,
    store::Versioned,
};
use gristmill_model::splits::{Committed, Consumer, Outcome, Place};
use gristmill_model::stored::keys;
use gristmill_model::wire::{Refusal, SkippedAt};
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
    fn add(&mut self, Committed { outcome, .. }: &Committed) {
        self.skipped += u64::from(outcome.skipped_records);
        self.rows += u64::from(outcome.rows);
    }
}

impl Coordinator {
    /// The stored counts of a job that may skip records; none for other jobs.
    pub(crate) async fn skips(
        &self,
        job: &JobName,
        item: &JobItem,
    ) -> Result<Option<Versioned<Skips>>, Refusal> {
        match item.spec.on_error {
            ErrorPolicy::Fail => Ok(None),
            _ => self.store.read(&ItemName::Skips(job)).await.map(Some),
        }
    }

    /// Counts the skips in `scan`, which begins at or before the end of the stored count. Returns the error
    /// if the job has skipped too much.
    pub(crate) async fn count_skipped(
        &self,
        job: &JobName,
        item: &JobItem,
        (scan, consumer): (&Scan, &Consumer),
        read: Versioned<Skips>,
    ) -> Result<Option<String>, Refusal> {
        let Some(plan) = item.plan else { return Ok(None) };
        let before = read.item.clone().unwrap_or_default();
        let n = plan.n_splits;
        let passed = consumer.delivered.max(before.before);
        let mut counts = BTreeMap::<Epoch, Count>::new();
        counts.insert(before.before.epoch, Count { skipped: before.skipped, rows: before.rows });
        let mut after = counts.clone();
        let mut with_skips = Vec::new();
        for (place, entry) in scan.committed().filter(|(place, _)| *place >= before.before) {
            counts.entry(place.epoch).or_default().add(entry);
            if place < passed {
                after.entry(place.epoch).or_default().add(entry);
            }
            if entry.outcome.skipped_records > 0 {
                with_skips.push(place);
            }
        }
        let allowed = item.spec.max_skipped.allowed(plan.records);
        let beyond = |count: &Count| {
            let all = count.rows == 0 && count.skipped >= ALL_SKIPPED && allowed < plan.records;
            count.skipped > allowed || all
        };
        let first = match (&before.first, with_skips.first()) {
            // A poisoned split has no report.
            (None, Some(place)) => {
                let at = self.skipped_at(job, *place).await.first().map(described);
                Some(at.unwrap_or_else(|| "in a split that killed its workers".to_owned()))
            }
            (known, _) => known.clone(),
        };
        if let Some((epoch, count)) = counts.iter().find(|(_, count)| beyond(count)) {
            let reports = self.most_skipped(job, &with_skips).await;
            let first = first.unwrap_or_default();
            return Ok(Some(format!(
                "{} of {} records of epoch {epoch} are skipped so far, and --max-skipped {} allows {allowed}; \
                 {reports}the first: {first}; mend the pipeline or the data, or raise --max-skipped \
                 (`gristmill status {job} --skipped` lists them)",
                count.skipped, plan.records, item.spec.max_skipped,
            )));
        }
        let moved = passed.linear(n).saturating_sub(before.before.linear(n));
        let count = after.remove(&passed.epoch).unwrap_or_default();
        let counted = moved > 0 && count.skipped > before.skipped;
        if moved >= WRITTEN_EVERY || counted || first != before.first {
            let Count { skipped, rows } = count;
            let skips = Skips { before: passed, skipped, rows, first };
            let decide = |before: Option<&Skips>| {
                Ok::<_, Refusal>(match before {
                    Some(before) if before.before > passed => {
                        Outcome::AlreadyApplied(before.clone())
                    }
                    _ => Outcome::Write(skips.clone()),
                })
            };
            self.store.update_from(&ItemName::Skips(job), read, decide).await?;
        }
        Ok(None)
    }

    /// The most frequent reason for skips, from the reports of the first splits in `places`.
    async fn most_skipped(&self, job: &JobName, places: &[Place]) -> String {
        let mut reasons = BTreeMap::<String, u32>::new();
        let mut looked_at = 0;
        for place in places.iter().take(REPORTS) {
            for SkippedAt { record, .. } in self.skipped_at(job, *place).await {
                *reasons.entry(format!("{}: {}", record.op, record.reason)).or_default() += 1;
                looked_at += 1;
            }
        }
        let most = reasons.into_iter().max_by_key(|(_, times)| *times);
        most.map_or(String::new(), |(reason, times)| {
            format!("most often ({times} of {looked_at}): {reason}; ")
        })
    }

    /// Skipped records of a split, from its worker's report. Best effort: the count does not need them.
    async fn skipped_at(&self, job: &JobName, place: Place) -> Vec<SkippedAt> {
        let key = keys::skipped(&self.settings.ns, job, place.epoch, place.position);
        let report = self.objects.get(&ObjectPath::new(&self.settings.bucket, key)).await;
        let Ok(report) = report else { return Vec::new() };
        let lines = report.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

fn described(at: &SkippedAt) -> String {
    format!("{} ({}): {}", at.source, at.record.op, at.record.reason)
}
