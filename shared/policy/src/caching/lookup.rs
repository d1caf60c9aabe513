//! Looks up which prefix of a job's pipeline is cached (Cachew 4.4).

use super::{Mode, PrefixDescription};
use crate::cost::{quantity, ratio};

use gristmill_model::Fingerprint;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An `autocache` point of a job at registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCandidate {
    /// Fingerprint of the prefix that ends there.
    pub fingerprint: Fingerprint,
    /// Whether it may be reused. Random prefixes need their author's permission.
    pub reusable: bool,
    /// Whether it is the whole pipeline.
    pub whole: bool,
}

/// One cached prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedPrefix {
    pub fingerprint: Fingerprint,
    pub bytes: f64,
    /// Delivered elements per second of one worker that reads it, as predicted or measured; 0 if
    /// unknown. After the last operator, of the trainer's reads.
    #[serde(default)]
    pub elements_per_s: f64,
    /// Worker seconds that it saves per epoch.
    #[serde(default)]
    pub saved_s: f64,
    #[serde(default)]
    pub uses: UseScore,
    /// Whether a live job reads it.
    #[serde(default)]
    pub leased: bool,
    /// Description of the prefix, for explaining misses.
    #[serde(default)]
    pub described: Option<PrefixDescription>,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLookup {
    /// Initial mode of the job.
    pub mode: Mode,
    pub reason: String,
}

/// Looks up a pipeline. Prefers the whole pipeline, since no worker is needed then; else the complete
/// entry of the highest throughput among its points. Entries are not compared with computing again: they
/// were found better when stored. Of equals the later point wins, because less is left to compute. A
/// pipeline without points is computed; one without a hit is profiled.
///
/// `points` are in pipeline order.
pub fn lookup(points: &[CacheCandidate], catalogue: &[CachedPrefix]) -> CacheLookup {
    if points.is_empty() {
        let reason = "the pipeline has no autocache point".into();
        return CacheLookup { mode: Mode::Compute, reason };
    }
    let mut best: Option<(u32, &CacheCandidate, &CachedPrefix)> = None;
    for (point, candidate) in (0..).zip(points).filter(|(_, candidate)| candidate.reusable) {
        for entry in catalogue.iter().filter(|hit| hit.fingerprint == candidate.fingerprint) {
            let better = |(_, other, best): (u32, &CacheCandidate, &CachedPrefix)| {
                (candidate.whole, entry.elements_per_s) >= (other.whole, best.elements_per_s)
            };
            if best.is_none_or(better) {
                best = Some((point, candidate, entry));
            }
        }
    }
    match best {
        Some((point, CacheCandidate { whole: true, .. }, _)) => CacheLookup {
            mode: Mode::Get { point },
            reason: "the whole pipeline is cached: no worker is needed".into(),
        },
        Some((point, _, CachedPrefix { elements_per_s, .. })) => CacheLookup {
            mode: Mode::Get { point },
            reason: if *elements_per_s > 0.0 {
                format!("point {point} is cached: {elements_per_s:.0} elements/s a worker")
            } else {
                format!("point {point} is cached")
            },
        },
        None if points.iter().any(|candidate| candidate.reusable) => {
            CacheLookup { mode: Mode::Profile, reason: "nothing of it is cached: profiling".into() }
        }
        None => CacheLookup {
            mode: Mode::Compute,
            reason: "every autocache point follows a random operator; `reuse_random: true` on a \
                     point allows to cache there"
                .into(),
        },
    }
}

// Eviction: deletes the entries that save the least work for their bytes, as Cachew (5.1) plans
// after Nectar.

/// Half-life of a use. Three days, so that a weekend does not empty the cache and a project that ended
/// a month ago weighs a thousandth.
pub const USE_HALF_LIFE_S: f64 = 3.0 * 86_400.0;
/// Weight of storing an entry, in uses: entries are stored in order to be used.
const USES_OF_A_PUT: f64 = 1.0;

/// Uses of an entry, weighted by recency, in two numbers so that it fits an item.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct UseScore {
    /// Weighted uses as of `at_s`.
    pub weight: f64,
    /// Time of the last use, in seconds of any clock common to all entries.
    pub at_s: f64,
}

impl UseScore {
    /// Score of an entry stored now.
    pub fn stored(now_s: f64) -> UseScore {
        UseScore { weight: USES_OF_A_PUT, at_s: now_s }
    }

    /// Score after one more use, an epoch that reads it.
    #[must_use]
    pub fn used(&self, now_s: f64) -> UseScore {
        UseScore { weight: self.at(now_s) + 1.0, at_s: now_s.max(self.at_s) }
    }

    /// Weighted uses as of `now_s`. A clock that goes back has no effect.
    pub fn at(&self, now_s: f64) -> f64 {
        let age_s = quantity(now_s - self.at_s);
        quantity(self.weight) * (-age_s / USE_HALF_LIFE_S).exp2()
    }
}

/// The cache cannot hold the bytes to be stored.
#[derive(Debug, Clone, PartialEq, Error)]
#[error(
    "the cache holds {capacity_bytes:.0} bytes, of which {in_use_bytes:.0} are in use; {needed_bytes:.0} more do \
     not fit: raise its capacity, or wait until a job ends"
)]
pub struct CacheFull {
    /// Bytes that the cache may hold.
    pub capacity_bytes: f64,
    /// Bytes to be stored.
    pub needed_bytes: f64,
    /// Bytes of entries that live jobs read.
    pub in_use_bytes: f64,
}

/// Selects entries to delete so that `needed_bytes` more fit into `capacity_bytes`, least useful first:
/// those with the fewest worker seconds saved, times recent uses, per byte. Entries that a live job
/// reads stay. Fails if the bytes would not fit even then: nothing should be deleted in vain.
pub fn evict(
    entries: &[CachedPrefix],
    capacity_bytes: f64,
    needed_bytes: f64,
    now_s: f64,
) -> Result<Vec<Fingerprint>, CacheFull> {
    let bytes = |entry: &CachedPrefix| quantity(entry.bytes);
    let held: f64 = entries.iter().map(bytes).sum();
    let mut excess = held + quantity(needed_bytes) - quantity(capacity_bytes);
    if excess <= 0.0 {
        return Ok(Vec::new());
    }
    let (leased, idle): (Vec<&CachedPrefix>, Vec<&CachedPrefix>) =
        entries.iter().partition(|e| e.leased);
    let in_use_bytes: f64 = leased.into_iter().map(bytes).sum();
    if quantity(needed_bytes) + in_use_bytes > quantity(capacity_bytes) {
        return Err(CacheFull { capacity_bytes, needed_bytes, in_use_bytes });
    }
    let mut idle: Vec<(f64, &CachedPrefix)> =
        idle.into_iter().map(|entry| (benefit_per_byte(entry, now_s), entry)).collect();
    // Ties are broken by fingerprint, so that the order is the same everywhere.
    idle.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.fingerprint.cmp(&b.1.fingerprint)));
    let mut chosen: Vec<&CachedPrefix> = Vec::new();
    for (_, entry) in idle {
        if excess <= 0.0 {
            break;
        }
        excess -= bytes(entry);
        chosen.push(entry);
    }
    // A large last entry may make smaller, more useful ones before it unnecessary.
    for i in (0..chosen.len()).rev() {
        if excess + bytes(chosen[i]) <= 0.0 {
            excess += bytes(chosen[i]);
            chosen.remove(i);
        }
    }
    Ok(chosen.into_iter().map(|entry| entry.fingerprint).collect())
}

/// Expected worker seconds saved per byte.
fn benefit_per_byte(entry: &CachedPrefix, now_s: f64) -> f64 {
    ratio(quantity(entry.saved_s) * entry.uses.at(now_s), quantity(entry.bytes).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn entry(name: &str, elements_per_s: f64) -> CachedPrefix {
        CachedPrefix {
            fingerprint: Fingerprint::from_content("test", name.as_bytes()),
            bytes: 1e9,
            elements_per_s,
            saved_s: 10.0,
            uses: UseScore::default(),
            leased: false,
            described: None,
        }
    }

    fn points(names: &[&str]) -> Vec<CacheCandidate> {
        let candidate = |name: &&str| CacheCandidate {
            fingerprint: Fingerprint::from_content("test", name.as_bytes()),
            reusable: true,
            whole: *name == "whole",
        };
        names.iter().map(candidate).collect()
    }

    fn mode(points: &[CacheCandidate], catalogue: &[CachedPrefix]) -> Mode {
        lookup(points, catalogue).mode
    }

    #[test]
    fn the_fastest_complete_hit_is_taken() {
        let points = points(&["read", "resized", "cropped"]);
        let mut catalogue = vec![
            entry("read", 50.0),
            entry("resized", 90.0),
            entry("cropped", 70.0),
            entry("another's", 1e9),
        ];
        assert_eq!(mode(&points, &catalogue), Mode::Get { point: 1 });
        catalogue.remove(1);
        assert_eq!(mode(&points, &catalogue), Mode::Get { point: 2 });
        catalogue[1].elements_per_s = 50.0;
        assert_eq!(mode(&points, &catalogue), Mode::Get { point: 2 }, "of equals the later");
        assert_eq!(lookup(&points, &catalogue).reason, "point 2 is cached: 50 elements/s a worker");
    }

    #[test]
    fn the_whole_pipeline_is_taken_at_any_throughput() {
        let points = points(&["read", "whole"]);
        let catalogue = [entry("whole", 20.0), entry("read", 90.0)];
        assert_eq!(mode(&points, &catalogue), Mode::Get { point: 1 });
        assert_eq!(mode(&points, &catalogue[1..]), Mode::Get { point: 0 });
    }

    #[test]
    fn without_a_hit_it_is_profiled_and_without_points_computed() {
        let catalogue = [entry("other", 50.0)];
        assert_eq!(mode(&points(&["read"]), &catalogue), Mode::Profile);
        assert_eq!(mode(&[], &catalogue), Mode::Compute);
    }

    #[test]
    fn random_prefixes_are_neither_read_nor_profiled_for() {
        let mut random = points(&["drawn"]);
        random[0].reusable = false;
        let found = lookup(&random, &[entry("drawn", 50.0)]);
        assert_eq!(found.mode, Mode::Compute);
        assert!(found.reason.contains("reuse_random: true"), "{}", found.reason);
    }

    fn scored(name: &str, bytes: f64, saved_s: f64, uses: f64) -> CachedPrefix {
        CachedPrefix {
            fingerprint: Fingerprint::from_content("test", name.as_bytes()),
            bytes,
            elements_per_s: 1.0,
            saved_s,
            uses: UseScore { weight: uses, at_s: 0.0 },
            leased: false,
            described: None,
        }
    }

    fn names(entries: &[CachedPrefix], chosen: &[Fingerprint]) -> Vec<usize> {
        let place = |key: &Fingerprint| entries.iter().position(|entry| entry.fingerprint == *key);
        chosen.iter().filter_map(place).collect()
    }

    #[test]
    fn the_least_useful_bytes_go_first() {
        // Benefit per byte: 100 x 1 / 10 = 10, 100 x 4 / 10 = 40, 30 x 1 / 2 = 15
        let entries = [
            scored("large, once", 10.0, 100.0, 1.0),
            scored("large, often", 10.0, 100.0, 4.0),
            scored("small", 2.0, 30.0, 1.0),
        ];
        let chosen = |needed| names(&entries, &evict(&entries, 25.0, needed, 0.0).unwrap());
        assert_eq!(chosen(3.0), [] as [usize; 0], "it fits");
        assert_eq!(chosen(4.0), [0]);
        assert_eq!(chosen(14.0), [0, 2]);
        // The first two are too small together with the third; then the small one may stay.
        assert_eq!(chosen(22.0), [0, 1]);
        assert_eq!(chosen(25.0), [0, 2, 1]);
    }

    #[test]
    fn uses_fade() {
        let score = UseScore::stored(0.0).used(0.0).used(0.0).used(0.0);
        assert_eq!(score.weight, 4.0);
        assert_eq!(score.at(USE_HALF_LIFE_S), 2.0);
        assert_eq!(score.at(-100.0), 4.0, "the clock went back");
        assert_eq!(score.used(2.0 * USE_HALF_LIFE_S).weight, 2.0);
        let entries = [scored("a month ago, often", 10.0, 100.0, 50.0), {
            let uses = UseScore { weight: 1.0, at_s: 30.0 * 86_400.0 };
            CachedPrefix { uses, ..scored("today, once", 10.0, 100.0, 0.0) }
        }];
        let chosen = evict(&entries, 20.0, 5.0, 30.0 * 86_400.0).unwrap();
        assert_eq!(names(&entries, &chosen), [0]);
    }

    #[test]
    fn entries_in_use_stay() {
        let mut entries = [
            scored("read", 10.0, 0.0, 0.0),
            scored("read too", 10.0, 9.0, 9.0),
            scored("x", 10.0, 1.0, 1.0),
        ];
        entries[0].leased = true;
        entries[1].leased = true;
        assert_eq!(names(&entries, &evict(&entries, 30.0, 10.0, 0.0).unwrap()), [2]);
        let refused = evict(&entries, 30.0, 11.0, 0.0).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the cache holds 30 bytes, of which 20 are in use; 11 more do not fit: raise its capacity, or wait \
             until a job ends"
        );
    }

    prop_compose! {
        fn any_entry()(
            name in any::<u64>(), bytes in 0.0f64..1e3, saved_s in 0.0f64..1e3, uses in 0.0f64..1e3,
            leased in prop::bool::weighted(0.4),
        ) -> CachedPrefix {
            CachedPrefix { leased, ..scored(&name.to_string(), bytes, saved_s, uses) }
        }
    }

    proptest! {
        #[test]
        fn it_makes_room_with_nothing_in_use_and_nothing_in_vain(
            entries in prop::collection::vec(any_entry(), 0..30),
            capacity in 0.0f64..2e4, needed in 0.0f64..5e3,
        ) {
            let held: f64 = entries.iter().map(|entry| entry.bytes).sum();
            let Ok(chosen) = evict(&entries, capacity, needed, 0.0) else {
                let idle = entries.iter().filter(|entry| !entry.leased);
                let idle: f64 = idle.map(|entry| entry.bytes).sum();
                prop_assert!(held - idle + needed > capacity - 1e-6);
                return Ok(());
            };
            let gone: Vec<&CachedPrefix> =
                entries.iter().filter(|entry| chosen.contains(&entry.fingerprint)).collect();
            prop_assert_eq!(gone.len(), chosen.len());
            prop_assert!(gone.iter().all(|entry| !entry.leased));
            let freed: f64 = gone.iter().map(|entry| entry.bytes).sum();
            prop_assert!(held - freed + needed <= capacity + 1e-6);
            for entry in &gone {
                prop_assert!(held - freed + entry.bytes + needed > capacity - 1e-6, "in vain");
            }
        }
    }
}
