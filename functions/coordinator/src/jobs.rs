//! Jobs: registered once, indexed if the dataset is new, then planned into splits.

use crate::{
    CallHandler, Jobs,
    caching::CacheQuery,
    files::object_fault,
    items::{BundleLayout, ItemName, JobItem, ListedJob},
    kicks::scaler_event,
    scan::WindowScan,
    store::{busy, invalid},
};
use gristmill_model::{
    Fingerprint, JobName, Sharding,
    splits::{JobProgress, TransitionOutcome, job::JobState},
    stored::keys,
    wire::{
        CallRefusal, ClaimCall, Dataset, DatasetManifest, EpochPlan, JobSpec, JobView,
        ManifestFile, RegisterCall, ScaleState, ScalerEvent,
    },
};
use gristmill_pipeline::{Pipeline, PipelineSource};
use gristmill_policy::scaling::PolicyName;
use gristmill_ports::{ObjectError, ObjectPath};

impl CallHandler<RegisterCall> for Jobs {
    /// Registers a job, or joins the existing one of that name.
    async fn handle(&self, register: &RegisterCall) -> Result<JobView, CallRefusal> {
        let RegisterCall { job, spec, dataset, nonce, .. } = register;
        let name = ItemName::Job(job);
        let read = self.records.store.read::<JobItem>(&name).await?;
        let Some(dataset) = dataset.as_ref().filter(|_| read.item.is_none()) else {
            return self.join_job(read, register).await;
        };
        check_workers(spec)?;
        let pipeline = pipeline_of(spec)?;
        if register.n_files() == 0 {
            return Err(invalid("the dataset has no files: name at least one"));
        }
        let n_files = u32::try_from(register.n_files()).map_err(|_| {
            invalid("the dataset has too many files: join them into fewer, larger ones")
        })?;
        check_members(pipeline.source(), dataset, register.n_files())?;
        let stored_as = pipeline.source().stored_as();
        let dataset_version = register.dataset_version(&stored_as);
        let dataset_version = dataset_version.unwrap_or_else(|| dataset.version(&stored_as));
        let (version, numerics) = (dataset_version, spec.numerics.as_str());
        let plan = self.plan(spec, &pipeline, dataset_version).await?;
        let split_records = plan.map(|plan| plan.split_records);
        let query =
            CacheQuery { spec, pipeline: &pipeline, dataset, version, numerics, split_records };
        let caching = self.begin_caching(job, &query).await?;
        let (plan, state) = match plan {
            Some(plan) => (Some(plan), JobState::Running),
            None => {
                self.keep_listing(register, dataset, dataset_version).await?;
                (None, JobState::Indexing)
            }
        };
        self.list(job).await?;
        let fresh = JobItem {
            registered_ms: self.records.clock.now_ms(),
            registered_by: *nonce,
            spec: spec.clone(),
            dataset_version,
            n_files,
            state,
            plan,
            closed: 0,
            caching,
            layout: BundleLayout::new(spec, n_files),
            changes: Vec::new(),
            resumed: 0,
            protocol: self.version,
        };
        let decide = |before: Option<&JobItem>| match before {
            // Another call registered it meanwhile, maybe an earlier sending of this one.
            Some(item) => Ok::<_, CallRefusal>(TransitionOutcome::AlreadyApplied(item.clone())),
            None => Ok(TransitionOutcome::Write(fresh.clone())),
        };
        let (item, version) = self.records.store.update_versioned(&name, read, decide).await?;
        let reply = self.join_job((item.clone(), version).into(), register).await?;
        let caching = item.caching.as_ref();
        // If the first epoch is delivered from the cache, no workers are needed.
        if caching.is_none_or(|caching| caching.view.delivered_prefix(0).is_none()) {
            let now_ms = self.records.clock.now_ms();
            let trainers = JobProgress::default();
            let ns = &self.records.settings.ns;
            let event = scaler_event(ns, job, &item, &trainers, now_ms);
            let event = ScalerEvent { claimable: n_files, ..event };
            self.kicks.kick(&ScaleState::default(), event).await;
        }
        Ok(reply)
    }
}

impl Jobs {
    /// Stores the listing of a dataset that is to be indexed; one that the trainer has stored must be there.
    async fn keep_listing(
        &self,
        register: &RegisterCall,
        dataset: &Dataset,
        version: Fingerprint,
    ) -> Result<(), CallRefusal> {
        let key = keys::listing(&self.records.settings.ns, version);
        if register.listing.is_none() {
            return self.objects.put_json(key, dataset, "content").await;
        }
        let path = ObjectPath::new(&self.records.settings.bucket, key);
        match self.objects.store.get_range(&path, 0..1, None).await {
            Ok(_) => Ok(()),
            Err(ObjectError::NotFound(_)) => {
                Err(invalid(format!("the list of the dataset's files, {path}, is not stored")))
            }
            Err(error) => Err(object_fault(&error)),
        }
    }

    /// Adds the job to the list of jobs before the job exists, so that upkeep misses none.
    pub(crate) async fn list(&self, job: &JobName) -> Result<(), CallRefusal> {
        let fresh = ListedJob { registered_ms: self.records.clock.now_ms(), tidied: false };
        let decide = |before: Option<&ListedJob>| match before {
            Some(before) if !before.tidied => {
                Ok::<_, CallRefusal>(TransitionOutcome::AlreadyApplied(*before))
            }
            // A leftover of an earlier job of this name is replaced.
            _ => Ok(TransitionOutcome::Write(fresh)),
        };
        self.records.store.update(&ItemName::Listed(job), decide).await?;
        Ok(())
    }

    /// Writes the manifest and starts the job; to be called once every file is indexed.
    pub(crate) async fn finish_indexing(
        &self,
        job: &JobName,
        item: &JobItem,
        scan: &WindowScan,
    ) -> Result<JobItem, CallRefusal> {
        let path = keys::listing(&self.records.settings.ns, item.dataset_version);
        let listing = self.objects.read_json::<Dataset>(path.clone(), "a listing").await?;
        let listing = listing.ok_or_else(|| invalid(format!("{path} does not exist")))?;
        let bundles = scan.bundles.iter().filter_map(|bundle| bundle.item.as_ref());
        let entries = bundles.flat_map(|item| item.entries.iter().flatten());
        let records: Vec<u32> = entries.map(|entry| entry.outcome.rows).collect();
        if records.len() != listing.files.len() {
            return Err(busy("the index is not complete yet"));
        }
        let Dataset { bucket, files, members } = listing;
        let files = files.into_iter().zip(records);
        let files = files.map(|(file, records)| ManifestFile { file, records }).collect();
        let manifest = DatasetManifest { bucket, files, members };
        let pipeline = pipeline_of(&item.spec)?;
        let plan = pipeline.plan(&item.spec, &manifest, self.records.settings.window_bytes);
        let plan = plan.map_err(invalid)?;
        let key = keys::manifest(&self.records.settings.ns, item.dataset_version);
        self.objects.put_json(key, &manifest, "content").await?;
        let decide = |before: Option<&JobItem>| match before {
            Some(before) if before.state == JobState::Indexing => {
                let state = JobState::Running;
                Ok(TransitionOutcome::Write(JobItem { state, plan: Some(plan), ..before.clone() }))
            }
            Some(before) => Ok(TransitionOutcome::AlreadyApplied(before.clone())),
            None => Err(crate::records::no_job(job)),
        };
        Ok(self.records.store.update(&ItemName::Job(job), decide).await?)
    }

    /// The manifest of a dataset version, if it has been indexed before.
    pub(crate) async fn manifest(
        &self,
        version: Fingerprint,
    ) -> Result<Option<DatasetManifest>, CallRefusal> {
        let key = keys::manifest(&self.records.settings.ns, version);
        self.objects.read_json(key, "a manifest").await
    }

    /// The plan of a job over the dataset `version`, if that has been indexed before.
    pub(crate) async fn plan(
        &self,
        spec: &JobSpec,
        pipeline: &Pipeline,
        version: Fingerprint,
    ) -> Result<Option<EpochPlan>, CallRefusal> {
        let Some(manifest) = self.manifest(version).await? else { return Ok(None) };
        let plan = pipeline.plan(spec, &manifest, self.records.settings.window_bytes);
        plan.map(Some).map_err(invalid)
    }
}

/// Refuses numbers of workers that cannot be decided as the job asks.
pub(crate) fn check_workers(spec: &JobSpec) -> Result<(), CallRefusal> {
    if spec.autoscale && spec.settings.sharding == Sharding::Off {
        return Err(invalid(
            "without sharding every worker visits the dataset, so their number must be given",
        ));
    }
    match &spec.policy {
        Some(policy) => {
            policy.parse::<PolicyName>().map(drop).map_err(|error| invalid(error.to_string()))
        }
        None => Ok(()),
    }
}

/// Refuses a dataset whose files do not match the pipeline's datasets.
fn check_members(
    source: &PipelineSource,
    dataset: &Dataset,
    n_files: usize,
) -> Result<(), CallRefusal> {
    let (read, listed) = (source.members().count(), dataset.members.count());
    if read != listed {
        return Err(invalid(format!(
            "the pipeline zips {read} datasets, but files of {listed} are listed"
        )));
    }
    match dataset.members.divide(&vec![(); n_files]) {
        Some(files) if files.iter().all(|files| !files.is_empty()) => Ok(()),
        _ => Err(invalid("one of the datasets of a zip has no files: name at least one for each")),
    }
}

pub(crate) fn pipeline_of(spec: &JobSpec) -> Result<Pipeline, CallRefusal> {
    gristmill_operators::from_canonical(&spec.pipeline)
        .map_err(|error| invalid(format!("the pipeline is not valid: {error}")))
}

impl Jobs {
    /// Sets the job's numerics class to that of its first worker, unless its trainer chose one. Returns the job, which
    /// may have another class.
    pub(crate) async fn settle_numerics(
        &self,
        claim: &ClaimCall,
        item: &JobItem,
    ) -> Result<JobItem, CallRefusal> {
        let caching = match item.spec.numerics.as_str() {
            "" => self.settle_points(item, &claim.numerics).await?,
            _ => item.caching.clone(),
        };
        let settle = |item: &mut JobItem| {
            if item.spec.numerics.is_empty() {
                item.spec.numerics.clone_from(&claim.numerics);
                item.caching.clone_from(&caching);
            }
        };
        let settled = self.records.change_job(&claim.job, settle).await?;
        if settled.caching.is_some() && settled.spec.numerics == claim.numerics {
            self.remember_numerics(&claim.numerics).await?;
        }
        Ok(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::wire::{SourceFile, ZipFileCounts};

    fn pipeline(source: &str) -> Pipeline {
        gristmill_operators::parse(&format!("source: {source}\nops: [batch: {{ size: 4 }}]\n"))
            .unwrap()
    }

    fn zip() -> Pipeline {
        pipeline(
            "{ zip: [{ jsonl: a, features: { x: { dtype: i64 } } }, \
             { jsonl: b, features: { y: { dtype: i64 } }, repeat: 10 }] }",
        )
    }

    fn dataset(sizes: &[u64], members: &[u32]) -> Dataset {
        let file = |&size: &u64| SourceFile::new("k", size, "e");
        let files = sizes.iter().map(file).collect();
        Dataset { bucket: "b".into(), files, members: ZipFileCounts::new(members.to_vec()) }
    }

    #[test]
    fn files_must_be_those_of_the_pipelines_datasets() {
        let refused = |pipeline: &Pipeline, members: &[u32]| {
            check_members(pipeline.source(), &dataset(&[1, 1, 1], members), 3).err()
        };
        let alone = pipeline("{ jsonl: a, features: { x: { dtype: i64 } } }");
        assert!(refused(&alone, &[]).is_none() && refused(&zip(), &[2, 1]).is_none());
        for (pipeline, members, words) in [
            (&alone, &[2, 1][..], "zips 1 datasets, but files of 2"),
            (&zip(), &[], "zips 2 datasets, but files of 1"),
            (&zip(), &[3, 0], "has no files"),
            (&zip(), &[3, 1], "has no files"),
        ] {
            let refusal = refused(pipeline, members).unwrap();
            assert!(refusal.message.contains(words), "{refusal:?}");
        }
    }
}
