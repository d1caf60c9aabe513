//! Places of a pipeline where elements may be cached, and what names the elements that are.

use crate::{Pipeline, Randomness};
use gristmill_model::{Epoch, Fingerprint};
use serde_json::Value;

/// What the operator before a point is called where there is none.
const SOURCE: &str = "source";

/// An `autocache` of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePoint {
    /// Its index in [`Pipeline::stages`].
    pub stage: usize,
    /// Name of the operator before it; `source` if it is the first.
    pub after: String,
    /// Whether an operator before it draws at random.
    pub random: bool,
    /// Whether its author allows to reuse what was drawn.
    pub reuse_random: bool,
    /// Whether it comes after the batch: what is delivered would be stored.
    pub whole: bool,
}

/// One operator as fingerprints see it.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedOp {
    pub op: String,
    pub version: u32,
    /// Defaults filled in.
    pub params: Value,
    /// Of random operators only: it keys what they draw.
    pub ordinal: Option<u32>,
}

/// What takes part in the fingerprint of a prefix beside dataset and numerics class.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedPrefix {
    /// How records are stored and which features are read.
    pub source: Value,
    pub ops: Vec<DescribedOp>,
    /// Seed and epoch, if an operator draws.
    pub drawn: Option<(u64, Epoch)>,
}

impl CachePoint {
    /// The epoch whose draws a random prefix has in every cache, whichever epoch stores it: a cache
    /// that several jobs find must not depend on how far the one was that wrote it.
    pub const DRAWN_EPOCH: Epoch = 0;
}

impl Pipeline {
    /// The places to cache, in their order.
    pub fn cache_points(&self) -> Vec<CachePoint> {
        let (mut random, mut whole) = (false, false);
        let mut after = SOURCE;
        let mut points = Vec::new();
        for (i, stage) in self.stages().iter().enumerate() {
            if let Some(op) = stage.op.cache_point() {
                let (after, reuse_random) = (after.to_owned(), op.reuse_random);
                points.push(CachePoint { stage: i, after, random, reuse_random, whole });
                continue;
            }
            random |= stage.op.declaration().randomness == Randomness::Random;
            whole |= stage.op.batching().is_some();
            after = stage.op.identity().0;
        }
        points
    }

    /// What is stored at `point`, by name. A random prefix draws as in epoch 0, whichever epoch stores
    /// it, so seed and epoch 0 take part. Points take no part, neither this one nor those before.
    pub fn point_fingerprint(
        &self,
        point: &CachePoint,
        dataset: &Fingerprint,
        numerics: &str,
        seed: u64,
    ) -> Fingerprint {
        self.prefix_fingerprint(point.stage, dataset, numerics, drawn(point, seed))
    }

    /// All that takes part in [`point_fingerprint`](Self::point_fingerprint) beside dataset and
    /// numerics, in a form that can be compared.
    pub fn described_prefix(&self, point: &CachePoint, seed: u64) -> DescribedPrefix {
        DescribedPrefix { drawn: drawn(point, seed), ..self.describe(point.stage) }
    }
}

fn drawn(point: &CachePoint, seed: u64) -> Option<(u64, Epoch)> {
    point.random.then_some((seed, CachePoint::DRAWN_EPOCH))
}
