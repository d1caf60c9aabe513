//! Transitions of a lease, case by case.

use super::*;
use crate::{
    ErrorPolicy,
    splits::{
        BundleRetryLimits, ClaimTransition, DeathEvidence, MAX_ERROR_BYTES, MAX_INVOCATION_BYTES,
        SplitOutcome, SuspectSplit,
    },
};
use proptest::prelude::*;

const TERM: LeaseTerm = LeaseTerm { now_ms: 1_000, remaining_ms: 900_000, predicted_ms: 0 };

fn nonce(id: u8) -> Nonce {
    Nonce([id; 8])
}

fn invocation(id: u8) -> InvocationId {
    InvocationId(format!("i{id}"))
}

fn claimed(before: Option<&Bundle>, id: u8) -> Bundle {
    let now_ms = before.and_then(Bundle::claimable_at_ms).unwrap_or(0);
    let death = before.map(|before| DeathEvidence { attempt: before.attempt, ordinal: Some(1) });
    let invocation = &invocation(id);
    let term = LeaseTerm { now_ms, ..TERM };
    let command = ClaimTransition {
        nonce: nonce(id),
        invocation,
        term,
        first: 0,
        records: &[5, 5, 5],
        death,
        control: None,
    };
    claim(before, &command, &BundleRetryLimits::default()).unwrap().into_item()
}

fn commit(at: u8) -> SplitCommit {
    SplitCommit {
        split_index: at,
        outcome: SplitOutcome {
            kind: SplitKind::Object,
            object_bytes: 10,
            crc32c: 7,
            rows: 5,
            batches: 1,
            remainder_rows: 1,
            skipped_records: 0,
        },
    }
}

fn command<'a>(attempt: Attempt, id: u8, commits: &'a [SplitCommit]) -> FlushTransition<'a> {
    let times = WorkerTimes { source_ms: 1, compute_ms: 2, put_ms: 3 };
    FlushTransition { attempt, nonce: nonce(id), commits, next: None, term: TERM, times }
}

fn flushed(bundle: &Bundle, ats: &[u8]) -> Bundle {
    let commits: Vec<_> = ats.iter().map(|at| commit(*at)).collect();
    let owner = bundle.owner.0[0];
    flush(Some(bundle), &command(bundle.attempt, owner, &commits)).unwrap().into_item()
}

#[test]
fn a_lease_lapses_unless_it_was_renewed() {
    let bundle = claimed(None, 1);
    let seen = LapseTransition { attempt: 1, until_ms: bundle.until_ms, now_ms: 4_000 };
    let lapsed = lapse(Some(&bundle), &seen).unwrap().into_item();
    assert_eq!((lapsed.state, lapsed.until_ms), (BundleState::Leased, 4_000));
    assert_eq!(lapse(Some(&lapsed), &seen), Ok(TransitionOutcome::AlreadyApplied(lapsed.clone())));
    // Its owner may still commit, and a renewal is seen.
    assert_eq!(flushed(&lapsed, &[0, 1, 2]).state, BundleState::Done);
    let renewed = Bundle { until_ms: bundle.until_ms + 1, ..bundle.clone() };
    assert_eq!(lapse(Some(&renewed), &seen), Err(TransitionRefusal::Lost));
    let again = Bundle { attempt: 2, ..bundle };
    assert_eq!(lapse(Some(&again), &seen), Err(TransitionRefusal::Lost));
    assert_eq!(lapse(None, &seen), Err(TransitionRefusal::Lost));
}

#[test]
fn commits_add_up_to_done() {
    let bundle = flushed(&claimed(None, 1), &[0, 2]);
    assert_eq!((bundle.state, bundle.todo()), (BundleState::Leased, vec![1]));
    assert_eq!(bundle.entry(0).unwrap().nonce, nonce(1));
    let done = flushed(&bundle, &[1]);
    assert_eq!((done.state, done.times.compute_ms), (BundleState::Done, 4));
    assert_eq!(done.claimable_at_ms(), None);
}

#[test]
fn a_flush_sent_again_is_recognised_under_any_owner_of_the_bundle() {
    let bundle = flushed(&claimed(None, 1), &[0]);
    let taken = claimed(Some(&bundle), 2);
    let done = flushed(&taken, &[1, 2]);
    for item in [&bundle, &taken, &done] {
        let again = flush(Some(item), &command(1, 1, &[commit(0)]));
        assert_eq!(again, Ok(TransitionOutcome::AlreadyApplied(item.clone())));
    }
    assert_eq!(taken.todo(), [1, 2], "what is committed carries over");
}

#[test]
fn a_flush_after_the_lease_was_taken_is_lost() {
    let taken = claimed(Some(&claimed(None, 1)), 2);
    for commits in [&[][..], &[commit(0)][..]] {
        assert_eq!(flush(Some(&taken), &command(1, 1, commits)), Err(TransitionRefusal::Lost));
    }
    // The right attempt under the wrong name, and the other way round.
    assert_eq!(flush(Some(&taken), &command(2, 1, &[commit(0)])), Err(TransitionRefusal::Lost));
    assert_eq!(flush(Some(&taken), &command(1, 2, &[commit(0)])), Err(TransitionRefusal::Lost));
    assert_eq!(flush(None, &command(1, 1, &[commit(0)])), Err(TransitionRefusal::Lost));
    // Another worker has committed the split by now.
    let ahead = flushed(&taken, &[0]);
    assert_eq!(flush(Some(&ahead), &command(1, 1, &[commit(0)])), Err(TransitionRefusal::Lost));
}

#[test]
fn a_late_flush_counts_if_nobody_has_claimed() {
    let bundle = claimed(None, 1);
    let mut late = command(1, 1, &[]);
    let commits = [commit(0)];
    late.commits = &commits;
    late.term.now_ms = bundle.until_ms + 3_600_000;
    assert!(flush(Some(&bundle), &late).unwrap().write().is_some());
}

#[test]
fn a_flush_that_contradicts_what_is_committed_is_refused() {
    let bundle = flushed(&claimed(None, 1), &[0]);
    let mut other = commit(0);
    other.outcome.crc32c = 8;
    let refused = flush(Some(&bundle), &command(1, 1, &[other, commit(1)]));
    assert!(matches!(refused, Err(TransitionRefusal::Contradiction { split_index: 0, .. })));
    let taken = claimed(Some(&bundle), 2);
    let redone = flush(Some(&taken), &command(2, 2, &[commit(0)]));
    assert!(matches!(redone, Err(TransitionRefusal::Contradiction { split_index: 0, .. })));
    let beyond = flush(Some(&taken), &command(2, 2, &[commit(3)]));
    assert!(matches!(beyond, Err(TransitionRefusal::Invalid { .. })));
}

#[test]
fn a_flush_is_all_or_nothing_and_one_that_repeats_a_part_adds_the_rest() {
    let bundle = flushed(&claimed(None, 1), &[0]);
    let more = flush(Some(&bundle), &command(1, 1, &[commit(0), commit(1)])).unwrap();
    assert_eq!(more.write().map(Bundle::todo), Some(vec![2]));
}

#[test]
fn an_owner_wrongly_taken_for_dead_loses_its_lease_and_contradicts_nobody() {
    let mut bundle = claimed(None, 1);
    bundle.suspect = Some(SuspectSplit { split_index: 0, strikes: 2, ordinal: 8 });
    bundle.current_split = Some(0);
    bundle.control = Some(crate::splits::SplitPlace::default());
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let command_of = ClaimTransition {
        nonce: nonce(2),
        invocation: &invocation(2),
        term: LeaseTerm { now_ms: bundle.until_ms, ..TERM },
        first: 0,
        records: &[5, 5, 5],
        death: Some(DeathEvidence { attempt: 1, ordinal: Some(9) }),
        control: None,
    };
    let report =
        ReleaseTransition { invocation: &invocation(1), attempt: Some(1), blameless: false };
    let released = release(Some(&bundle), &report).unwrap().into_item();
    let poisoned = claim(Some(&released), &command_of, &limits).unwrap().into_item();
    assert_eq!(poisoned.entry(0).map(|entry| entry.outcome.kind), Some(SplitKind::Poison));
    assert_eq!(flush(Some(&poisoned), &command(1, 1, &[commit(0)])), Err(TransitionRefusal::Lost));
}

#[test]
fn a_heartbeat_renews_and_never_shortens() {
    let bundle = claimed(None, 1);
    let mut later = command(1, 1, &[]);
    later.term.now_ms = 50_000;
    let renewed = flush(Some(&bundle), &later).unwrap().into_item();
    assert_eq!(renewed.until_ms, 82_000);
    assert_eq!(renewed.times, WorkerTimes::default());
    let copy = flush(Some(&renewed), &command(1, 1, &[]));
    assert_eq!(copy, Ok(TransitionOutcome::AlreadyApplied(renewed)));
}

#[test]
fn splits_are_marked_one_at_a_time() {
    let bundle = claimed(Some(&claimed(None, 1)), 2);
    let start = |split_index| MarkTransition { attempt: 2, nonce: nonce(2), split_index };
    let marked = mark(Some(&bundle), &start(1)).unwrap().into_item();
    assert_eq!(marked.current_split, Some(1));
    assert_eq!(
        mark(Some(&marked), &start(1)),
        Ok(TransitionOutcome::AlreadyApplied(marked.clone()))
    );
    assert!(matches!(
        mark(Some(&marked), &start(0)),
        Err(TransitionRefusal::Contradiction { split_index: 1, .. })
    ));
    assert!(matches!(mark(Some(&bundle), &start(3)), Err(TransitionRefusal::Invalid { .. })));
    assert_eq!(
        mark(Some(&bundle), &MarkTransition { attempt: 1, ..start(0) }),
        Err(TransitionRefusal::Lost)
    );
    let next = flushed(&marked, &[1]);
    assert_eq!(next.current_split, None);
    // A copy of the mark arrives after the commit: it must not put the blame back.
    assert!(matches!(
        mark(Some(&next), &start(1)),
        Err(TransitionRefusal::Contradiction { split_index: 1, .. })
    ));
}

#[test]
fn a_flush_can_mark_the_next_split() {
    let bundle = claimed(Some(&claimed(None, 1)), 2);
    let commits = [commit(0)];
    let with_next = FlushTransition { next: Some(1), ..command(2, 2, &commits) };
    let after = flush(Some(&bundle), &with_next).unwrap().into_item();
    assert_eq!(after.current_split, Some(1));
    let committed = FlushTransition { next: Some(0), ..command(2, 2, &commits) };
    assert!(flush(Some(&bundle), &committed).is_err());
}

#[test]
fn a_commit_clears_the_suspect() {
    let mut bundle = claimed(None, 1);
    bundle.suspect = Some(SuspectSplit { split_index: 2, strikes: 1, ordinal: 5 });
    assert!(flushed(&bundle, &[0]).suspect.is_some());
    assert_eq!(flushed(&bundle, &[2]).suspect, None);
}

#[test]
fn a_failure_gives_the_bundle_back_once() {
    let bundle = claimed(None, 1);
    let command = FailTransition {
        attempt: 1,
        nonce: nonce(1),
        error: "line one\nline two",
        retry_at_ms: 9,
        fatal: false,
    };
    let failed = fail(Some(&bundle), &command).unwrap().into_item();
    assert_eq!(
        (failed.state, failed.retry_at_ms, failed.current_split),
        (BundleState::Failed, 9, None)
    );
    assert_eq!(failed.error.as_deref(), Some("line one line two"));
    assert_eq!(
        fail(Some(&failed), &command),
        Ok(TransitionOutcome::AlreadyApplied(failed.clone()))
    );
    let taken = claimed(Some(&failed), 2);
    assert_eq!(fail(Some(&taken), &command), Err(TransitionRefusal::Lost));
    let fatal =
        fail(Some(&bundle), &FailTransition { fatal: true, ..command }).unwrap().into_item();
    assert_eq!(fatal.state, BundleState::Dead);
}

#[test]
fn a_bundle_given_back_is_claimed_as_the_same_attempt() {
    let bundle = flushed(&claimed(None, 1), &[0]);
    let returned = give_back(Some(&bundle), 1, nonce(1)).unwrap().into_item();
    assert_eq!((returned.state, returned.claimable_at_ms()), (BundleState::Returned, Some(0)));
    assert!(!returned.has_dead_owner(u64::MAX));
    let again = give_back(Some(&returned), 1, nonce(1));
    assert_eq!(again, Ok(TransitionOutcome::AlreadyApplied(returned.clone())));
    let taken = claimed(Some(&returned), 2);
    assert_eq!((taken.state, taken.attempt, taken.todo()), (BundleState::Leased, 1, vec![1, 2]));
    // Late calls of the owner that gave it back change nothing.
    assert_eq!(give_back(Some(&taken), 1, nonce(1)), Err(TransitionRefusal::Lost));
    assert_eq!(flush(Some(&taken), &command(1, 1, &[commit(1)])), Err(TransitionRefusal::Lost));
    let sent_again = flush(Some(&taken), &command(1, 1, &[commit(0)]));
    assert_eq!(sent_again, Ok(TransitionOutcome::AlreadyApplied(taken.clone())));
    assert_eq!(flushed(&taken, &[1, 2]).state, BundleState::Done);
}

#[test]
fn a_late_copy_of_a_claim_does_not_bring_a_lease_back_that_was_given_back() {
    let bundle = claimed(None, 1);
    let returned = give_back(Some(&bundle), 1, nonce(1)).unwrap().into_item();
    let claim_of = ClaimTransition {
        nonce: nonce(1),
        invocation: &invocation(1),
        term: TERM,
        first: 0,
        records: &[5, 5, 5],
        death: None,
        control: None,
    };
    assert_eq!(
        claim(Some(&returned), &claim_of, &BundleRetryLimits::default()),
        Err(TransitionRefusal::Lost)
    );
}

#[test]
fn giving_back_ends_the_mark_of_the_next_split() {
    let bundle = Bundle { current_split: Some(1), ..claimed(None, 1) };
    let returned = give_back(Some(&bundle), 1, nonce(1)).unwrap().into_item();
    assert_eq!((returned.current_split, returned.suspect), (None, None));
}

#[test]
fn a_release_touches_only_the_lease_of_the_invocation_it_names() {
    let bundle = claimed(None, 1);
    let (one, two) = (invocation(1), invocation(2));
    let report = |invocation, attempt| ReleaseTransition { invocation, attempt, blameless: false };
    assert_eq!(release(Some(&bundle), &report(&two, None)), Err(TransitionRefusal::Lost));
    assert_eq!(release(Some(&bundle), &report(&one, Some(2))), Err(TransitionRefusal::Lost));
    assert_eq!(release(None, &report(&one, None)), Err(TransitionRefusal::Lost));
    let released = release(Some(&bundle), &report(&one, Some(1))).unwrap().into_item();
    assert_eq!((released.state, released.claimable_at_ms()), (BundleState::Released, Some(0)));
    let again = release(Some(&released), &report(&one, None));
    assert_eq!(again, Ok(TransitionOutcome::AlreadyApplied(released.clone())));
    // The report comes late: another worker has the lease, or the bundle is done.
    let taken = claimed(Some(&released), 2);
    assert_eq!(release(Some(&taken), &report(&one, None)), Err(TransitionRefusal::Lost));
    let done = flushed(&bundle, &[0, 1, 2]);
    assert_eq!(release(Some(&done), &report(&one, None)), Err(TransitionRefusal::Lost));
    // The owner of a lease that was released wrongly is alive, but has lost it.
    assert_eq!(flush(Some(&released), &command(1, 1, &[commit(0)])), Err(TransitionRefusal::Lost));
}

#[test]
fn delays_double_up_to_ten_seconds() {
    assert_eq!(
        [1, 2, 3, 7, 8, u32::MAX].map(retry_delay_ms),
        [100, 200, 400, 6_400, 10_000, 10_000]
    );
    assert_eq!(retry_delay_ms(0), 100);
}

#[test]
fn the_largest_bundle_fits_into_one_write_unit() {
    let outcome = SplitOutcome {
        kind: SplitKind::Object,
        object_bytes: u64::MAX,
        crc32c: u32::MAX,
        rows: u32::MAX,
        batches: u32::MAX,
        remainder_rows: u32::MAX,
        skipped_records: u32::MAX,
    };
    let entry = CommittedSplit { attempt: u32::MAX, nonce: nonce(255), outcome };
    let bundle = Bundle {
        state: BundleState::Dead,
        attempt: u32::MAX,
        owner: nonce(255),
        invocation: InvocationId("x".repeat(MAX_INVOCATION_BYTES)),
        until_ms: u64::MAX,
        retry_at_ms: u64::MAX,
        since_ms: u64::MAX,
        entries: vec![Some(entry); crate::splits::MAX_BUNDLE_SPLITS],
        current_split: Some(7),
        suspect: Some(SuspectSplit { split_index: 7, strikes: 255, ordinal: u64::MAX }),
        control: Some(crate::splits::SplitPlace { epoch: u32::MAX, position: u32::MAX }),
        error: Some("é".repeat(MAX_ERROR_BYTES / 2)),
        times: WorkerTimes { source_ms: u64::MAX, compute_ms: u64::MAX, put_ms: u64::MAX },
    };
    let bytes = postcard::to_stdvec(&bundle).unwrap();
    // Keys, attribute names and the version take the rest of the kilobyte.
    assert!(bytes.len() <= 900, "{} bytes", bytes.len());
    assert_eq!(postcard::from_bytes::<Bundle>(&bytes).unwrap(), bundle);
}

proptest! {
    #[test]
    fn errors_are_cut_to_one_short_line(text: String, fill in 0usize..300) {
        let line = error_line(&(text + &"é".repeat(fill)));
        prop_assert!(line.len() <= MAX_ERROR_BYTES && !line.contains('\n'));
    }

    /// No sequence of commands panics or breaks an invariant (the transitions assert them).
    #[test]
    fn any_sequence_of_commands_keeps_the_invariants(
        commands in prop::collection::vec((0u8..6, 1u8..4, 0u32..5, 0u8..4, 0u64..200_000), 0..60),
    ) {
        let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
        let mut bundle: Option<Bundle> = None;
        let mut deaths = 0;
        for (kind, id, attempt, at, now_ms) in commands {
            let (nonce, before) = (nonce(id), bundle.as_ref());
            let outcome = match kind {
                0 => {
                    deaths += 1;
                    let death = before.map(|b| DeathEvidence { attempt: b.attempt, ordinal: Some(deaths) });
                    let (invocation, term) = (&invocation(id), LeaseTerm { now_ms, ..TERM });
                    let records = &[5, 5, 5];
                    let command = ClaimTransition { nonce, invocation, term, first: 0, records, death, control: Some(crate::splits::SplitPlace::default()) };
                    claim(before, &command, &limits)
                }
                1 => mark(before, &MarkTransition { attempt, nonce, split_index: at }),
                2 => flush(before, &command(attempt, id, &[commit(at)])),
                3 => {
                    let fatal = at == 3;
                    let retry_at_ms = now_ms;
                    fail(before, &FailTransition { attempt, nonce, error: "e", retry_at_ms, fatal })
                }
                4 => give_back(before, attempt, nonce),
                _ => release(before, &ReleaseTransition { invocation: &invocation(id), attempt: None, blameless: id % 2 == 0 }),
            };
            if let Ok(TransitionOutcome::Write(after)) = outcome {
                bundle = Some(after);
            }
        }
    }
}
