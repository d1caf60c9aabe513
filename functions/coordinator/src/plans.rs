//! Plans: divides an indexed dataset into splits, and explains why a job has no records.

use crate::{Coordinator, caching::Caching, store::invalid};
use gristmill_model::splits::{
    Member, SplitPlan,
    job::JobState,
    order::{Ramp, default_bundle_splits},
};
use gristmill_model::wire::{JobSpec, Manifest, ManifestFile, Plan, Refusal};
use gristmill_pipeline::{Pipeline, Source};
use gristmill_ports::ObjectPath;

/// Bundles per worker that the window must have room for.
const WINDOW_BUNDLES_PER_WORKER: u32 = 3;

impl Coordinator {
    /// Divides a dataset into splits: objects of about the planned size, but enough splits to fan out on a
    /// small dataset.
    pub(crate) fn plan(
        &self,
        spec: &JobSpec,
        pipeline: &Pipeline,
        manifest: &Manifest,
        caching: Option<&Caching>,
    ) -> Result<Plan, Refusal> {
        let batch_size = pipeline.batch_size();
        let batch = u64::from(batch_size.max(1));
        // A worker holds in memory both the stored records and its output.
        let stored_bytes = stored_bytes_per_record(manifest);
        let record_bytes = pipeline.bytes_per_record(stored_bytes).max(stored_bytes);
        let records = manifest.records();
        let members = members(pipeline.source(), manifest, &records)?;
        let ops = pipeline.dataset_ops();
        let view = |split_records| {
            let plan = SplitPlan::of_zip(&members, split_records, &ops);
            plan.map_err(|error| invalid(error.to_string()))
        };
        let records = view(u32::MAX)?.records();
        let narrow_bytes = pipeline.narrow_bytes_per_record(stored_bytes).max(stored_bytes);
        let chosen = self.settings.split_batches(records, narrow_bytes, pipeline.batching());
        let split_batches = spec.settings.split_batches.map_or(chosen, u64::from).max(1);
        let chosen = u32::try_from(split_batches * batch)
            .map_err(|_| invalid("split-batches x batch size is too large"))?;
        // A cached dataset is already divided.
        let split_records = caching.and_then(|caching| caching.split_records).unwrap_or(chosen);
        let splits = view(split_records)?;
        let copies = spec.copies();
        let n_splits = splits.n_splits().checked_mul(copies).ok_or_else(|| {
            invalid("the dataset has more splits, once for each worker, than can be counted")
        })?;
        let max_bundle_splits =
            Ramp::new(n_splits, default_bundle_splits(n_splits)).max_bundle_splits();
        Ok(Plan {
            records: records.saturating_mul(u64::from(copies)),
            copies,
            batch_size,
            drop_last: pipeline.drop_remainder(),
            in_order: pipeline.is_in_order(),
            split_records,
            n_splits,
            max_bundle_splits,
            window_splits: window_of(spec.all_workers(), max_bundle_splits),
            window_bytes: self.settings.window_bytes,
            batch_bytes: record_bytes.saturating_mul(batch),
        })
    }
}

/// Window in splits ahead of the trainer, for `workers` and bundles of at most `max_bundle_splits`.
pub(crate) fn window_of(workers: u32, max_bundle_splits: u32) -> u32 {
    workers.max(1).saturating_add(1).saturating_mul(WINDOW_BUNDLES_PER_WORKER * max_bundle_splits)
}

/// The datasets of a job in the form that splits are made from.
fn members<'a>(
    source: &Source,
    manifest: &Manifest,
    records: &'a [u32],
) -> Result<Vec<Member<'a>>, Refusal> {
    let divided = manifest.members.divide(records);
    let divided = divided.ok_or_else(|| invalid("the index is that of other datasets"))?;
    let member = |(source, records_per_file): (&Source, &'a [u32])| Member {
        records_per_file,
        times: source.repeat,
    };
    Ok(source.members().zip(divided).map(member).collect())
}

/// Mean stored bytes per record, with the records zipped to it.
fn stored_bytes_per_record(manifest: &Manifest) -> u64 {
    let of_one = |files: &[ManifestFile]| {
        let records: u64 = files.iter().map(|file| u64::from(file.records)).sum();
        files.iter().map(|file| file.file.size).sum::<u64>() / records.max(1)
    };
    let divided = manifest.members.divide(&manifest.files).unwrap_or_default();
    divided.into_iter().map(of_one).sum()
}

/// The state of a job once its dataset is indexed: running, or failed if it has no records.
pub(crate) fn planned_state(plan: &Plan, manifest: &Manifest) -> JobState {
    if plan.records > 0 {
        return JobState::Running;
    }
    let datasets = manifest.members.divide(&manifest.files).unwrap_or_default();
    let records =
        |files: &[ManifestFile]| files.iter().map(|file| u64::from(file.records)).sum::<u64>();
    let empty = datasets.iter().find(|files| records(files) == 0);
    let error = match (datasets.as_slice(), empty) {
        ([] | [_], Some(files)) => {
            format!("the dataset has no records: {}", hold_none(&manifest.bucket, files))
        }
        (_, Some(files)) => {
            let why = hold_none(&manifest.bucket, files);
            format!("one of the zipped datasets has no records: {why}")
        }
        ([files], None) => {
            let records = records(files);
            format!("the pipeline leaves none of the dataset's {records} records: see its `skip`")
        }
        (_, None) => {
            "the pipeline leaves no records of the zipped datasets: see its `skip`".to_owned()
        }
    };
    JobState::Failed { error }
}

/// Explains that `files` hold no records: names them and says what to check.
fn hold_none(bucket: &str, files: &[ManifestFile]) -> String {
    let bytes: u64 = files.iter().map(|file| file.file.size).sum();
    let path = |file: &ManifestFile| ObjectPath::new(bucket, file.file.key.as_str());
    let named = match files {
        [] => "it has no files".to_owned(),
        [one] => format!("{} ({bytes} bytes) holds none", path(one)),
        [first, ..] => {
            let (count, first) = (files.len(), path(first));
            format!("none of its {count} files ({bytes} bytes; the first is {first}) holds one")
        }
    };
    format!("{named}; check `--data` and the format that the pipeline's source names")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::wire::{Members, SourceFile};

    /// A manifest of files of `(bytes, records)`.
    fn manifest(files: &[(u64, u32)], members: &[u32]) -> Manifest {
        let file = |&(size, records): &(u64, u32)| {
            let file = SourceFile::new(format!("f{size}"), size, "e");
            ManifestFile { file, records }
        };
        let files = files.iter().map(file).collect();
        Manifest { bucket: "b".into(), files, members: Members::of(members.to_vec()) }
    }

    #[test]
    fn a_zip_is_planned_by_its_shortest_dataset_and_the_bytes_of_all() {
        let manifest = manifest(&[(1000, 20), (3000, 30), (200, 2)], &[2, 1]);
        let zip = "source: { zip: [{ jsonl: a, features: { x: { dtype: i64 } } }, \
             { jsonl: b, features: { y: { dtype: i64 } }, repeat: 10 }] }\nops: [batch: { size: 4 }]\n";
        let zip = gristmill_operators::parse(zip).unwrap();
        // 4,000 bytes of 50 records, plus 200 bytes of 2.
        assert_eq!(stored_bytes_per_record(&manifest), 80 + 100);
        let records = manifest.records();
        let members = members(zip.source(), &manifest, &records).unwrap();
        let plan = SplitPlan::of_zip(&members, 4, &[]).unwrap();
        assert_eq!((plan.records(), plan.n_splits()), (20, 5));
    }

    #[test]
    fn a_job_without_records_fails_with_the_files_that_hold_none_or_the_cause() {
        let plan = |records| Plan {
            records,
            copies: 1,
            batch_size: 1,
            drop_last: false,
            in_order: false,
            split_records: 1,
            n_splits: 1,
            max_bundle_splits: 1,
            window_splits: 1,
            window_bytes: 1,
            batch_bytes: 1,
        };
        let failed = |files: &[(u64, u32)], members: &[u32]| match planned_state(
            &plan(0),
            &manifest(files, members),
        ) {
            JobState::Failed { error } => error,
            state => panic!("{state:?}"),
        };
        for (files, members, words) in [
            (
                &[(1, 0)][..],
                &[][..],
                "dataset has no records: s3://b/f1 (1 bytes) holds none; check",
            ),
            (&[(1, 0), (2, 0)], &[], "none of its 2 files (3 bytes; the first is s3://b/f1) holds"),
            (&[(9, 4)], &[], "leaves none of the dataset's 4 records"),
            (&[(9, 4), (2, 0)], &[1, 1], "one of the zipped datasets has no records: s3://b/f2 ("),
            (&[(9, 4), (2, 1)], &[1, 1], "leaves no records of the zipped datasets"),
        ] {
            let error = failed(files, members);
            assert!(error.contains(words), "{error}");
        }
        assert!(matches!(planned_state(&plan(1), &manifest(&[(1, 1)], &[])), JobState::Running));
    }
}
