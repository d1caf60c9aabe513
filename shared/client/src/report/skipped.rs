//! The records that a job left out, with reasons.

use crate::{ProgramFailure, ServiceConnection};
use futures::{StreamExt, TryStreamExt, stream};
use gristmill_model::stored::keys;
use gristmill_model::wire::SkippedRecordLocation;
use gristmill_model::{Epoch, JobName, RecordKey};
use gristmill_ports::ObjectPath;
use gristmill_stream::FolderBuckets;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Concurrent reads of reports.
const READS_AHEAD: usize = 16;

/// One record, and the epochs that left it out.
#[derive(Debug)]
struct Left {
    at: SkippedRecordLocation,
    epochs: BTreeSet<Epoch>,
}

/// Every record of a job that was left out.
#[derive(Debug, Default)]
pub struct SkippedRecords {
    records: BTreeMap<(RecordKey, String), Left>,
    /// Number of quarantined records; `place` is the prefix they are stored under.
    quarantined: usize,
    place: String,
}

impl SkippedRecords {
    /// Collects the workers' reports of `job`.
    pub async fn read(service: &ServiceConnection, job: &JobName) -> Result<Self, ProgramFailure> {
        let prefix = keys::quarantine_prefix(&service.ns, job);
        let objects = &service.ports.objects;
        let listed =
            objects.list(&service.bucket, &prefix).await.map_err(ProgramFailure::failed)?;
        let all = listed.len();
        let reports = listed.into_iter().filter_map(|info| {
            let epoch = keys::parse_skipped(&prefix, &info.key)?;
            Some((epoch, ObjectPath::new(&service.bucket, info.key)))
        });
        let reports: Vec<(Epoch, ObjectPath)> = reports.collect();
        let quarantined = all - reports.len();
        let read = |(epoch, path): (Epoch, ObjectPath)| async move {
            let stored = objects.get(&path).await.map_err(ProgramFailure::failed)?;
            let lines =
                serde_json::Deserializer::from_slice(&stored).into_iter::<SkippedRecordLocation>();
            let lines = lines.collect::<Result<Vec<_>, _>>();
            let lines =
                lines.map_err(|error| ProgramFailure::failed(format!("{path}: {error}")))?;
            Ok::<_, ProgramFailure>((epoch, lines))
        };
        let mut reads = stream::iter(reports.into_iter().map(read)).buffered(READS_AHEAD);
        let mut records = BTreeMap::new();
        while let Some((epoch, lines)) = reads.try_next().await? {
            for at in lines {
                let name = (at.record.key, at.record.reason.clone());
                let left = records.entry(name).or_insert(Left { at, epochs: BTreeSet::new() });
                left.epochs.insert(epoch);
            }
        }
        Ok(Self { records, quarantined, place: format!("s3://{}/{prefix}", service.bucket) })
    }

    /// Replaces the buckets of `folders` by their paths.
    pub fn in_words_of(mut self, folders: &FolderBuckets) -> Self {
        for left in self.records.values_mut() {
            left.at.source = folders.in_words(&left.at.source);
            // The reason may name the other record of a zip.
            left.at.record.reason = folders.in_words(&left.at.record.reason);
        }
        self
    }

    /// Number and place of quarantined records: `{"records", "place"}`, or null.
    pub fn quarantine_json(&self) -> serde_json::Value {
        match self.quarantined {
            0 => serde_json::Value::Null,
            records => json!({ "records": records, "place": self.place }),
        }
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether no record was left out.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// One object per record: key, source, operator, reason and epochs.
    pub fn as_json(&self) -> Vec<serde_json::Value> {
        let records = self.records.values().map(|Left { at, epochs }| {
            let SkippedRecordLocation { record, source } = at;
            let key = record.key.packed();
            json!({ "key": key, "source": source, "op": record.op, "reason": record.reason, "epochs": epochs })
        });
        records.collect()
    }

    /// A line for each of the first `most`.
    pub fn as_text(&self, most: usize) -> String {
        let mut text = String::new();
        for Left { at: SkippedRecordLocation { record, source }, epochs } in
            self.records.values().take(most)
        {
            let epochs: Vec<String> = epochs.iter().map(Epoch::to_string).collect();
            let (op, reason, epochs) = (&record.op, &record.reason, epochs.join(", "));
            text += &format!("left out: {source} ({op}): {reason} [epoch {epochs}]\n");
        }
        if self.len() > most {
            text += &format!("left out: {} more\n", self.len() - most);
        }
        if self.quarantined > 0 {
            let (records, place) = (self.quarantined, &self.place);
            text +=
                &format!("quarantined: {records} records, as they were stored, under {place}\n");
        }
        text
    }
}
