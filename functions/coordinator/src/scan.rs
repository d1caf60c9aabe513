//! Reading the bundles of a stretch of the run: what is committed, who works, what may be claimed.

use crate::{
    Coordinator,
    items::{INDEX_EPOCH, ItemName, JobItem},
    store::{Versioned, decode},
};
use gristmill_protocol::{ReadyEntry, ReadyKind, Refusal, WorkerCost};
use gristmill_splits::{
    self as splits, Bundle, BundleState, Consumer, Entry, EntryKind, Place, TRIAL_ATTEMPTS,
    order::Ramp,
    window::{Ahead, Window},
};
use gristmill_types::{BundleIndex, Epoch, InvocationId, JobName, Nonce, Position};
use std::{collections::BTreeSet, ops::Range};

/// Bundles read at once: one batch read of the table.
const PAGE: usize = 48;
/// Bundles of an index read in one poll or claim; a larger dataset is looked at in pages.
const MAX_INDEX_BUNDLES: usize = 100_000;

/// One bundle as read.
#[derive(Debug, Clone)]
pub(crate) struct ScannedBundle {
    pub epoch: Epoch,
    pub index: BundleIndex,
    pub positions: Range<Position>,
    /// The first position, counted through all epochs.
    pub linear: u64,
    pub version: u64,
    pub item: Option<Bundle>,
}

impl ScannedBundle {
    fn len(&self) -> u64 {
        u64::from(self.positions.end - self.positions.start)
    }

    /// Whether a claim at `now_ms` can succeed.
    pub fn is_claimable(&self, now_ms: u64) -> bool {
        match &self.item {
            None => true,
            Some(bundle) => bundle.claimable_at_ms().is_some_and(|at_ms| at_ms <= now_ms),
        }
    }

    /// Whether a split of it keeps losing its workers: guilty or not, that is to be found out.
    fn is_on_trial(&self) -> bool {
        let Some(bundle) = self.item.as_ref().filter(|b| b.attempt >= TRIAL_ATTEMPTS) else {
            return false;
        };
        // A split of which that is known has an entry.
        bundle.suspect.is_some_and(|suspect| bundle.entry(suspect.at).is_none())
    }

    /// Its committed split of the most rows, if it has one.
    pub fn longest_committed(&self) -> Option<(u32, Place)> {
        let entries = self.positions.clone().zip(&self.item.as_ref()?.entries);
        let committed = entries.filter_map(|(position, entry)| {
            let entry = entry.filter(|entry| entry.kind != EntryKind::Poison)?;
            Some((entry.rows, Place { epoch: self.epoch, position }))
        });
        committed.max_by_key(|(rows, _)| *rows)
    }

    /// Whether workers died of a split of it that is not committed.
    pub fn has_suspect(&self) -> bool {
        let open = |bundle: &Bundle| {
            let at = bundle.suspect.map(|suspect| suspect.at).or(bundle.cur);
            at.is_some_and(|at| bundle.entry(at).is_none())
        };
        self.item.as_ref().is_some_and(open)
    }

    /// Positions not committed.
    fn open(&self) -> u32 {
        match &self.item {
            None => self.positions.end - self.positions.start,
            Some(bundle) => bundle.todo().len() as u32,
        }
    }

    pub fn versioned(&self) -> Versioned<Bundle> {
        Versioned { version: self.version, item: self.item.clone() }
    }
}

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
    /// Bundles that may be claimed now, in delivery order.
    ///
    /// Of those on trial only the first: a split counts as poison if it is the only one that workers die
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
        let range = bundle.linear..bundle.linear + bundle.len();
        self.window.is_none_or(|window| window.admits(self.ahead, &range))
    }

    /// Positions that may be claimed now.
    pub fn claimable(&self, now_ms: u64) -> u32 {
        self.candidates(now_ms).map(ScannedBundle::open).sum()
    }

    /// Distinct workers with an unexpired lease.
    pub fn active_workers(&self, now_ms: u64) -> u32 {
        self.invocations(now_ms).len() as u32
    }

    /// The same but for `invocation` and those inside the trainer's host.
    pub fn other_workers(&self, now_ms: u64, invocation: &InvocationId) -> u32 {
        let other = |other: &&&InvocationId| **other != invocation && other.worker().is_some();
        self.invocations(now_ms).iter().filter(other).count() as u32
    }

    /// Workers of the scaler's books that hold a lease, or whose last one would not have run out yet: a
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
        let reached =
            self.bundles.last().map_or(self.ahead.delivered, |last| last.linear + last.len());
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
    pub fn head_waits(&self, now_ms: u64) -> bool {
        let head = |bundle: &&ScannedBundle| {
            (bundle.linear..bundle.linear + bundle.len()).contains(&self.ahead.delivered)
        };
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
            // Of a bundle that lost a split to poison the error says that.
            let poison = item.entries.iter().flatten().any(|e| e.kind == EntryKind::Poison);
            let open = !poison && matches!(item.state, BundleState::Failed | BundleState::Leased);
            let error = item.error.as_deref().filter(|_| open && item.attempt >= attempts)?;
            Some((bundle.positions.start, item.attempt, error))
        })
    }

    /// Index bundles that are done.
    pub fn done(&self) -> u32 {
        let done = |bundle: &&ScannedBundle| {
            bundle.item.as_ref().is_some_and(|item| item.state == BundleState::Done)
        };
        self.bundles.iter().filter(done).count() as u32
    }

    /// Every committed split that was read.
    pub fn committed(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.bundles.iter().filter_map(|bundle| Some((bundle, bundle.item.as_ref()?))).flat_map(
            |(bundle, item)| {
                bundle.positions.clone().zip(&item.entries).filter_map(|(position, entry)| {
                    Some((Place { epoch: bundle.epoch, position }, entry.as_ref()?))
                })
            },
        )
    }

    /// Committed splits from `from` on.
    pub fn ready(&self, from: (Epoch, Position)) -> Vec<ReadyEntry> {
        let mut ready = Vec::new();
        for bundle in &self.bundles {
            let Some(item) = &bundle.item else { continue };
            let cost = share(item);
            for (position, entry) in bundle.positions.clone().zip(&item.entries) {
                let Some(entry) = entry.filter(|_| (bundle.epoch, position) >= from) else {
                    continue;
                };
                ready.push(ReadyEntry {
                    epoch: bundle.epoch,
                    position,
                    bundle: bundle.index,
                    attempt: entry.attempt,
                    nonce: entry.nonce,
                    kind: match entry.kind {
                        EntryKind::Object => ReadyKind::Object,
                        EntryKind::Local => ReadyKind::Local,
                        EntryKind::Poison => ReadyKind::Poison,
                    },
                    object_bytes: entry.bytes,
                    crc32c: entry.crc32c,
                    rows: entry.rows,
                    batches: entry.batches,
                    remainder_rows: entry.remainder,
                    skipped: entry.skipped,
                    cost,
                });
            }
        }
        ready
    }

    /// The bundle whose lease `nonce` holds or held last.
    pub fn owned_by(&self, nonce: Nonce) -> Option<&ScannedBundle> {
        self.bundles.iter().find(|bundle| {
            let leased = |item: &Bundle| item.state == BundleState::Leased && item.owner == nonce;
            bundle.item.as_ref().is_some_and(leased)
        })
    }
}

/// What one committed split of a bundle has cost, as far as that is told apart.
fn share(bundle: &Bundle) -> WorkerCost {
    let committed = bundle.entries.iter().flatten().count().max(1) as u32;
    let splits::Metrics { source_ms, compute_ms, put_ms } = bundle.metrics;
    WorkerCost {
        source_ms: source_ms / committed,
        compute_ms: compute_ms / committed,
        put_ms: put_ms / committed,
    }
}

impl Coordinator {
    /// The bundles from `from` (or from the consumer's place, if that is earlier) to the end of the
    /// window, be it behind `asked`; while indexing, all of the index. A trainer that resumes asks for entries
    /// beyond the window of the run before it: what is committed there is answered, nothing more handed out.
    pub(crate) async fn scan(
        &self,
        job: &JobName,
        item: &JobItem,
        consumer: &Consumer,
        (from, asked): (Place, Place),
    ) -> Result<Scan, Refusal> {
        let Some(plan) = item.plan else { return self.scan_index(job, item).await };
        let ramp = Ramp::new(plan.n_splits, plan.r);
        let n = plan.n_splits;
        let window = Window::new(plan.window_splits, plan.window_bytes, ramp.r());
        let delivered = consumer.delivered.linear(n);
        let end = window
            .end(delivered.max(asked.linear(n)))
            .min(u64::from(item.spec.epochs) * u64::from(n));
        let caching = item.caching.as_ref().map(|caching| &caching.view);
        let unsettled = caching.and_then(|caching| caching.unsettled);
        let end = unsettled.map_or(end, |epoch| end.min(u64::from(epoch) * u64::from(n)));
        let mut names = Vec::new();
        let mut start = from.linear(n).min(delivered);
        while start < end {
            let (epoch, position) = ((start / u64::from(n)) as u32, (start % u64::from(n)) as u32);
            if caching.is_some_and(|caching| caching.delivered_shelf(epoch).is_some()) {
                start = (u64::from(epoch) + 1) * u64::from(n);
                continue;
            }
            let Some(index) = ramp.bundle_of(position) else { break };
            names.push((epoch, index));
            start = u64::from(epoch) * u64::from(n) + u64::from(ramp.positions(index).end);
        }
        let bundles = self.read_bundles(job, &ramp, &names).await?;
        let mut ahead = Ahead { delivered, ready: 0, ready_bytes: 0 };
        for bundle in &bundles {
            let Some(item) = &bundle.item else { continue };
            for (linear, entry) in (bundle.linear..).zip(&item.entries) {
                if let Some(entry) = entry.filter(|_| linear >= delivered) {
                    ahead.ready += 1;
                    ahead.ready_bytes += entry.bytes;
                }
            }
        }
        let run = u64::from(item.spec.epochs) * u64::from(n);
        Ok(Scan { bundles, ahead, window: Some(window), goes_on: end < run })
    }

    async fn scan_index(&self, job: &JobName, item: &JobItem) -> Result<Scan, Refusal> {
        let ramp = Self::index_ramp(item);
        let names: Vec<_> =
            (0..ramp.bundles()).map(|index| (INDEX_EPOCH, index)).take(MAX_INDEX_BUNDLES).collect();
        let bundles = self.read_bundles(job, &ramp, &names).await?;
        let ahead = Ahead { delivered: 0, ready: 0, ready_bytes: 0 };
        Ok(Scan { bundles, ahead, window: None, goes_on: false })
    }

    /// The named bundles, in pages.
    pub(crate) async fn read_bundles(
        &self,
        job: &JobName,
        ramp: &Ramp,
        names: &[(Epoch, BundleIndex)],
    ) -> Result<Vec<ScannedBundle>, Refusal> {
        let mut bundles = Vec::with_capacity(names.len());
        for page in names.chunks(PAGE) {
            let keys: Vec<_> =
                page.iter().map(|&(epoch, index)| ItemName::Bundle(job, epoch, index)).collect();
            let items = self.store.read_raw(&keys).await?;
            for ((&(epoch, index), name), item) in page.iter().zip(&keys).zip(items) {
                let Versioned { version, item } = decode::<Bundle>(name, item.as_ref())?;
                let positions = ramp.positions(index);
                let place = Place { epoch, position: positions.start };
                let linear = match epoch {
                    INDEX_EPOCH => u64::from(positions.start),
                    _ => place.linear(ramp.n_splits()),
                };
                bundles.push(ScannedBundle { epoch, index, positions, linear, version, item });
            }
        }
        Ok(bundles)
    }
}
