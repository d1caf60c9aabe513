//! The items of a job from one read; calls decide by them.

use crate::{
    CoordinatorSettings, JobRecords,
    bundles::ScannedBundle,
    items::{ItemName, JobItem, SweepProgress},
    records::no_job,
    store::{ItemCodec as _, VersionedItem, decode, invalid},
};
use gristmill_model::splits::{
    Bundle, JobProgress, ReaderProgress, SplitPlace, ranges::EpochBundle, search::PartitionEnds,
    window::WindowHints,
};
use gristmill_model::wire::{BundlePartition, CallRefusal, ClaimCall, ScaleState};
use gristmill_model::{Epoch, InvocationId, JobName};
use gristmill_ports::TableItem;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// With fewer active workers than this, a claim looks at all partitions of a small job.
pub(crate) const FEW_ACTIVE: u32 = 5;
/// With this many, a claim that is sent again looks for its lease only where it may have taken one.
const MANY_ACTIVE: u32 = 128;
/// Most readers whose run is remembered.
const MOST_GENERATIONS: usize = 1024;
/// How long this process relies on the hints of a look as it has read them.
const LOOK_KEPT_MS: u64 = 200;
/// Bundles read together with a job's items in a poll. Most polls find only a few that are ready.
const FIRST_BUNDLES: usize = 4;

/// A job, its trainer (at the start if it has not polled yet), and the hints from the last look.
#[derive(Debug, Clone)]
pub(crate) struct JobSnapshot {
    pub item: JobItem,
    pub progress: JobProgress,
    pub hints: VersionedItem<WindowHints>,
}

/// Further items that a poll reads at the same time; writes to them start from these versions.
#[derive(Debug, Clone)]
pub(crate) struct PollItems {
    pub scale: ScaleState,
    pub progress: VersionedItem<JobProgress>,
    pub swept: VersionedItem<SweepProgress>,
    /// The report of one reader among several.
    pub reader: VersionedItem<ReaderProgress>,
    /// The first bundles that the poll asks for, if this process remembered the job and could name them.
    pub first: Vec<ScannedBundle>,
}

impl JobSnapshot {
    /// Whether at least one worker is active, but fewer than [`FEW_ACTIVE`].
    pub fn has_few_workers(&self) -> bool {
        (1..FEW_ACTIVE).contains(&self.active())
    }

    /// Whether so many workers are active that a claim must not read the window.
    pub fn has_many_workers(&self) -> bool {
        self.active() >= MANY_ACTIVE
    }

    /// Active workers at the time of the last look.
    pub fn active(&self) -> u32 {
        self.hints.item.as_ref().map_or(0, |seen| seen.remote_workers + seen.local_workers)
    }

    /// Hints from the last look; default hints if there was none.
    pub fn hints(&self) -> WindowHints {
        self.hints.item.clone().unwrap_or_default()
    }
}

/// Items that a coordinator process remembers between calls.
#[derive(Debug, Clone, Default)]
pub struct CoordinatorMemory(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    /// The job's items as last read for a claim, with the time of the read.
    snapshot: Option<(u64, JobName, JobSnapshot)>,
    /// Ends of partitions that claims found, for this job and [resumption](JobItem::resumption).
    ends: Option<(JobName, (u64, u32), PartitionEnds)>,
    /// The job as the last poll read it.
    polled: Option<(JobName, JobItem)>,
    /// Generations of the trainers that have acknowledged here, by job and reader.
    generations: BTreeMap<(JobName, ReaderFirstRank), u64>,
    /// Hints from the latest looks that this process knows, and when it has read them.
    looks: BTreeMap<JobName, (u64, WindowHints)>,
    /// Leased bundles as this process last wrote them, the latest last.
    leases: VecDeque<(BundleAddress, VersionedItem<Bundle>)>,
}

/// The first rank of one reader among several; none of one that acknowledges on the job's progress itself.
pub(crate) type ReaderFirstRank = Option<u32>;

/// Address of a bundle.
pub(crate) type BundleAddress = (JobName, BundlePartition, EpochBundle);

impl CoordinatorMemory {
    /// The job's items from a recent read, if they are fresh enough and usable for `claim`.
    fn fresh_snapshot(
        &self,
        claim: &ClaimCall,
        settings: &CoordinatorSettings,
        now_ms: u64,
    ) -> Option<JobSnapshot> {
        let remembered = self.0.lock();
        let (at_ms, job, snapshot) = remembered.snapshot.as_ref()?;
        let JobSnapshot { item, .. } = snapshot;
        let fits = *job == claim.job
            && item.registered_ms == claim.registered_ms
            && (!claim.resent || snapshot.has_many_workers())
            && item.plan.is_some()
            && item.caching.is_none()
            && item.spec.numerics == claim.numerics
            && now_ms.abs_diff(*at_ms) < settings.shared_ms(snapshot);
        fits.then(|| snapshot.clone())
    }

    fn keep_snapshot(&self, job: &JobName, now_ms: u64, snapshot: &JobSnapshot) {
        self.0.lock().snapshot = Some((now_ms, job.clone(), snapshot.clone()));
    }

    /// Keeps the hints of a look as read now, unless those of a later one are known.
    pub(crate) fn keep_look(&self, job: &JobName, hints: &WindowHints, now_ms: u64) {
        let looks = &mut self.0.lock().looks;
        looks.retain(|_, (read_ms, _)| now_ms.abs_diff(*read_ms) < LOOK_KEPT_MS);
        let known = looks.entry(job.clone()).or_default();
        known.0 = now_ms;
        if known.1.at_ms <= hints.at_ms {
            known.1.clone_from(hints);
        }
    }

    /// Whether a worker is surplus, if this process has read that lately: with a poll or a claim.
    fn is_surplus(&self, job: &JobName, worker: &InvocationId, now_ms: u64) -> Option<bool> {
        let remembered = self.0.lock();
        let (read_ms, hints) = remembered.looks.get(job)?;
        let is_recent = now_ms.abs_diff(*read_ms) < LOOK_KEPT_MS;
        is_recent.then(|| hints.is_surplus(worker, now_ms))
    }

    /// The job as the last poll read it, if that was this job.
    fn polled(&self, job: &JobName) -> Option<JobItem> {
        let remembered = self.0.lock();
        let (name, item) = remembered.polled.as_ref()?;
        (name == job).then(|| item.clone())
    }

    fn keep_polled(&self, job: &JobName, item: &JobItem) {
        self.0.lock().polled = Some((job.clone(), item.clone()));
    }

    /// Whether the trainer with that generation has acknowledged here.
    pub(crate) fn knows_generation(
        &self,
        job: &JobName,
        reader: ReaderFirstRank,
        generation: u64,
    ) -> bool {
        self.0.lock().generations.get(&(job.clone(), reader)) == Some(&generation)
    }

    pub(crate) fn keep_generation(&self, job: &JobName, reader: ReaderFirstRank, generation: u64) {
        let (generations, key) = (&mut self.0.lock().generations, (job.clone(), reader));
        if generations.len() >= MOST_GENERATIONS && !generations.contains_key(&key) {
            generations.pop_first();
        }
        generations.insert(key, generation);
    }

    /// Removes and returns a leased bundle as this process last wrote it. It may be out of date: other
    /// processes write to it too.
    pub(crate) fn take_lease(&self, at: &BundleAddress) -> Option<VersionedItem<Bundle>> {
        let leases = &mut self.0.lock().leases;
        let index = leases.iter().position(|(other, _)| other == at)?;
        leases.remove(index).map(|(_, bundle)| bundle)
    }

    pub(crate) fn keep_lease(&self, at: BundleAddress, bundle: VersionedItem<Bundle>) {
        let leases = &mut self.0.lock().leases;
        leases.push_back((at, bundle));
        if leases.len() > FEW_ACTIVE as usize {
            leases.pop_front();
        }
    }

    /// The ends of the job's partitions that claims found.
    pub(crate) fn ends(&self, job: &JobName, item: &JobItem) -> PartitionEnds {
        match &self.0.lock().ends {
            Some((of, resumption, ends)) if (of, *resumption) == (job, item.resumption()) => {
                ends.clone()
            }
            _ => PartitionEnds::default(),
        }
    }

    /// Remembers the ends that a claim found, of epochs from `from` on.
    pub(crate) fn keep_ends(
        &self,
        job: &JobName,
        item: &JobItem,
        seen: PartitionEnds,
        from: Epoch,
    ) {
        match &mut self.0.lock().ends {
            Some((of, resumption, ends)) if (&*of, *resumption) == (job, item.resumption()) => {
                ends.add(&seen, from);
            }
            other => *other = Some((job.clone(), item.resumption(), seen)),
        }
    }
}

impl JobRecords {
    /// The items that a claim decides by; they may be up to a second old, depending on
    /// [`CoordinatorSettings::shared_reads`].
    pub(crate) async fn snapshot_for(&self, claim: &ClaimCall) -> Result<JobSnapshot, CallRefusal> {
        let now_ms = self.clock.now_ms();
        if let Some(snapshot) = self.memory.fresh_snapshot(claim, &self.settings, now_ms) {
            return Ok(snapshot);
        }
        let snapshot = self.snapshot(&claim.job).await?;
        if self.settings.shared_ms(&snapshot) > 0 {
            self.memory.keep_snapshot(&claim.job, now_ms, &snapshot);
        }
        Ok(snapshot)
    }

    /// The job, its trainer, and the hints from the last look.
    pub(crate) async fn snapshot(&self, job: &JobName) -> Result<JobSnapshot, CallRefusal> {
        let names = item_names(job);
        let snapshot = decode_snapshot(job, &names, &self.store.read_all_raw(&names[..3]).await?)?;
        self.memory.keep_look(job, &snapshot.hints(), self.clock.now_ms());
        Ok(snapshot)
    }

    /// Whether a worker is surplus. Polls and claims that this process has answered say so, otherwise a read, at most
    /// five a second.
    pub(crate) async fn is_surplus(&self, job: &JobName, worker: &InvocationId) -> bool {
        let now_ms = self.clock.now_ms();
        if worker.worker().is_none() {
            return false;
        }
        if let Some(known) = self.memory.is_surplus(job, worker, now_ms) {
            return known;
        }
        let read = self.store.read::<WindowHints>(&ItemName::WindowHints(job)).await;
        // An unreadable hint counts as absent: the worker's next claim reads it again.
        let hints = read.ok().and_then(|read| read.item).unwrap_or_default();
        self.memory.keep_look(job, &hints, now_ms);
        hints.is_surplus(worker, now_ms)
    }

    /// Like [`snapshot`](Self::snapshot), with the further items that a poll needs. `from` is the first
    /// split that the trainer asks for; none if it asks for no splits. `reader` is the caller, if it is one of several.
    pub(crate) async fn poll_snapshot(
        &self,
        job: &JobName,
        from: Option<SplitPlace>,
        reader: ReaderFirstRank,
    ) -> Result<(JobSnapshot, PollItems), CallRefusal> {
        let known = from.and_then(|from| Some((self.memory.polled(job)?, from)));
        let mut first =
            known.as_ref().map_or_else(Vec::new, |(item, from)| first_bundles(item, *from));
        let mut names = item_names(job).to_vec();
        names.extend(reader.map(|rank| ItemName::Reader(job, rank)));
        let others = names.len();
        if let Some((item, _)) = &known {
            names.extend(first.iter().map(|b| item.bundle(job, b.epoch, b.index)));
        }
        let items = self.store.read_all_raw(&names).await?;
        let snapshot = decode_snapshot(job, &names, &items)?;
        self.memory.keep_look(job, &snapshot.hints(), self.clock.now_ms());
        for ((bundle, name), item) in first.iter_mut().zip(&names[others..]).zip(&items[others..]) {
            bundle.read(name, item.as_ref())?;
        }
        let moved_on = known.is_none_or(|(known, _)| known != snapshot.item);
        if from.is_some() && moved_on {
            // The job is new here, or has changed: the bundles that were read may be the wrong ones.
            first.clear();
            self.memory.keep_polled(job, &snapshot.item);
        }
        let scale = decode::<ScaleState>(&names[3], items[3].as_ref())?.item.unwrap_or_default();
        let progress = decode::<JobProgress>(&names[1], items[1].as_ref())?;
        let swept = decode(&names[4], items[4].as_ref())?;
        let reader = match reader {
            Some(_) => decode(&names[5], items[5].as_ref())?,
            None => VersionedItem::default(),
        };
        Ok((snapshot, PollItems { scale, progress, swept, reader, first }))
    }
}

/// A job's items, in the order of the read.
fn item_names(job: &JobName) -> [ItemName<'_>; 5] {
    [
        ItemName::Job(job),
        ItemName::Progress(job),
        ItemName::WindowHints(job),
        ItemName::Scale(job),
        ItemName::Swept(job),
    ]
}

fn decode_snapshot(
    job: &JobName,
    names: &[ItemName<'_>],
    items: &[Option<TableItem>],
) -> Result<JobSnapshot, CallRefusal> {
    let [item, progress, hints, ..] = items else {
        return Err(invalid("the table answered another number of items than asked for"));
    };
    let item = decode::<JobItem>(&names[0], item.as_ref())?.item.ok_or_else(|| no_job(job))?;
    let progress = decode::<JobProgress>(&names[1], progress.as_ref())?.item.unwrap_or_default();
    // An unreadable hint counts as absent.
    let stored = hints.as_ref();
    let hints = VersionedItem {
        version: stored.map_or(0, |stored| stored.version),
        item: stored.and_then(|stored| WindowHints::decode(&stored.body).ok()),
    };
    Ok(JobSnapshot { item, progress, hints })
}

/// The first [`FIRST_BUNDLES`] bundles from `from` on.
fn first_bundles(item: &JobItem, from: SplitPlace) -> Vec<ScannedBundle> {
    let Some(plan) = item.plan else { return Vec::new() };
    let from = from.linear(plan.n_splits);
    let (ranges, _) = item.ranges(from..item.run()).divided(FIRST_BUNDLES);
    ScannedBundle::all_unseen(&ranges)
}
