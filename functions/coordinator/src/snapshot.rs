//! A job's items as one read finds them: a call decides by these.

use crate::{
    Coordinator, Settings,
    coordinator::no_job,
    items::{ItemName, JobItem, Swept},
    store::{Stored as _, Versioned, decode, invalid},
};
use gristmill_protocol::{Claim, Refusal, ScaleState};
use gristmill_splits::{Consumer, frontier::Frontier, search::Ends};
use gristmill_types::{Epoch, JobName};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Workers at work below which a claim looks at all partitions of a small job.
pub(crate) const FEW_ACTIVE: u32 = 8;

/// A job, its trainer (one not heard of yet stands at the start), and what the last look saw.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub item: JobItem,
    pub consumer: Consumer,
    pub frontier: Versioned<Frontier>,
}

/// What a trainer's report needs besides: read at the same time, and written from what was read.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    pub books: ScaleState,
    pub consumer: Versioned<Consumer>,
    pub swept: Versioned<Swept>,
}

impl Snapshot {
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

/// What a coordinator's process remembers of the job that it was called for last.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    /// The items that were read last for a claim, and when.
    snapshot: Option<(u64, JobName, Snapshot)>,
    /// Ends of partitions, of the job registered at that time.
    ends: Option<(JobName, u64, Ends)>,
}

impl Memory {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The items that were read lately of the job, if that will do for `claim`.
    fn of(&self, claim: &Claim, settings: &Settings, now_ms: u64) -> Option<Snapshot> {
        let remembered = self.remembered();
        let (at_ms, job, snapshot) = remembered.snapshot.as_ref()?;
        let Snapshot { item, .. } = snapshot;
        let fits = *job == claim.job
            && item.registered_ms == claim.registered_ms
            && !claim.resent
            && item.plan.is_some()
            && item.caching.is_none()
            && item.spec.numerics == claim.numerics
            && now_ms.abs_diff(*at_ms) < settings.shared_ms(snapshot);
        fits.then(|| snapshot.clone())
    }

    fn keep(&self, job: &JobName, now_ms: u64, snapshot: &Snapshot) {
        self.remembered().snapshot = Some((now_ms, job.clone(), snapshot.clone()));
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
    pub(crate) async fn snapshot_for(&self, claim: &Claim) -> Result<Snapshot, Refusal> {
        let now_ms = self.clock.now_ms();
        if let Some(snapshot) = self.memory.of(claim, &self.settings, now_ms) {
            return Ok(snapshot);
        }
        let (snapshot, _) = self.read_snapshot(&claim.job, false).await?;
        if self.settings.shared_ms(&snapshot) > 0 {
            self.memory.keep(&claim.job, now_ms, &snapshot);
        }
        Ok(snapshot)
    }

    /// The job, its trainer, what the last look saw, and what a report needs besides.
    pub(crate) async fn snapshot(&self, job: &JobName) -> Result<(Snapshot, Beside), Refusal> {
        self.read_snapshot(job, true).await
    }

    /// The same; the last of it read only if it is wanted.
    pub(crate) async fn read_snapshot(
        &self,
        job: &JobName,
        with_all: bool,
    ) -> Result<(Snapshot, Beside), Refusal> {
        let names = [
            ItemName::Job(job),
            ItemName::Consumer(job),
            ItemName::Frontier(job),
            ItemName::Scale(job),
            ItemName::Swept(job),
        ];
        let names = if with_all { &names[..] } else { &names[..3] };
        let items = self.store.read_raw(names).await?;
        if items.len() != names.len() {
            return Err(invalid("the table answered another number of items than asked for"));
        }
        let item = decode::<JobItem>(&names[0], items[0].as_ref())?.item;
        let item = item.ok_or_else(|| no_job(job))?;
        let read = decode::<Consumer>(&names[1], items[1].as_ref())?;
        let consumer = read.item.unwrap_or_default();
        // A hint that cannot be read is none.
        let stored = items[2].as_ref();
        let frontier = Versioned {
            version: stored.map_or(0, |stored| stored.version),
            item: stored.and_then(|stored| Frontier::decode(&stored.body).ok()),
        };
        let none = Versioned { version: 0, item: None };
        let mut beside = Beside { books: ScaleState::default(), consumer: read, swept: none };
        if let ([_, _, _, scale, swept], [_, _, _, books, place]) = (names, &items[..]) {
            beside.books = decode::<ScaleState>(scale, books.as_ref())?.item.unwrap_or_default();
            beside.swept = decode(swept, place.as_ref())?;
        }
        Ok((Snapshot { item, consumer, frontier }, beside))
    }
}
