//! Caching of a running job: turns its profile into a decision, and publishes what it has stored.

use super::{CacheBenefit, JobCaching};
use crate::{Jobs, items::JobItem, jobs::pipeline_of, scan::WindowScan};
use gristmill_model::splits::{
    CommittedSplit, SplitKind,
    epoch::SealedTotals,
    job::JobState,
    order::{visit_number, visit_of},
};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    CacheEntry, CacheManifest, CachePointView, CachedChunk, CallRefusal, EpochCacheMode, EpochPlan,
};
use gristmill_model::{Epoch, ErrorPolicy, JobName};
use gristmill_policy::caching::{
    CachingDecision, CachingEvent, CachingProfile, CachingState, Mode, PROFILE_BATCHES,
    ReadOverlap, ReadTime, decide,
};
use gristmill_policy::plan::{MeasuredSample, PlannedJob};

/// Up to this many splits, the stored objects are listed to measure their size; beyond that, the entry has
/// the predicted size.
const MAX_LISTED_SPLITS: u32 = 10_000;

/// An epoch whose splits are all committed: its totals, and a manifest if its chunks are the cache.
struct Stored {
    manifest: Option<CacheManifest>,
    totals: SealedTotals,
}

/// A step towards the mode of the first unsettled epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CachingStep {
    /// Decide by the job's profile what to cache; `complete` if there will be no more of it.
    Decide { complete: bool },
    /// Publish the cache prefix that the epoch before `unsettled` has filled.
    Publish { plan: EpochPlan, point: u32, unsettled: Epoch },
}

/// The next step for a running job with an unsettled epoch, with the caching that it starts from.
pub(crate) fn settlement<'a>(
    item: &'a JobItem,
    scan: &WindowScan,
) -> Option<(&'a JobCaching, CachingStep)> {
    let caching = item.caching.as_ref().filter(|_| item.state == JobState::Running)?;
    let (plan, unsettled) = (item.plan?, caching.view.unsettled?);
    let complete = scan.is_done_before(u64::from(unsettled) * u64::from(plan.n_splits));
    let settlement = match caching.state.mode {
        Mode::Profile => CachingStep::Decide { complete },
        Mode::Put { point } if complete => CachingStep::Publish { plan, point, unsettled },
        _ => return None,
    };
    Some((caching, settlement))
}

impl Jobs {
    /// Settles the mode of the next epoch, as far as it can be decided yet. Repeatable: the next poll
    /// finishes what a crash leaves.
    pub(crate) async fn settle_caching(
        &self,
        job: &JobName,
        mut item: JobItem,
        scan: &WindowScan,
    ) -> Result<JobItem, CallRefusal> {
        while let Some((caching, settlement)) = settlement(&item, scan) {
            let after = match settlement {
                CachingStep::Decide { complete } => {
                    self.decide_caching(job, &item, caching, complete).await?
                }
                CachingStep::Publish { plan, point, unsettled } => {
                    Some(self.finish_put(job, &item, caching, plan, point, unsettled).await?)
                }
            };
            let Some(after) = after else { break };
            item = self.write_caching(job, &item, after).await?;
        }
        Ok(item)
    }

    /// Writes the caching state derived from `item`, unless another process has changed it.
    async fn write_caching(
        &self,
        job: &JobName,
        item: &JobItem,
        after: JobCaching,
    ) -> Result<JobItem, CallRefusal> {
        let write = |before: &mut JobItem| {
            if before.caching == item.caching {
                before.caching = Some(after.clone());
            }
        };
        self.records.change_job(job, write).await
    }

    /// Decides what to cache; none while too few batches are measured.
    async fn decide_caching(
        &self,
        job: &JobName,
        item: &JobItem,
        caching: &JobCaching,
        complete: bool,
    ) -> Result<Option<JobCaching>, CallRefusal> {
        let measured = self.records.profile(job).await?;
        if measured.batches < PROFILE_BATCHES && !complete {
            return Ok(None);
        }
        let pipeline = pipeline_of(&item.spec)?;
        let profile = CachingProfile {
            batches: measured.batches,
            measured: MeasuredSample::from(&measured),
            source_wait_s: measured.source_wait_ms as f64 / 1e3,
            objects: f64::from(measured.splits),
            reads: ReadOverlap::Ahead,
        };
        let planned = PlannedJob::running(&pipeline, &item.spec, item.plan.as_ref(), &measured);
        let reads = measured.reads.iter();
        let reads: Vec<(f64, f64)> =
            reads.map(|&(bytes, us)| (bytes as f64, us as f64 / 1e6)).collect();
        let decision = decide(&profile, &planned, &ReadTime::fit(&reads));
        let mut after = caching.clone();
        let Mode::Put { point } = decision.mode else {
            return Ok(Some(computing(after, decision.reason)));
        };
        let predicted = predicted(&decision, point);
        if let Some(no_room) = self.make_room(predicted.bytes).await? {
            return Ok(Some(computing(after, no_room)));
        }
        let stored_from_start = caching.view.is_whole(point);
        let event = CachingEvent::Decided { mode: decision.mode, stored_from_start };
        after.state = caching.state.advance(&event).state;
        after.predicted = Some(predicted);
        after.decided = Some(decision.reason.clone());
        let unsettled = caching.view.unsettled.unwrap_or(1);
        if !stored_from_start {
            let next = after.state.advance(&CachingEvent::EpochEnded { complete: false });
            let reason = format!("{}; {}", decision.reason, next.reason);
            after.state = next.state;
            let cache_prefix =
                Some(self.build_prefix(caching.view.points[point as usize].fingerprint));
            let mode = after.state.mode;
            after.view.modes.push(EpochCacheMode { from: unsettled, mode, reason, cache_prefix });
            after.view.unsettled = Some(unsettled + 1);
        }
        Ok(Some(after))
    }

    /// Publishes the cache prefix of a put once all its splits are committed.
    async fn finish_put(
        &self,
        job: &JobName,
        item: &JobItem,
        caching: &JobCaching,
        plan: EpochPlan,
        point: u32,
        unsettled: Epoch,
    ) -> Result<JobCaching, CallRefusal> {
        let mut after = caching.clone();
        let stored = self.stored(job, item, plan, point, unsettled - 1).await?;
        let cache_prefix =
            caching.view.mode_at(unsettled - 1).and_then(|mode| mode.cache_prefix.clone());
        let (Some(stored), Some(cache_prefix), Some(view)) =
            (stored, cache_prefix, caching.view.points.get(point as usize))
        else {
            let reason = "a split was given up, so that not all of it is stored".to_owned();
            return Ok(computing(after, reason));
        };
        let entry = self.entry_for(job, item, caching, plan, view, &cache_prefix, &stored).await?;
        if let Some(manifest) = &stored.manifest {
            let key = keys::cache_manifest(&cache_prefix);
            self.objects.put_json(key, manifest, "manifest").await?;
        }
        let mut there = self.publish(&entry).await?;
        let until_ms = self.objects.in_time_of_a_call();
        if there.cache_prefix != cache_prefix
            && self.finish_begun_removal(entry.fingerprint, until_ms).await?.is_some()
        {
            there = self.publish(&entry).await?;
        }
        if there.cache_prefix == cache_prefix {
            // The entry may be in removal already; then this job reads the cache prefix as long as it exists.
            self.reads_cache(job, &there).await?;
        }
        let skipped = stored.totals.skipped;
        if skipped > 0 && item.spec.settings.on_error == ErrorPolicy::Fail {
            let reason = format!("it lacks {skipped} bad records, for which this job must fail");
            return Ok(computing(after, reason));
        }
        let transition = caching.state.advance(&CachingEvent::EpochEnded { complete: true });
        after.state = transition.state;
        after.totals = Some(stored.totals);
        let why = caching.decided.as_deref().unwrap_or_default();
        let reason = format!("{}; {why}", transition.reason);
        let (mode, cache_prefix) = (after.state.mode, Some(cache_prefix));
        after.view.modes.push(EpochCacheMode { from: unsettled, mode, reason, cache_prefix });
        after.view.unsettled = None;
        Ok(after)
    }

    /// Totals and manifest of what `epoch` stored; none if a split is missing, poisoned, or has no object of its own.
    async fn stored(
        &self,
        job: &JobName,
        item: &JobItem,
        plan: EpochPlan,
        point: u32,
        epoch: Epoch,
    ) -> Result<Option<Stored>, CallRefusal> {
        let first = u64::from(epoch) * u64::from(plan.n_splits);
        let ranges = item.ranges(first..first + u64::from(plan.n_splits));
        let scanned = self.records.read_bundles(job, item, &ranges).await?;
        let pipeline = pipeline_of(&item.spec)?;
        let in_order = pipeline.is_in_order();
        let copies = plan.copies.max(1);
        let mut chunks = vec![None; plan.n_splits as usize];
        let mut totals = SealedTotals::default();
        for bundle in &scanned {
            let Some(stored) = &bundle.item else { return Ok(None) };
            for (position, entry) in bundle.positions.clone().zip(&stored.entries) {
                let Some(entry) = entry.filter(|entry| entry.outcome.kind != SplitKind::Poison)
                else {
                    return Ok(None);
                };
                let (n_splits, seed) = (plan.n_splits / copies, item.spec.seed);
                let visit = visit_of(n_splits, copies, in_order, seed, epoch, position);
                let Some((copy, split)) = visit else { return Ok(None) };
                let at = visit_number(copies, copy, split);
                let CommittedSplit { attempt, nonce, outcome } = entry;
                let bundle = bundle.index;
                if let Some(slot) = chunks.get_mut(at as usize) {
                    *slot = Some(CachedChunk { bundle, position, attempt, nonce, outcome });
                }
            }
            totals.add(stored);
        }
        let whole = item.caching.as_ref().is_some_and(|caching| caching.view.is_whole(point));
        let is_object = |chunk: &CachedChunk| !whole || chunk.outcome.kind == SplitKind::Object;
        let chunks = chunks.into_iter().map(|slot| slot.filter(is_object));
        let Some(chunks) = chunks.collect() else { return Ok(None) };
        let manifest = whole.then_some(CacheManifest { copies, in_order, chunks });
        Ok(Some(Stored { manifest, totals }))
    }

    #[expect(clippy::too_many_arguments, reason = "an entry says all of it")]
    async fn entry_for(
        &self,
        job: &JobName,
        item: &JobItem,
        caching: &JobCaching,
        plan: EpochPlan,
        view: &CachePointView,
        cache_prefix: &str,
        stored: &Stored,
    ) -> Result<CacheEntry, CallRefusal> {
        let predicted = caching.predicted;
        let bytes = if view.whole {
            stored.totals.object_bytes
        } else if plan.n_splits <= MAX_LISTED_SPLITS {
            self.objects.list_objects(cache_prefix).await?.iter().map(|object| object.size).sum()
        } else {
            predicted.map_or(0, |predicted| predicted.bytes as u64)
        };
        Ok(CacheEntry {
            fingerprint: view.fingerprint,
            cache_prefix: cache_prefix.to_owned(),
            whole: view.whole,
            after: view.after.clone(),
            job: job.clone(),
            bytes,
            splits: plan.n_splits,
            split_records: plan.split_records,
            copies: plan.copies,
            rows: stored.totals.rows,
            skipped: stored.totals.skipped,
            stored_ms: self.records.clock.now_ms(),
            elements_per_s: predicted.map_or(0.0, |predicted| predicted.elements_per_s),
            saved_s: predicted.map_or(0.0, |predicted| predicted.saved_s),
            described: self.describe_point(item, &caching.numerics, view.fingerprint).await?,
        })
    }
}

/// Switches to computing from the unsettled epoch on.
fn computing(mut caching: JobCaching, reason: String) -> JobCaching {
    let from = caching.view.unsettled.take().unwrap_or(1);
    caching.state = CachingState::new(Mode::Compute);
    let mode = Mode::Compute;
    caching.view.modes.push(EpochCacheMode { from, mode, reason, cache_prefix: None });
    caching
}

fn predicted(decision: &CachingDecision, point: u32) -> CacheBenefit {
    let of = |mode: Mode| decision.options.iter().find(|option| option.mode == mode);
    let (Some(cached), Some(compute)) = (of(Mode::Put { point }), of(Mode::Compute)) else {
        return CacheBenefit { elements_per_s: 0.0, saved_s: 0.0, bytes: 0.0 };
    };
    CacheBenefit {
        elements_per_s: cached.elements_per_s,
        saved_s: (compute.epoch_s - cached.epoch_s).max(0.0),
        bytes: cached.stored_bytes,
    }
}
