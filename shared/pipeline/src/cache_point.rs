//! Cache points of a pipeline, and the fingerprints of the elements cached there.

use crate::{Pipeline, Randomness};
use gristmill_model::{Epoch, Fingerprint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the predecessor of a point that has no operator before it.
const SOURCE: &str = "source";

/// An `autocache` of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePoint {
    /// Index in [`Pipeline::stages`].
    pub stage: usize,
    /// Name of the operator before it, or `source` if there is none.
    pub after: String,
    /// Whether an operator before it is random.
    pub random: bool,
    /// Whether the author allows reuse of random results.
    pub reuse_random: bool,
    /// Whether it comes after the batch, so that it stores the delivered batches.
    pub whole: bool,
}

/// One operator as fingerprints see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DescribedOp {
    pub op: String,
    pub version: u32,
    /// Parameters with defaults filled in.
    #[serde(default)]
    pub params: Value,
    /// Position in the author's file. Set for random operators only, since it keys their draws.
    #[serde(default)]
    pub ordinal: Option<u32>,
}

/// Inputs of a prefix's fingerprint other than dataset and numerics class.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedPrefix {
    /// How records are stored and which features are read.
    pub source: Value,
    pub ops: Vec<DescribedOp>,
    /// Seed and epoch if an operator of the prefix is random.
    pub drawn: Option<(u64, Epoch)>,
}

impl CachePoint {
    /// Epoch with which a random prefix draws in every cache. Several jobs may use one cache, so it
    /// must not depend on the epoch of the job that wrote it.
    pub const DRAWN_EPOCH: Epoch = 0;
}

impl Pipeline {
    /// The cache points, in pipeline order.
    pub fn cache_points(&self) -> Vec<CachePoint> {
        let (mut random, mut whole) = (false, false);
        let mut after = SOURCE;
        let mut points = Vec::new();
        for (i, stage) in self.stages().iter().enumerate() {
            if let Some(reuse_random) = stage.op.cache_point() {
                let after = after.to_owned();
                points.push(CachePoint { stage: i, after, random, reuse_random, whole });
                continue;
            }
            random |= stage.op.declaration().randomness == Randomness::Random;
            whole |= stage.op.batching().is_some();
            after = stage.op.identity().0;
        }
        points
    }

    /// Fingerprint of the elements stored at `point`. A random prefix always draws as in epoch 0,
    /// so its seed and epoch 0 are inputs. Cache points themselves are not.
    pub fn point_fingerprint(
        &self,
        point: &CachePoint,
        dataset: &Fingerprint,
        numerics: &str,
        seed: u64,
    ) -> Fingerprint {
        self.prefix_fingerprint(point.stage, dataset, numerics, drawn(point, seed))
    }

    /// Inputs of [`point_fingerprint`](Self::point_fingerprint) other than dataset and numerics
    /// class, in a form that can be compared.
    pub fn described_prefix(&self, point: &CachePoint, seed: u64) -> DescribedPrefix {
        DescribedPrefix { drawn: drawn(point, seed), ..self.describe(point.stage) }
    }
}

fn drawn(point: &CachePoint, seed: u64) -> Option<(u64, Epoch)> {
    point.random.then_some((seed, CachePoint::DRAWN_EPOCH))
}
