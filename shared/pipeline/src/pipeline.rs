//! A checked pipeline: read from YAML, written as canonical JSON.

use crate::{
    Asset, Batching, Cardinality, Deliver, Op, PipelineError, Schema, Signatures, Source, Stage,
    flow::Flow,
    node::{Node, Value, shown},
    ops::{Custom, Normalise},
    table::{Table, nearest},
};
use gristmill_model::{Compression, DatasetOp};
use serde::Serialize;
use std::collections::BTreeSet;

#[cfg(test)]
mod tests;

/// Version of the canonical form.
const CANONICAL_VERSION: u32 = 1;
/// Most operators of a pipeline, places to cache among them.
pub(crate) const MAX_OPS: usize = 1024;

/// A pipeline that can run: its schema is known on every edge, and it ends in one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    name: Option<String>,
    source: Source,
    stages: Vec<Stage>,
    deliver: Deliver,
    schemas: Vec<Schema>,
    output: Schema,
    finishing: Vec<Schema>,
    delivered: Schema,
    batching: Batching,
    options: Options,
}

/// Settings of a pipeline file that change no result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    auto_order: bool,
    compress: Compression,
}

impl Default for Options {
    fn default() -> Self {
        Self { auto_order: true, compress: Compression::default() }
    }
}

#[derive(Serialize)]
struct Canonical<'a> {
    version: u32,
    source: &'a Source,
    ops: Vec<CanonicalOp<'a>>,
    deliver: CanonicalDeliver<'a>,
}

#[derive(Serialize)]
struct CanonicalDeliver<'a> {
    normalise: &'a Option<Normalise>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ops: Vec<CanonicalOp<'a>>,
}

#[derive(Serialize)]
struct CanonicalOp<'a> {
    op: &'a str,
    version: u32,
    ordinal: u32,
    keep_position: bool,
    params: &'a Op,
}

impl<'a> CanonicalOp<'a> {
    fn new(stage: &'a Stage) -> Self {
        let Stage { op, ordinal, keep_position, .. } = stage;
        let (name, version) = op.identity();
        let (ordinal, keep_position) = (*ordinal, *keep_position);
        CanonicalOp { op: name, version, ordinal, keep_position, params: op }
    }

    fn all(stages: &'a [Stage]) -> Vec<Self> {
        stages.iter().map(Self::new).collect()
    }
}

impl Pipeline {
    /// Reads a pipeline file.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line, and what to do about it.
    pub fn parse(yaml: &str) -> Result<Pipeline, PipelineError> {
        Self::parse_with(yaml, &Signatures::new())
    }

    /// As [`parse`](Self::parse), with operators of users.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_with(yaml: &str, signatures: &Signatures) -> Result<Pipeline, PipelineError> {
        let root = Node::parse(yaml)?;
        if root.value == Value::Null {
            return Err(PipelineError::general(
                "the pipeline is empty; it needs `source` and `ops`",
            ));
        }
        let mut table = Table::new("the pipeline", &root)?;
        let name = match table.get("name") {
            Some(node) => Some(table.text("name", node)?),
            None => None,
        };
        let auto_order = table.bool("auto_order", true)?;
        let compress = match table.get("compress") {
            Some(node) => table.choice("compress", node, &Compression::CHOICES)?,
            None => Compression::default(),
        };
        let options = Options { auto_order, compress };
        let source = table.get("source");
        let ops = table.get("ops");
        let deliver = table.get("deliver");
        // A misspelt key is the better message than the missing one it leaves behind.
        let missing = |key| PipelineError::general(format!("the pipeline needs `{key}`"));
        table.finish()?;
        let source = Source::parse(source.ok_or_else(|| missing("source"))?)?;
        let ops = ops.ok_or_else(|| missing("ops"))?;
        let mut stages = Vec::new();
        for node in op_nodes(ops)? {
            stages.push(parse_stage(node, signatures)?);
        }
        number(&mut stages)?;
        let deliver_line = deliver.and_then(|node| node.line);
        let deliver = deliver.map(Deliver::parse).transpose()?.unwrap_or_default();
        let checked = Self::check(name, source, stages, ops.line, deliver, deliver_line);
        checked.map(|pipeline| Pipeline { options, ..pipeline })
    }

    /// The same source with other operators.
    pub(crate) fn with_stages(&self, stages: Vec<Stage>) -> Result<Pipeline, PipelineError> {
        self.with_delivery(stages, self.deliver.clone())
    }

    /// The same source with other operators, in workers and after them.
    pub(crate) fn with_delivery(
        &self,
        stages: Vec<Stage>,
        deliver: Deliver,
    ) -> Result<Pipeline, PipelineError> {
        let Pipeline { name, source, options, .. } = self.clone();
        let checked = Self::check(name, source, stages, None, deliver, None);
        checked.map(|pipeline| Pipeline { options, ..pipeline })
    }

    /// Reads what [`canonical_json`](Self::canonical_json) wrote. Name and source path are not part
    /// of it.
    ///
    /// # Errors
    /// If it is not that, or needs operators or versions that this build does not have.
    pub fn from_canonical(json: &str) -> Result<Pipeline, PipelineError> {
        let parsed = Node::parse_json(json).and_then(|root| Self::read_canonical(&root));
        // Lines of a text that no person wrote help nobody.
        parsed.map_err(|error| PipelineError::general(error.message)).map(|mut pipeline| {
            let Pipeline { stages, deliver, .. } = &mut pipeline;
            stages.iter_mut().chain(&mut deliver.stages).for_each(|stage| stage.line = None);
            pipeline
        })
    }

    fn read_canonical(root: &Node) -> Result<Pipeline, PipelineError> {
        let mut table = Table::new("the canonical pipeline", root)?;
        let version = table.require("version")?;
        if version.value != Value::Int(CANONICAL_VERSION.into()) {
            return Err(version.error(format!(
                "the canonical pipeline has version {}, this build reads {CANONICAL_VERSION}; \
                 use one release for all parts of a job",
                version.shown()
            )));
        }
        let source = Source::parse_canonical(table.require("source")?)?;
        let stages = read_canonical_stages(table.require("ops")?)?;
        let mut delivery = Table::new("`deliver`", table.require("deliver")?)?;
        let mut deliver = Deliver::read(&mut delivery)?;
        if let Some(ops) = delivery.get("ops") {
            deliver.stages = read_canonical_stages(ops)?;
        }
        delivery.finish()?;
        table.finish()?;
        let mut ordinals = BTreeSet::new();
        if !stages.iter().chain(&deliver.stages).all(|stage| ordinals.insert(stage.ordinal)) {
            return Err(PipelineError::general("two ops have the same ordinal"));
        }
        Self::check(None, source, stages, None, deliver, None)
    }

    /// Infers the schema of every edge and checks what concerns the pipeline as a whole.
    fn check(
        name: Option<String>,
        source: Source,
        mut stages: Vec<Stage>,
        ops_line: Option<u32>,
        deliver: Deliver,
        deliver_line: Option<u32>,
    ) -> Result<Pipeline, PipelineError> {
        let mut flow = Flow::new(source.schema());
        let mut schemas = vec![flow.schema().clone()];
        let mut batching: Option<Batching> = None;
        for stage in &mut stages {
            let line = stage.line;
            let at = |message: String| PipelineError::at_line(line, message);
            // The last place to cache is that of what is delivered.
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
            if source.is_zip() && matches!(stage.op.dataset(), Some(DatasetOp::Interleave { .. })) {
                return Err(at(
                    "`interleave` takes the files of one dataset in turn, and `zip` pairs records by \
                     their place in all files of each; leave one of them out"
                        .to_owned(),
                ));
            }
            if stage.op.dataset().is_some() {
                flow.comes_before_caches(stage.op.name()).map_err(at)?;
            }
            stage.op.settle(&flow);
            stage.op.infer(&mut flow).map_err(at)?;
            flow.pass(stage.op.declaration());
            if let Op::Custom(op) = &mut stage.op {
                op.settle(&flow);
            }
            schemas.push(flow.schema().clone());
            batching = batching.or(stage.op.batching());
        }
        let Some(batching) = batching else {
            let message = "the pipeline has no `batch`; end `ops` with `- batch: { size: 64 }`";
            return Err(PipelineError::at_line(ops_line, message));
        };
        if batching.buckets.is_some()
            && let Some(stage) = stages.iter().find(|stage| is_in_order(stage))
        {
            let message = "`in_order` keeps the order of records, and `bucket_by_sequence_length` \
                           puts like lengths together; leave one of them out, or batch with \
                           `padded_batch`";
            return Err(PipelineError::at_line(stage.line, message));
        }
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

    /// The versioned, deterministic form that a job freezes: defaults filled in, without name and
    /// source path, which change no result.
    pub fn canonical_json(&self) -> String {
        let Deliver { stages, normalise } = &self.deliver;
        to_json(&Canonical {
            version: CANONICAL_VERSION,
            source: &self.source,
            ops: CanonicalOp::all(&self.stages),
            deliver: CanonicalDeliver { normalise, ops: CanonicalOp::all(stages) },
        })
    }

    /// Whether operators may be moved where they cost less.
    pub fn auto_order(&self) -> bool {
        self.options.auto_order
    }

    /// How the objects that workers store are kept.
    pub fn compression(&self) -> Compression {
        self.options.compress
    }

    /// What its author calls it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Where its elements come from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Where the data lies, as the author wrote it: paths, directories, globs or
    /// `s3://bucket/prefix`, whose files follow each other; of zipped datasets those of the first, then
    /// those of the next. Empty when read from the canonical form.
    pub fn source_paths(&self) -> Vec<String> {
        self.source.members().flat_map(|source| &source.paths).cloned().collect()
    }

    /// The operators in the order they run; the last one is the batch, or the place to cache after it.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Index of the batch among the operators.
    pub fn batch_stage(&self) -> usize {
        let batch = self.stages.iter().rposition(|stage| stage.op.batching().is_some());
        // Every pipeline that was checked has one.
        batch.unwrap_or(self.stages.len())
    }

    /// What is done to batches after workers have made them.
    pub fn deliver(&self) -> &Deliver {
        &self.deliver
    }

    /// One element on every edge: entry 0 is what the source yields, entry i + 1 what op i does.
    /// `batch` stacks elements and leaves their schema as it is.
    pub fn schemas(&self) -> &[Schema] {
        &self.schemas
    }

    /// One element as workers make it, `__key__` and `__copy__` included.
    pub fn output_schema(&self) -> &Schema {
        &self.output
    }

    /// One element on its way through the fetcher: entry 0 is what workers make, entry i + 1 what operator
    /// i of [`Deliver::stages`] does.
    pub fn finishing_schemas(&self) -> &[Schema] {
        &self.finishing
    }

    /// One element as it is delivered, `__key__` and `__copy__` included: what the fetcher makes of
    /// [`output_schema`](Self::output_schema).
    pub fn delivered_schema(&self) -> &Schema {
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

    /// What is done to the sequence of records before elements are made of them, first to last.
    pub fn dataset_ops(&self) -> Vec<DatasetOp> {
        self.stages.iter().filter_map(|stage| stage.op.dataset()).collect()
    }

    /// Bytes of one element as workers make it; `None` if elements differ.
    pub fn element_bytes(&self) -> Option<u64> {
        self.output.element_bytes()
    }

    /// About how many bytes a record makes of batches, given those it has where it is stored: for
    /// dividing data into splits.
    pub fn bytes_per_record(&self, stored_bytes: u64) -> u64 {
        // Numbers written as text take a quarter of what they take as i64; images that are delivered
        // in their own size take more than that, which costs larger objects, within their limit.
        let unknown = stored_bytes.saturating_mul(4);
        let fields = self.output.fields.values();
        let known = fields.filter_map(|field| field.element_bytes()).fold(0, u64::saturating_add);
        let element_bytes = self.element_bytes().unwrap_or(known.saturating_add(unknown));
        let copies = self.stages.iter().map(|stage| match &stage.op {
            Op::Duplicate(op) => u64::from(op.copies),
            _ => 1,
        });
        copies.fold(element_bytes, u64::saturating_mul)
    }

    /// Elements of a batch.
    pub fn batch_size(&self) -> u32 {
        self.batching.size
    }

    /// How elements become batches.
    pub fn batching(&self) -> &Batching {
        &self.batching
    }

    /// Whether the last batch of an epoch is left out when it is short.
    pub fn drop_remainder(&self) -> bool {
        self.batching.drop_remainder
    }

    /// Whether batches hold records in the order of the dataset.
    pub fn is_in_order(&self) -> bool {
        self.stages.iter().any(is_in_order)
    }

    /// The same with another batch size.
    ///
    /// # Errors
    /// If it is 0, or a batch would be too large.
    pub fn with_batch_size(self, size: u32) -> Result<Pipeline, PipelineError> {
        let most = crate::ops::MAX_BATCH_SIZE;
        if !(1..=most).contains(&size) {
            return Err(PipelineError::general(format!(
                "the batch size must be 1 to {most}, not {size}"
            )));
        }
        let mut stages = self.stages.clone();
        for stage in &mut stages {
            match &mut stage.op {
                Op::Batch(batch) => batch.size = size,
                Op::PaddedBatch(batch) => batch.size = size,
                Op::BucketBySequenceLength(batch) => batch.size = size,
                _ => {}
            }
        }
        let checked = self.with_stages(stages);
        // The number came from elsewhere than the file.
        checked.map_err(|error| PipelineError::general(error.message))
    }

    /// The same over other data.
    #[must_use]
    pub fn with_source_path(mut self, path: impl Into<String>) -> Pipeline {
        self.source.paths = vec![path.into()];
        self
    }
}

fn is_in_order(stage: &Stage) -> bool {
    stage.op.dataset() == Some(DatasetOp::InOrder)
}

/// JSON of plain data, in the order of its declaration.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    // Serialising fails only on maps with keys that are not text; there are none.
    serde_json::to_string(value).unwrap_or_default()
}

fn op_nodes(node: &Node) -> Result<&[Node], PipelineError> {
    match &node.value {
        Value::Seq(ops) if ops.len() > MAX_OPS => {
            Err(node.error(format!("`ops` has {} entries; the limit is {MAX_OPS}", ops.len())))
        }
        Value::Seq(ops) => Ok(ops),
        _ => Err(node.error(format!("`ops` must be a list of operators, not {}", node.shown()))),
    }
}

/// `- name`, or `- name: { parameters }`.
fn parse_stage(node: &Node, signatures: &Signatures) -> Result<Stage, PipelineError> {
    let (name, params) = match &node.value {
        Value::Str(name) => (name, None),
        Value::Map(entries) => match entries.as_slice() {
            [(Node { value: Value::Str(name), .. }, params)] => (name, Some(params)),
            [(first, _), (second, _), ..] => {
                return Err(second.error(format!(
                    "an op is one name with its parameters below it; {} stands beside {}: indent \
                     it further, or start it with a dash",
                    second.shown(),
                    first.shown()
                )));
            }
            _ => return Err(node.error("an op is a name, or a name with its parameters")),
        },
        _ => {
            let found = node.shown();
            return Err(node.error(format!("an op is a name with its parameters, not {found}")));
        }
    };
    let mut params = match params {
        Some(params) => Table::new(format!("`{}`", cut(name)), params)?,
        None => Table::empty(format!("`{}`", cut(name)), node.line),
    };
    let op = match signatures.get(name) {
        Some(signature) => Op::Custom(Custom::parse(signature, &mut params)?),
        None => Op::parse(name, &mut params).ok_or_else(|| unknown(name, node, signatures))??,
    };
    let keep_position = params.bool("keep_position", false)?;
    let assume_commutes = params.bool("assume_commutes", false)?;
    params.finish()?;
    Ok(Stage { op, ordinal: 0, keep_position, assume_commutes, line: node.line })
}

/// Gives operators their ordinals: from 0, places to cache from [`MAX_OPS`] down, so that one more of
/// these changes nobody's draws.
fn number(stages: &mut [Stage]) -> Result<(), PipelineError> {
    let (mut next, mut next_point) = (0_u32, MAX_OPS as u32);
    let mut after_point = false;
    for stage in stages {
        let is_point = stage.op.cache_point().is_some();
        if is_point && after_point {
            let message = "`autocache` comes after `autocache`; keep one of them";
            return Err(PipelineError::at_line(stage.line, message));
        }
        after_point = is_point;
        if is_point {
            stage.ordinal = next_point;
            next_point -= 1;
        } else {
            stage.ordinal = next;
            next += 1;
        }
    }
    Ok(())
}

fn read_canonical_stages(node: &Node) -> Result<Vec<Stage>, PipelineError> {
    op_nodes(node)?.iter().map(read_canonical_stage).collect()
}

fn read_canonical_stage(node: &Node) -> Result<Stage, PipelineError> {
    let mut table = Table::new("an op", node)?;
    let name = table.require("op")?;
    let name = table.text("op", name)?;
    let version = table.require("version")?;
    let version = table.whole("version", version, 0..=u32::MAX)?;
    let ordinal = table.require("ordinal")?;
    let ordinal = table.whole("ordinal", ordinal, 0..=MAX_OPS as u32)?;
    let keep_position = table.bool("keep_position", false)?;
    let mut params = Table::new(format!("`{}`", cut(&name)), table.require("params")?)?;
    table.finish()?;
    let op = match name.contains('.') {
        true => Op::Custom(Custom::parse_canonical(&name, version, &mut params)?),
        false => Op::parse(&name, &mut params)
            .ok_or_else(|| unknown(&name, node, &Signatures::new()))??,
    };
    params.finish()?;
    if let Some(Asset::Path(path)) = op.asset() {
        return Err(node.error(format!(
            "op `{name}` names the file {} and not its content, which workers need; register the \
             job with a release that stores it",
            shown(path)
        )));
    }
    let (_, known) = op.identity();
    if version != known {
        return Err(node.error(format!(
            "op `{name}` is needed in version {version}, this build has {known}; use the release \
             the job was registered with"
        )));
    }
    Ok(Stage { op, ordinal, keep_position, assume_commutes: false, line: None })
}

fn cut(name: &str) -> &str {
    name.char_indices().nth(32).map_or(name, |(end, _)| &name[..end])
}

fn unknown(name: &str, node: &Node, signatures: &Signatures) -> PipelineError {
    let ours = Op::DECLARATIONS.iter().map(|declaration| declaration.name);
    let known: Vec<&str> = ours.chain(signatures.names()).collect();
    let advice = match nearest(name, &known) {
        None if name.contains('.') => "its dot says that it is an operator of a user: run the \
             `gristmill` and the workers that were built with it (docs/operators.md)"
            .into(),
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("docs/operators.md has the {} there are", known.len()),
    };
    node.error(format!("op {} is not known; {advice}", shown(name)))
}
