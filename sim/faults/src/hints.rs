//! Faults of hints: items that may be outdated, a mixture of two versions, or gone.

use crate::{FaultKind, FaultSimulation, Mutant};
use bytes::Bytes;
use gristmill_coordinator::inspect;
use gristmill_model::{BundleIndex, Epoch};
use gristmill_ports::{ItemKey, TableItem};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Sort key of the hints that scans write.
const FRONTIER: &str = "FRONTIER";
/// Earlier versions kept for faults.
const REMEMBERED: usize = 16;

/// Earlier hints of each job.
#[derive(Default)]
pub struct HintHistory(Mutex<BTreeMap<String, Vec<Bytes>>>);

impl HintHistory {
    /// Records a written hint. Returns whether to write it: one bug writes only the first.
    pub fn note(&self, sim: &FaultSimulation, key: &ItemKey, body: &Bytes) -> bool {
        if key.sk != FRONTIER {
            return true;
        }
        let mut hints = self.0.lock();
        let earlier = hints.entry(key.pk.clone()).or_default();
        earlier.push(body.clone());
        let excess = earlier.len().saturating_sub(REMEMBERED);
        earlier.drain(..excess);
        sim.mutant != Some(Mutant::LooksOnce) || earlier.len() == 1
    }

    /// Whether a hint names the bundle under `key` as released.
    pub fn name(&self, key: &ItemKey) -> bool {
        let Some(bundle) = inspect::bundle_of(key) else { return false };
        let hints = self.0.lock();
        let of_job = |(pk, _): &(&String, _)| key.pk.starts_with(&format!("{pk}#"));
        let mut named = hints.iter().filter(of_job).flat_map(|(_, hints)| hints);
        named.any(|hint| names(hint).contains(&bundle))
    }

    /// The item as it arrives.
    pub fn arrives(
        &self,
        sim: &FaultSimulation,
        key: &ItemKey,
        item: Option<TableItem>,
    ) -> Option<TableItem> {
        let item = item?;
        if key.sk != FRONTIER {
            return Some(item);
        }
        if sim.happens(FaultKind::HintLost) {
            return None;
        }
        let stale = sim.happens(FaultKind::HintStale);
        let torn = sim.happens(FaultKind::HintTorn);
        if !stale && !torn {
            return Some(item);
        }
        let hints = self.0.lock();
        let earlier = hints.get(&key.pk).cloned().unwrap_or_default();
        drop(hints);
        let chosen = earlier.get(sim.below(earlier.len() as u64) as usize);
        let Some(earlier) = chosen else { return Some(item) };
        let body = if torn {
            mixed(sim, &item.body, earlier).unwrap_or_else(|| earlier.clone())
        } else {
            earlier.clone()
        };
        Some(TableItem { body, ..item })
    }
}

/// The bundles named by a hint.
fn names(hint: &[u8]) -> Vec<(Epoch, BundleIndex)> {
    let Ok(mut hint) = serde_json::from_slice::<Map<String, Value>>(hint) else {
        return Vec::new();
    };
    let returned = hint.remove("returned").map(serde_json::from_value);
    returned.and_then(Result::ok).unwrap_or_default()
}

/// A mixture: each field from one of the two.
fn mixed(sim: &FaultSimulation, one: &[u8], other: &[u8]) -> Option<Bytes> {
    let other: Map<String, Value> = serde_json::from_slice(other).ok()?;
    let mut mixed: Map<String, Value> = serde_json::from_slice(one).ok()?;
    for (name, value) in other {
        if sim.below(2) == 0 {
            mixed.insert(name, value);
        }
    }
    serde_json::to_vec(&mixed).ok().map(Bytes::from)
}
