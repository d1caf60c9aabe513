//! Scheduled maintenance: stops jobs whose trainer is gone for good, deletes what ended jobs leave behind,
//! and repeats a kick of the scaler that got lost. Every step may be repeated, or left half done.

use crate::{
    CoordinatorFunction, JobRecords,
    files::DeletedObjects,
    items::{ItemName, JobItem, ListedJob},
    kicks::{lacks_workers, scaler_event, window},
    snapshot::JobSnapshot,
    store::{ACCUMULATING_ITEM_LIFETIME, VersionedItem, decode},
};
use gristmill_model::JobName;
use gristmill_model::splits::{TransitionOutcome, job::JobState};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CallRefusal, RefusalKind, ScalerEvent};
use serde::Serialize;
use std::time::Duration;

/// Time for which a round deletes objects; the function is ended after 30 s.
const ROUND_MS: u64 = 20_000;
/// After this time, no worker of an ended job can put objects: invocations last at most 15 minutes.
const GRACE: Duration = Duration::from_secs(3600);
/// A trainer that polled within this time may be waiting for workers.
const PRESENT: Duration = Duration::from_secs(3600);
/// The job's item outlives its last bundles, so that a new job of the same name does not find them.
const JOB_LIVES_ON: Duration =
    ACCUMULATING_ITEM_LIFETIME.saturating_add(Duration::from_secs(30 * 86_400));

/// The outcome of one round of upkeep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct UpkeepReport {
    /// Jobs that are not cleaned up yet.
    pub jobs: u32,
    /// Jobs stopped because their trainer is gone.
    pub abandoned: u32,
    /// Ended jobs that this round cleaned up.
    pub tidied: u32,
    /// Chunks deleted.
    pub chunks: u64,
    /// Bundles of passed epochs deleted.
    pub bundles: u64,
    /// Cache removals that another process had begun and this round finished.
    pub removals: u32,
    /// Jobs and cache removals that failed; the next round tries again.
    pub failed: u32,
}

impl CoordinatorFunction {
    /// Runs one round of upkeep over every job of the namespace. Fails if the list of jobs cannot
    /// be read. Failures of a single job are logged and counted.
    pub async fn upkeep(&self) -> Result<UpkeepReport, CallRefusal> {
        let mut done = UpkeepReport::default();
        let JobRecords { store, clock, settings, .. } = &self.jobs.records;
        let until_ms = clock.now_ms() + ROUND_MS;
        for (sk, item) in store.read_partition(&keys::jobs_partition(&settings.ns)).await? {
            let Ok(job) = sk.parse::<JobName>() else { continue };
            let outcome = async {
                let listed = decode::<ListedJob>(&ItemName::Listed(&job), Some(&item))?;
                self.look_after(&job, listed, until_ms, &mut done).await
            };
            if let Err(error) = outcome.await {
                tracing::warn!(%job, %error, "upkeep of a job failed; the next round tries again");
                done.failed += 1;
            }
        }
        for fingerprint in self.jobs.being_removed().await? {
            match self.jobs.finish_begun_removal(fingerprint, until_ms).await {
                Ok(_) => done.removals += 1,
                Err(error) => {
                    tracing::warn!(%fingerprint, %error, "a removal is not finished; the next round tries");
                    done.failed += 1;
                }
            }
        }
        tracing::info!(?done, "upkeep");
        Ok(done)
    }

    async fn look_after(
        &self,
        job: &JobName,
        listed: VersionedItem<ListedJob>,
        until_ms: u64,
        done: &mut UpkeepReport,
    ) -> Result<(), CallRefusal> {
        let Some(entry) = listed.item.filter(|entry| !entry.tidied) else { return Ok(()) };
        done.jobs += 1;
        let records = &self.jobs.records;
        let JobRecords { clock, settings, .. } = records;
        let (item, progress, scale) = match records.poll_snapshot(job, None, None).await {
            Ok((JobSnapshot { item, progress, .. }, beside)) => {
                (Some(item), progress, beside.scale)
            }
            // The job is listed but has no item: its registration died between two writes.
            Err(refusal) if refusal.kind == RefusalKind::NotFound => Default::default(),
            Err(refusal) => return Err(refusal),
        };
        if let Some(item) = item.as_ref().filter(|item| !item.state.is_ended()) {
            done.bundles += records.prune(job, item, &progress).await?;
        }
        let last_contact_ms = progress.heartbeat_ms.max(entry.registered_ms);
        let silent = Duration::from_millis(clock.now_ms().saturating_sub(last_contact_ms));
        match item {
            Some(item) if !item.state.is_ended() && silent > settings.retention => {
                tracing::info!(%job, days = silent.as_secs() / 86_400, "abandoned: stopped");
                records.stop_job(job).await?;
                done.abandoned += 1;
            }
            Some(item) if !item.state.is_ended() && silent < PRESENT => {
                // The trainer's polls do the same, so this matters only if they fail.
                let slowest = progress.horizon().slowest;
                let scan = records.scan(job, &item, &progress, slowest).await?;
                let scale = self.splits.without_departed(job, scale, &scan).await?;
                let scan = scan.within(window(&item, &progress, &scale));
                let batches = scale.log.last().map_or(0, |decision| decision.batch);
                let event = scaler_event(&settings.ns, job, &item, &progress, clock.now_ms());
                let event = ScalerEvent { batches, ..event };
                if let Some(event) = lacks_workers(event, &item, &scale, &scan) {
                    self.jobs.kicks.kick(&scale, event).await;
                }
            }
            Some(item) if !item.state.is_ended() => {}
            // Its objects are needed if somebody lets it go on.
            Some(JobItem { state: JobState::Failed { .. }, .. })
                if silent <= settings.retention => {}
            item if silent > GRACE => {
                if let Some(item) = &item {
                    done.bundles += records.prune(job, item, &progress).await?;
                }
                let DeletedObjects { objects, all } = self.tidy(job, listed, until_ms).await?;
                done.chunks += objects;
                done.tidied += u32::from(all);
            }
            _ => {}
        }
        Ok(())
    }

    /// Deletes an ended job's chunks and lets its items expire, if `until_ms` gives time for all chunks.
    /// Reports of skipped records and quarantined records stay as long as the bucket keeps them.
    async fn tidy(
        &self,
        job: &JobName,
        listed: VersionedItem<ListedJob>,
        until_ms: u64,
    ) -> Result<DeletedObjects, CallRefusal> {
        let JobRecords { store, settings, .. } = &self.jobs.records;
        let prefix = keys::job_prefix(&settings.ns, job);
        let mut deleted = self.jobs.objects.delete_below(&prefix, until_ms, keys::is_chunk).await?;
        if deleted.all {
            let item = store.read::<JobItem>(&ItemName::Job(job)).await?.item;
            let caching = item.and_then(|item| item.caching);
            deleted = deleted.and(self.jobs.tidy_cache_prefixes(caching.as_ref(), until_ms).await?);
        }
        if !deleted.all {
            return Ok(deleted);
        }
        for name in [ItemName::Scale(job), ItemName::Progress(job), ItemName::Swept(job)] {
            store.expire(&name, ACCUMULATING_ITEM_LIFETIME).await?;
        }
        store.expire(&ItemName::Job(job), JOB_LIVES_ON).await?;
        let name = ItemName::Listed(job);
        let tidied = |before: Option<&ListedJob>| {
            let absent = ListedJob { registered_ms: 0, tidied: true };
            let before = *before.unwrap_or(&absent);
            let after = ListedJob { tidied: true, ..before };
            Ok::<_, CallRefusal>(TransitionOutcome::new(Some(&before), after))
        };
        store.update_from(&name, listed, tidied).await?;
        store.expire(&name, GRACE).await?;
        Ok(deleted)
    }
}
