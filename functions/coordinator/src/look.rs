//! A look at the whole window of a job: updates the job's state, and leaves hints for the calls that do not
//! read the window.
//!
//! The pure functions of [`steps`] decide from what is read; the methods here read, and carry out decisions.

mod steps;

use self::steps::{Decided, Step, View};
use crate::{
    Coordinator,
    items::{ItemName, JobItem},
    kicks::window,
    scan::{Reach, Scan},
    snapshot::JobSnapshot,
};
use gristmill_model::JobName;
use gristmill_model::splits::{self, JobProgress, Place, frontier::Frontier, job::JobState};
use gristmill_model::wire::{Poll, Refusal, ScaleState};

impl Coordinator {
    /// Reads the window, updates the job's state, kicks the scaler if needed, and writes the hints.
    pub(crate) async fn look(
        &self,
        poll: &Poll,
        snapshot: &mut JobSnapshot,
        scale: &ScaleState,
    ) -> Result<Frontier, Refusal> {
        let job = &poll.job;
        let JobSnapshot { item, progress, frontier } = snapshot;
        let scan = self.read_and_advance(job, item, progress).await?;
        if let (Some(plan), Some(_)) = (item.plan, progress.lacking) {
            // Epochs that are delivered from a cache have no splits to make.
            let end = Reach::of(item, progress, 0).end;
            let made = Place::of(scan.gap().unwrap_or(end), plan.n_splits);
            let decide =
                |before: Option<&JobProgress>| Ok::<_, Refusal>(splits::made(before, made));
            *progress = self.store.update(&ItemName::Progress(job), decide).await?;
        }
        let steady_since_ms = steps::steady_since(frontier.item.as_ref(), self.clock.now_ms());
        let scan = self.free_leases((job, item), progress, (scan, scale), steady_since_ms).await?;
        let scan = scan.within(window(item, progress, scale));
        let scale = &self.settled(job, scale.clone(), &scan).await?;
        let now_ms = self.clock.now_ms();
        let view = View { item, progress, scale, scan: &scan, steady_since_ms, now_ms };
        let Decided { kick, failure, mut hints } = steps::decide(&self.settings, poll, &view);
        if let Some(event) = kick {
            let not_kicked = self.kick(scale, event).await;
            hints.trouble = hints.trouble.or(not_kicked);
        }
        if let Some(error) = failure {
            *item = self.fail_job(job, item, error).await?;
        }
        let read = frontier.item.clone();
        let decide = |before: Option<&Frontier>| hints.clone().looked(read.as_ref(), before);
        let name = ItemName::Frontier(job);
        Ok(self.store.update_hint(&name, frontier.clone(), decide).await)
    }

    /// Reads the window and carries out the [`Step`]s that it shows to be due. Returns the window as it is
    /// after them.
    async fn read_and_advance(
        &self,
        job: &JobName,
        item: &mut JobItem,
        progress: &JobProgress,
    ) -> Result<Scan, Refusal> {
        let skips = self.skips(job, item).await?;
        let from = steps::scan_from(progress, skips.as_ref());
        let mut scan = self.scan(job, item, progress, from).await?;
        while let Some(step) = steps::next(item, &scan) {
            match step {
                Step::FinishIndexing => {
                    *item = self.finish_indexing(job, item, &scan).await?;
                    scan = self.scan(job, item, progress, from).await?;
                }
                Step::Fail { error } => {
                    *item = self.fail_job(job, item, error).await?;
                }
                Step::SettleCaching => {
                    let settled = self.settle_caching(job, item.clone(), &scan).await?;
                    if settled != *item {
                        scan = self.scan(job, &settled, progress, from).await?;
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
            *item = self.fail_job(job, item, error).await?;
        }
        Ok(scan)
    }

    /// Frees the leases of workers that are reported dead or have most likely died. Returns the window as it
    /// is then.
    async fn free_leases(
        &self,
        (job, item): (&JobName, &JobItem),
        progress: &JobProgress,
        (mut scan, scale): (Scan, &ScaleState),
        steady_since_ms: u64,
    ) -> Result<Scan, Refusal> {
        if self.release_late_claims((job, item), &scan, &scale.dead).await? {
            scan = self.scan(job, item, progress, progress.horizon().slowest).await?;
        }
        self.end_overdue((job, item), &mut scan, steady_since_ms).await?;
        Ok(scan)
    }
}
