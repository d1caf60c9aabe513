//! How a dataset is divided into splits: a function of the dataset's version and the pipeline alone. Batches must be the
//! same on every machine, with any number of workers, and after a checkpoint is taken elsewhere.

use crate::{
    BoxedOperator, DeliveryOperators, ElementSchema, ExactEffect, FieldDType, FieldSchema,
    OperatorEffect, Pipeline, PipelineSource, PipelineStage,
};
use gristmill_model::{
    splits::{
        SplitPlan, ZipMember,
        order::{BundleDivision, default_bundle_splits},
        window::window_splits,
    },
    wire::{DatasetManifest, EpochPlan, JobSpec, ManifestFile},
};

/// CPU time of a split beside that of its records, in all processes: claim, read, store, commit, fetch. Measured on one
/// machine with splits of eight numbers: 3 to 4 ms.
const SPLIT_NS: u64 = 3_000_000;
/// The share of a split's CPU time that this may be, in percent.
const MOST_PERCENT: u64 = 5;
/// Least CPU time of a split's records, so that [`SPLIT_NS`] is at most [`MOST_PERCENT`] of the whole.
const RECORDS_NS: u64 = SPLIT_NS * (100 - MOST_PERCENT) / MOST_PERCENT;
/// Most bytes of a split's object, as estimated: requests then cost little beside compute, and the object fits into a
/// worker's memory and one put.
const OBJECT_BYTES: u64 = 64 << 20;
/// Splits of an epoch, if the records take enough CPU time, so that work can fan out.
const MIN_SPLITS: u64 = 64;

impl Pipeline {
    /// Batches of a split of a dataset of `records`, each of which takes `stored_bytes` in its file.
    ///
    /// As many as make an object of 64 MiB, but few enough for 64 splits of an epoch; at least as many as keep the fixed
    /// cost of a split at 5 % of its CPU time, and as the batching sorts together. Neither exceeds the 64 MiB.
    pub fn split_batches(&self, records: u64, stored_bytes: u64) -> u64 {
        self.as_written().as_ref().unwrap_or(self).split_batches_in_order(records, stored_bytes)
    }

    /// This pipeline with its operators in the order of their author, all in workers, so that no reordering of operators
    /// changes which records are in a batch.
    fn as_written(&self) -> Option<Pipeline> {
        let (before, batch) = self.stages().split_at(self.batch_stage());
        let mut stages = [before, &self.deliver().stages].concat();
        // Operators on the dataset may be ahead of cache points, whose ordinals count down.
        let is_fixed = |PipelineStage { op, keep_position, .. }: &PipelineStage| {
            op.dataset().is_some() || op.declaration().pins_position || *keep_position
        };
        for section in stages.split_mut(is_fixed) {
            section.sort_by_key(|stage| stage.ordinal);
        }
        stages.extend_from_slice(batch);
        let deliver = DeliveryOperators { stages: Vec::new(), ..self.deliver().clone() };
        self.with_delivery(stages, deliver).ok()
    }

    fn split_batches_in_order(&self, records: u64, stored_bytes: u64) -> u64 {
        let batch = u64::from(self.batch_size().max(1));
        // A worker holds in memory both the stored records and its output.
        let record_bytes = self.narrow_bytes_per_record(stored_bytes).max(stored_bytes);
        let by_bytes = OBJECT_BYTES / record_bytes.saturating_mul(batch).max(1);
        let by_spread = records / batch.saturating_mul(MIN_SPLITS).max(1);
        let batch_ns = self.cpu_ns_per_record(stored_bytes).saturating_mul(batch);
        let by_cost = RECORDS_NS.div_ceil(batch_ns.max(1));
        // More than the dataset has would say nothing.
        let by_cost = by_cost.min(records.div_ceil(batch));
        let least = by_cost.max(self.batching().batches_together());
        by_bytes.min(by_spread.max(least)).max(1)
    }

    /// CPU nanoseconds that a worker takes for a record of `stored_bytes`, as its source and its operators declare.
    ///
    /// Passes do not change it, so that they do not change which records are in a batch: it does not depend on the order
    /// of operators, nor on where they run.
    pub fn cpu_ns_per_record(&self, stored_bytes: u64) -> u64 {
        let of_sources = self.source().members().map(|source| source.format.definition().cost);
        let of_sources = of_sources.map(|cost| cost.ns(stored_bytes));
        let stages = self.stages().iter().zip(self.schemas());
        let finishing = self.deliver().stages.iter().zip(self.finishing_schemas());
        let of_stages = stages.chain(finishing);
        let of_stages = of_stages.map(|(stage, input)| {
            stage.op.cost().ns(self.bytes_read(&stage.op, input, stored_bytes))
        });
        let once = of_sources.chain(of_stages).fold(0, u64::saturating_add);
        let copies = self.stages().iter().map(|stage| u64::from(stage.op.copies()));
        copies.fold(once, u64::saturating_mul)
    }

    /// Estimated bytes that an operator reads of an element. An operator that may move counts the values of its field as
    /// delivered, a byte each.
    fn bytes_read(&self, op: &BoxedOperator, input: &ElementSchema, stored_bytes: u64) -> u64 {
        let Some(name) = op.field() else {
            return self.narrow_bytes_per_record(stored_bytes);
        };
        let is_fixed = op.declaration().effect == OperatorEffect::Opaque;
        let schema = if is_fixed { input } else { self.delivered_schema() };
        let bytes = schema.field(name).and_then(|field| match field.dtype.size_bytes() {
            Some(size) if !is_fixed => Some(field.element_bytes()? / size),
            _ => field.element_bytes(),
        });
        let is_stored = schema.field(name).is_some_and(|field| field.dtype == FieldDType::Bytes);
        let unknown = if is_stored { stored_bytes } else { stored_bytes.saturating_mul(4) };
        bytes.unwrap_or(unknown)
    }
}

// Bytes of elements, which decide how a dataset is divided into splits.

impl Pipeline {
    /// Bytes of an element as workers make it; `None` if elements differ in size.
    pub fn element_bytes(&self) -> Option<u64> {
        self.output_schema().element_bytes()
    }

    /// Estimated bytes in batches per record that takes `stored_bytes` in its file.
    pub fn bytes_per_record(&self, stored_bytes: u64) -> u64 {
        self.sum_per_record(stored_bytes, |_, field| field.element_bytes())
    }

    /// As [`bytes_per_record`](Self::bytes_per_record), with every field as narrow as the fetcher
    /// could receive it. Divides data into splits: unlike the bytes in batches, it is the same
    /// wherever operators run and whether an exact pass moved them, so neither changes which
    /// records are in a batch.
    pub fn narrow_bytes_per_record(&self, stored_bytes: u64) -> u64 {
        self.sum_per_record(stored_bytes, |name, field| {
            let values = field.element_bytes()? / field.dtype.size_bytes()?;
            let dtypes = self.last_dtypes(name).into_iter().filter_map(FieldDType::size_bytes);
            values.checked_mul(dtypes.min()?)
        })
    }

    fn sum_per_record(
        &self,
        stored_bytes: u64,
        bytes: impl Fn(&str, &FieldSchema) -> Option<u64>,
    ) -> u64 {
        // Numbers in text take about a quarter of their size as i64. Images delivered in their own
        // size exceed this estimate, which makes objects larger, but within their limit.
        let unknown = stored_bytes.saturating_mul(4);
        let fields = self.output_schema().fields.iter();
        let fields: Vec<Option<u64>> = fields.map(|(name, field)| bytes(name, field)).collect();
        let known = fields.iter().flatten().copied().fold(0, u64::saturating_add);
        let unknown = if fields.contains(&None) { unknown } else { 0 };
        let copies = self.stages().iter().map(|stage| u64::from(stage.op.copies()));
        copies.fold(known.saturating_add(unknown), u64::saturating_mul)
    }

    /// The dtypes of a delivered field, from delivery back to the last operator that keeps its
    /// place.
    fn last_dtypes(&self, name: &str) -> Vec<FieldDType> {
        let schema = self.delivered_schema().field(name);
        let mut dtypes: Vec<FieldDType> = schema.map(|field| field.dtype).into_iter().collect();
        let in_workers = self.stages()[..self.batch_stage()].iter().zip(self.schemas());
        let in_fetcher = self.deliver().stages.iter().zip(self.finishing_schemas());
        for (stage, input) in in_workers.chain(in_fetcher).rev() {
            let PipelineStage { op, keep_position, .. } = stage;
            let touches = op.touched().contains(&name);
            let pinned = op.declaration().pins_position && op.dataset().is_none();
            let Some(field) = input.field(name).filter(|_| !pinned && !keep_position) else {
                break;
            };
            let moves = op.can_follow_batch() || stage.exact_effect(input) != ExactEffect::Unknown;
            if touches && !moves {
                break;
            }
            dtypes.push(field.dtype);
        }
        dtypes
    }
}

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
