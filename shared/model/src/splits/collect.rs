//! Collection of objects. Decisions use items read *after* the horizon was written
//! ([`crate::splits::collected`]). The horizon and a bundle's end are both final, so a decision
//! never goes stale.

use crate::splits::{Bundle, BundleState, SplitKind, SplitPlace};
use crate::{Attempt, Epoch, Nonce, Position};

/// Names one chunk object: one attempt at one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkName {
    pub epoch: Epoch,
    pub position: Position,
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// Verdict on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectionDecision {
    /// Somebody may still need it, or may still commit it.
    Keep,
    /// Committed, and behind the horizon of the trainer.
    DeletePassed,
    /// Never to be committed: its bundle is done without it.
    DeleteOrphan,
}

/// Decides whether `object` may be deleted.
///
/// `bundle` is the bundle that holds the object's position, and `first` the bundle's first
/// position; `cached` is true if a cache entry refers to the object.
pub fn decide(
    object: &ChunkName,
    bundle: Option<&Bundle>,
    first: Position,
    horizon: SplitPlace,
    cached: bool,
) -> CollectionDecision {
    let Some(bundle) = bundle else { return CollectionDecision::Keep };
    let at = object.position.checked_sub(first).and_then(|at| u8::try_from(at).ok());
    let Some(at) = at.filter(|at| usize::from(*at) < bundle.entries.len()) else {
        return CollectionDecision::Keep;
    };
    let committed = bundle.entry(at).is_some_and(|entry| {
        entry.outcome.kind == SplitKind::Object
            && entry.attempt == object.attempt
            && entry.nonce == object.nonce
    });
    let place = SplitPlace { epoch: object.epoch, position: object.position };
    let has_passed = place < horizon && !cached;
    if committed && has_passed {
        CollectionDecision::DeletePassed
    } else if !committed && bundle.state == BundleState::Done {
        CollectionDecision::DeleteOrphan
    } else {
        CollectionDecision::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InvocationId;
    use crate::splits::{CommittedSplit, SplitOutcome, WorkerTimes};

    fn bundle(state: BundleState, kinds: &[Option<SplitKind>]) -> Bundle {
        let (owner, attempt) = (Nonce([2; 8]), 2);
        let outcome = |kind| SplitOutcome { kind, ..SplitOutcome::poisoned(0) };
        let entry = |kind| CommittedSplit { attempt, nonce: owner, outcome: outcome(kind) };
        Bundle {
            state,
            attempt,
            owner,
            invocation: InvocationId("i".into()),
            until_ms: 0,
            retry_at_ms: 0,
            since_ms: 0,
            entries: kinds.iter().map(|kind| kind.map(entry)).collect(),
            current_split: None,
            suspect: None,
            control: None,
            error: None,
            times: WorkerTimes::default(),
        }
    }

    fn name(position: Position, attempt: Attempt) -> ChunkName {
        ChunkName { epoch: 0, position, attempt, nonce: Nonce([2; 8]) }
    }

    fn place(position: Position) -> SplitPlace {
        SplitPlace { epoch: 0, position }
    }

    const OBJECT: Option<SplitKind> = Some(SplitKind::Object);

    #[test]
    fn committed_objects_go_once_passed_and_not_cached() {
        let done = bundle(BundleState::Done, &[OBJECT, OBJECT]);
        let of = |horizon, cached| decide(&name(5, 2), Some(&done), 4, place(horizon), cached);
        assert_eq!(of(5, false), CollectionDecision::Keep);
        assert_eq!(of(6, false), CollectionDecision::DeletePassed);
        assert_eq!(of(6, true), CollectionDecision::Keep);
    }

    #[test]
    fn orphans_go_once_their_bundle_is_done() {
        for state in [BundleState::Leased, BundleState::Released, BundleState::Failed] {
            let open = bundle(state, &[None, OBJECT]);
            for orphan in [name(4, 1), name(4, 2), name(5, 1)] {
                assert_eq!(
                    decide(&orphan, Some(&open), 4, place(9), false),
                    CollectionDecision::Keep
                );
            }
        }
        let done = bundle(BundleState::Done, &[Some(SplitKind::Local), OBJECT]);
        for orphan in [name(4, 1), name(4, 2), name(5, 1)] {
            let decision = decide(&orphan, Some(&done), 4, place(0), false);
            assert_eq!(decision, CollectionDecision::DeleteOrphan);
        }
    }

    #[test]
    fn unknown_object_is_kept() {
        let done = bundle(BundleState::Done, &[OBJECT]);
        for (object, first) in [(name(4, 2), 5), (name(9, 2), 4), (name(u32::MAX, 2), 0)] {
            assert_eq!(
                decide(&object, Some(&done), first, place(99), false),
                CollectionDecision::Keep
            );
        }
        assert_eq!(decide(&name(4, 2), None, 4, place(99), false), CollectionDecision::Keep);
    }
}
