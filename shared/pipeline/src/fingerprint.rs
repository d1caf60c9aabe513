//! Fingerprints of results: equal fingerprints mean equal bytes.

use crate::{
    BoxedOperator, DescribedOp, DescribedPrefix, OperatorDeclaration, Pipeline, PipelineSource,
    PipelineStage, Randomness,
};

use gristmill_model::{Epoch, Fingerprint};
use serde::Serialize;

/// Everything that determines the output of a prefix. The field order is part of the fingerprint.
#[derive(Serialize)]
struct Identity<'a> {
    version: u32,
    numerics: &'a str,
    dataset: Fingerprint,
    source: &'a PipelineSource,
    ops: Vec<OpIdentity<'a>>,
    /// Set if the prefix has random operators.
    drawn: Option<(u64, Epoch)>,
}

#[derive(Serialize)]
struct OpIdentity<'a> {
    op: &'a str,
    version: u32,
    params: &'a BoxedOperator,
    /// Set for random operators only, since it keys their draws.
    ordinal: Option<u32>,
}

impl<'a> OpIdentity<'a> {
    fn new(stage: &'a PipelineStage) -> Self {
        let OperatorDeclaration { randomness, .. } = *stage.op.declaration();
        let (name, version) = stage.op.identity();
        let ordinal = (randomness == Randomness::Random).then_some(stage.ordinal);
        OpIdentity { op: name, version, params: &stage.op, ordinal }
    }
}

/// The operators that count. Cache points are left out because they change no result.
fn identities(stages: &[PipelineStage]) -> impl Iterator<Item = OpIdentity<'_>> {
    stages.iter().filter(|stage| stage.op.cache_point().is_none()).map(OpIdentity::new)
}

impl Pipeline {
    /// Fingerprint of this pipeline over `dataset` in numerics class `numerics`, for all seeds and
    /// epochs. Name, location of the data and the trainer's steps are not inputs.
    pub fn fingerprint(&self, dataset: &Fingerprint, numerics: &str) -> Fingerprint {
        self.prefix_fingerprint(self.stages().len(), dataset, numerics, None)
    }

    /// Fingerprints of all prefixes by number of operators: entry 0 is the source alone, the last
    /// entry the whole pipeline. Seed and epoch are inputs from the first random operator on.
    pub fn prefix_fingerprints(
        &self,
        dataset: &Fingerprint,
        numerics: &str,
        seed: u64,
        epoch: Epoch,
    ) -> Vec<Fingerprint> {
        let random =
            |stage: &PipelineStage| stage.op.declaration().randomness == Randomness::Random;
        let prefix = |ops: usize| {
            let drawn = self.stages()[..ops].iter().any(random).then_some((seed, epoch));
            self.prefix_fingerprint(ops, dataset, numerics, drawn)
        };
        (0..=self.stages().len()).map(prefix).collect()
    }

    /// Fingerprint of the output of the first `ops` operators.
    pub(crate) fn prefix_fingerprint(
        &self,
        ops: usize,
        dataset: &Fingerprint,
        numerics: &str,
        drawn: Option<(u64, Epoch)>,
    ) -> Fingerprint {
        let identity = Identity {
            version: 1,
            numerics,
            dataset: *dataset,
            source: self.source(),
            ops: identities(&self.stages()[..ops]).collect(),
            drawn,
        };
        Fingerprint::from_content(
            "gristmill pipeline v1",
            crate::pipeline::to_json(&identity).as_bytes(),
        )
    }
    /// The inputs of that fingerprint, without draws.
    pub(crate) fn describe(&self, ops: usize) -> DescribedPrefix {
        // Plain data whose map keys are all text always has a JSON form.
        let params = |op: &BoxedOperator| serde_json::to_value(op).unwrap_or_default();
        let described = identities(&self.stages()[..ops]).map(|identity| DescribedOp {
            op: identity.op.to_owned(),
            version: identity.version,
            params: params(identity.params),
            ordinal: identity.ordinal,
        });
        DescribedPrefix { source: self.source().described(), ops: described.collect(), drawn: None }
    }
}

// The canonical form of a pipeline, which a job freezes.

#[derive(Serialize)]
pub(crate) struct CanonicalPipeline<'a> {
    pub(crate) version: u32,
    pub(crate) source: &'a PipelineSource,
    pub(crate) ops: Vec<CanonicalOp<'a>>,
    pub(crate) deliver: CanonicalDelivery<'a>,
}

#[derive(Serialize)]
pub(crate) struct CanonicalDelivery<'a> {
    pub(crate) normalise: &'a Option<BoxedOperator>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ops: Vec<CanonicalOp<'a>>,
}

#[derive(Serialize)]
pub(crate) struct CanonicalOp<'a> {
    op: &'a str,
    version: u32,
    ordinal: u32,
    keep_position: bool,
    params: &'a BoxedOperator,
}

impl<'a> CanonicalOp<'a> {
    fn new(stage: &'a PipelineStage) -> Self {
        let PipelineStage { op, ordinal, keep_position, .. } = stage;
        let (name, version) = op.identity();
        let (ordinal, keep_position) = (*ordinal, *keep_position);
        CanonicalOp { op: name, version, ordinal, keep_position, params: op }
    }

    pub(crate) fn all(stages: &'a [PipelineStage]) -> Vec<Self> {
        stages.iter().map(Self::new).collect()
    }
}
