//! A job's items as one read finds them: a call decides by these.

use crate::{
    Coordinator, Settings,
    bundles::ScannedBundle,
    coordinator::no_job,
    items::{ItemName, JobItem, ScaleState, Swept},
    store::{Stored as _, Versioned, decode, invalid},
};
use gristmill_model::splits::{
    Bundle, Consumer, Place, course::BundleAt, frontier::Frontier, search::Ends,
};
use gristmill_model::wire::{Claim, Home, Refusal};
use gristmill_model::{Epoch, JobName};
use gristmill_ports::Item;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Workers at work below which a claim looks at all partitions of a small job.
pub(crate) const FEW_ACTIVE: u32 = 5;
/// Bundles that are read with a job's items for its trainer: most reports find few that are ready.
const FIRST_BUNDLES: usize = 4;

/// A job, its trainer (one not heard of yet stands at the start), and what the last look saw.
#[derive(Debug, Clone)]
pub(crate) struct JobSnapshot {
    pub item: JobItem,
    pub consumer: Consumer,
    pub frontier: Versioned<Frontier>,
}

/// Further items of a poll, read at the same time; writes to them start from these versions.
#[derive(Debug, Clone)]
pub(crate) struct PollItems {
    pub scale: ScaleState,
    pub consumer: Versioned<Consumer>,
    pub swept: Versioned<Swept>,
    /// The first bundles of what the report asks for, where this process knew which those are.
    pub first: Vec<ScannedBundle>,
}

impl JobSnapshot {
    /// Whether some are at work, and not many.
    pub fn has_few_workers(&self) -> bool {
        (1..FEW_ACTIVE).contains(&self.active())
    }

    /// Workers at work when the last look was.
    pub fn active(&self) -> u32 {
        self.frontier.item.as_ref().map_or(0, |seen| seen.active)
    }

    /// The findings of the last look; nothing if there was none.
    pub fn hints(&self) -> Frontier {
        self.frontier.item.clone().unwrap_or_default()
    }
}

/// A coordinator process's memory of its latest job.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    /// The items that were read last for a claim, and when.
    snapshot: Option<(u64, JobName, JobSnapshot)>,
    /// Ends of partitions, of the job registered at that time.
    ends: Option<(JobName, u64, Ends)>,
    /// The job as a report found it last.
    reported: Option<(JobName, JobItem)>,
    /// Leased bundles as they were written here, the latest last.
    leases: VecDeque<(LeaseAt, Versioned<Bundle>)>,
}

/// Names a bundle.
pub(crate) type LeaseAt = (JobName, Home, BundleAt);

impl Memory {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The items that were read lately of the job, if that will do for `claim`.
    fn of(&self, claim: &Claim, settings: &Settings, now_ms: u64) -> Option<JobSnapshot> {
        let remembered = self.remembered();
        let (at_ms, job, snapshot) = remembered.snapshot.as_ref()?;
        let JobSnapshot { item, .. } = snapshot;
        let fits = *job == claim.job
            && item.registered_ms == claim.registered_ms
            && !claim.resent
            && item.plan.is_some()
            && item.caching.is_none()
            && item.spec.numerics == claim.numerics
            && now_ms.abs_diff(*at_ms) < settings.shared_ms(snapshot);
        fits.then(|| snapshot.clone())
    }

    fn keep(&self, job: &JobName, now_ms: u64, snapshot: &JobSnapshot) {
        self.remembered().snapshot = Some((now_ms, job.clone(), snapshot.clone()));
    }

    /// The job as a report found it last.
    fn reported(&self, job: &JobName) -> Option<JobItem> {
        let remembered = self.remembered();
        let (name, item) = remembered.reported.as_ref()?;
        (name == job).then(|| item.clone())
    }

    fn keep_reported(&self, job: &JobName, item: &JobItem) {
        self.remembered().reported = Some((job.clone(), item.clone()));
    }

    /// A leased bundle as it was written here last. Somebody else may have written to it since.
    pub(crate) fn take_lease(&self, at: &LeaseAt) -> Option<Versioned<Bundle>> {
        let leases = &mut self.remembered().leases;
        let index = leases.iter().position(|(other, _)| other == at)?;
        leases.remove(index).map(|(_, bundle)| bundle)
    }

    pub(crate) fn keep_lease(&self, at: LeaseAt, bundle: Versioned<Bundle>) {
        let leases = &mut self.remembered().leases;
        leases.push_back((at, bundle));
        if leases.len() > FEW_ACTIVE as usize {
            leases.pop_front();
        }
    }

    /// The ends of the job's partitions that claims saw.
    pub(crate) fn ends(&self, job: &JobName, item: &JobItem) -> Ends {
        match &self.remembered().ends {
            Some((of, registered_ms, ends))
                if (of, *registered_ms) == (job, item.registered_ms) =>
            {
                ends.clone()
            }
            _ => Ends::default(),
        }
    }

    /// Keeps what a claim saw, of epochs from `from` on.
    pub(crate) fn saw(&self, job: &JobName, item: &JobItem, seen: Ends, from: Epoch) {
        match &mut self.remembered().ends {
            Some((of, registered_ms, ends))
                if (&*of, *registered_ms) == (job, item.registered_ms) =>
            {
                ends.add(&seen, from);
            }
            other => *other = Some((job.clone(), item.registered_ms, seen)),
        }
    }
}

impl Coordinator {
    /// The items that a claim decides by; hints of it may be a second old.
    pub(crate) async fn snapshot_for(&self, claim: &Claim) -> Result<JobSnapshot, Refusal> {
        let now_ms = self.clock.now_ms();
        if let Some(snapshot) = self.memory.of(claim, &self.settings, now_ms) {
            return Ok(snapshot);
        }
        let snapshot = self.snapshot(&claim.job).await?;
        if self.settings.shared_ms(&snapshot) > 0 {
            self.memory.keep(&claim.job, now_ms, &snapshot);
        }
        Ok(snapshot)
    }

    /// The job, its trainer, and what the last look saw.
    pub(crate) async fn snapshot(&self, job: &JobName) -> Result<JobSnapshot, Refusal> {
        let names = named(job);
        snapshot(job, &names, &self.store.read_raw(&names[..3]).await?)
    }

    /// The same with the scaler's state and what else a report needs, of a trainer that asks for what is ready
    /// from `from` on.
    pub(crate) async fn poll_snapshot(
        &self,
        job: &JobName,
        from: Option<Place>,
    ) -> Result<(JobSnapshot, PollItems), Refusal> {
        let known = from.and_then(|from| Some((self.memory.reported(job)?, from)));
        let mut first = known.as_ref().map_or_else(Vec::new, |(item, from)| first(item, *from));
        let mut names = named(job).to_vec();
        if let Some((item, _)) = &known {
            let name =
                |b: &ScannedBundle| ItemName::Bundle(job, item.home(b.index), b.epoch, b.index);
            names.extend(first.iter().map(name));
        }
        let items = self.store.read_raw(&names).await?;
        let snapshot = snapshot(job, &names, &items)?;
        for ((bundle, name), item) in first.iter_mut().zip(&names[5..]).zip(&items[5..]) {
            bundle.read(name, item.as_ref())?;
        }
        let moved_on = known.is_none_or(|(known, _)| known != snapshot.item);
        if from.is_some() && moved_on {
            // It names other bundles, or lies elsewhere.
            first.clear();
            self.memory.keep_reported(job, &snapshot.item);
        }
        let scale = decode::<ScaleState>(&names[3], items[3].as_ref())?.item.unwrap_or_default();
        let consumer = decode::<Consumer>(&names[1], items[1].as_ref())?;
        let swept = decode(&names[4], items[4].as_ref())?;
        Ok((snapshot, PollItems { scale, consumer, swept, first }))
    }
}

/// A job's items, in the order in which they are read.
fn named(job: &JobName) -> [ItemName<'_>; 5] {
    [
        ItemName::Job(job),
        ItemName::Consumer(job),
        ItemName::Frontier(job),
        ItemName::Scale(job),
        ItemName::Swept(job),
    ]
}

fn snapshot(
    job: &JobName,
    names: &[ItemName<'_>],
    items: &[Option<Item>],
) -> Result<JobSnapshot, Refusal> {
    let [item, consumer, frontier, ..] = items else {
        return Err(invalid("the table answered another number of items than asked for"));
    };
    let item = decode::<JobItem>(&names[0], item.as_ref())?.item.ok_or_else(|| no_job(job))?;
    let consumer = decode::<Consumer>(&names[1], consumer.as_ref())?.item.unwrap_or_default();
    // A hint that cannot be read is none.
    let stored = frontier.as_ref();
    let frontier = Versioned {
        version: stored.map_or(0, |stored| stored.version),
        item: stored.and_then(|stored| Frontier::decode(&stored.body).ok()),
    };
    Ok(JobSnapshot { item, consumer, frontier })
}

/// The first bundles from `from` on.
fn first(item: &JobItem, from: Place) -> Vec<ScannedBundle> {
    let Some(plan) = item.plan else { return Vec::new() };
    let from = from.linear(plan.n_splits);
    let (course, _) = item.course(from..item.run()).divided(FIRST_BUNDLES);
    ScannedBundle::all_unseen(&course)
}
