//! Claims, case by case.

use super::*;
use crate::splits::{
    DeathLog, DeathRecord, FailTransition, MarkTransition, SplitKind, TRIAL_ATTEMPTS, fail, mark,
    release,
};
use proptest::prelude::*;

const TERM: LeaseTerm = LeaseTerm { now_ms: 1_000, remaining_ms: 900_000, predicted_ms: 0 };

fn nonce(id: u8) -> Nonce {
    Nonce([id; 8])
}

fn invocation() -> InvocationId {
    InvocationId("one".into())
}

fn try_claim(
    before: Option<&Bundle>,
    id: u8,
    now_ms: u64,
    death: Option<DeathEvidence>,
    limits: &BundleRetryLimits,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let command = ClaimTransition {
        nonce: nonce(id),
        invocation: &invocation(),
        term: LeaseTerm { now_ms, ..TERM },
        first: 8,
        records: &[5, 6],
        death,
        control: Some(SplitPlace::default()),
    };
    claim(before, &command, limits)
}

fn leased(id: u8) -> Bundle {
    try_claim(None, id, 1_000, None, &BundleRetryLimits::default()).unwrap().into_item()
}

/// The platform reports that the owner died.
fn reported(bundle: &Bundle) -> Bundle {
    let report = crate::splits::ReleaseTransition {
        invocation: &invocation(),
        attempt: None,
        blameless: false,
    };
    release(Some(bundle), &report).unwrap().into_item()
}

/// Marks `at` and dies; another worker claims once the lease is over.
fn die_on(bundle: &Bundle, at: u8, ordinal: u64, limits: &BundleRetryLimits) -> Bundle {
    let command = MarkTransition { attempt: bundle.attempt, nonce: bundle.owner, split_index: at };
    let marked = reported(&mark(Some(bundle), &command).unwrap().into_item());
    let death = Some(DeathEvidence { attempt: bundle.attempt, ordinal: Some(ordinal) });
    // Another worker claims: an owner that claims again is slow, not dead.
    let id = bundle.owner.0[0] % 100 + 1;
    try_claim(Some(&marked), id, marked.until_ms, death, limits).unwrap().into_item()
}

/// The commit of a bundle's second split.
fn commit_of_second() -> crate::splits::SplitCommit {
    crate::splits::SplitCommit {
        split_index: 1,
        outcome: SplitOutcome {
            kind: SplitKind::Object,
            object_bytes: 1,
            crc32c: 1,
            rows: 1,
            batches: 1,
            remainder_rows: 0,
            skipped_records: 0,
        },
    }
}

#[test]
fn a_first_claim_takes_the_lease_for_as_long_as_the_work_may_take() {
    let bundle = leased(1);
    assert_eq!((bundle.state, bundle.attempt), (BundleState::Leased, 1));
    assert_eq!(bundle.todo(), [0, 1]);
    let until = |remaining_ms, predicted_ms| {
        lease_until_ms(LeaseTerm { now_ms: 0, remaining_ms, predicted_ms })
    };
    assert_eq!(until(900_000, 0), 32_000);
    assert_eq!(until(900_000, 10_000), 42_000);
    assert_eq!(until(5_000, 10_000), 7_000);
    assert_eq!(until(u64::MAX, u64::MAX), u64::MAX);
}

#[test]
fn a_claim_sent_again_finds_its_own_lease() {
    let bundle = leased(1);
    let limits = BundleRetryLimits::default();
    let again = try_claim(Some(&bundle), 1, 2_000, None, &limits);
    assert_eq!(again, Ok(TransitionOutcome::AlreadyApplied(bundle.clone())));
    let other = try_claim(Some(&bundle), 2, 2_000, None, &limits);
    assert_eq!(other, Err(TransitionRefusal::Leased { until_ms: bundle.until_ms }));
}

#[test]
fn a_death_is_recorded_before_the_claim_that_follows_it() {
    let (bundle, limits) = (leased(1), BundleRetryLimits::default());
    let refused = try_claim(Some(&bundle), 2, bundle.until_ms, None, &limits);
    assert_eq!(refused, Err(TransitionRefusal::DeathUnrecorded { attempt: 1, split_index: None }));
    let of_another_attempt = Some(DeathEvidence { attempt: 2, ordinal: Some(1) });
    assert!(try_claim(Some(&bundle), 2, bundle.until_ms, of_another_attempt, &limits).is_err());
    let death = Some(DeathEvidence { attempt: 1, ordinal: Some(1) });
    let after = try_claim(Some(&bundle), 2, bundle.until_ms, death, &limits).unwrap().into_item();
    assert_eq!((after.attempt, after.owner), (2, nonce(2)));
    // The split that it died on is unknown.
    assert_eq!(after.suspect, None);
}

#[test]
fn a_slow_owner_that_claims_again_is_not_a_death() {
    let bundle = leased(1);
    let after =
        try_claim(Some(&bundle), 1, bundle.until_ms, None, &BundleRetryLimits::default()).unwrap();
    assert_eq!(after.write().map(|bundle| bundle.attempt), Some(2));
}

#[test]
fn a_failure_is_retried_when_it_is_due() {
    let command = FailTransition {
        attempt: 1,
        nonce: nonce(1),
        error: "slow",
        retry_at_ms: 5_000,
        fatal: false,
    };
    let failed = fail(Some(&leased(1)), &command).unwrap().into_item();
    let limits = BundleRetryLimits::default();
    let early = try_claim(Some(&failed), 2, 4_999, None, &limits);
    assert_eq!(early, Err(TransitionRefusal::NotDue { retry_at_ms: 5_000 }));
    let due = try_claim(Some(&failed), 2, 5_000, None, &limits).unwrap().into_item();
    assert_eq!((due.state, due.attempt), (BundleState::Leased, 2));
}

#[test]
fn three_deaths_in_a_row_on_one_split_beside_controls_make_it_poison() {
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let mut bundle = leased(1);
    for ordinal in 1..=DEATHS {
        assert!(bundle.entries.iter().all(Option::is_none), "poison after {ordinal} deaths");
        bundle = die_on(&bundle, 1, ordinal, &limits);
    }
    let entry = bundle.entry(1).unwrap();
    assert_eq!(
        (entry.outcome.kind, entry.outcome.rows, entry.outcome.skipped_records),
        (SplitKind::Poison, 0, 6)
    );
    assert_eq!(bundle.todo(), [0]);
}

/// Deaths until three strikes find a split guilty. Its neighbour, which is never committed here,
/// comes first until attempt 4; from then on every other attempt has a control.
const DEATHS: u64 = 7;

#[test]
fn a_suspect_is_done_last_and_on_trial_first_with_a_control() {
    let limits = BundleRetryLimits::default();
    let lease = |bundle: &Bundle| (bundle.todo(), bundle.control.is_some());
    let mut bundle = die_on(&leased(1), 0, 1, &limits);
    assert_eq!(lease(&bundle), (vec![1, 0], false));
    bundle = die_on(&bundle, 0, 2, &limits);
    assert_eq!(lease(&bundle), (vec![1, 0], false));
    bundle = die_on(&bundle, 0, 3, &limits);
    assert_eq!(bundle.attempt, TRIAL_ATTEMPTS);
    for (ordinal, control) in (4..).zip([false, true, false, true]) {
        assert_eq!(lease(&bundle), (vec![0, 1], control), "attempt {}", bundle.attempt);
        bundle = die_on(&bundle, 0, ordinal, &limits);
    }
}

#[test]
fn without_a_control_nothing_is_poison() {
    let limits = BundleRetryLimits {
        on_error: ErrorPolicy::Skip,
        max_attempts: 100,
        ..BundleRetryLimits::default()
    };
    let mut bundle = leased(1);
    for ordinal in 1..=40 {
        bundle.control = None;
        bundle = die_on(&bundle, 0, ordinal, &limits);
    }
    assert!(bundle.entries.iter().all(Option::is_none));
    assert_eq!(bundle.suspect.map(|suspect| suspect.strikes), Some(1));
}

#[test]
fn a_death_during_the_control_ends_a_suspicion() {
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let bundle = (1..=6).fold(leased(1), |bundle, ordinal| die_on(&bundle, 0, ordinal, &limits));
    assert_eq!(bundle.suspect.map(|suspect| suspect.strikes), Some(2));
    assert!(bundle.control.is_some());
    // It had marked nothing yet.
    let death = Some(DeathEvidence { attempt: bundle.attempt, ordinal: Some(7) });
    let after = try_claim(Some(&reported(&bundle)), 77, 1_000, death, &limits).unwrap();
    assert_eq!(after.item().suspect, None);
}

#[test]
fn a_neighbour_that_was_committed_before_the_death_is_a_control() {
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let mut bundle = die_on(&leased(1), 0, 1, &limits);
    let commit = commit_of_second();
    let (attempt, nonce) = (bundle.attempt, bundle.owner);
    let (commits, next, times) = (&[commit][..], Some(0), WorkerTimes::default());
    let flush = crate::splits::FlushTransition { attempt, nonce, commits, next, term: TERM, times };
    bundle = crate::splits::flush(Some(&bundle), &flush).unwrap().into_item();
    let death = Some(DeathEvidence { attempt, ordinal: Some(2) });
    let after = try_claim(Some(&reported(&bundle)), 77, 1_000, death, &limits).unwrap();
    assert_eq!(after.item().suspect.map(|suspect| suspect.strikes), Some(2));
    assert!(after.item().control.is_some(), "nothing else is left: the next owner needs one");
}

#[test]
fn a_blameless_end_is_no_strike_and_ends_a_suspicion() {
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let suspected = die_on(&leased(1), 0, 1, &limits);
    let command =
        MarkTransition { attempt: suspected.attempt, nonce: suspected.owner, split_index: 0 };
    let marked = mark(Some(&suspected), &command).unwrap().into_item();
    let strikes = |blameless| {
        let report = crate::splits::ReleaseTransition {
            invocation: &invocation(),
            attempt: None,
            blameless,
        };
        let released = crate::splits::release(Some(&marked), &report).unwrap().into_item();
        let death = Some(DeathEvidence { attempt: marked.attempt, ordinal: Some(2) });
        let claimed = try_claim(Some(&released), 9, 2_000, death, &limits).unwrap().into_item();
        claimed.suspect.map(|suspect| suspect.strikes)
    };
    assert_eq!((strikes(false), strikes(true)), (Some(1), None));
}

#[test]
fn a_lease_that_ran_out_is_no_evidence() {
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let mut bundle = leased(1);
    // A coordinator whose clock is ahead takes the lease from a living worker again and again.
    for ordinal in 1..=10 {
        let command =
            MarkTransition { attempt: bundle.attempt, nonce: bundle.owner, split_index: 0 };
        let marked = mark(Some(&bundle), &command).unwrap().into_item();
        let death = Some(DeathEvidence { attempt: marked.attempt, ordinal: Some(ordinal) });
        let id = bundle.owner.0[0] + 1;
        bundle = try_claim(Some(&marked), id, marked.until_ms, death, &limits).unwrap().into_item();
        assert_eq!((bundle.state, bundle.suspect), (BundleState::Leased, None));
    }
}

#[test]
fn deaths_elsewhere_end_a_suspicion() {
    let limits = BundleRetryLimits { on_error: ErrorPolicy::Skip, ..BundleRetryLimits::default() };
    let mut bundle = leased(1);
    for ordinal in [1, 2, 4, 5, 7, 8, 10] {
        bundle = die_on(&bundle, 0, ordinal, &limits);
    }
    assert!(bundle.entries.iter().all(Option::is_none));
    // A death on the other split of the same bundle ends it too.
    let mut bundle = leased(1);
    for ordinal in 1..=20 {
        bundle = die_on(&bundle, (ordinal / 2 % 2) as u8, ordinal, &limits);
    }
    assert!(bundle.entries.iter().all(Option::is_none));
}

#[test]
fn a_host_that_kills_at_random_poisons_nothing() {
    // Ten bundles on one host; every death is on some bundle, and each is recorded in turn.
    let limits = BundleRetryLimits {
        on_error: ErrorPolicy::Skip,
        max_attempts: 1_000,
        ..BundleRetryLimits::default()
    };
    let mut bundles: Vec<_> = (0..10).map(|_| leased(1)).collect();
    let mut log: Option<DeathLog> = None;
    for death in 0..500u32 {
        let b = (death.wrapping_mul(2_654_435_761) >> 16) % 10;
        let attempt = bundles[b as usize].attempt;
        let record = DeathRecord { epoch: 0, bundle: b, attempt };
        let after = DeathLog::record(log.as_ref(), record, true).into_item();
        let ordinal = after.ordinal(record).unwrap();
        bundles[b as usize] = die_on(&bundles[b as usize], 0, ordinal, &limits);
        log = Some(after);
    }
    let entries = || bundles.iter().flat_map(|bundle| &bundle.entries);
    assert!(entries().all(Option::is_none));
}

#[test]
fn under_policy_fail_poison_fails_the_job_and_names_the_split() {
    let limits = BundleRetryLimits::default();
    let bundle =
        (1..=DEATHS).fold(leased(1), |bundle, ordinal| die_on(&bundle, 1, ordinal, &limits));
    assert_eq!(bundle.state, BundleState::Dead);
    let error = bundle.error.clone().unwrap();
    assert!(error.contains("position 9") && error.contains("6 records"), "{error}");
    let again = try_claim(Some(&bundle), 5, u64::MAX, None, &limits);
    assert_eq!(again, Err(TransitionRefusal::Dead { error }));
}

#[test]
fn poison_in_the_last_open_split_ends_the_bundle() {
    let limits =
        BundleRetryLimits { on_error: ErrorPolicy::Quarantine, ..BundleRetryLimits::default() };
    let mut bundle = leased(1);
    bundle.entries = vec![None];
    let command = |bundle: &Bundle, death| {
        let term = LeaseTerm { now_ms: bundle.claimable_at_ms().unwrap(), ..TERM };
        let invocation = &invocation();
        let nonce = nonce(bundle.attempt as u8 + 1);
        let control = Some(SplitPlace::default());
        claim(
            Some(bundle),
            &ClaimTransition { nonce, invocation, term, first: 0, records: &[3], death, control },
            &limits,
        )
        .unwrap()
        .into_item()
    };
    for ordinal in 1..=5 {
        let started =
            MarkTransition { attempt: bundle.attempt, nonce: bundle.owner, split_index: 0 };
        let marked = reported(&mark(Some(&bundle), &started).unwrap().into_item());
        bundle = command(
            &marked,
            Some(DeathEvidence { attempt: marked.attempt, ordinal: Some(ordinal) }),
        );
    }
    assert_eq!(bundle.state, BundleState::Done);
    assert!(bundle.is_complete());
}

#[test]
fn a_bundle_is_given_up_after_its_attempts() {
    let limits = BundleRetryLimits { max_attempts: 3, retry_ms: 0, ..BundleRetryLimits::default() };
    let mut bundle = leased(1);
    for attempt in 1..=3 {
        assert_eq!((bundle.attempt, bundle.state), (attempt, BundleState::Leased));
        let nonce = bundle.owner;
        let command =
            FailTransition { attempt, nonce, error: "no space", retry_at_ms: 0, fatal: false };
        bundle = fail(Some(&bundle), &command).unwrap().into_item();
        bundle = try_claim(Some(&bundle), 2, 0, None, &limits).unwrap().into_item();
    }
    assert_eq!(bundle.state, BundleState::Dead);
    let error = bundle.error.unwrap();
    assert!(error.contains("3 attempts") && error.contains("no space"), "{error}");
}

#[test]
fn attempts_that_fail_at_once_are_not_the_end_before_its_time() {
    let limits = BundleRetryLimits::default();
    let failed_at = |bundle: &Bundle, now_ms| {
        let (attempt, nonce) = (bundle.attempt, bundle.owner);
        let command =
            FailTransition { attempt, nonce, error: "no space", retry_at_ms: 0, fatal: false };
        let failed = fail(Some(bundle), &command).unwrap().into_item();
        try_claim(Some(&failed), 2, now_ms, None, &limits).unwrap().into_item()
    };
    // 600 within ten minutes.
    let begun = leased(1);
    let bundle = (1..=600).fold(begun.clone(), |bundle, n| failed_at(&bundle, 1_000 + n * 1_000));
    assert_eq!((bundle.state, bundle.attempt), (BundleState::Leased, 601));
    // A committed split restarts the time.
    let commit = commit_of_second();
    let late_ms = begun.since_ms + limits.retry_ms - 1;
    let flush = crate::splits::FlushTransition {
        attempt: bundle.attempt,
        nonce: bundle.owner,
        commits: &[commit],
        next: None,
        term: LeaseTerm { now_ms: late_ms, ..TERM },
        times: WorkerTimes::default(),
    };
    let progressed = crate::splits::flush(Some(&bundle), &flush).unwrap().into_item();
    assert_eq!(failed_at(&progressed, late_ms + 60_000).state, BundleState::Leased);
    for bundle in
        [failed_at(&bundle, late_ms + 1), failed_at(&progressed, late_ms + limits.retry_ms)]
    {
        assert_eq!(bundle.state, BundleState::Dead);
        let error = bundle.error.unwrap();
        assert!(error.contains("601 attempts, 30 min") && error.contains("no space"), "{error}");
    }
}

#[test]
fn a_released_bundle_is_claimed_at_once() {
    let command = crate::splits::ReleaseTransition {
        invocation: &invocation(),
        attempt: Some(1),
        blameless: false,
    };
    let released = release(Some(&leased(1)), &command).unwrap().into_item();
    let death = Some(DeathEvidence { attempt: 1, ordinal: Some(1) });
    let after =
        try_claim(Some(&released), 2, 0, death, &BundleRetryLimits::default()).unwrap().into_item();
    assert_eq!((after.state, after.attempt), (BundleState::Leased, 2));
}

#[test]
fn malformed_claims_are_refused() {
    let limits = BundleRetryLimits::default();
    let long = InvocationId("x".repeat(65));
    let claim_of = |records: &[u32], invocation: &InvocationId| {
        let command = ClaimTransition {
            nonce: nonce(1),
            invocation,
            term: TERM,
            first: 0,
            records,
            death: None,
            control: None,
        };
        claim(None, &command, &limits)
    };
    for (records, invocation) in
        [(&[][..], &invocation()), (&[1; 9][..], &invocation()), (&[1][..], &long)]
    {
        assert!(matches!(claim_of(records, invocation), Err(TransitionRefusal::Invalid { .. })));
    }
    let mut shorter = leased(1);
    shorter.entries.pop();
    assert!(matches!(
        try_claim(Some(&shorter), 1, 0, None, &limits),
        Err(TransitionRefusal::Invalid { .. })
    ));
}

proptest! {
    #[test]
    fn strikes_count_only_consecutive_ordinals(gaps in prop::collection::vec(1u64..3, 1..20)) {
        let (mut ordinal, mut suspect, mut run) = (0, None, 0);
        for gap in gaps {
            run = if gap == 1 && suspect.is_some() { run + 1 } else { 1 };
            ordinal += gap;
            suspect = Some(struck(suspect, 0, ordinal, true));
            prop_assert_eq!(suspect.map(|suspect| suspect.strikes), Some(run));
        }
    }
}
