//! Reads a range of bundles: which splits are committed, which workers hold leases, what is claimable.

use crate::{JobRecords, bundles::ScannedBundle, items::JobItem};
use gristmill_model::splits::{
    Bundle, BundleState, CommittedSplit, JobProgress, ObjectSizes, SplitKind, SplitPlace,
    window::{WindowBounds, WindowOccupancy, window_splits},
};
use gristmill_model::wire::CallRefusal;
use gristmill_model::{InvocationId, JobName, Nonce, Position};
use std::collections::BTreeSet;

/// A range of bundles in delivery order, from one read.
#[derive(Debug, Clone)]
pub(crate) struct WindowScan {
    pub bundles: Vec<ScannedBundle>,
    pub ahead: WindowOccupancy,
    /// None while indexing: every file may be indexed at once.
    window: Option<WindowBounds>,
    /// The run has more bundles after these.
    goes_on: bool,
    /// Nothing behind these may be worked on, wherever the window ends: the run ends there, or the next epoch's cache mode
    /// is not settled.
    is_last: bool,
}

impl WindowScan {
    /// Limits the window to `splits`, because the target is fewer workers than the job may have. Splits
    /// already leased or ready beyond the limit still count.
    #[must_use]
    pub fn within(self, splits: u32) -> Self {
        Self { window: self.window.map(|window| window.at_most(splits)), ..self }
    }

    /// Bundles that are claimable now, in delivery order.
    ///
    /// Includes only the first bundle on trial. Poison is proved by deaths in a row on one split with no
    /// death elsewhere between, so two poisoned splits tried at the same time would clear each other forever.
    pub fn candidates(&self, now_ms: u64) -> impl Iterator<Item = &ScannedBundle> {
        let trial = self.bundles.iter().find(|bundle| bundle.is_on_trial()).map(|b| b.linear);
        self.bundles.iter().filter(move |bundle| {
            bundle.is_claimable(now_ms)
                && self.admits(bundle)
                && (trial == Some(bundle.linear) || !bundle.is_on_trial())
        })
    }

    /// The bundles that were ever claimed.
    pub fn items(&self) -> impl Iterator<Item = &Bundle> {
        self.bundles.iter().filter_map(|bundle| bundle.item.as_ref())
    }

    fn admits(&self, bundle: &ScannedBundle) -> bool {
        self.window.is_none_or(|window| window.admits(self.ahead, &bundle.span()))
    }

    /// Number of positions that are claimable now.
    pub fn claimable(&self, now_ms: u64) -> u32 {
        self.candidates(now_ms).map(ScannedBundle::open).sum()
    }

    /// Distinct workers with an unexpired lease.
    pub fn active_workers(&self, now_ms: u64) -> u32 {
        self.invocations(now_ms).len() as u32
    }

    /// Workers on trainers' hosts with an unexpired lease.
    pub fn local_workers(&self, now_ms: u64) -> u32 {
        self.active_workers(now_ms) - self.remote_workers(now_ms).count() as u32
    }

    /// Remote workers with an unexpired lease.
    pub fn remote_workers(&self, now_ms: u64) -> impl Iterator<Item = &InvocationId> {
        self.invocations(now_ms).into_iter().filter(|invocation| invocation.worker().is_some())
    }

    /// Numbers of remote workers with an unexpired lease.
    pub fn workers_at_work(&self, now_ms: u64) -> BTreeSet<u32> {
        self.invocations(now_ms).into_iter().filter_map(InvocationId::worker).collect()
    }

    /// Numbers of remote workers whose last lease has not expired, also if it is finished: a worker between
    /// two leases counts.
    pub fn workers_with_recent_lease(&self, now_ms: u64) -> BTreeSet<u32> {
        let held =
            |bundle: &&Bundle| bundle.state != BundleState::Released && bundle.until_ms > now_ms;
        self.items().filter(held).filter_map(|bundle| bundle.invocation.worker()).collect()
    }

    fn invocations(&self, now_ms: u64) -> BTreeSet<&InvocationId> {
        let leased =
            |bundle: &&Bundle| bundle.state == BundleState::Leased && bundle.until_ms > now_ms;
        self.items().filter(leased).map(|bundle| &bundle.invocation).collect()
    }

    /// Progress counter: committed splits (or indexed files), plus deaths on suspects after a survived
    /// control. It changes whenever either grows.
    pub fn progress(&self, item: &JobItem) -> u64 {
        let suspects = self.items().filter_map(|bundle| bundle.suspect);
        let controls: u64 = suspects.map(|suspect| u64::from(suspect.strikes.max(1) - 1)).sum();
        controls
            + match item.plan {
                Some(_) => self.ahead.delivered + self.ahead.ready,
                None => u64::from(self.done()),
            }
    }

    /// The first split from the trainer's place on that is not committed, counted through all epochs, if it was read.
    pub fn gap(&self) -> Option<u64> {
        self.bundles.iter().find_map(|bundle| {
            let item = bundle.item.as_ref();
            let is_open = |i| item.and_then(|item| item.entry(i)).is_none();
            let mut splits = (0u8..).zip(bundle.span());
            let open = splits.find(|(i, linear)| *linear >= self.ahead.delivered && is_open(*i));
            open.map(|(_, linear)| linear)
        })
    }

    /// Whether a trainer may wait for the first split that is not committed.
    pub fn awaits_gap(&self) -> bool {
        let awaits = |gap| self.window.is_some_and(|w| w.is_awaited(self.ahead, &(gap..gap + 1)));
        self.gap().is_some_and(awaits)
    }

    /// Whether every split before the linear position `linear` is committed.
    pub fn is_done_before(&self, linear: u64) -> bool {
        let reached = self.bundles.last().map_or(self.ahead.delivered, |last| last.span().end);
        let before = self.bundles.iter().filter(|bundle| bundle.linear < linear);
        reached.max(self.ahead.delivered) >= linear
            && before.map(ScannedBundle::open).sum::<u32>() == 0
    }

    /// Whether nothing is claimable only because the window is full: the trainer must consume splits first.
    /// `claimable` is the result of [`claimable`](Self::claimable) at the same time.
    pub fn window_full(&self, now_ms: u64, claimable: u32) -> bool {
        let kept_back = |b: &ScannedBundle| b.is_claimable(now_ms) && !self.admits(b);
        claimable == 0 && (self.goes_on || self.bundles.iter().any(kept_back))
    }

    /// Whether nothing is left to hand out, however far the window reaches. What a trainer then reports is not of its
    /// workers' number: they have left, and what it waits for may not be begun.
    pub fn has_nothing_left(&self, now_ms: u64) -> bool {
        self.is_last && !self.bundles.iter().any(|bundle| bundle.is_claimable(now_ms))
    }

    /// Number of positions that are leased or ready but not delivered.
    pub fn positions_ahead(&self) -> u32 {
        let leased = self.bundles.iter().filter_map(|bundle| {
            let item = bundle.item.as_ref()?;
            (item.state == BundleState::Leased).then(|| bundle.open())
        });
        leased.sum::<u32>().saturating_add(u32::try_from(self.ahead.ready).unwrap_or(u32::MAX))
    }

    /// Whether to run workers: they drain at the top of the window and are woken below half of it.
    pub fn needs_workers(&self, at_work: bool) -> bool {
        self.window.is_none_or(|window| window.needs_workers(self.ahead, at_work))
    }

    /// Whether a split that a trainer may wait for is claimable: its worker died while others filled the window
    /// behind it. A worker is then needed even if the window is full.
    pub fn is_head_of_line_blocked(&self, now_ms: u64) -> bool {
        let Some(window) = self.window else { return false };
        let is_awaited = |bundle: &ScannedBundle| window.is_awaited(self.ahead, &bundle.span());
        self.bundles.iter().any(|bundle| is_awaited(bundle) && bundle.is_claimable(now_ms))
    }

    /// Error of the first bundle that was given up; it fails the job.
    pub fn given_up(&self) -> Option<String> {
        let dead = self.items().find(|item| item.state == BundleState::Dead)?;
        Some(dead.error.clone().unwrap_or_default())
    }

    /// The first bundle with an error after at least `attempts` attempts: its first position, the number of
    /// attempts, and the error.
    pub fn failing(&self, attempts: u32) -> Option<(Position, u32, &str)> {
        self.bundles.iter().find_map(|bundle| {
            let item = bundle.item.as_ref()?;
            // A poisoned split reports itself in the bundle's error.
            let poison = item.entries.iter().flatten().any(|e| e.outcome.kind == SplitKind::Poison);
            let open = !poison && matches!(item.state, BundleState::Failed | BundleState::Leased);
            let error = item.error.as_deref().filter(|_| open && item.attempt >= attempts)?;
            Some((bundle.positions.start, item.attempt, error))
        })
    }

    /// Number of indexed files.
    pub fn done(&self) -> u32 {
        self.items().flat_map(|item| &item.entries).flatten().count() as u32
    }

    /// Every committed split of the scan.
    pub fn committed(&self) -> impl Iterator<Item = (SplitPlace, &CommittedSplit)> {
        self.bundles.iter().filter_map(|bundle| Some((bundle, bundle.item.as_ref()?))).flat_map(
            |(bundle, item)| {
                bundle.positions.clone().zip(&item.entries).filter_map(|(position, entry)| {
                    Some((SplitPlace { epoch: bundle.epoch, position }, entry.as_ref()?))
                })
            },
        )
    }

    /// The bundle that `nonce` has leased, expired or not.
    pub fn owned_by(&self, nonce: Nonce) -> Option<&ScannedBundle> {
        let is_held = |bundle: &&ScannedBundle| bundle.lease_of(nonce).is_some();
        self.bundles.iter().find(is_held)
    }
}

/// How far workers may run ahead of the trainer, or of the last of its readers: at most `splits`, for the target number
/// of workers, unless the steps of several ranks need more; 0 means that the limit is not known. None while indexing.
pub(crate) fn window(item: &JobItem, progress: &JobProgress, splits: u32) -> Option<WindowBounds> {
    let plan = item.plan?;
    let max_bundle_splits = item.division().max_bundle_splits();
    let workers = item.spec.workers.saturating_add(progress.local_workers);
    let widest = plan.window_splits.max(window_splits(workers, plan.max_bundle_splits));
    let window = WindowBounds::new(widest, plan.window_bytes, max_bundle_splits);
    // A reader may need the next steps before all readers of its replicas have come, as it does with ranks of other data.
    let ranks =
        progress.run.map_or(1, |run| run.ranks.data_ranks().max(run.ranks.count.get().min(2)));
    let window = window.for_ranks(ranks, plan.split_batches(), plan.batch_bytes);
    Some(if splits == 0 { window } else { window.at_most(splits) })
}

/// The range of splits that a job may work on now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkableRange {
    /// The first position that the trainer has not received, or that is to be made again, counted through all epochs.
    pub delivered: u64,
    /// The first position that must not be worked on yet.
    pub end: u64,
    /// The same, wherever the window ends.
    pub most: u64,
    /// None while indexing: every file may be indexed at once.
    pub window: Option<WindowBounds>,
    /// The run has more positions after `end`.
    pub goes_on: bool,
}

impl WorkableRange {
    /// `splits` limits the window; see [`window`].
    pub fn new(item: &JobItem, progress: &JobProgress, splits: u32) -> Self {
        let run = item.run();
        let (Some(plan), Some(window)) = (item.plan, window(item, progress, splits)) else {
            return Self { delivered: 0, end: run, most: run, window: None, goes_on: false };
        };
        let n = plan.n_splits;
        let delivered = progress.horizon().slowest.linear(n);
        let unsettled = item.caching.as_ref().and_then(|caching| caching.view.unsettled);
        let settled = unsettled.map_or(run, |epoch| u64::from(epoch) * u64::from(n));
        let most = run.min(settled);
        let end = window.end(delivered).min(most);
        Self { delivered, end, most, window: Some(window), goes_on: end < run }
    }
}

impl JobRecords {
    /// Reads the bundles from `from`, or from the trainer's place if that is earlier, to the end of the
    /// window. While indexing, reads the whole index.
    pub(crate) async fn scan(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
        from: SplitPlace,
    ) -> Result<WindowScan, CallRefusal> {
        let WorkableRange { delivered, end, most, window, goes_on } =
            WorkableRange::new(item, progress, 0);
        let from = item.plan.map_or(0, |plan| from.linear(plan.n_splits));
        let bundles = self.read_bundles(job, item, &item.ranges(from.min(delivered)..end)).await?;
        let ahead = ahead(&bundles, delivered, self.settings.object_sizes);
        let is_last = item.plan.is_some() && end == most;
        Ok(WindowScan { ahead, bundles, window, goes_on, is_last })
    }
}

/// The committed splits of `bundles` that the trainer has not received.
fn ahead(bundles: &[ScannedBundle], delivered: u64, sizes: ObjectSizes) -> WindowOccupancy {
    let mut ahead = WindowOccupancy { delivered, ready: 0, ready_bytes: 0 };
    for bundle in bundles {
        let Some(item) = &bundle.item else { continue };
        for ((position, linear), entry) in
            bundle.positions.clone().zip(bundle.span()).zip(&item.entries)
        {
            if let Some(entry) = entry.filter(|_| linear >= delivered) {
                let place = SplitPlace::new(bundle.epoch, position);
                ahead.ready += 1;
                ahead.ready_bytes += sizes.bytes(place, entry.outcome.object_bytes);
            }
        }
    }
    ahead
}

#[cfg(test)]
impl WindowScan {
    /// This scan, behind which nothing may be worked on.
    pub fn at_end(self) -> Self {
        Self { is_last: true, ..self }
    }
}

/// A scan of `bundles`, without a window.
#[cfg(test)]
pub(crate) fn scanned(bundles: Vec<ScannedBundle>) -> WindowScan {
    let ahead = ahead(&bundles, 0, ObjectSizes::Real);
    WindowScan { ahead, bundles, window: None, goes_on: false, is_last: false }
}
