//! Items that are only hints may be of another time, of two times at once, or gone.

use crate::{Fault, Mutant, World};
use bytes::Bytes;
use gristmill_coordinator::inspect;
use gristmill_model::{BundleIndex, Epoch};
use gristmill_ports::{Item, ItemKey};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// The sort key of what looks leave behind.
const FRONTIER: &str = "FRONTIER";
/// Earlier ones that may come back.
const REMEMBERED: usize = 16;

/// Earlier hints of each job.
#[derive(Default)]
pub struct Hints(Mutex<BTreeMap<String, Vec<Bytes>>>);

impl Hints {
    /// Notes a hint that is written; whether it is to be, in a world whose mistake is to write one only.
    pub fn note(&self, world: &World, key: &ItemKey, body: &Bytes) -> bool {
        if key.sk != FRONTIER {
            return true;
        }
        let mut hints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = hints.entry(key.pk.clone()).or_default();
        earlier.push(body.clone());
        let excess = earlier.len().saturating_sub(REMEMBERED);
        earlier.drain(..excess);
        world.mutant != Some(Mutant::LooksOnce) || earlier.len() == 1
    }

    /// Whether one of them says that the bundle under `key` came back.
    pub fn name(&self, key: &ItemKey) -> bool {
        let Some(bundle) = inspect::bundle_of(key) else { return false };
        let hints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_job = |(pk, _): &(&String, _)| key.pk.starts_with(&format!("{pk}#"));
        let mut named = hints.iter().filter(of_job).flat_map(|(_, hints)| hints);
        named.any(|hint| names(hint).contains(&bundle))
    }

    /// An item as it arrives.
    pub fn arrives(&self, world: &World, key: &ItemKey, item: Option<Item>) -> Option<Item> {
        let item = item?;
        if key.sk != FRONTIER {
            return Some(item);
        }
        if world.happens(Fault::HintLost) {
            return None;
        }
        let stale = world.happens(Fault::HintStale);
        let torn = world.happens(Fault::HintTorn);
        if !stale && !torn {
            return Some(item);
        }
        let hints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = hints.get(&key.pk).cloned().unwrap_or_default();
        drop(hints);
        let chosen = earlier.get(world.below(earlier.len() as u64) as usize);
        let Some(earlier) = chosen else { return Some(item) };
        let body = match torn {
            true => mixed(world, &item.body, earlier).unwrap_or_else(|| earlier.clone()),
            false => earlier.clone(),
        };
        Some(Item { body, ..item })
    }
}

/// The bundles that a hint names.
fn names(hint: &[u8]) -> Vec<(Epoch, BundleIndex)> {
    let Ok(mut hint) = serde_json::from_slice::<Map<String, Value>>(hint) else {
        return Vec::new();
    };
    let returned = hint.remove("returned").map(serde_json::from_value);
    returned.and_then(Result::ok).unwrap_or_default()
}

/// Each field of the one or of the other.
fn mixed(world: &World, one: &[u8], other: &[u8]) -> Option<Bytes> {
    let other: Map<String, Value> = serde_json::from_slice(other).ok()?;
    let mut mixed: Map<String, Value> = serde_json::from_slice(one).ok()?;
    for (name, value) in other {
        if world.below(2) == 0 {
            mixed.insert(name, value);
        }
    }
    serde_json::to_vec(&mixed).ok().map(Bytes::from)
}
