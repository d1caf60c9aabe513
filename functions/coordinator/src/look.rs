//! A look at the whole window of a job: updates the job's state, and leaves hints for the calls that do not
//! read the window.
//!
//! The pure functions of [`steps`] decide from what is read; the methods here read, and carry out decisions.

mod steps;

use self::steps::{JobChange, WindowDecision, WindowInputs};
use crate::{
    Consumers,
    items::{ItemName, JobItem},
    kicks::window,
    scan::{WindowScan, WorkableRange},
    snapshot::JobSnapshot,
};
use gristmill_model::JobName;
use gristmill_model::splits::{
    self, JobProgress, SplitPlace, frontier::WindowHints, job::JobState,
};
use gristmill_model::wire::{CallRefusal, PollCall, ScaleState};

impl Consumers {
    /// Reads the window, updates the job's state, kicks the scaler if needed, and writes the hints.
    pub(crate) async fn look(
        &self,
        poll: &PollCall,
        snapshot: &mut JobSnapshot,
        scale: &ScaleState,
    ) -> Result<WindowHints, CallRefusal> {
        let job = &poll.job;
        let JobSnapshot { item, progress, frontier } = snapshot;
        let scan = self.read_and_advance(job, item, progress).await?;
        if let (Some(plan), Some(_)) = (item.plan, progress.lacking) {
            // Epochs that are delivered from a cache have no splits to make.
            let end = WorkableRange::new(item, progress, 0).end;
            let made = SplitPlace::from_linear(scan.gap().unwrap_or(end), plan.n_splits);
            let decide =
                |before: Option<&JobProgress>| Ok::<_, CallRefusal>(splits::made(before, made));
            *progress = self.records.store.update(&ItemName::Progress(job), decide).await?;
        }
        let steady_since_ms =
            steps::steady_since(frontier.item.as_ref(), self.records.clock.now_ms());
        let scan = self.free_leases((job, item), progress, (scan, scale), steady_since_ms).await?;
        let scan = scan.within(window(item, progress, scale));
        let scale = &self.splits.settled(job, scale.clone(), &scan).await?;
        let now_ms = self.records.clock.now_ms();
        let view = WindowInputs { item, progress, scale, scan: &scan, steady_since_ms, now_ms };
        let WindowDecision { kick, failure, mut hints } =
            steps::decide(&self.records.settings, poll, &view);
        if let Some(event) = kick {
            let not_kicked = self.kicks.kick(scale, event).await;
            hints.trouble = hints.trouble.or(not_kicked);
        }
        if let Some(error) = failure {
            *item = self.records.fail_job(job, item, error).await?;
        }
        let read = frontier.item.clone();
        let decide = |before: Option<&WindowHints>| hints.clone().looked(read.as_ref(), before);
        let name = ItemName::Frontier(job);
        Ok(self.records.store.update_hint(&name, frontier.clone(), decide).await)
    }

    /// Reads the window and carries out the [`JobChange`]s that it shows to be due. Returns the window as it is
    /// after them.
    async fn read_and_advance(
        &self,
        job: &JobName,
        item: &mut JobItem,
        progress: &JobProgress,
    ) -> Result<WindowScan, CallRefusal> {
        let skips = self.skips(job, item).await?;
        let from = steps::scan_from(progress, skips.as_ref());
        let mut scan = self.records.scan(job, item, progress, from).await?;
        while let Some(step) = steps::next(item, &scan) {
            match step {
                JobChange::FinishIndexing => {
                    *item = self.jobs.finish_indexing(job, item, &scan).await?;
                    scan = self.records.scan(job, item, progress, from).await?;
                }
                JobChange::Fail { error } => {
                    *item = self.records.fail_job(job, item, error).await?;
                }
                JobChange::SettleCaching => {
                    let settled = self.jobs.settle_caching(job, item.clone(), &scan).await?;
                    if settled != *item {
                        scan = self.records.scan(job, &settled, progress, from).await?;
                        *item = settled;
                    }
                    // The next look continues from what this one has read since.
                    break;
                }
            }
        }
        if let Some(read) = skips.filter(|_| item.state == JobState::Running)
            && let Some(error) = self.count_skipped(job, item, (&scan, progress), read).await?
        {
            *item = self.records.fail_job(job, item, error).await?;
        }
        Ok(scan)
    }

    /// Frees the leases of workers that are reported dead or have most likely died. Returns the window as it
    /// is then.
    async fn free_leases(
        &self,
        (job, item): (&JobName, &JobItem),
        progress: &JobProgress,
        (mut scan, scale): (WindowScan, &ScaleState),
        steady_since_ms: u64,
    ) -> Result<WindowScan, CallRefusal> {
        if self.splits.release_late_claims((job, item), &scan, &scale.dead).await? {
            scan = self.records.scan(job, item, progress, progress.horizon().slowest).await?;
        }
        self.splits.end_overdue((job, item), &mut scan, steady_since_ms).await?;
        Ok(scan)
    }
}
