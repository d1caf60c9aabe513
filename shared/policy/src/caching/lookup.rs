//! Looks up which prefix of a job's pipeline is cached (Cachew 4.4).

use super::{Mode, PrefixDescription, UseScore};
use gristmill_model::Fingerprint;
use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
