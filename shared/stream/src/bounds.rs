//! The bound on memory for objects ahead of a trainer. It holds twice: for objects that are fetched or in use, and for
//! splits that were made here and not yet taken.
//!
//! A bound may delay everything except what the trainer needs next. So a value that is too small costs speed only.

use crate::ServedRanks;
use gristmill_model::splits::{ObjectSizes, SplitOutcome, SplitPlace};
use gristmill_model::wire::{EpochPlan, ReadySplit};
use std::{
    env,
    sync::atomic::{AtomicU64, Ordering},
};

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
        let usable = crate::host_memory::usable_bytes().unwrap_or(ASSUMED_BYTES);
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
    /// Ranks served here.
    ranks: u64,
    sizes: ObjectSizes,
    bytes: AtomicU64,
}

impl MemoryBound {
    pub fn new(
        asked: PrefetchMemory,
        (local_workers, ranks): (u32, u32),
        sizes: ObjectSizes,
    ) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, entry, own, view};
    use gristmill_model::splits::ranks::TailPolicy;

    const MIB: u64 = 1 << 20;

    fn learnt(most: u64, (workers, ranks): (u32, u32), object_bytes: u64) -> u64 {
        let bound = MemoryBound::new(
            PrefetchMemory::AsNeeded { most },
            (workers, ranks),
            ObjectSizes::Real,
        );
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
            MemoryBound::new(PrefetchMemory::from_mib(Some(3), None), (14, 1), ObjectSizes::Real);
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
}
