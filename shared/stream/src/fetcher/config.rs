//! Settings and services of a trainer's stream.

use crate::{FolderBuckets, PrefetchMemory, ServedRanks};
use gristmill_model::splits::{Cursor, ObjectSizes};
use gristmill_model::wire::EpochPlan;
use gristmill_model::{Epoch, JobName, Namespace, Nonce};
use gristmill_pipeline::OperatorRegistry;
use gristmill_ports::{Clock, Coordinator, ObjectStore, SystemClock};
use gristmill_runner::{ComputeMode, Runner, RunnerConfig};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Settings of a trainer's stream.
#[derive(Debug, Clone)]
pub struct FetcherConfig {
    pub ns: Namespace,
    pub bucket: String,
    pub job: JobName,
    /// Workers inside this process; the most of them if the scaler decides.
    pub local_workers: u32,
    /// Memory for objects that are fetched ahead, and as much for splits made here.
    pub prefetch: PrefetchMemory,
    /// The bytes of objects, as bounds count them.
    pub object_sizes: ObjectSizes,
    /// The batch to begin with: the first one not safe in a checkpoint. Unless the job is visited
    /// exactly once, the coordinator's position replaces it if that is later.
    pub resume: Cursor,
    /// The ranks to serve; none for one trainer that takes every batch.
    pub own: Option<ServedRanks>,
    /// Epochs to read; none for those of the run, or else of the job.
    pub epochs: Option<Epoch>,
    /// How long the service may fail to answer before the run fails.
    pub patience: Duration,
    /// Folders that errors name by their paths.
    pub folders: FolderBuckets,
    /// Set once the dataset is indexed.
    pub plan: Arc<OnceLock<EpochPlan>>,
}

impl FetcherConfig {
    /// Reads from the start, with remote workers only and memory for a few objects ahead.
    pub fn new(ns: Namespace, bucket: String, job: JobName) -> Self {
        Self {
            ns,
            bucket,
            job,
            local_workers: 0,
            prefetch: PrefetchMemory::Bytes(32 << 20),
            object_sizes: ObjectSizes::Real,
            resume: Cursor::default(),
            own: None,
            epochs: None,
            patience: Duration::from_secs(120),
            folders: FolderBuckets::default(),
            plan: Arc::default(),
        }
    }

    /// The only rank of a run that begins at `from` and that nobody has named.
    pub(crate) fn one(&self, nonce: Nonce, from: Cursor) -> ServedRanks {
        let mut own = ServedRanks::one(nonce, from);
        (own.run.epochs, own.local_workers) = (self.epochs, self.local_workers);
        own
    }
}

/// The services that a fetcher uses.
#[derive(Clone)]
pub struct FetcherPorts {
    pub coordinator: Arc<dyn Coordinator>,
    pub objects: Arc<dyn ObjectStore>,
    pub clock: Arc<dyn Clock>,
    /// Runs the splits of local workers.
    pub compute: ComputeMode,
    /// All operators, those of the user included.
    pub operators: Arc<OperatorRegistry>,
}

impl FetcherPorts {
    /// Uses this machine's clock and threads.
    pub fn new(coordinator: Arc<dyn Coordinator>, objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            coordinator,
            objects,
            clock: Arc::new(SystemClock),
            compute: ComputeMode::default(),
            operators: Arc::new(gristmill_operators::registry().clone()),
        }
    }

    /// Runs splits in this process, as local workers do.
    pub(crate) fn runner(&self, config: &FetcherConfig) -> Arc<Runner> {
        let Self { coordinator, objects, clock, compute, operators } = self.clone();
        let FetcherConfig { ns, bucket, .. } = config.clone();
        let config = RunnerConfig { ns, bucket, local: true, shape: None };
        Arc::new(Runner { coordinator, objects, clock, compute, operators, config })
    }

    /// As [`FetcherPorts::runner`], for workers that must not take processors from the trainer.
    pub(crate) fn local_runner(&self, config: &FetcherConfig) -> Arc<Runner> {
        Self { compute: self.compute.in_background(), ..self.clone() }.runner(config)
    }
}
