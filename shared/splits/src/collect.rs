//! What may be deleted. Decided from items as they were read *after* the horizon was written
//! ([`crate::collected`]): both the horizon and a bundle's end are final, so a decision never goes
//! stale.

use crate::{Bundle, BundleState, Consumer, EntryKind, Place};
use gristmill_types::{Attempt, Epoch, Nonce, Position};

/// Names one chunk object: one attempt at one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkName {
    pub epoch: Epoch,
    pub position: Position,
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// What becomes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Somebody may still need it, or may still commit it.
    Keep,
    /// Committed, and behind the horizon of every consumer.
    DeletePassed,
    /// Never to be committed: its bundle is done without it.
    DeleteOrphan,
}

/// The split before which every consumer's horizon lies; the start of time if there is no consumer.
pub fn horizon<'a>(consumers: impl IntoIterator<Item = &'a Consumer>) -> Place {
    consumers.into_iter().map(|consumer| consumer.collected_place).min().unwrap_or_default()
}

/// Whether `object` may go.
///
/// `bundle` is the item of the bundle the object's position is in, and `first` that bundle's first
/// position; `cached` says that a cache entry refers to the object.
pub fn verdict(
    object: &ChunkName,
    bundle: Option<&Bundle>,
    first: Position,
    horizon: Place,
    cached: bool,
) -> Verdict {
    let Some(bundle) = bundle else { return Verdict::Keep };
    let at = object.position.checked_sub(first).and_then(|at| u8::try_from(at).ok());
    let Some(at) = at.filter(|at| usize::from(*at) < bundle.entries.len()) else {
        return Verdict::Keep;
    };
    let committed = bundle.entry(at).is_some_and(|entry| {
        entry.kind == EntryKind::Object
            && entry.attempt == object.attempt
            && entry.nonce == object.nonce
    });
    let place = Place { epoch: object.epoch, position: object.position };
    match committed {
        true if place < horizon && !cached => Verdict::DeletePassed,
        false if bundle.state == BundleState::Done => Verdict::DeleteOrphan,
        _ => Verdict::Keep,
    }
}
