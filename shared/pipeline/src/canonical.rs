//! The canonical form of a pipeline, which a job freezes.

use crate::{Op, Source, Stage};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Canonical<'a> {
    pub(crate) version: u32,
    pub(crate) source: &'a Source,
    pub(crate) ops: Vec<CanonicalOp<'a>>,
    pub(crate) deliver: CanonicalDeliver<'a>,
}

#[derive(Serialize)]
pub(crate) struct CanonicalDeliver<'a> {
    pub(crate) normalise: &'a Option<Op>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ops: Vec<CanonicalOp<'a>>,
}

#[derive(Serialize)]
pub(crate) struct CanonicalOp<'a> {
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

    pub(crate) fn all(stages: &'a [Stage]) -> Vec<Self> {
        stages.iter().map(Self::new).collect()
    }
}
