//! Seals and closes, case by case.

use super::*;
use crate::splits::{SplitOutcome, WorkerTimes};
use crate::{InvocationId, Nonce};

fn entry(kind: SplitKind, rows: u32, skipped: u32) -> Option<CommittedSplit> {
    let nonce = Nonce([1; 8]);
    let outcome = SplitOutcome {
        kind,
        object_bytes: 100,
        crc32c: 0,
        rows,
        batches: rows / 4,
        remainder_rows: rows % 4,
        skipped_records: skipped,
    };
    Some(CommittedSplit { attempt: 1, nonce, outcome })
}

fn bundle(state: BundleState, entries: Vec<Option<CommittedSplit>>) -> Bundle {
    Bundle {
        state,
        attempt: 2,
        owner: Nonce([1; 8]),
        invocation: InvocationId("i".into()),
        until_ms: 0,
        retry_at_ms: 0,
        since_ms: 0,
        entries,
        current_split: None,
        suspect: None,
        control: None,
        error: None,
        times: WorkerTimes { source_ms: 1, compute_ms: 2, put_ms: 3 },
    }
}

fn opened() -> EpochItem {
    open(None, 7).unwrap().into_item()
}

fn command<'a>(bundles: &'a [Option<&'a Bundle>]) -> SealTransition<'a> {
    SealTransition { bundles, cached: None, batch_size: 4, drop_last: false, max_skipped: 10 }
}

#[test]
fn an_epoch_is_opened_once_and_with_one_seed() {
    assert_eq!(open(Some(&opened()), 7), Ok(TransitionOutcome::AlreadyApplied(opened())));
    assert!(matches!(open(Some(&opened()), 8), Err(TransitionRefusal::Invalid { .. })));
}

#[test]
fn an_epoch_with_an_open_bundle_is_not_sealed() {
    let done = bundle(BundleState::Done, vec![entry(SplitKind::Object, 4, 0)]);
    let leased = bundle(BundleState::Leased, vec![None]);
    for open in [Some(&leased), None] {
        let refused = seal(Some(&opened()), &command(&[Some(&done), open]));
        assert_eq!(refused, Err(TransitionRefusal::NotDone { bundle: 1 }));
    }
    assert!(matches!(seal(None, &command(&[])), Err(TransitionRefusal::Invalid { .. })));
}

#[test]
fn totals_are_derived_once() {
    let one = bundle(
        BundleState::Done,
        vec![entry(SplitKind::Object, 9, 1), entry(SplitKind::Poison, 0, 5)],
    );
    let two = bundle(BundleState::Done, vec![entry(SplitKind::Local, 4, 0)]);
    let sealed = seal(Some(&opened()), &command(&[Some(&one), Some(&two)])).unwrap().into_item();
    let expected = SealedTotals { splits: 3, rows: 13, batches: 4, skipped: 6, object_bytes: 100 };
    assert_eq!((sealed.state, sealed.totals), (EpochState::Sealed, Some(expected)));
    let again = seal(Some(&sealed), &command(&[]));
    assert_eq!(again, Ok(TransitionOutcome::AlreadyApplied(sealed)));
}

#[test]
fn skips_above_the_cap_are_not_sealed_away() {
    let one = bundle(BundleState::Done, vec![entry(SplitKind::Object, 1, 11)]);
    let refused = seal(Some(&opened()), &command(&[Some(&one)]));
    assert_eq!(refused, Err(TransitionRefusal::TooManySkipped { skipped: 11, max: 10 }));
}

#[test]
fn a_dropped_last_batch_is_not_counted() {
    let one = bundle(BundleState::Done, vec![entry(SplitKind::Object, 9, 0)]);
    let bundles = [Some(&one)];
    let drop_last = SealTransition { drop_last: true, ..command(&bundles) };
    let sealed = seal(Some(&opened()), &drop_last).unwrap().into_item();
    assert_eq!(sealed.totals.unwrap().batches, 2);
}

#[test]
fn an_epoch_closes_when_the_trainer_is_past_it() {
    let one = bundle(BundleState::Done, vec![entry(SplitKind::Object, 9, 0)]);
    assert!(matches!(
        close(Some(&opened()), 3, Cursor::default()),
        Err(TransitionRefusal::Invalid { .. })
    ));
    let sealed = seal(Some(&opened()), &command(&[Some(&one)])).unwrap().into_item();
    let before = Cursor { epoch: 3, batch_index: 2 };
    assert!(close(Some(&sealed), 3, Cursor::default()).is_err());
    let refused = close(Some(&sealed), 3, before);
    assert_eq!(refused, Err(TransitionRefusal::NotDurable { durable: before }));
    for past in [Cursor { epoch: 3, batch_index: 3 }, Cursor { epoch: 4, batch_index: 0 }] {
        assert!(close(Some(&sealed), 3, past).is_ok());
    }
    let closed = close(Some(&sealed), 3, before.next()).unwrap().into_item();
    assert_eq!(closed.state, EpochState::Closed);
    assert_eq!(close(Some(&closed), 3, before), Ok(TransitionOutcome::AlreadyApplied(closed)));
    assert!(matches!(open(Some(&closed), 7), Err(TransitionRefusal::Ended { .. })));
}

#[test]
fn an_empty_epoch_seals_and_closes() {
    let sealed = seal(Some(&opened()), &command(&[])).unwrap().into_item();
    assert!(close(Some(&sealed), 0, Cursor::default()).is_ok());
}
