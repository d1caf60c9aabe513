//! A job of a service: started or joined, then read.

use crate::{
    AuthoredPipeline, DatasetListing, DatasetLocation, JobOptions, LeftOutFiles, ListError,
    OrderedPipeline, ProgramFailure, ServiceConnection, StreamOptions, folder_of,
};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::{
    EpochPlan, JobSpec, JobStatus, JobView, RegisterCall, StatusCall, StopCall,
};
use gristmill_model::{Checkpoint, CheckpointError, Epoch, JobName};
use gristmill_pipeline::{Pipeline, PipelineError};
use gristmill_runner::{ComputeMode, IndexStore};
use gristmill_stream::{
    FetchError, Fetcher, FetcherConfig, FolderBuckets, PrefetchMemory, ServedRanks, ask,
};
use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// A job to start.
#[derive(Debug, Clone)]
pub struct JobConfig {
    /// The pipeline to run, with its operators in their final order: see [`JobConfig::read`].
    pub authored: AuthoredPipeline,
    pub source: DatasetLocation,
    pub options: JobOptions,
    /// Begins a generated name, where the options give none.
    pub name_prefix: String,
}

impl JobConfig {
    /// A job over `source` that runs `authored` exactly as it is written.
    pub fn new(authored: AuthoredPipeline, source: DatasetLocation, options: JobOptions) -> Self {
        Self { authored, source, options, name_prefix: "job".to_owned() }
    }

    /// A job of the pipeline file `path`, with its operators in the order of [`AuthoredPipeline::ordered`].
    ///
    /// # Errors
    /// [`ProgramFailure::Usage`] if the file is no pipeline, or the dataset is not there.
    pub async fn read(
        path: &Path,
        options: JobOptions,
        service: &ServiceConnection,
    ) -> Result<Self, ProgramFailure> {
        let authored = AuthoredPipeline::read(path, &service.ports.operators)
            .map_err(ProgramFailure::usage)?;
        let source =
            authored.source(path, options.data.as_deref()).map_err(ProgramFailure::usage)?;
        let authored = authored.shaped(&source, &options).await?;
        let OrderedPipeline { authored, .. } = authored.ordered(&source, &options.order).await?;
        Ok(Self::new(authored, source, options))
    }

    fn spec(&self, service: &ServiceConnection) -> JobSpec {
        let Self { authored, options, .. } = self;
        let base = JobSpec {
            numerics: authored.numerics(
                options.own_workers(options.most_workers(service.backend())),
                service.local.is_some(),
            ),
            compress: authored.pipeline.compression(),
            ..JobSpec::new(authored.pipeline.canonical_json())
        };
        options.spec(base, service.backend())
    }
}

impl AuthoredPipeline {
    /// The dataset `data`, or the one that the pipeline in the file `path` names.
    pub fn source(&self, path: &Path, data: Option<&str>) -> std::io::Result<DatasetLocation> {
        if let Some(data) = data {
            return DatasetLocation::parse(data, Path::new("."));
        }
        DatasetLocation::parse_all(&self.pipeline.source_paths(), folder_of(path))
    }
}

/// How long to rest between two looks at a job whose dataset is being indexed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Why a checkpoint has no place in a job.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ResumeError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

/// A job of a service.
#[derive(Clone)]
pub struct JobHandle {
    pub service: ServiceConnection,
    /// The job as it was when it was started or joined, with the epochs to read.
    pub view: JobView,
    /// Files of the dataset that are not read; empty for a job that was joined.
    pub left_out: LeftOutFiles,
    /// Folders of this machine that messages name by their paths.
    pub folders: FolderBuckets,
    /// The dataset, for people; none for a job that was joined.
    pub dataset: Option<String>,
    /// Workers inside this process.
    pub local_workers: u32,
    /// Epochs to read, if somebody said so.
    pub epochs: Option<Epoch>,
    /// Set once the dataset is indexed and this process knows it.
    plan: Arc<OnceLock<EpochPlan>>,
}

impl ServiceConnection {
    /// Lists the dataset at `source`, offering a directory of this machine to a local service.
    pub async fn list(
        &self,
        pipeline: &Pipeline,
        source: DatasetLocation,
    ) -> Result<DatasetListing, ProgramFailure> {
        let local = self.local.as_ref();
        let mount = local.map(|local| async |name: &str, root: &Path| local.offer(name, root));
        let indices = IndexStore {
            objects: &*self.ports.objects,
            compute: ComputeMode::default(),
            ns: &self.ns,
            bucket: &self.bucket,
            rescues: true,
        };
        Ok(source.list(&indices, pipeline.source(), mount).await?)
    }

    /// Starts the job, or joins the one of its name if it is the same job. Retries a service that does not
    /// answer for `patience`.
    ///
    /// # Errors
    /// [`ProgramFailure::Usage`] if the service refuses it, as over a different dataset under the same name;
    /// [`ProgramFailure::Fetch`] if the service does not answer, or the job fails at once.
    pub async fn submit(
        &self,
        config: JobConfig,
        patience: Duration,
    ) -> Result<JobHandle, ProgramFailure> {
        config.options.check().map_err(ProgramFailure::usage)?;
        let folders = config.source.folders();
        let dataset = config.source.to_string();
        let named = |failure: ProgramFailure| failure.in_words(&folders);
        let listing = self.list(&config.authored.pipeline, config.source.clone()).await;
        let DatasetListing { dataset: files, left_out } = listing.map_err(named)?;
        let stored = config.authored.store(&*self.ports.objects, &self.ns, &self.bucket).await;
        stored.map_err(ProgramFailure::failed)?;
        let name = match &config.options.job {
            Some(name) => config.options.shard.job_name(name)?,
            None => {
                let name = format!("{}-{}", config.name_prefix, self.ports.clock.nonce());
                name.parse().map_err(ProgramFailure::failed)?
            }
        };
        let given = config.options.given.options();
        let register = RegisterCall { given, ..RegisterCall::new(name, config.spec(self), files) };
        let registered =
            Fetcher::register(&self.ports, &self.ns, &self.bucket, register, patience).await;
        let view = registered.map_err(|error| match error {
            FetchError::Refused(why) => named(ProgramFailure::Usage(why)),
            error => named(error.into()),
        })?;
        let handle = self.handle(view, &config.options, folders);
        Ok(JobHandle { left_out, dataset: Some(dataset), ..handle })
    }

    /// Joins the job `name`, which was started before: `options` are compared with it, or change it.
    ///
    /// # Errors
    /// [`ProgramFailure::Usage`] if there is none of this name, or it fixes another value of an option.
    pub async fn join(
        &self,
        name: &JobName,
        options: &JobOptions,
        patience: Duration,
    ) -> Result<JobHandle, ProgramFailure> {
        let refused = |error| match error {
            FetchError::Refused(why) => ProgramFailure::Usage(why),
            error => error.into(),
        };
        let view = Fetcher::describe(&self.ports, name, patience).await.map_err(refused)?;
        let mut spec = options.spec(view.spec, self.backend());
        if let Some(size) = options.batch_size {
            let pipeline = Pipeline::from_canonical(&spec.pipeline, &self.ports.operators);
            let resized = pipeline.and_then(|pipeline| pipeline.with_batch_size(size));
            spec.pipeline = resized.map_err(ProgramFailure::usage)?.canonical_json();
        }
        let register = RegisterCall::join(name.clone(), spec, options.given.options());
        let joined =
            Fetcher::register(&self.ports, &self.ns, &self.bucket, register, patience).await;
        let view = joined.map_err(refused)?;
        Ok(self.handle(view, options, self.folders().await))
    }

    fn handle(&self, view: JobView, options: &JobOptions, folders: FolderBuckets) -> JobHandle {
        JobHandle {
            plan: Arc::new(view.plan.map_or_else(OnceLock::new, OnceLock::from)),
            service: self.clone(),
            local_workers: options.own_workers_for(&view.spec),
            view: view.read_until(options.own_epochs()),
            left_out: LeftOutFiles::default(),
            folders,
            dataset: None,
            epochs: options.own_epochs(),
        }
    }
}

impl JobHandle {
    /// The job's batches from `cursor`, the first one that is not in the trainer's checkpoint. Takes the job over
    /// from an earlier reader.
    pub async fn batches(
        &self,
        cursor: Cursor,
        options: &StreamOptions,
    ) -> Result<Fetcher, FetchError> {
        let fetcher = self.open_for(None, cursor, options).await?;
        fetcher.announce();
        Ok(fetcher)
    }

    /// The job's batches from `cursor` for the ranks `own` of a run, or one trainer of all, fetched ahead;
    /// [`Fetcher::announce`] takes the job over.
    pub async fn open_for(
        &self,
        own: Option<ServedRanks>,
        cursor: Cursor,
        options: &StreamOptions,
    ) -> Result<Fetcher, FetchError> {
        let ServiceConnection { ns, bucket, ports, .. } = &self.service;
        let own = own.map(|own| ServedRanks { local_workers: self.local_workers, ..own });
        let config = FetcherConfig {
            local_workers: self.local_workers,
            epochs: self.epochs,
            prefetch: PrefetchMemory::from_mib(options.prefetch_mib, own),
            resume: cursor,
            own,
            patience: options.patience,
            folders: self.folders.clone(),
            plan: Arc::clone(&self.plan),
            ..FetcherConfig::new(ns.clone(), bucket.clone(), self.view.job.clone())
        };
        Fetcher::open(ports.clone(), config).await
    }

    /// The job with its plan, if this process knows it.
    fn planned(&self) -> JobView {
        let plan = self.plan.get().copied();
        JobView { plan, ..self.view.clone() }
    }

    /// The checkpoint whose next batch is `next`.
    pub fn checkpoint(&self, next: Cursor) -> Checkpoint {
        Checkpoint::new(&self.planned(), next)
    }

    /// The place of a checkpoint in this job. May wait as [`JobHandle::divided`] does.
    pub async fn place_of(
        &self,
        checkpoint: &Checkpoint,
        patience: Duration,
    ) -> Result<Cursor, ResumeError> {
        match checkpoint.cursor_in(&self.planned()) {
            Err(CheckpointError::NotPlanned(_)) => {
                Ok(checkpoint.cursor_in(&self.divided(patience).await?)?)
            }
            found => Ok(found?),
        }
    }

    /// The job once its splits are known, which tell its batches from those of others. Waits up to `patience` for the
    /// dataset to be indexed.
    pub async fn divided(&self, patience: Duration) -> Result<JobView, FetchError> {
        let clock = &self.service.ports.clock;
        let until = clock.monotonic() + patience;
        loop {
            let view = self.planned();
            if view.split_batches().is_some() || clock.monotonic() > until {
                return Ok(view);
            }
            match self.status(patience).await?.job.plan {
                Some(plan) => drop(self.plan.set(plan)),
                None => clock.sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// The job's pipeline.
    pub fn pipeline(&self) -> Result<Pipeline, PipelineError> {
        Pipeline::from_canonical(&self.view.spec.pipeline, &self.service.ports.operators)
    }

    /// The job's state, with the durable batch of a trainer that reads as many epochs as this one. Waits up to `patience` for a service that does not answer.
    pub async fn status(&self, patience: Duration) -> Result<JobStatus, FetchError> {
        let call = StatusCall { job: self.view.job.clone() };
        let mut status = ask(&self.service.ports, &call, patience).await?;
        status.durable = status.durable.min(Cursor::start_of(self.view.spec.epochs));
        Ok(status)
    }

    /// Stops the job, so that no worker continues it. Waits up to `patience` for a service that does not answer.
    pub async fn stop(&self, patience: Duration) -> Result<(), FetchError> {
        let stop = StopCall { job: self.view.job.clone() };
        ask(&self.service.ports, &stop, patience).await.map(drop)
    }
}

impl From<ListError> for ProgramFailure {
    fn from(error: ListError) -> Self {
        if error.is_usage() { Self::usage(error) } else { Self::failed(error) }
    }
}
