//! CPU of each part of a run, and requests of each service.

use crate::{JobHandle, ProgramFailure, ServiceConnection, printable};
use futures::{StreamExt, TryStreamExt, stream};
use gristmill_host::process_cpu_ms;
use gristmill_model::stored::keys;
use gristmill_model::wire::SkippedRecordLocation;
use gristmill_model::{Epoch, JobName, RecordKey};
use gristmill_pipeline::Pipeline;
use gristmill_ports::ObjectPath;
use gristmill_stream::{FolderBuckets, ObservableRun, RunObserver};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Counters at one moment, or their difference.
#[derive(Debug, Clone, Default)]
pub struct ResourceUsage {
    /// CPU of this process (fetcher and trainer), user and system.
    pub fetcher_cpu_ms: u64,
    pub worker_cpu_ms: u64,
    /// CPU of the service's process on this machine: coordinator, scaler and table.
    pub control_cpu_ms: u64,
    /// Requests by service and operation.
    pub requests: BTreeMap<String, u64>,
    /// Whether there is a local service to ask.
    pub local: bool,
}

impl JobHandle {
    /// Observes `run` of this job, which began at `began`.
    pub async fn observe(&self, run: &impl ObservableRun, began: Instant) -> RunObserver {
        let service = self.service.clone();
        let worker_cpu = move || {
            let service = service.clone();
            Box::pin(async move { ResourceUsage::now(&service).await.worker_cpu_ms }) as _
        };
        RunObserver::new(Box::new(worker_cpu), run, began).await
    }
}

impl ResourceUsage {
    /// Reads all counters.
    pub async fn now(service: &ServiceConnection) -> Self {
        let mut usage =
            Self { fetcher_cpu_ms: process_cpu_ms(std::process::id()), ..Self::default() };
        if let Some(aws) = &service.aws {
            usage.requests = aws.counts();
        }
        let Some(local) = &service.local else { return usage };
        usage.local = true;
        match local.calls.status().await {
            Ok(status) => {
                usage.control_cpu_ms = process_cpu_ms(status.pid);
                usage.worker_cpu_ms = status.worker_cpu_ms;
                usage.requests = status.counts;
            }
            Err(error) => tracing::warn!(%error, "the service's counters cannot be read"),
        }
        usage
    }

    /// The usage since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let requests = self.requests.iter().map(|(name, count)| {
            let earlier = before.requests.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(earlier))
        });
        Self {
            fetcher_cpu_ms: self.fetcher_cpu_ms.saturating_sub(before.fetcher_cpu_ms),
            worker_cpu_ms: self.worker_cpu_ms.saturating_sub(before.worker_cpu_ms),
            control_cpu_ms: self.control_cpu_ms.saturating_sub(before.control_cpu_ms),
            requests: requests.filter(|(_, count)| *count > 0).collect(),
            local: self.local,
        }
    }

    /// Conditional writes of the table, refused ones included; none if no local service counts them.
    pub fn table_writes(&self) -> Option<u64> {
        self.local.then(|| self.requests.get("table.write").copied().unwrap_or(0))
    }

    /// Bytes of chunks read, and written; none if no local service counts them.
    pub fn chunk_bytes(&self) -> Option<(u64, u64)> {
        let bytes = |name: &str| self.requests.get(name).copied().unwrap_or(0);
        self.local
            .then(|| (bytes("objects.chunk_bytes_read"), bytes("objects.chunk_bytes_written")))
    }

    /// Requests as JSON, by service.
    pub fn requests_json(&self) -> Value {
        let mut services = Map::new();
        for (name, count) in &self.requests {
            let (service, operation) = name.split_once('.').unwrap_or(("other", name));
            let service = services.entry(service).or_insert_with(|| json!({}));
            if let Some(service) = service.as_object_mut() {
                service.insert(operation.to_owned(), json!(count));
            }
        }
        Value::Object(services)
    }
}

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
            let (op, epochs) = (&record.op, epochs.join(", "));
            let [source, reason] = [source, &record.reason].map(|text| printable(text));
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

/// How a dataset is divided into splits.
#[derive(Debug, Clone, Copy)]
pub struct DatasetDivision {
    pub records: u64,
    pub files: u64,
    /// Most records of a split.
    pub split_records: u64,
    /// Whether the user gave the number of batches of a split.
    pub is_given: bool,
}

impl DatasetDivision {
    /// Parts of the dataset that no split goes beyond: its files, unless a pipeline orders records or zips them.
    fn parts(&self, pipeline: &Pipeline) -> u64 {
        let ends_with_file = pipeline.dataset_ops().is_empty() && !pipeline.source().is_zip();
        if ends_with_file { self.files.max(1) } else { 1 }
    }

    /// Splits of an epoch, if files are of one size.
    pub fn splits(&self, pipeline: &Pipeline) -> u64 {
        let parts = self.parts(pipeline);
        parts * self.records.div_ceil(parts).div_ceil(self.split_records.max(1))
    }

    /// Why batches of `pipeline` have mixed lengths despite its buckets, and a remedy; none if buckets work.
    pub fn idle_buckets(&self, pipeline: &Pipeline) -> Option<String> {
        let Self { records, split_records, is_given, .. } = *self;
        let (batching, size) = (pipeline.batching(), u64::from(pipeline.batch_size()));
        let boundaries = batching.buckets.as_ref()?.boundaries.len();
        let in_file = records.div_ceil(self.parts(pipeline));
        if in_file.min(split_records) > size {
            return None;
        }
        let (why, remedy) = if records <= size {
            (format!("the dataset has {records} records"), "a smaller `size` helps".to_owned())
        } else if split_records <= size {
            let wanted = batching.batches_together();
            let why = if is_given { "--split-batches says so" } else { "its records are large" };
            (why.to_owned(), format!("`--split-batches {wanted}` helps"))
        } else {
            let why = format!("files have about {in_file} records, and a split ends with its file");
            let blocks = boundaries + 1;
            (
                why,
                format!(
                    "`- shuffle: {{ blocks: {blocks} }}` before it makes splits of several files"
                ),
            )
        };
        Some(format!(
            "`bucket_by_sequence_length` does nothing here: it sorts within a split, and splits are one batch of \
             {size} ({why}): {remedy}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(ops: &str) -> Pipeline {
        let source = "source: { jsonl: x, features: { t: { dtype: i64, shape: [-1] } } }";
        let bucket = "bucket_by_sequence_length: { size: 8, field: t, boundaries: [4, 9] }";
        gristmill_operators::parse(&format!("{source}\nops: [{ops}{bucket}]")).unwrap()
    }

    #[test]
    fn splits_of_one_batch_are_named_with_a_remedy() {
        let said = |ops: &str, division: DatasetDivision| division.idle_buckets(&pipeline(ops));
        let all = DatasetDivision { records: 8000, files: 1, split_records: 96, is_given: false };
        assert_eq!(said("", all), None);
        let few = said("", DatasetDivision { records: 8, ..all }).unwrap();
        assert!(few.contains("has 8 records") && few.contains("smaller `size`"), "{few}");
        let given = said("", DatasetDivision { split_records: 8, is_given: true, ..all }).unwrap();
        assert!(given.contains("--split-batches says so") && given.contains("12"), "{given}");
        let large = said("", DatasetDivision { split_records: 8, ..all }).unwrap();
        assert!(large.contains("records are large"), "{large}");
        let files = DatasetDivision { files: 1000, ..all };
        let small = said("", files).unwrap();
        assert!(small.contains("about 8 records") && small.contains("shuffle"), "{small}");
        assert_eq!(
            said("shuffle: { blocks: 3 }, ", files),
            None,
            "splits go on into the next file"
        );
        let plain =
            "source: { jsonl: x, features: { t: { dtype: i64 } } }\nops: [batch: { size: 8 }]";
        let none = DatasetDivision { records: 1, ..all }
            .idle_buckets(&gristmill_operators::parse(plain).unwrap());
        assert_eq!(none, None);
    }
}
