//! Epochs: sealed with their totals once the trainer has passed them, and closed once a checkpoint contains
//! them. Closing the last epoch ends the job.

use crate::{
    Jobs,
    items::{ItemName, JobItem, SweepProgress},
    store::{ItemUpdateError, invalid},
};
use gristmill_model::splits::{
    Bundle, JobProgress, LackingSplits, SplitPlace, TransitionOutcome,
    TransitionRefusal as SplitRefusal,
    epoch::{self, EpochItem, SealTransition},
    job::JobState,
};
use gristmill_model::wire::CallRefusal;
use gristmill_model::{BundleIndex, Epoch, JobName};

impl Jobs {
    /// Seals and closes every epoch that `progress` has durably passed. Repeatable: a crash leaves work for
    /// the next poll.
    pub(crate) async fn close_epochs(
        &self,
        job: &JobName,
        mut item: JobItem,
        progress: &JobProgress,
    ) -> Result<JobItem, CallRefusal> {
        while item.closed < progress.horizon().passed_epochs().min(item.spec.epochs) {
            match self.close_epoch(job, &item, progress).await {
                Ok(()) => {}
                Err(ItemUpdateError::Declined(refusal @ SplitRefusal::TooManySkipped { .. })) => {
                    let error =
                        format!("{refusal}; `gristmill status {job} --skipped` says which and why");
                    self.records.fail_job(job, &item, error).await?;
                    return self.records.job(job).await;
                }
                Err(ItemUpdateError::Declined(SplitRefusal::NotDone { bundle })) => {
                    self.make_again(job, &item, bundle).await?;
                    return Ok(item);
                }
                Err(unchanged) => return Err(unchanged.into()),
            }
            item = self.advance(job, item.closed).await?;
        }
        Ok(item)
    }

    /// Notes that `bundle` of the first open epoch is lacking, so that workers make it again. All have passed it, so the table
    /// has lost it: the trainer's process knew its batches from before.
    async fn make_again(
        &self,
        job: &JobName,
        item: &JobItem,
        bundle: BundleIndex,
    ) -> Result<(), CallRefusal> {
        let epoch = item.closed;
        let from = SplitPlace { epoch, position: item.division().positions(bundle).start };
        tracing::warn!(
            %job,
            "epoch {epoch} is passed, and the table has lost its splits from {} on: they are made again",
            from.position
        );
        let lacking = LackingSplits { from, to: SplitPlace::start_of(epoch + 1) };
        let note = |before: Option<&JobProgress>| {
            let before = before.copied().unwrap_or_default();
            let noted = |progress: JobProgress| progress.with_lacking(Some(lacking));
            Ok::<_, CallRefusal>(TransitionOutcome::AlreadyApplied(before).with(noted))
        };
        self.records.store.update(&ItemName::Progress(job), note).await?;
        Ok(())
    }

    /// Lets a job go on for a trainer that went back to `progress`, behind what is kept: its splits are made again.
    pub(crate) async fn reopen(
        &self,
        job: &JobName,
        progress: &JobProgress,
    ) -> Result<(), CallRefusal> {
        self.list(job).await?;
        let durable = progress.horizon().durable.epoch;
        let reopen = |item: &mut JobItem| {
            if item.state == JobState::Done {
                item.state = JobState::Running;
            }
            item.closed = item.closed.min(durable);
            item.resumed += 1;
        };
        self.records.change_job(job, reopen).await?;
        // Objects that are made again are deleted again.
        let behind = |swept: &mut SweepProgress| {
            swept.place = swept.place.min(SplitPlace::start_of(durable));
            swept.pruned = swept.pruned.min(durable);
        };
        self.records.store.change_or_create(&ItemName::Swept(job), behind).await.map(|_| ())
    }

    async fn close_epoch(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<(), ItemUpdateError<SplitRefusal>> {
        let Some(plan) = item.plan else { return Err(invalid("the job has no plan").into()) };
        let (number, name) = (item.closed, ItemName::Epoch(job, item.closed));
        let cached = item.caching.as_ref().filter(|c| c.view.delivered_prefix(number).is_some());
        let first = u64::from(number) * u64::from(plan.n_splits);
        let ranges = item.ranges(first..first + u64::from(plan.n_splits));
        let scanned = self.records.read_bundles(job, item, &ranges).await?;
        let bundles: Vec<Option<&Bundle>> = scanned.iter().map(|b| b.item.as_ref()).collect();
        let seal = SealTransition {
            bundles: &bundles,
            // An epoch that is delivered from the cache has no bundles.
            cached: cached.map(|cached| cached.totals.unwrap_or_default()),
            batch_size: plan.batch_size,
            drop_last: plan.drop_last,
            max_skipped: item.spec.settings.max_skipped.allowed(plan.records),
        };
        let open = |before: Option<&EpochItem>| match before {
            Some(before) => Ok(TransitionOutcome::AlreadyApplied(*before)),
            None => epoch::open(None, item.spec.seed),
        };
        let seal = |before: Option<&EpochItem>| epoch::seal(before, &seal);
        let durable = progress.horizon().durable;
        let close = |before: Option<&EpochItem>| epoch::close(before, number, durable);
        self.records.store.update(&name, open).await?;
        self.records.store.update(&name, seal).await?;
        self.records.store.update(&name, close).await?;
        Ok(())
    }

    /// Records that epoch `closed` is closed; after the last epoch the job is done.
    async fn advance(&self, job: &JobName, closed: Epoch) -> Result<JobItem, CallRefusal> {
        let close = |item: &mut JobItem| {
            if item.closed <= closed {
                item.closed = closed + 1;
                if item.closed == item.spec.epochs && item.state == JobState::Running {
                    item.state = JobState::Done;
                }
            }
        };
        self.records.change_job(job, close).await
    }
}
