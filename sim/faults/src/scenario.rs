//! The simulated jobs, and their expected delivery.

use crate::cloud::SimCloud;
use bytes::Bytes;
use gristmill_model::splits::{Cursor, SplitPlan, order::visit_of};
use gristmill_model::wire::{Dataset, JobSettings, JobSpec, RegisterCall, SourceFile};
use gristmill_model::{
    Epoch, ErrorPolicy, LocalShare, Position, Sharding, SkipLimit, Visitation, WorkerRemoval,
};
use gristmill_ports::{ObjectPath, ObjectStore as _};
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use std::collections::BTreeMap;

const DATA: &str = "data";

/// One job over a small dataset.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FaultScenario {
    /// Records of each file.
    pub files: Vec<u32>,
    pub batch_size: u32,
    pub drop_remainder: bool,
    pub split_batches: u32,
    pub epochs: Epoch,
    pub workers: u32,
    /// Whether `workers` is the most of them, and the scaler decides: its targets rise and fall.
    pub autoscale: bool,
    pub local_workers: u32,
    pub visitation: Visitation,
    pub sharding: Sharding,
    pub removal: WorkerRemoval,
    pub local_share: Option<LocalShare>,
    /// Whether records keep the order of the dataset.
    pub in_order: bool,
    /// Whether the first record kills every worker that has computed its split, when it tries to store it. The job
    /// then skips the record.
    pub poison: bool,
    /// Position of `autocache` in the pipeline; caching is then always found worthwhile.
    pub cached: CachePosition,
    /// Time to make a split, in addition to the latency of every operation.
    pub split_ms: u64,
    /// Batch that kills the first trainer that receives it.
    pub dies_at: Option<u64>,
    /// Whether trainers connect to a fetcher instead of running one in their own process.
    pub served: bool,
    pub seed: u64,
}

/// Position of a job's `autocache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CachePosition {
    Nowhere,
    /// Before the batch: stored by one epoch, then read by workers.
    Inner,
    /// After the batch: profiled, then read by the trainer alone.
    Whole,
}

/// Delivery of a run without faults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedBatches {
    pub batches: BTreeMap<Cursor, blake3::Hash>,
}

impl ExpectedBatches {
    /// Whether a run with faults may have delivered `other`: the same, or a part of it if trainers that died may
    /// have lost batches.
    pub fn allows(&self, other: &Self, visitation: Visitation) -> bool {
        match visitation {
            Visitation::ExactlyOnce => self == other,
            Visitation::AtMostOnce | Visitation::ZeroOnceOrMore => {
                other.batches.iter().all(|(name, hash)| self.batches.get(name) == Some(hash))
            }
        }
    }
}

impl FaultScenario {
    /// Draws one of a few dozen jobs, so that each expected delivery is computed only once.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        let scenario = match random.u64(0..90) {
            shape @ 0..72 => Self::short(shape),
            shape @ 72..78 => Self::long(shape),
            shape => Self::with_bundles(shape),
        };
        Self { served: scenario.may_be_served() && random.u8(0..3) == 0, ..scenario }
    }

    /// Draws a job for a trainer of several ranks, which visits each record exactly once.
    pub fn draw_for_ranks(random: &mut fastrand::Rng) -> Self {
        loop {
            let scenario = Self::draw(random);
            if scenario.visitation == Visitation::ExactlyOnce {
                return Self { served: false, ..scenario };
            }
        }
    }

    /// Whether trainers may connect to a fetcher: only then can it keep their position.
    pub fn may_be_served(&self) -> bool {
        self.visitation == Visitation::ExactlyOnce
    }

    /// A job that is still running when faults end.
    fn long(shape: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(shape);
        Self {
            files: vec![random.u32(200..400), random.u32(200..400)],
            batch_size: 4,
            drop_remainder: false,
            split_batches: 1,
            epochs: 1,
            workers: random.u32(2..6),
            autoscale: false,
            local_workers: 0,
            visitation: Visitation::ExactlyOnce,
            sharding: Sharding::Dynamic,
            removal: WorkerRemoval::default(),
            local_share: None,
            poison: false,
            in_order: false,
            cached: CachePosition::Nowhere,
            split_ms: random.u64(1_000..3_000),
            dies_at: None,
            served: false,
            seed: shape,
        }
    }

    /// A job of so many splits that a bundle has several, for workers on the trainer's host.
    fn with_bundles(shape: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(shape);
        let batch_size = random.u32(1..3);
        let splits = random.u32(256..600);
        let (epochs, workers) = (random.u32(1..3), random.u32(0..4));
        Self {
            files: vec![splits * batch_size / 2, splits * batch_size / 2 + 1],
            batch_size,
            epochs,
            workers,
            local_workers: [1, 2, 4, 14, 32][random.usize(0..5)],
            autoscale: workers > 0 && shape % 2 == 1,
            local_share: half(workers > 0 && shape % 4 == 2),
            split_ms: 0,
            ..Self::long(shape)
        }
    }

    /// One epoch of `splits` splits of one record each, whose trainer dies when one percent is left.
    pub fn large(splits: u32) -> Self {
        Self {
            files: vec![splits.div_ceil(100); 100],
            batch_size: 1,
            workers: 8,
            split_ms: 0,
            dies_at: Some(u64::from(splits) / 100 * 99),
            ..Self::long(0)
        }
    }

    /// A job of some minutes, for an upgrade in mid-job.
    pub fn for_upgrade(cached: CachePosition) -> Self {
        Self {
            files: vec![200, 200],
            batch_size: 2,
            epochs: if cached == CachePosition::Nowhere { 1 } else { 12 },
            workers: 4,
            split_ms: 500,
            cached,
            ..Self::long(0)
        }
    }

    /// A job of `workers` for whose splits a worker takes so long, while its target falls.
    pub fn for_removal(workers: u32, removal: WorkerRemoval) -> Self {
        let (batch_size, autoscale) = (1, true);
        let files = vec![600, 600];
        // Workers take their time to compute, and not to store: a split that is computed is at hand no more.
        Self { files, batch_size, workers, autoscale, split_ms: 1, removal, ..Self::long(0) }
    }

    /// Another job over the same data with the same pipeline, in another order.
    pub fn other(&self) -> Self {
        Self { seed: self.seed + 1_000, ..self.clone() }
    }

    /// Whether each split takes time beyond its reads and writes.
    pub fn is_long(&self) -> bool {
        self.split_ms > 0
    }

    fn short(shape: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(shape);
        let mut files: Vec<u32> = (0..random.usize(1..5)).map(|_| random.u32(0..40)).collect();
        files[0] += 1;
        let (workers, local_workers) = workers(&mut random);
        let scenario = Self {
            files,
            batch_size: random.u32(2..9),
            drop_remainder: random.u8(0..4) == 0,
            split_batches: random.u32(1..3),
            epochs: match shape {
                0..48 => random.u32(1..4),
                // An inner cache is read from the third epoch on.
                48..60 => random.u32(2..5).max(3),
                _ => random.u32(2..5),
            },
            workers,
            local_workers,
            visitation: match random.u8(0..6) {
                0 => Visitation::AtMostOnce,
                1 => Visitation::ZeroOnceOrMore,
                _ => Visitation::ExactlyOnce,
            },
            // Each worker visits the dataset.
            sharding: match random.u8(0..8) {
                0 if workers + local_workers < 8 => Sharding::Off,
                _ => Sharding::Dynamic,
            },
            // A local worker dies with its trainer, which does not incriminate the split.
            poison: random.u8(0..6) == 0 && local_workers == 0 && shape < 48,
            cached: match shape {
                0..48 => CachePosition::Nowhere,
                48..60 => CachePosition::Inner,
                _ => CachePosition::Whole,
            },
            split_ms: 0,
            ..Self::long(shape)
        };
        let is_shared = shape % 4 == 2 && workers > 0 && local_workers > 0;
        let scenario = Self { local_share: half(is_shared), ..scenario };
        Self { in_order: shape % 4 == 1 && !scenario.poison, ..scenario }
    }

    fn pipeline(&self) -> String {
        let Self { batch_size, drop_remainder, cached, .. } = self;
        let order = if self.in_order { "in_order, " } else { "" };
        let (before, after) = match cached {
            CachePosition::Nowhere => ("", ""),
            CachePosition::Inner => ("autocache, ", ""),
            CachePosition::Whole => ("", ", autocache"),
        };
        format!(
            "source: {{ tfrecord: x, features: {{ value: {{ key: value, dtype: i64 }} }} }}\n\
             ops: [{order}{before}batch: {{ size: {batch_size}, drop_remainder: {drop_remainder} }}{after}]\n"
        )
    }

    /// Stores the dataset and returns the registration of the job.
    pub async fn prepare(&self, cloud: &SimCloud) -> Result<RegisterCall, String> {
        let mut value = 0;
        for (i, &records) in self.files.iter().enumerate() {
            let mut file = Vec::new();
            let mut writer = RecordWriter::new(&mut file);
            for _ in 0..records {
                let example = TfExample::default().with_int("value", value);
                writer.write(&example).map_err(|error| error.to_string())?;
                value += 1;
            }
            writer.finish().map_err(|error| error.to_string())?;
            let path = ObjectPath::new(DATA, format!("f{i}"));
            let put = cloud.store.memory.put_if_absent(&path, Bytes::from(file), "data").await;
            put.map_err(|error| error.to_string())?;
        }
        let listed = cloud.store.memory.list(DATA, "").await.map_err(|error| error.to_string())?;
        let files = listed.into_iter();
        let files = files.map(|o| SourceFile::new(o.key, o.size, o.etag)).collect();
        let pipeline =
            gristmill_operators::parse(&self.pipeline()).map_err(|error| error.to_string())?;
        let settings = JobSettings {
            on_error: if self.poison { ErrorPolicy::Skip } else { ErrorPolicy::Fail },
            max_skipped: SkipLimit::Records(if self.poison { u64::MAX } else { 0 }),
            split_batches: Some(self.split_batches),
            local_workers: self.local_workers,
            visitation: self.visitation,
            sharding: self.sharding,
            removal: self.removal,
            ..JobSettings::default()
        };
        let spec = JobSpec {
            auto_placement: self.autoscale && self.local_workers > 0,
            local_share: self.local_share,
            seed: self.seed,
            epochs: self.epochs,
            workers: self.workers,
            autoscale: self.autoscale,
            settings,
            ..JobSpec::new(pipeline.canonical_json())
        };
        let dataset = Dataset::one(DATA, files);
        Ok(RegisterCall::new(cloud.store.job.clone(), spec, dataset))
    }

    /// Number of times that an epoch visits the dataset.
    fn copies(&self) -> u32 {
        match self.sharding {
            Sharding::Dynamic => 1,
            Sharding::Off => (self.workers + self.local_workers).max(1),
        }
    }

    /// Whether computing the split at `position` kills the worker.
    pub fn kills(&self, epoch: Epoch, position: Position) -> bool {
        if !self.poison {
            return false;
        }
        let splits = SplitPlan::new(&self.files, self.split_records());
        let n = splits.map_or(0, |splits| splits.n_splits());
        let visited = visit_of(n, self.copies(), false, self.seed, epoch, position);
        visited.is_some_and(|(_, split)| split == 0)
    }

    fn split_records(&self) -> u32 {
        self.split_batches * self.batch_size
    }

    /// Visits of one epoch that can be delivered: record keys, each with the number of the visit.
    pub fn visits(&self) -> impl Iterator<Item = (u64, u32)> {
        let of =
            |(file, &records): (u64, &u32)| (0..u64::from(records)).map(move |r| file << 32 | r);
        let killed = if self.poison { self.split_records() } else { 0 };
        // Keys of later files are larger than any of the first.
        let keys = (0..).zip(&self.files).flat_map(of).filter(move |&key| key >= u64::from(killed));
        keys.flat_map(|key| (0..self.copies()).map(move |copy| (key, copy)))
    }

    /// Records that an epoch drops because its last batch would be incomplete.
    pub fn remainder_records(&self) -> usize {
        let visits = self.visits().count();
        if self.drop_remainder { visits % self.batch_size as usize } else { 0 }
    }
}

/// Remote and local workers: one of them at least, few in most jobs, and up to 32 of each.
fn workers(random: &mut fastrand::Rng) -> (u32, u32) {
    let mut some = || match random.u8(0..8) {
        0 => random.u32(6..33),
        _ => random.u32(1..6),
    };
    let (remote, local) = (some(), some());
    match random.u8(0..6) {
        0..3 => (remote, 0),
        3..5 => (remote, local),
        _ => (0, local),
    }
}

/// Local workers make half of the splits, if they have a fixed share.
fn half(is_shared: bool) -> Option<LocalShare> {
    is_shared.then(|| LocalShare::new(0.5)).flatten()
}
