//! Plans: divides an indexed dataset into splits.

use crate::{Jobs, store::invalid};
use gristmill_model::splits::{
    SplitPlan, ZipMember,
    order::{BundleDivision, default_bundle_splits},
};
use gristmill_model::wire::{CallRefusal, DatasetManifest, EpochPlan, JobSpec, ManifestFile};
use gristmill_pipeline::{Pipeline, PipelineSource};

/// Bundles per worker that the window must have room for.
const WINDOW_BUNDLES_PER_WORKER: u32 = 3;
/// Least splits of a window. A trainer may take a light split in a millisecond, and workers that left because the window
/// was full come back after some hundred.
const MIN_WINDOW_SPLITS: u32 = 32;

impl Jobs {
    /// Divides a dataset into splits: see [`Pipeline::split_batches`].
    pub(crate) fn plan(
        &self,
        spec: &JobSpec,
        pipeline: &Pipeline,
        manifest: &DatasetManifest,
    ) -> Result<EpochPlan, CallRefusal> {
        let batch_size = pipeline.batch_size();
        // A worker holds in memory both the stored records and its output.
        let stored_bytes = stored_bytes_per_record(manifest);
        let record_bytes = pipeline.bytes_per_record(stored_bytes).max(stored_bytes);
        let records = manifest.records();
        let members = members(pipeline.source(), manifest, &records)?;
        let ops = pipeline.dataset_ops();
        let view = |split_records| {
            let plan = SplitPlan::from_zip(&members, split_records, &ops);
            plan.map_err(|error| invalid(error.to_string()))
        };
        let records = view(u32::MAX)?.records();
        let chosen = pipeline.split_batches(records, stored_bytes);
        let batch = u64::from(batch_size.max(1));
        let split_batches = spec.settings.asked_split_batches().map_or(chosen, u64::from).max(1);
        let split_records = u32::try_from(split_batches * batch)
            .map_err(|_| invalid("split-batches x batch size is too large"))?;
        let splits = view(split_records)?;
        let copies = spec.copies();
        let n_splits = splits.n_splits().checked_mul(copies).ok_or_else(|| {
            invalid("the dataset has more splits, once for each worker, than can be counted")
        })?;
        let max_bundle_splits =
            BundleDivision::new(n_splits, default_bundle_splits(n_splits)).max_bundle_splits();
        Ok(EpochPlan {
            records: records.saturating_mul(u64::from(copies)),
            copies,
            batch_size,
            drop_last: pipeline.drop_remainder(),
            in_order: pipeline.is_in_order(),
            split_records,
            n_splits,
            max_bundle_splits,
            window_splits: window_of(spec.all_workers(), max_bundle_splits),
            window_bytes: self.records.settings.window_bytes,
            batch_bytes: record_bytes.saturating_mul(batch),
        })
    }
}

/// Window in splits ahead of the trainer, for `workers` and bundles of at most `max_bundle_splits`.
pub(crate) fn window_of(workers: u32, max_bundle_splits: u32) -> u32 {
    let bundles = workers.max(1).saturating_add(1).saturating_mul(WINDOW_BUNDLES_PER_WORKER);
    bundles.saturating_mul(max_bundle_splits).max(MIN_WINDOW_SPLITS)
}

/// The datasets of a job in the form that splits are made from.
fn members<'a>(
    source: &PipelineSource,
    manifest: &DatasetManifest,
    records: &'a [u32],
) -> Result<Vec<ZipMember<'a>>, CallRefusal> {
    let divided = manifest.members.divide(records);
    let divided = divided.ok_or_else(|| invalid("the index is that of other datasets"))?;
    let member = |(source, records_per_file): (&PipelineSource, &'a [u32])| ZipMember {
        records_per_file,
        times: source.repeat,
    };
    Ok(source.members().zip(divided).map(member).collect())
}

/// Mean stored bytes per record, with the records zipped to it.
fn stored_bytes_per_record(manifest: &DatasetManifest) -> u64 {
    let of_one = |files: &[ManifestFile]| {
        let records: u64 = files.iter().map(|file| u64::from(file.records)).sum();
        files.iter().map(|file| file.file.size).sum::<u64>() / records.max(1)
    };
    let divided = manifest.members.divide(&manifest.files).unwrap_or_default();
    divided.into_iter().map(of_one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::wire::{SourceFile, ZipFileCounts};

    /// A manifest of files of `(bytes, records)`.
    fn manifest(files: &[(u64, u32)], members: &[u32]) -> DatasetManifest {
        let file = |&(size, records): &(u64, u32)| {
            let file = SourceFile::new(format!("f{size}"), size, "e");
            ManifestFile { file, records }
        };
        let files = files.iter().map(file).collect();
        DatasetManifest { bucket: "b".into(), files, members: ZipFileCounts::new(members.to_vec()) }
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
        let plan = SplitPlan::from_zip(&members, 4, &[]).unwrap();
        assert_eq!((plan.records(), plan.n_splits()), (20, 5));
    }
}
