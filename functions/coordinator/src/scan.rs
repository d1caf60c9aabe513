//! Reading the bundles of a stretch of the run: what is committed, who works, what may be claimed.

use crate::{Coordinator, bundles::ScannedBundle, items::JobItem};
use gristmill_model::splits::{
    Bundle, BundleState, Committed, Consumer, Place, SplitKind,
    window::{Ahead, Window},
};
use gristmill_model::wire::Refusal;
use gristmill_model::{InvocationId, JobName, Nonce, Position};
use std::collections::BTreeSet;

/// A stretch of bundles in delivery order, all read at one time.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub bundles: Vec<ScannedBundle>,
    pub ahead: Ahead,
    /// None while indexing: every file may be indexed at once.
    window: Option<Window>,
    /// The run goes on beyond the bundles that were read.
    goes_on: bool,
}

impl Scan {
    /// The same, with a window of no more than `splits`, as fewer workers are wanted than the job may have. What
    /// was handed out beyond it is still seen.
    #[must_use]
    pub fn within(self, splits: u32) -> Self {
        Self { window: self.window.map(|window| window.at_most(splits)), ..self }
    }

    /// Bundles that may be claimed now, in delivery order.
    ///
    /// Of bundles on trial, only the first: a split counts as poison if it is the only one that workers die
    /// of for a while, so two of that kind, tried at a time, would clear each other for ever.
    pub fn candidates(&self, now_ms: u64) -> impl Iterator<Item = &ScannedBundle> {
        let trial = self.bundles.iter().find(|bundle| bundle.is_on_trial()).map(|b| b.linear);
        self.bundles.iter().filter(move |bundle| {
            bundle.is_claimable(now_ms)
                && self.admits(bundle)
                && (trial == Some(bundle.linear) || !bundle.is_on_trial())
        })
    }

    fn admits(&self, bundle: &ScannedBundle) -> bool {
        self.window.is_none_or(|window| window.admits(self.ahead, &bundle.stretch()))
    }

    /// Positions that may be claimed now.
    pub fn claimable(&self, now_ms: u64) -> u32 {
        self.candidates(now_ms).map(ScannedBundle::open).sum()
    }

    /// Distinct workers with an unexpired lease.
    pub fn active_workers(&self, now_ms: u64) -> u32 {
        self.invocations(now_ms).len() as u32
    }

    /// The same, those inside the trainer's host left out.
    pub fn remote_workers(&self, now_ms: u64) -> impl Iterator<Item = &InvocationId> {
        self.invocations(now_ms).into_iter().filter(|invocation| invocation.worker().is_some())
    }

    /// Outstanding workers that hold a lease.
    pub fn workers_at_work(&self, now_ms: u64) -> BTreeSet<u32> {
        self.invocations(now_ms).into_iter().filter_map(InvocationId::worker).collect()
    }

    /// Outstanding workers that hold a lease, or whose last one would not have run out yet: a
    /// worker between two leases counts.
    pub fn workers_heard(&self, now_ms: u64) -> BTreeSet<u32> {
        let items = self.bundles.iter().filter_map(|bundle| bundle.item.as_ref());
        let held =
            |bundle: &&Bundle| bundle.state != BundleState::Released && bundle.until_ms > now_ms;
        items.filter(held).filter_map(|bundle| bundle.invocation.worker()).collect()
    }

    fn invocations(&self, now_ms: u64) -> BTreeSet<&InvocationId> {
        let leased =
            |bundle: &&Bundle| bundle.state == BundleState::Leased && bundle.until_ms > now_ms;
        let items = self.bundles.iter().filter_map(|bundle| bundle.item.as_ref());
        items.filter(leased).map(|bundle| &bundle.invocation).collect()
    }

    /// Splits committed so far, and controls that workers lived through, as far as they were read: the number
    /// changes when there is one more.
    pub fn progress(&self, item: &JobItem) -> u64 {
        let suspects = self.bundles.iter().filter_map(|bundle| bundle.item.as_ref()?.suspect);
        let controls: u64 = suspects.map(|suspect| u64::from(suspect.strikes.max(1) - 1)).sum();
        controls
            + match item.plan {
                Some(_) => self.ahead.delivered + self.ahead.ready,
                None => u64::from(self.done()),
            }
    }

    /// Whether every split before the place that is `linear` in the run is committed.
    pub fn is_done_before(&self, linear: u64) -> bool {
        let reached = self.bundles.last().map_or(self.ahead.delivered, |last| last.stretch().end);
        let before = self.bundles.iter().filter(|bundle| bundle.linear < linear);
        reached.max(self.ahead.delivered) >= linear
            && before.map(ScannedBundle::open).sum::<u32>() == 0
    }

    /// Whether work is kept back until the trainer has taken some of what is ready.
    /// `claimable` is what [`claimable`](Self::claimable) says at that time.
    pub fn window_full(&self, now_ms: u64, claimable: u32) -> bool {
        let kept_back = |b: &ScannedBundle| b.is_claimable(now_ms) && !self.admits(b);
        claimable == 0 && (self.goes_on || self.bundles.iter().any(kept_back))
    }

    /// Positions that are leased or ready, and not delivered.
    pub fn positions_ahead(&self) -> u32 {
        let leased = self.bundles.iter().filter_map(|bundle| {
            let item = bundle.item.as_ref()?;
            (item.state == BundleState::Leased).then(|| bundle.open())
        });
        leased.sum::<u32>().saturating_add(u32::try_from(self.ahead.ready).unwrap_or(u32::MAX))
    }

    /// Whether workers are to be held: drained at the top of the window, woken below half.
    pub fn wants_workers(&self, held: bool) -> bool {
        self.window.is_none_or(|window| window.wants_workers(self.ahead, held))
    }

    /// Whether what the trainer waits for may be claimed: a bundle whose worker died, while others
    /// filled the window behind it. Then a worker is wanted however full the window is.
    pub fn is_head_of_line_blocked(&self, now_ms: u64) -> bool {
        let head = |bundle: &&ScannedBundle| bundle.stretch().contains(&self.ahead.delivered);
        let head = self.bundles.iter().find(head);
        self.window.is_some() && head.is_some_and(|bundle| bundle.is_claimable(now_ms))
    }

    /// Why the job cannot go on: what a bundle was given up for.
    pub fn given_up(&self) -> Option<String> {
        let items = self.bundles.iter().filter_map(|bundle| bundle.item.as_ref());
        let mut dead = items.filter(|item| item.state == BundleState::Dead);
        dead.next().map(|item| item.error.clone().unwrap_or_default())
    }

    /// The first bundle whose owners gave it back at least `attempts` times: its first position, how
    /// often, and why.
    pub fn failing(&self, attempts: u32) -> Option<(Position, u32, &str)> {
        self.bundles.iter().find_map(|bundle| {
            let item = bundle.item.as_ref()?;
            // The error of a bundle with a poisoned split says so.
            let poison = item.entries.iter().flatten().any(|e| e.outcome.kind == SplitKind::Poison);
            let open = !poison && matches!(item.state, BundleState::Failed | BundleState::Leased);
            let error = item.error.as_deref().filter(|_| open && item.attempt >= attempts)?;
            Some((bundle.positions.start, item.attempt, error))
        })
    }

    /// Files that are indexed.
    pub fn done(&self) -> u32 {
        let items = self.bundles.iter().filter_map(|bundle| bundle.item.as_ref());
        items.flat_map(|item| &item.entries).flatten().count() as u32
    }

    /// Every committed split that was read.
    pub fn committed(&self) -> impl Iterator<Item = (Place, &Committed)> {
        self.bundles.iter().filter_map(|bundle| Some((bundle, bundle.item.as_ref()?))).flat_map(
            |(bundle, item)| {
                bundle.positions.clone().zip(&item.entries).filter_map(|(position, entry)| {
                    Some((Place { epoch: bundle.epoch, position }, entry.as_ref()?))
                })
            },
        )
    }

    /// The bundle whose lease `nonce` holds or held last.
    pub fn owned_by(&self, nonce: Nonce) -> Option<&ScannedBundle> {
        self.bundles.iter().find(|bundle| {
            let leased = |item: &Bundle| item.state == BundleState::Leased && item.owner == nonce;
            bundle.item.as_ref().is_some_and(leased)
        })
    }
}

/// How far a job's work may reach now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    /// The first position not taken in by the trainer, counted through all epochs.
    pub delivered: u64,
    /// The first position that may not be worked on.
    pub end: u64,
    /// None while indexing: every file may be indexed at once.
    pub window: Option<Window>,
    /// The run goes on beyond the end.
    pub goes_on: bool,
}

impl Reach {
    /// `splits` is how far workers may run ahead of the trainer, of as many as are wanted now; 0 if that is not
    /// known.
    pub fn of(item: &JobItem, consumer: &Consumer, splits: u32) -> Self {
        let run = item.run();
        let Some(plan) = item.plan else {
            return Self { delivered: 0, end: run, window: None, goes_on: false };
        };
        let n = plan.n_splits;
        let window =
            Window::new(plan.window_splits, plan.window_bytes, item.ramp().max_bundle_splits());
        let window = if splits == 0 { window } else { window.at_most(splits) };
        let delivered = consumer.delivered.linear(n);
        let unsettled = item.caching.as_ref().and_then(|caching| caching.view.unsettled);
        let settled = unsettled.map_or(run, |epoch| u64::from(epoch) * u64::from(n));
        let end = window.end(delivered).min(run).min(settled);
        Self { delivered, end, window: Some(window), goes_on: end < run }
    }
}

impl Coordinator {
    /// The bundles from `from` (or from the trainer's place, if that is earlier) to the end of the window;
    /// while indexing, all of the index.
    pub(crate) async fn scan(
        &self,
        job: &JobName,
        item: &JobItem,
        consumer: &Consumer,
        from: Place,
    ) -> Result<Scan, Refusal> {
        let Reach { delivered, end, window, goes_on } = Reach::of(item, consumer, 0);
        let from = item.plan.map_or(0, |plan| from.linear(plan.n_splits));
        let bundles = self.read_bundles(job, item, &item.course(from.min(delivered)..end)).await?;
        let mut ahead = Ahead { delivered, ready: 0, ready_bytes: 0 };
        for bundle in &bundles {
            let Some(item) = &bundle.item else { continue };
            for (linear, entry) in bundle.stretch().zip(&item.entries) {
                if let Some(entry) = entry.filter(|_| linear >= delivered) {
                    ahead.ready += 1;
                    ahead.ready_bytes += entry.outcome.object_bytes;
                }
            }
        }
        Ok(Scan { bundles, ahead, window, goes_on })
    }
}

/// A look that found these bundles.
#[cfg(test)]
pub(crate) fn scanned(bundles: Vec<ScannedBundle>) -> Scan {
    let ahead = Ahead { delivered: 0, ready: 0, ready_bytes: 0 };
    Scan { bundles, ahead, window: None, goes_on: false }
}
