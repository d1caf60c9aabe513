//! The bound on memory for objects ahead of a trainer. It holds twice: for objects that are fetched or in use, and for
//! splits that were made here and not yet taken.
//!
//! A bound may delay everything except what the trainer needs next. So a value that is too small costs speed only.

use crate::ServedRanks;
use gristmill_model::splits::{ObjectSizes, SplitOutcome, SplitPlace};
use gristmill_model::wire::{EpochPlan, ReadySplit};
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

/// The least bound by default, if there is enough memory: enough for small objects.
const LEAST_BYTES: u64 = 64 << 20;
/// Bundles that the bound holds by default, beside one for each local worker: one to train on and one on its way.
const SPARE_BUNDLES: u64 = 2;
/// Steps of the ranks served here that the bound holds by default.
const STEPS: u64 = 2;
/// A reader takes this part of the memory of its process, for each of the two bounds.
const SHARE_OF_MEMORY: u64 = 8;
/// Memory of a machine that does not say how much it has.
const ASSUMED_BYTES: u64 = 8 << 30;
/// Readers on one host of a run that does not say how many there are.
const ASSUMED_READERS: u32 = 8;
/// Variables in which launchers say how many ranks a host has.
const LOCAL_RANKS: [&str; 4] =
    ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"];

/// Memory for objects ahead of a trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefetchMemory {
    /// So many bytes.
    Bytes(u64),
    /// As many as the work needs, but at most these.
    AsNeeded { most: u64 },
}

impl PrefetchMemory {
    /// `mib` MiB if given, otherwise what the work of a reader of `own` ranks needs and this process may use.
    pub fn from_mib(mib: Option<u64>, own: Option<ServedRanks>) -> Self {
        if let Some(mib) = mib {
            return Self::Bytes(mib << 20);
        }
        let usable = usable_bytes().unwrap_or(ASSUMED_BYTES);
        let ranks = LOCAL_RANKS.iter().find_map(|name| number(&env::var(name).ok()?));
        Self::AsNeeded { most: usable / SHARE_OF_MEMORY / u64::from(readers_here(own, ranks)) }
    }
}

/// The number at the beginning of `text`.
fn number(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Readers on this host, of which each serves as many ranks as this one; `ranks` is the number of ranks here.
fn readers_here(own: Option<ServedRanks>, ranks: Option<u32>) -> u32 {
    let Some(own) = own.filter(|own| !own.are_all()) else { return 1 };
    let each = own.range.count.get();
    let all = own.run.ranks.count.get().div_ceil(each);
    ranks.map_or(all.min(ASSUMED_READERS), |ranks| ranks.div_ceil(each)).clamp(1, all.max(1))
}

/// The bound of one reader. Unless it is given, it grows until the sizes of the job's objects are known.
#[derive(Debug)]
pub(crate) struct MemoryBound {
    asked: PrefetchMemory,
    local_workers: u64,
    /// Ranks served here, of which replicas count once.
    ranks: u64,
    sizes: ObjectSizes,
    bytes: AtomicU64,
}

impl MemoryBound {
    pub fn new(asked: PrefetchMemory, local_workers: u32, ranks: u32, sizes: ObjectSizes) -> Self {
        let bytes = match asked {
            PrefetchMemory::Bytes(bytes) => bytes,
            PrefetchMemory::AsNeeded { most } => most.min(LEAST_BYTES),
        };
        let (local_workers, ranks) = (local_workers.into(), ranks.into());
        Self { asked, local_workers, ranks, sizes, bytes: AtomicU64::new(bytes) }
    }

    /// The value in force.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes for which the object of the split at `place` counts.
    pub fn size(&self, place: SplitPlace, object_bytes: u64) -> u64 {
        self.sizes.bytes(place, object_bytes)
    }

    /// The bytes for which the object of a committed split counts.
    pub fn size_of(&self, entry: &ReadySplit) -> u64 {
        self.size(entry.place, entry.outcome.object_bytes)
    }

    /// Learns how large the objects of the job are.
    pub fn learn(&self, plan: &EpochPlan, place: SplitPlace, outcome: &SplitOutcome) {
        let PrefetchMemory::AsNeeded { most } = self.asked else { return };
        let object = self.size(place, outcome.object_bytes);
        let bundle = object.saturating_mul(plan.max_bundle_splits.into());
        let bundles = bundle.saturating_mul(SPARE_BUNDLES + self.local_workers);
        let steps = (object / u64::from(outcome.batches.max(1))).saturating_mul(STEPS * self.ranks);
        self.bytes.fetch_max(bundles.max(steps).min(most), Ordering::Relaxed);
    }
}

/// The share of an object in the budget. The fetcher takes it back when all batches made from the object have dropped
/// theirs: with the batch, or before, by a trainer that keeps batches.
#[derive(Debug, Clone, Default)]
pub struct MemoryShare {
    _share: Option<Arc<Share>>,
}

#[derive(Debug)]
struct Share {
    bytes: u64,
    held: Arc<Held>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.held.changed.notify_one();
    }
}

#[derive(Debug, Default)]
struct Held {
    bytes: AtomicU64,
    /// Whether the assembler waits for the next object.
    is_awaited: AtomicBool,
    changed: Notify,
}

/// Memory for the objects of one stream that are being downloaded or still in use.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bound: Arc<MemoryBound>,
    held: Arc<Held>,
}

impl MemoryBudget {
    /// A budget of which nothing is taken.
    pub fn new(bound: Arc<MemoryBound>) -> Self {
        Self { bound, held: Arc::default() }
    }

    /// The assembler waits for the next object, having used up all that came before.
    pub fn await_next(&self) {
        self.held.is_awaited.store(true, Ordering::Relaxed);
        self.held.changed.notify_one();
    }

    /// Resolves once there is room for objects of `bytes`, which are admitted in the order of delivery by one caller.
    /// Room for two of them is always there: one to train on and one on its way. The objects that the assembler waits
    /// for are admitted however much is in use, because a trainer may keep batches; `is_next` says whether all that
    /// was admitted before has reached it.
    pub async fn take(&self, bytes: u64, is_next: impl Fn() -> bool) -> MemoryShare {
        while !self.admits(bytes, &is_next) {
            self.held.changed.notified().await;
        }
        self.held.is_awaited.store(false, Ordering::Relaxed);
        self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        MemoryShare { _share: Some(Arc::new(Share { bytes, held: Arc::clone(&self.held) })) }
    }

    fn admits(&self, bytes: u64, is_next: &impl Fn() -> bool) -> bool {
        let most = self.bound.bytes().max(bytes.saturating_mul(2));
        let held = self.held.bytes.load(Ordering::Relaxed);
        held.saturating_add(bytes) <= most
            || self.held.is_awaited.load(Ordering::Relaxed) && is_next()
    }
}

const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that this process may use: the limit of its control groups, or what the machine has. None where neither is
/// known.
pub(crate) fn usable_bytes() -> Option<u64> {
    usable(|path| fs::read_to_string(path).ok())
}

fn usable(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let of_machine = read(Path::new("/proc/meminfo")).and_then(|text| total(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(files).filter_map(|file| read(&file)?.trim().parse().ok());
    limits.chain(of_machine).min()
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The files with the limits of a control group and of those that hold it, from a line such as `0::/a/b`.
fn files(line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (root, file) = if controllers.split(',').any(|controller| controller == "memory") {
        (Path::new(GROUPS).join("memory"), "memory.limit_in_bytes")
    } else if controllers.is_empty() {
        (PathBuf::from(GROUPS), "memory.max")
    } else {
        return Vec::new();
    };
    let group = root.join(group.trim_start_matches('/'));
    group.ancestors().take_while(|dir| dir.starts_with(&root)).map(|dir| dir.join(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        PrefetchMemory,
        samples::{batch, entry, own, view},
    };
    use futures::FutureExt as _;
    use gristmill_model::splits::ObjectSizes;
    use gristmill_model::splits::ranks::TailPolicy;

    const MIB: u64 = 1 << 20;

    fn learnt(most: u64, (workers, ranks): (u32, u32), object_bytes: u64) -> u64 {
        let bound =
            MemoryBound::new(PrefetchMemory::AsNeeded { most }, workers, ranks, ObjectSizes::Real);
        let plan = EpochPlan { max_bundle_splits: 8, ..view().plan.unwrap() };
        let mut ready = entry(0, 0, 4);
        ready.outcome.object_bytes = object_bytes;
        bound.learn(&plan, ready.place, &ready.outcome);
        // Smaller objects change nothing.
        bound.learn(&plan, ready.place, &SplitOutcome { object_bytes: 1, ..ready.outcome });
        bound.bytes()
    }

    #[test]
    fn by_default_it_holds_what_the_work_needs_and_leaves_most_of_the_memory() {
        assert_eq!(learnt(u64::MAX, (0, 1), 10), 64 * MIB, "objects are small");
        assert_eq!(learnt(u64::MAX, (14, 1), 16 * MIB), 16 * 8 * 16 * MIB);
        assert_eq!(learnt(u64::MAX, (0, 64), 16 * MIB), 2 * 64 * 4 * MIB, "two steps");
        assert_eq!(learnt(100 * MIB, (14, 1), 16 * MIB), 100 * MIB);
        assert_eq!(learnt(MIB, (0, 1), 10), MIB);
        assert_eq!(learnt(u64::MAX, (u32::MAX, u32::MAX), u64::MAX), u64::MAX);
    }

    #[test]
    fn a_given_bound_stays() {
        let bound =
            MemoryBound::new(PrefetchMemory::from_mib(Some(3), None), 14, 1, ObjectSizes::Real);
        let ready = entry(0, 0, 4);
        bound.learn(&view().plan.unwrap(), ready.place, &ready.outcome);
        assert_eq!(bound.bytes(), 3 * MIB);
        assert!(matches!(
            PrefetchMemory::from_mib(None, None),
            PrefetchMemory::AsNeeded { most: 1.. }
        ));
    }

    #[test]
    fn readers_on_one_host_share_its_memory() {
        let of = |count, range| Some(own(count, range, batch(0, 0), TailPolicy::Drop));
        assert_eq!(readers_here(None, Some(8)), 1);
        assert_eq!(readers_here(of(8, 0..8), Some(8)), 1, "one reader serves all");
        assert_eq!(readers_here(of(16, 3..4), Some(8)), 8);
        assert_eq!(readers_here(of(16, 0..8), Some(8)), 1);
        assert_eq!(readers_here(of(4, 0..1), None), 4);
        assert_eq!(readers_here(of(64, 0..1), None), 8);
        assert_eq!([number("8(x2)"), number("4"), number("")], [Some(8), Some(4), None]);
    }

    fn budget(bytes: u64) -> MemoryBudget {
        let bound = MemoryBound::new(PrefetchMemory::Bytes(bytes), 0, 1, ObjectSizes::Real);
        MemoryBudget::new(Arc::new(bound))
    }

    fn take(budget: &MemoryBudget, bytes: u64) -> Option<MemoryShare> {
        budget.take(bytes, || true).now_or_never()
    }

    #[test]
    fn the_budget_holds_two_objects() {
        let budget = budget(1);
        let (first, second) = (take(&budget, 3), take(&budget, 3));
        assert!(first.is_some() && second.is_some() && take(&budget, 1).is_none());
        drop(first);
        assert!(take(&budget, 3).is_some());
    }

    #[test]
    fn an_object_larger_than_the_budget_is_admitted() {
        let budget = budget(10);
        let large = take(&budget, 1_000);
        assert!(large.is_some() && take(&budget, 1).is_none());
        drop(large);
        assert!(take(&budget, 5).is_some_and(|_| take(&budget, 5).is_some()));
    }

    #[test]
    fn an_object_gives_its_room_back_with_its_last_batch() {
        let budget = budget(10);
        let first = take(&budget, 10).unwrap();
        let second = first.clone();
        drop(first);
        assert!(take(&budget, 1).is_none());
        drop(second);
        assert!(take(&budget, 1).is_some());
    }

    #[test]
    fn one_object_that_the_assembler_waits_for_is_admitted_however_much_is_in_use() {
        let budget = budget(1);
        let _kept = take(&budget, 1_000).unwrap();
        for bytes in [10, 1] {
            assert!(take(&budget, bytes).is_none(), "nobody waits for it");
            budget.await_next();
            let unsent = budget.take(bytes, || false).now_or_never();
            assert!(unsent.is_none(), "what was admitted before has not arrived");
            std::mem::forget(take(&budget, bytes).unwrap());
        }
        assert!(take(&budget, 1).is_none(), "the one before is on its way");
    }

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       4000 kB\n");

    fn found(files: &[(&str, &str)]) -> Option<u64> {
        let all = files.iter().chain([&MACHINE]);
        let of = |path: &Path| all.clone().find(|(name, _)| path == Path::new(name));
        usable(|path| of(path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(found(&[]), Some(4_096_000));
        let second = ("/proc/self/cgroup", "0::/pod/app\n");
        let of_app = ("/sys/fs/cgroup/pod/app/memory.max", "max\n");
        assert_eq!(found(&[second, of_app]), Some(4_096_000));
        assert_eq!(found(&[second, of_app, ("/sys/fs/cgroup/pod/memory.max", "70\n")]), Some(70));
        assert_eq!(found(&[second, ("/sys/fs/cgroup/memory.max", "80\n")]), Some(80));
        let first = ("/proc/self/cgroup", "4:cpu,cpuacct:/a\n5:memory:/a\n");
        let limit = ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "90\n");
        assert_eq!(found(&[first, limit]), Some(90));
        assert_eq!(found(&[first, ("/sys/fs/cgroup/memory.max", "80\n")]), Some(4_096_000));
    }

    #[test]
    fn a_machine_that_says_nothing_is_unknown() {
        assert_eq!(usable(|_| None), None);
    }
}
