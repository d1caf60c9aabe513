//! A checked pipeline: read from YAML, written as canonical JSON.

use crate::{
    Batching, BoxedOperator, Cardinality, DeliveryOperators, ElementSchema, OperatorRegistry,
    PipelineError, PipelineSource, PipelineStage,
    fingerprint::{CanonicalDelivery, CanonicalOp, CanonicalPipeline},
    flow::SchemaFlow,
    node::{NodeValue, SyntaxNode},
    passes::AutoOrder,
    registry::{number, op_nodes, parse_stage, read_canonical_stages},
    table::MappingReader,
};
use gristmill_model::{Compression, DatasetOp};
use serde::Serialize;
use std::{collections::BTreeSet, ops::Range};

/// Version of the canonical form.
const CANONICAL_VERSION: u32 = 1;
/// Maximum number of operators in a pipeline, including cache points.
pub const MAX_OPS: usize = 1024;

/// A pipeline that can run: every edge has a schema, and the pipeline makes batches exactly once.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    name: Option<String>,
    source: PipelineSource,
    stages: Vec<PipelineStage>,
    deliver: DeliveryOperators,
    schemas: Vec<ElementSchema>,
    output: ElementSchema,
    finishing: Vec<ElementSchema>,
    delivered: ElementSchema,
    batching: Batching,
    options: Options,
}

/// Settings of a pipeline file that do not change results once its operators have their order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Options {
    auto_order: AutoOrder,
    compress: Compression,
}

impl Pipeline {
    /// Reads a pipeline file whose operators are in `registry`.
    ///
    /// # Errors
    /// The first problem, with its line and advice on how to fix it.
    pub fn parse(yaml: &str, registry: &OperatorRegistry) -> Result<Pipeline, PipelineError> {
        let root = SyntaxNode::parse(yaml)?;
        if root.value == NodeValue::Null {
            return Err(PipelineError::general(
                "the pipeline is empty; it needs `source` and `ops`",
            ));
        }
        let mut table = MappingReader::new("the pipeline", &root)?;
        let name = table.get("name").map(|node| table.text("name", node)).transpose()?;
        let auto_order = table.get("auto_order").map(AutoOrder::parse).transpose()?;
        let compress = table.get("compress");
        let compress = compress
            .map(|node| table.choice("compress", node, &Compression::CHOICES))
            .transpose()?;
        let options = Options {
            auto_order: auto_order.unwrap_or_default(),
            compress: compress.unwrap_or_default(),
        };
        let source = table.get("source");
        let ops = table.get("ops");
        let deliver = table.get("deliver");
        // A misspelt key gives a better message than the missing key that it causes.
        let missing = |key| PipelineError::general(format!("the pipeline needs `{key}`"));
        table.finish()?;
        let source = PipelineSource::parse(source.ok_or_else(|| missing("source"))?)?;
        let ops = ops.ok_or_else(|| missing("ops"))?;
        let mut stages = Vec::new();
        for node in op_nodes(ops)? {
            stages.push(parse_stage(node, registry)?);
        }
        number(&mut stages)?;
        let deliver_line = deliver.and_then(|node| node.line);
        let deliver = deliver.map(|node| DeliveryOperators::parse(node, registry)).transpose()?;
        let deliver = deliver.unwrap_or_default();
        let checked = Self::check(name, source, stages, ops.line, deliver, deliver_line);
        checked.map(|pipeline| Pipeline { options, ..pipeline })
    }

    /// Returns this pipeline with other operators.
    pub(crate) fn with_stages(
        &self,
        stages: Vec<PipelineStage>,
    ) -> Result<Pipeline, PipelineError> {
        self.with_delivery(stages, self.deliver.clone())
    }

    /// Returns this pipeline with other operators in workers and in the fetcher.
    pub(crate) fn with_delivery(
        &self,
        stages: Vec<PipelineStage>,
        deliver: DeliveryOperators,
    ) -> Result<Pipeline, PipelineError> {
        let Pipeline { name, source, options, .. } = self.clone();
        let checked = Self::check(name, source, stages, None, deliver, None);
        checked.map(|pipeline| Pipeline { options, ..pipeline })
    }

    /// Reads the output of [`canonical_json`](Self::canonical_json), which has no name and no
    /// source paths. Operators of users may be missing from `registry`; then they have no kernels.
    ///
    /// # Errors
    /// If the JSON is not a canonical pipeline, or needs operators or versions that this build
    /// lacks.
    pub fn from_canonical(
        json: &str,
        registry: &OperatorRegistry,
    ) -> Result<Pipeline, PipelineError> {
        let parsed =
            SyntaxNode::parse_json(json).and_then(|root| Self::read_canonical(&root, registry));
        // Line numbers help nobody in generated text.
        parsed.map_err(|error| PipelineError::general(error.message)).map(|mut pipeline| {
            let Pipeline { stages, deliver, .. } = &mut pipeline;
            stages.iter_mut().chain(&mut deliver.stages).for_each(|stage| stage.line = None);
            pipeline
        })
    }

    fn read_canonical(
        root: &SyntaxNode,
        registry: &OperatorRegistry,
    ) -> Result<Pipeline, PipelineError> {
        let mut table = MappingReader::new("the canonical pipeline", root)?;
        let version = table.require("version")?;
        if version.value != NodeValue::Int(CANONICAL_VERSION.into()) {
            return Err(version.error(format!(
                "the canonical pipeline has version {}, this build reads {CANONICAL_VERSION}; \
                 use one release for all parts of a job",
                version.shown()
            )));
        }
        let source = PipelineSource::parse_canonical(table.require("source")?)?;
        let stages = read_canonical_stages(table.require("ops")?, registry)?;
        let mut delivery = MappingReader::new("`deliver`", table.require("deliver")?)?;
        let mut deliver = DeliveryOperators::read(&mut delivery, registry)?;
        if let Some(ops) = delivery.get("ops") {
            deliver.stages = read_canonical_stages(ops, registry)?;
        }
        delivery.finish()?;
        table.finish()?;
        let mut ordinals = BTreeSet::new();
        if !stages.iter().chain(&deliver.stages).all(|stage| ordinals.insert(stage.ordinal)) {
            return Err(PipelineError::general("two ops have the same ordinal"));
        }
        Self::check(None, source, stages, None, deliver, None)
    }

    /// Infers the schema of every edge and checks the pipeline as a whole.
    fn check(
        name: Option<String>,
        source: PipelineSource,
        mut stages: Vec<PipelineStage>,
        ops_line: Option<u32>,
        deliver: DeliveryOperators,
        deliver_line: Option<u32>,
    ) -> Result<Pipeline, PipelineError> {
        let mut flow = SchemaFlow::new(source.schema());
        let mut schemas = vec![flow.schema().clone()];
        let (mut batching, mut is_shuffled): (Option<Batching>, bool) = (None, false);
        for stage in &mut stages {
            let line = stage.line;
            let at = |message: String| PipelineError::at_line(line, message);
            // Only a cache point may follow the batch; it stores the delivered batches.
            if batching.is_some() && stage.op.cache_point().is_none() {
                let name = stage.op.name();
                let message = match stage.op.batching() {
                    Some(_) => format!("`{name}` comes after a batch; keep one of them"),
                    None => {
                        format!(
                            "`{name}` comes after `batch`; move it before: after `batch` only \
                             `autocache` may come"
                        )
                    }
                };
                return Err(at(message));
            }
            check_sequence(&source, stage.op.dataset(), &mut is_shuffled).map_err(at)?;
            if stage.op.dataset().is_some() {
                flow.comes_before_caches(stage.op.name()).map_err(at)?;
            }
            stage.op.settle(&flow);
            stage.op.record_input(&flow);
            stage.op.infer(&mut flow).map_err(at)?;
            // Files are files after it.
            if !matches!(stage.op.dataset(), Some(DatasetOp::ShardFiles { .. })) {
                flow.pass(stage.op.declaration());
            }
            stage.op.record_output(&flow);
            schemas.push(flow.schema().clone());
            batching = batching.or(stage.op.batching());
        }
        let Some(batching) = batching else {
            let message = "the pipeline has no `batch`; end `ops` with `- batch: { size: 64 }`";
            return Err(PipelineError::at_line(ops_line, message));
        };
        check_batch_order(&stages, &batching)?;
        check_cached_batches(&stages, &batching)?;
        let output = flow.schema().with_implicit();
        let finishing = deliver.infer(&mut flow);
        let finishing = finishing.map_err(|m| PipelineError::at_line(deliver_line, m))?;
        let delivered = flow.schema().with_implicit();
        Ok(Pipeline {
            name,
            source,
            stages,
            deliver,
            schemas,
            output,
            finishing,
            delivered,
            batching,
            options: Options::default(),
        })
    }

    /// The versioned, deterministic form that a job freezes. Defaults are filled in; name and
    /// source paths are left out because they do not change results.
    pub fn canonical_json(&self) -> String {
        let DeliveryOperators { stages, normalise } = &self.deliver;
        to_json(&CanonicalPipeline {
            version: CANONICAL_VERSION,
            source: &self.source,
            ops: CanonicalOp::all(&self.stages),
            deliver: CanonicalDelivery { normalise, ops: CanonicalOp::all(stages) },
        })
    }

    /// How far passes may reorder operators to reduce cost.
    pub fn auto_order(&self) -> AutoOrder {
        self.options.auto_order
    }

    /// How workers compress the objects that they store.
    pub fn compression(&self) -> Compression {
        self.options.compress
    }

    /// The name that the author gave it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The source of its elements.
    pub fn source(&self) -> &PipelineSource {
        &self.source
    }

    /// Locations of the data as the author wrote them: paths, directories, globs or
    /// `s3://bucket/prefix`, in order. Those of zipped datasets follow dataset by dataset. Empty
    /// when read from the canonical form.
    pub fn source_paths(&self) -> Vec<String> {
        self.source.members().flat_map(|source| &source.paths).cloned().collect()
    }

    /// The operators in execution order. The last one is the batch, or the cache point after it.
    pub fn stages(&self) -> &[PipelineStage] {
        &self.stages
    }

    /// Index of the batch among the operators.
    pub fn batch_stage(&self) -> usize {
        let batch = self.stages.iter().rposition(|stage| stage.op.batching().is_some());
        // Every checked pipeline has one.
        batch.unwrap_or(self.stages.len())
    }

    /// Operators that apply to batches after workers have made them.
    pub fn deliver(&self) -> &DeliveryOperators {
        &self.deliver
    }

    /// Schema of an element on every edge: entry 0 is the output of the source, entry i + 1 the
    /// output of operator i. `batch` leaves the schema as it is.
    pub fn schemas(&self) -> &[ElementSchema] {
        &self.schemas
    }

    /// Schema of an element as workers make it, with `__key__` and `__copy__`.
    pub fn output_schema(&self) -> &ElementSchema {
        &self.output
    }

    /// Schema of an element in the fetcher: entry 0 is the output of workers, entry i + 1 the
    /// output of operator i of [`DeliveryOperators::stages`].
    pub fn finishing_schemas(&self) -> &[ElementSchema] {
        &self.finishing
    }

    /// Schema of an element as delivered, with `__key__` and `__copy__`: the fetcher's output for
    /// [`output_schema`](Self::output_schema).
    pub fn delivered_schema(&self) -> &ElementSchema {
        &self.delivered
    }

    /// Whether every record of an epoch becomes exactly one element.
    pub fn is_one_to_one(&self) -> bool {
        self.stages.iter().all(|stage| {
            let cardinality = stage.op.declaration().cardinality;
            stage.op.dataset().is_some()
                || matches!(cardinality, Cardinality::OneToOne | Cardinality::Batch)
        })
    }

    /// Whether the number of an epoch's batches follows from that of its records.
    pub fn counts_batches(&self) -> bool {
        self.is_one_to_one() && !self.batching.has_sizes()
    }

    /// Operators on the sequence of records, in order. They apply before records are read.
    pub fn dataset_ops(&self) -> Vec<DatasetOp> {
        self.stages.iter().filter_map(|stage| stage.op.dataset()).collect()
    }

    /// Elements per batch.
    pub fn batch_size(&self) -> u32 {
        self.batching.size
    }

    /// How elements become batches.
    pub fn batching(&self) -> &Batching {
        &self.batching
    }

    /// Whether an epoch drops its last batch if that is short.
    pub fn drop_remainder(&self) -> bool {
        self.batching.drop_remainder
    }

    /// Whether batches hold records in the order of the dataset.
    pub fn is_in_order(&self) -> bool {
        self.stages.iter().any(is_in_order)
    }

    /// Returns this pipeline with `op` in the place of the operators at `places`, which may be none. What other operators draw
    /// stays as it is.
    ///
    /// # Errors
    /// It cannot stand there.
    pub fn with_operator(
        &self,
        places: Range<usize>,
        op: BoxedOperator,
    ) -> Result<Pipeline, PipelineError> {
        let mut stages = self.stages.clone();
        let taken = stages.iter().chain(&self.deliver.stages).map(|stage| stage.ordinal);
        let taken: BTreeSet<u32> = taken.collect();
        let ordinal = (0..=MAX_OPS as u32).find(|free| !taken.contains(free)).unwrap_or_default();
        let (keep_position, assume_commutes, line) = (false, false, None);
        let stage = PipelineStage { op, ordinal, keep_position, assume_commutes, line };
        stages.splice(places, [stage]);
        self.with_stages(stages)
    }

    /// Returns this pipeline with another batch size.
    ///
    /// # Errors
    /// If the size is 0, or a batch would be too large.
    pub fn with_batch_size(self, size: u32) -> Result<Pipeline, PipelineError> {
        let most = crate::MAX_BATCH_SIZE;
        if !(1..=most).contains(&size) {
            return Err(PipelineError::general(format!(
                "the batch size must be 1 to {most}, not {size}"
            )));
        }
        if self.batching.has_sizes() {
            let op = self.stages[self.batch_stage()].op.name();
            return Err(PipelineError::general(format!(
                "a batch size was given, and batches of `{op}` differ in size; change its own"
            )));
        }
        let mut stages = self.stages.clone();
        for stage in &mut stages {
            stage.op.set_batch_size(size);
        }
        let checked = self.with_stages(stages);
        // The size does not come from the file, so its line would mislead.
        checked.map_err(|error| PipelineError::general(error.message))
    }

    /// As [`PipelineSource::with_classes`].
    ///
    /// # Errors
    /// As [`PipelineSource::with_classes`].
    pub fn with_classes(
        mut self,
        list: impl FnOnce(&str) -> Result<Vec<String>, String>,
    ) -> Result<Pipeline, PipelineError> {
        self.source = self.source.with_classes(list)?;
        Ok(self)
    }
}

/// Refuses an operator on files where files are paired, and parts of a shuffled order: its blocks depend on the size of splits.
fn check_sequence(
    source: &PipelineSource,
    op: Option<DatasetOp>,
    is_shuffled: &mut bool,
) -> Result<(), String> {
    match op {
        Some(DatasetOp::Interleave { .. }) if source.is_zip() => Err(
            "`interleave` takes the files of one dataset in turn, and `zip` pairs records by \
             their place in all files of each; leave one of them out"
                .to_owned(),
        ),
        Some(DatasetOp::ShardFiles { .. }) if source.is_zip() => Err(
            "`shard` by file takes some files of one dataset, and `zip` pairs records by their place \
             in all files of each; shard by record"
                .to_owned(),
        ),
        Some(DatasetOp::ShardFiles { .. } | DatasetOp::ShardRecords { .. }) if *is_shuffled => Err(
            "`shard` comes after `shuffle`: put it before, so that each record is in one shard"
                .to_owned(),
        ),
        op => {
            *is_shuffled |= matches!(op, Some(DatasetOp::Shuffle { .. }));
            Ok(())
        }
    }
}

/// Refuses batches of like elements in the order of the dataset.
fn check_batch_order(stages: &[PipelineStage], batching: &Batching) -> Result<(), PipelineError> {
    if batching.buckets.is_none() && batching.groups.is_none() {
        return Ok(());
    }
    let Some(in_order) = stages.iter().find(|stage| is_in_order(stage)) else { return Ok(()) };
    let batch = stages.iter().rev().find(|stage| stage.op.batching().is_some());
    let name = batch.map_or("the batch", |stage| stage.op.name());
    let together = if batching.groups.is_some() { "like keys" } else { "like lengths" };
    let message = format!(
        "`in_order` keeps the order of records, and `{name}` puts {together} together; leave one of \
         them out, or batch with `padded_batch`"
    );
    Err(PipelineError::at_line(in_order.line, message))
}

/// Refuses a cache of batches of several sizes: a cache counts its rows, and the number of batches follows from them.
fn check_cached_batches(
    stages: &[PipelineStage],
    batching: &Batching,
) -> Result<(), PipelineError> {
    let batch = stages.iter().rposition(|stage| stage.op.batching().is_some());
    let after = stages.iter().skip(batch.map_or(stages.len(), |batch| batch + 1));
    match after.into_iter().next().filter(|_| batching.has_sizes()) {
        None => Ok(()),
        Some(stage) => Err(PipelineError::at_line(
            stage.line,
            "`autocache` after batches of several sizes cannot count them; put it before the batch",
        )),
    }
}

fn is_in_order(stage: &PipelineStage) -> bool {
    stage.op.dataset() == Some(DatasetOp::InOrder)
}

/// JSON of plain data, with fields in declaration order.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    // Serialising fails only for maps whose keys are not text; there are none.
    serde_json::to_string(value).unwrap_or_default()
}
