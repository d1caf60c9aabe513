//! Plans: divides an indexed dataset into splits.

use crate::{Pipeline, PipelineSource};
use gristmill_model::splits::{
    SplitPlan, ZipMember,
    order::{BundleDivision, default_bundle_splits},
    window::window_splits,
};
use gristmill_model::wire::{DatasetManifest, EpochPlan, JobSpec, ManifestFile};

impl Pipeline {
    /// Divides a dataset into splits: see [`Pipeline::split_batches`]. `window_bytes` may be ready and not yet received.
    ///
    /// # Errors
    /// The manifest is that of other datasets, or there are more splits than can be counted.
    pub fn plan(
        &self,
        spec: &JobSpec,
        manifest: &DatasetManifest,
        window_bytes: u64,
    ) -> Result<EpochPlan, String> {
        // A worker holds in memory both the stored records and its output.
        let stored_bytes = stored_bytes_per_record(manifest);
        let record_bytes = self.bytes_per_record(stored_bytes).max(stored_bytes);
        let records = manifest.records();
        let members = members(self.source(), manifest, &records)?;
        let ops = self.dataset_ops();
        let view = |split_records| {
            SplitPlan::from_zip(&members, split_records, &ops).map_err(|error| error.to_string())
        };
        let records = view(u32::MAX)?.records();
        let chosen = self.split_batches(records, stored_bytes);
        let batch = u64::from(self.batch_size().max(1));
        let split_batches = spec.settings.asked_split_batches().map_or(chosen, u64::from).max(1);
        let split_records = u32::try_from(split_batches * batch)
            .map_err(|_| "split-batches x batch size is too large")?;
        let copies = spec.copies();
        let n_splits = view(split_records)?
            .n_splits()
            .checked_mul(copies)
            .ok_or("the dataset has more splits, once for each worker, than can be counted")?;
        let max_bundle_splits =
            BundleDivision::new(n_splits, default_bundle_splits(n_splits)).max_bundle_splits();
        Ok(EpochPlan {
            records: records.saturating_mul(u64::from(copies)),
            copies,
            batch_size: self.batch_size(),
            drop_last: self.drop_remainder(),
            in_order: self.is_in_order(),
            split_records,
            n_splits,
            max_bundle_splits,
            window_splits: window_splits(spec.all_workers(), max_bundle_splits),
            window_bytes,
            batch_bytes: record_bytes.saturating_mul(batch),
        })
    }
}

/// The datasets of a job in the form that splits are made from.
fn members<'a>(
    source: &PipelineSource,
    manifest: &DatasetManifest,
    records: &'a [u32],
) -> Result<Vec<ZipMember<'a>>, String> {
    let divided = manifest.members.divide(records).ok_or("the index is that of other datasets")?;
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
