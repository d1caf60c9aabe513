//! Joins of a job that exists: what a program was given is compared with the job, or changes it.

use crate::{
    Jobs,
    items::{ItemName, JobItem, SkipCounts},
    jobs::{check_workers, pipeline_of},
    store::{VersionedItem, invalid},
};
use gristmill_model::splits::{
    self, Bundle, BundleState, Cursor, JobProgress, SplitPlace, TransitionOutcome,
    job::{JobEvent, JobState, apply},
    window::window_splits,
};
use gristmill_model::wire::{
    CallRefusal, JobSpec, JobView, OptionChange, RegisterCall, ScaleState, SpecDifference,
    WorkerFailureSeries,
};
use gristmill_model::{ErrorPolicy, JobName};

/// Most changes that a job remembers.
const MOST_CHANGES: usize = 32;
/// Characters of a value in an error.
const VALUE_CHARS: usize = 60;

impl Jobs {
    /// Joins the job that was read. Writes it only if something changes.
    pub(crate) async fn join_job(
        &self,
        read: VersionedItem<JobItem>,
        register: &RegisterCall,
    ) -> Result<JobView, CallRefusal> {
        let job = &register.job;
        let Some(item) = &read.item else { return Err(crate::records::no_job(job)) };
        self.begin_spending(job, item).await?;
        let version = self.version;
        // Only to see whether anything changes: then from which batch on, and when, does not matter.
        let after = joined(item, register, version, Cursor::default(), 0)?;
        if after == *item {
            return Ok(after.view(job));
        }
        let progress = self.records.store.read::<JobProgress>(&ItemName::Progress(job)).await?;
        let horizon = progress.item.unwrap_or_default().horizon();
        let on_error = |item: &JobItem| item.spec.settings.on_error;
        if on_error(item) == ErrorPolicy::Fail && on_error(&after) != ErrorPolicy::Fail {
            self.begin_skips(job, horizon.slowest).await?;
        }
        if item.state.is_ended() {
            self.list(job).await?;
            self.revive(job, item, &progress.item.unwrap_or_default()).await?;
        }
        let now_ms = self.records.clock.now_ms();
        let decide = |before: Option<&JobItem>| {
            let before = before.ok_or_else(|| crate::records::no_job(job))?;
            let after = joined(before, register, version, horizon.durable, now_ms)?;
            Ok::<_, CallRefusal>(TransitionOutcome::new(Some(before), after))
        };
        Ok(self.records.store.update_from(&ItemName::Job(job), read, decide).await?.view(job))
    }

    /// Counts skipped records from `slowest` on: the job did not skip any before.
    async fn begin_skips(&self, job: &JobName, slowest: SplitPlace) -> Result<(), CallRefusal> {
        let begin = |skips: &mut SkipCounts| {
            if skips.before.epoch < slowest.epoch {
                *skips = SkipCounts::default();
            }
            skips.before = skips.before.max(slowest);
        };
        self.records.store.change_or_create(&ItemName::Skips(job), begin).await.map(|_| ())
    }

    /// Lets the splits that were given up be tried again, and workers be started.
    async fn revive(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<(), CallRefusal> {
        let scan = self.records.scan(job, item, progress, progress.horizon().slowest).await?;
        let is_dead = |item: &Bundle| item.state == BundleState::Dead;
        for bundle in scan.bundles.iter().filter(|bundle| bundle.item.as_ref().is_some_and(is_dead))
        {
            let now_ms = self.records.clock.now_ms();
            let name = item.bundle(job, bundle.epoch, bundle.index);
            let decide = |before: Option<&Bundle>| splits::revive(before, now_ms);
            self.records.store.update(&name, decide).await?;
        }
        let clear = |scale: &mut ScaleState| scale.failed_workers = WorkerFailureSeries::default();
        self.records.store.change_or_create(&ItemName::Scale(job), clear).await.map(|_| ())
    }
}

/// The stored job after `register` has joined it; the same job if nothing changes. Batches from `since` on may be made
/// with the changed options. `version` is the one that the joiner speaks.
fn joined(
    before: &JobItem,
    register: &RegisterCall,
    version: u32,
    since: Cursor,
    now_ms: u64,
) -> Result<JobItem, CallRefusal> {
    let RegisterCall { job, spec, nonce, given, resumes, .. } = register;
    // A resent registration gets the job even if it has failed at once: the view has its error.
    let applied = before.changes.iter().map(|change| change.nonce).chain([before.registered_by]);
    if nonce.is_some() && applied.into_iter().any(|applied| applied == *nonce) {
        return Ok(before.clone());
    }
    if before.state == JobState::Stopped {
        return Err(invalid(format!(
            "job {job} was stopped: choose another job name, or free this one with `gristmill forget {job}`"
        )));
    }
    check_fixed(before, register)?;
    let (spec, changed) = before.spec.joined_by(spec, given).map_err(invalid)?;
    check_workers(&spec)?;
    check_cache(before, &spec)?;
    let has_failed = matches!(before.state, JobState::Failed { .. });
    if has_failed && *resumes != Some(before.resumed) {
        return Ok(before.clone());
    }
    let is_longer = before.state == JobState::Done && spec.epochs > before.spec.epochs;
    let state = if has_failed || is_longer {
        let event = JobEvent::Resumed { is_indexed: before.plan.is_some() };
        apply(&before.state, &event)?.into_item()
    } else {
        before.state.clone()
    };
    let plan = before.plan.map(|plan| {
        let widest = window_splits(spec.all_workers(), plan.max_bundle_splits);
        gristmill_model::wire::EpochPlan { window_splits: plan.window_splits.max(widest), ..plan }
    });
    let change = |of: SpecDifference| OptionChange {
        option: of.field.to_owned(),
        from: of.registered,
        to: of.requested,
        since,
        at_ms: now_ms,
        nonce: *nonce,
    };
    let mut changes = before.changes.clone();
    changes.extend(changed.into_iter().map(change));
    changes.drain(..changes.len().saturating_sub(MOST_CHANGES));
    let resumed = before.resumed + u32::from(has_failed);
    let protocol = before.protocol.min(version);
    Ok(JobItem { spec, state, plan, changes, resumed, protocol, ..before.clone() })
}

/// Refuses a program that asks for what cannot change while a job exists.
fn check_fixed(item: &JobItem, register: &RegisterCall) -> Result<(), CallRefusal> {
    let RegisterCall { job, spec, given, .. } = register;
    if let Some(SpecDifference { field, registered, requested }) = item.spec.difference(spec, given)
    {
        let sizes = (field == "pipeline").then(|| batch_sizes(&item.spec, spec)).flatten();
        let (field, registered, requested) = match sizes {
            Some([registered, requested]) => {
                ("batch size", registered.to_string(), requested.to_string())
            }
            None => {
                let (registered, requested) = around_difference(&registered, &requested);
                (field, registered, requested)
            }
        };
        return Err(invalid(format!(
            "job {job} exists with another {field} ({registered}, not {requested}): choose another job name or use \
             the same {field}; once the job has ended `gristmill forget {job}` frees the name"
        )));
    }
    // The pipelines were compared above.
    let pipeline = pipeline_of(&item.spec)?;
    let version = register.dataset_version(&pipeline.source().stored_as());
    if version.is_some_and(|version| version != item.dataset_version) {
        return Err(invalid(format!(
            "job {job} exists over another dataset, or its files have changed since: choose another job \
             name; once the job has ended `gristmill forget {job}` frees this one"
        )));
    }
    Ok(())
}

/// Refuses `--on-error fail` for a job that reads a cache which lacks bad records.
fn check_cache(before: &JobItem, spec: &JobSpec) -> Result<(), CallRefusal> {
    let skipped = before.caching.as_ref().and_then(|caching| caching.totals);
    let skipped = skipped.map_or(0, |totals| totals.skipped);
    let fails = |spec: &JobSpec| spec.settings.on_error == ErrorPolicy::Fail;
    if fails(spec) && !fails(&before.spec) && skipped > 0 {
        return Err(invalid(format!(
            "--on-error fail: the job reads a cache that lacks {skipped} bad records, for which it would have to fail: \
             correct them, or use another job name"
        )));
    }
    Ok(())
}

/// The batch sizes of two pipelines that differ in nothing else.
fn batch_sizes(registered: &JobSpec, requested: &JobSpec) -> Option<[u32; 2]> {
    let [one, other] = [registered, requested].map(|spec| pipeline_of(spec).ok());
    let (one, other) = one.zip(other)?;
    let sizes = [&one, &other].map(|pipeline| pipeline.batching().size);
    let same = other.with_batch_size(sizes[0]).ok()?;
    (same.canonical_json() == one.canonical_json()).then_some(sizes)
}

/// Both texts, each cut to a part that shows where they begin to differ.
fn around_difference(one: &str, other: &str) -> (String, String) {
    let same = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let longest = one.chars().count().max(other.chars().count());
    let skipped = if longest > VALUE_CHARS { same.saturating_sub(VALUE_CHARS / 3) } else { 0 };
    let cut = |text: &str| {
        let part: String = text.chars().skip(skipped).take(VALUE_CHARS).collect();
        let ends = text.chars().count() <= skipped + VALUE_CHARS;
        let (before, after) = (if skipped > 0 { "..." } else { "" }, if ends { "" } else { "..." });
        format!("{before}{part}{after}")
    };
    (cut(one), cut(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::running_job;
    use gristmill_model::Nonce;
    use gristmill_model::wire::{GivenOptions, VERSION};

    /// A join with `options` of `spec`.
    fn register(spec: JobSpec, options: &[&str]) -> RegisterCall {
        let given = GivenOptions::only(options.iter().map(ToString::to_string));
        let nonce = Some(Nonce([7; 8]));
        let dataset = None;
        let job = "j".parse().unwrap();
        RegisterCall { job, spec, dataset, listing: None, nonce, given, resumes: None }
    }

    fn job() -> JobItem {
        let pipeline =
            "source: { jsonl: a, features: { x: { dtype: i64 } } }\nops: [batch: { size: 2 }]\n";
        let pipeline = gristmill_operators::parse(pipeline).unwrap().canonical_json();
        let before = running_job();
        JobItem { spec: JobSpec { pipeline, ..before.spec.clone() }, ..before }
    }

    fn join(before: &JobItem, register: &RegisterCall) -> Result<JobItem, String> {
        joined(before, register, VERSION, Cursor::new(1, 2), 9).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_joiner_changes_the_job_once_and_the_job_remembers_it() {
        let before = job();
        let spec = JobSpec { workers: 40, seed: 8, ..before.spec.clone() };
        assert_eq!(join(&before, &register(spec.clone(), &[])).unwrap(), before, "nothing given");
        let asked = register(spec, &["workers"]);
        let after = join(&before, &asked).unwrap();
        assert_eq!((after.spec.workers, after.spec.seed), (40, before.spec.seed));
        assert_eq!(after.partitions(), before.partitions(), "bundles stay where they are");
        assert!(after.plan.unwrap().window_splits > before.plan.unwrap().window_splits);
        let OptionChange { option, from, to, since, at_ms, .. } = &after.changes[0];
        assert_eq!((&**option, &**from, &**to), ("workers", "2", "40"));
        assert_eq!((*since, *at_ms), (Cursor::new(1, 2), 9));
        let later = JobItem { spec: JobSpec { workers: 5, ..after.spec.clone() }, ..after };
        assert_eq!(join(&later, &asked).unwrap(), later, "a late copy of the call");
    }

    #[test]
    fn a_difference_is_shown_with_both_values() {
        let before = job();
        let seed = register(JobSpec { seed: 8, ..before.spec.clone() }, &["seed"]);
        let why = join(&before, &seed).unwrap_err();
        assert!(why.contains("another seed (0, not 8)"), "{why}");
        let refusal = |pipeline: String| {
            join(&before, &register(JobSpec { pipeline, ..before.spec.clone() }, &[])).unwrap_err()
        };
        let why = refusal(before.spec.pipeline.replace("\"size\":2", "\"size\":3"));
        assert!(why.contains("another batch size (2, not 3)"), "{why}");
        let why = refusal(before.spec.pipeline.replace("\"x\"", "\"y\""));
        assert!(why.contains("another pipeline (") && why.contains("\"y\""), "{why}");
        let long = "x".repeat(100);
        let (one, other) = around_difference(&format!("{long}a"), &format!("{long}b"));
        assert!(one.starts_with("...x") && one.ends_with("xa") && other.ends_with("xb"), "{one}");
    }

    #[test]
    fn a_job_that_failed_or_is_done_goes_on_and_a_stopped_one_does_not() {
        let failed =
            JobItem { state: JobState::Failed { error: "e".into(), at_record: false }, ..job() };
        let plain = register(failed.spec.clone(), &[]);
        assert_eq!(join(&failed, &plain).unwrap(), failed, "the caller learns the reason first");
        let resumes = RegisterCall { resumes: Some(0), ..plain.clone() };
        let after = join(&failed, &resumes).unwrap();
        assert_eq!((&after.state, after.resumed), (&JobState::Running, 1));
        let again = JobItem { state: failed.state.clone(), ..after };
        assert_eq!(join(&again, &resumes).unwrap(), again, "a late copy of the call");
        let done = JobItem { state: JobState::Done, closed: 2, ..job() };
        assert_eq!(join(&done, &plain).unwrap(), done);
        let longer = JobSpec { epochs: 5, ..done.spec.clone() };
        let after = join(&done, &register(longer, &["epochs"])).unwrap();
        assert_eq!((after.state, after.spec.epochs), (JobState::Running, 5));
        let stopped = JobItem { state: JobState::Stopped, ..job() };
        assert!(join(&stopped, &plain).unwrap_err().contains("was stopped"));
    }
}
