//! Eviction: deletes the entries that save the least work for their bytes, as Cachew (5.1) plans after
//! Nectar.

use super::CachedPrefix;
use crate::cost::{quantity, ratio};
use gristmill_model::Fingerprint;
use serde::{Deserialize, Serialize};
use thiserror::Error;

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
    pub capacity_bytes: f64,
    pub needed_bytes: f64,
    /// Bytes of entries that live jobs read.
    pub in_use_bytes: f64,
}

/// Selects entries to delete so that `needed_bytes` more fit into `capacity_bytes`, least useful first:
/// those with the fewest worker seconds saved, times recent uses, per byte. Entries that a live job reads stay.
///
/// # Errors
/// If the bytes would not fit even then; nothing should be deleted in vain.
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

    fn entry(name: &str, bytes: f64, saved_s: f64, uses: f64) -> CachedPrefix {
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
            entry("large, once", 10.0, 100.0, 1.0),
            entry("large, often", 10.0, 100.0, 4.0),
            entry("small", 2.0, 30.0, 1.0),
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
        let entries = [entry("a month ago, often", 10.0, 100.0, 50.0), {
            let uses = UseScore { weight: 1.0, at_s: 30.0 * 86_400.0 };
            CachedPrefix { uses, ..entry("today, once", 10.0, 100.0, 0.0) }
        }];
        let chosen = evict(&entries, 20.0, 5.0, 30.0 * 86_400.0).unwrap();
        assert_eq!(names(&entries, &chosen), [0]);
    }

    #[test]
    fn what_is_in_use_stays() {
        let mut entries = [
            entry("read", 10.0, 0.0, 0.0),
            entry("read too", 10.0, 9.0, 9.0),
            entry("x", 10.0, 1.0, 1.0),
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
            CachedPrefix { leased, ..entry(&name.to_string(), bytes, saved_s, uses) }
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
