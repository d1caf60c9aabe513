//! Bytes of elements, which decide how a dataset is divided into splits.

use crate::{ExactEffect, FieldDType, FieldSchema, Pipeline, PipelineStage};

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
            let touches = op.field() == Some(name) || op.outputs().contains(&name);
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
