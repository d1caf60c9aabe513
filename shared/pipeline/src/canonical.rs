//! The canonical form of a pipeline, which a job freezes.

use crate::{BoxedOperator, PipelineSource, PipelineStage};
use serde::Serialize;

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
