//! A ledger's decisions, and that no order of them passes the cap.

use super::*;
use proptest::prelude::*;

/// A cent, at the price of the stack's worker.
fn cent() -> JobBudget {
    JobBudget {
        cap: 10_000_000_000,
        worker_ms: 23_035,
        split: 9_000_000,
        local_split: 4_000_000,
        ..JobBudget::default()
    }
}

fn demand(splits: u64, split_ms: u64) -> LeaseDemand {
    LeaseDemand { splits, price: splits * cent().split, split_ms, attempt: 1 }
}

fn run(of: u64) -> Nonce {
    Nonce(of.to_be_bytes())
}

fn at(of: u64, age_ms: u64) -> InvocationAge {
    InvocationAge { run: run(of), age_ms }
}

/// A ledger with workers `0..n`, each let in as the run of its number.
fn started(n: u32) -> SpendingLedger {
    let mut ledger = SpendingLedger::new(1, cent());
    ledger.start(0..n, 0);
    assert!((0..n).all(|worker| ledger.admit(worker, run(u64::from(worker)))));
    ledger
}

#[test]
fn a_copy_of_an_event_is_not_let_in_and_the_first_is_again() {
    let mut ledger = started(1);
    assert!(ledger.admit(0, run(0)) && !ledger.admit(0, run(9)) && !ledger.admit(1, run(1)));
    let copies = 2 * (ADMISSION_MS + AROUND_MS) * cent().worker_ms;
    assert_eq!(ledger.spent, copies, "they have run for a moment");
    assert_eq!(ledger.pay(0, at(9, 100), &demand(1, 100), 0), None);
    let before = ledger.clone();
    ledger.leave(0, at(9, 100));
    assert_eq!(ledger, before, "a copy does not end the other");
}

#[test]
fn a_ledger_is_read_from_a_reply_with_a_tag() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "reply")]
    enum TaggedReply {
        Poll { ledger: SpendingLedger },
    }
    let reply = TaggedReply::Poll { ledger: started(2) };
    let text = serde_json::to_string(&reply).unwrap();
    assert_eq!(serde_json::from_str::<TaggedReply>(&text).unwrap(), reply, "{text}");
}

#[test]
fn time_that_a_worker_was_given_is_never_taken_back() {
    let mut ledger = started(1);
    assert_eq!(ledger.pay(0, at(0, 1_000), &demand(8, 1_000), 0), Some(15_000));
    // The answer to the next claim is lost, and a copy of the first arrives.
    assert_eq!(ledger.pay(0, at(0, 9_000), &demand(1, 1_000), 0), Some(7_000));
    assert_eq!(ledger.pay(0, at(0, 1_000), &demand(1, 1_000), 0), Some(15_000));
    assert_eq!(ledger.workers[&0].limit_ms, 16_000);
}

#[test]
fn money_that_a_worker_leaves_is_free_again_once() {
    let mut ledger = started(2);
    ledger.pay(0, at(0, 1_000), &demand(1, 0), 0);
    ledger.leave(0, at(0, 2_000));
    let spent = cent().split + 2_800 * cent().worker_ms;
    assert_eq!(ledger.spent, spent);
    ledger.leave(0, at(0, 2_500));
    ledger.lose(0);
    assert_eq!(ledger.spent, spent, "late copies of its end");
    assert_eq!(ledger.pay(0, at(0, 2_000), &demand(1, 0), 0), None, "a late copy of a claim");
    // The other is silent.
    ledger.settle(200_000, |_| false);
    assert_eq!(ledger.spent, spent + (FIRST_MS + AROUND_MS) * cent().worker_ms);
    assert_eq!(ledger.committed(), ledger.spent);
}

#[test]
fn an_event_that_was_not_accepted_costs_its_copies_until_they_cannot_come() {
    let mut ledger = SpendingLedger::new(1, cent());
    let before = ledger.affordable(0);
    ledger.start(0..3, 1_000);
    (0..3).for_each(|worker| ledger.take_back(worker));
    ledger.settle(2_000, |_| false);
    assert_eq!(ledger.committed(), 0);
    assert!(ledger.affordable(0) < before);
    ledger.settle(1_000 + COPIES_KNOWN_MS, |_| false);
    assert_eq!(ledger.affordable(0), before);
}

#[test]
fn the_last_lease_ends_when_the_budget_does() {
    let mut ledger = started(1);
    ledger.sent.clear();
    let mut leases = 0;
    let mut age_ms = 500;
    while let Some(goes_on_ms) = ledger.pay(0, at(0, age_ms), &demand(8, 2_000), 0) {
        assert!(goes_on_ms >= 5_500);
        age_ms += 16_000.min(goes_on_ms);
        leases += 1;
    }
    assert!(leases > 20);
    ledger.leave(0, at(0, age_ms));
    assert!(ledger.spent <= cent().cap && ledger.spent > cent().cap / 100 * 97, "{ledger:?}");
    assert!(ledger.is_exhausted(0, cent().local_split, true));
}

#[test]
fn no_worker_is_started_that_could_not_be_given_a_lease() {
    let mut ledger = started(1);
    ledger.sent.clear();
    ledger.spent = cent().cap - ledger.committed() - ledger.start_price();
    assert_eq!(ledger.affordable(0), 1);
    assert_eq!(ledger.pay(0, at(0, 1_000), &demand(8, 20_000), 0), None);
    ledger.leave(0, at(0, 1_000));
    assert_eq!(ledger.affordable(0), 0);
    assert!(ledger.is_exhausted(0, cent().local_split, true));
    ledger.budget.cap *= 2;
    assert!(ledger.affordable(0) > 0 && !ledger.is_exhausted(0, cent().local_split, true));
}

#[test]
fn workers_on_the_trainers_host_keep_what_they_need_to_finish() {
    let mut ledger = started(1);
    let kept = cent().cap - ledger.committed();
    assert_eq!(ledger.pay(0, at(0, 500), &demand(1, 1_000), kept), None);
    assert!(!ledger.is_exhausted(kept, cent().local_split, true) && ledger.affordable(kept) == 0);
    assert!(ledger.pay_local(cent().local_split));
    ledger.budget.cap = ledger.committed();
    assert!(
        !ledger.pay_local(cent().local_split) && ledger.is_exhausted(1, cent().local_split, true)
    );
    ledger.sent.clear();
    ledger.budget.cap += 3 * cent().local_split;
    let rest = |splits: u64| splits * cent().local_split;
    assert!(ledger.pays_bundle(rest(3), rest(1)), "the last splits of a job");
    assert!(!ledger.pays_bundle(rest(20), rest(1)), "a bundle may have more");
}

#[test]
fn a_late_event_brings_back_neither_an_earlier_budget_nor_an_earlier_job() {
    let ledger = started(1);
    let of = |registered_ms, revision, cap| {
        let budget = JobBudget { revision, cap, ..cent() };
        SpendingLedger::continued(Some(&ledger), registered_ms, budget)
    };
    assert_eq!(of(1, 0, 7).unwrap().budget, cent());
    let raised = of(1, 1, 7).unwrap();
    assert_eq!((raised.budget.cap, raised.workers.len()), (7, 1));
    let lower = JobBudget { cap: 5, ..cent() };
    assert_eq!(SpendingLedger::continued(Some(&raised), 1, lower).unwrap().budget.cap, 7);
    assert_eq!([of(0, 5, 7), of(2, 5, 7)], [None, None], "clocks do not tell which is later");
}

#[test]
fn a_split_that_did_not_fit_is_given_twice_the_time() {
    let second = LeaseDemand { attempt: 3, ..demand(1, 2_000) };
    assert_eq!(second.times_ms(), (22_000, 24_000));
    assert_eq!(LeaseDemand { attempt: u32::MAX, ..second }.times_ms().1, LONGEST_MS);
}

/// An invocation with the limit that it knows: it may run until then, though its messages are lost.
#[derive(Debug, Clone, Copy, Default)]
struct LimitedWorker {
    limit_ms: u64,
    age_ms: u64,
    has_left: bool,
}

proptest! {
    /// Any order of starts, claims whose answers may be lost, ends that may be lost, late copies and wrong clocks: what
    /// all invocations may spend at most is within the cap.
    #[test]
    fn nothing_can_be_spent_beyond_the_cap(
        cap in 0u64..20_000_000_000,
        steps in prop::collection::vec((0u8..7, 0u32..8, 0u64..40_000, 0u64..9), 1..300),
    ) {
        let budget = JobBudget { cap, ..cent() };
        let mut ledger = SpendingLedger::new(1, budget);
        let mut known: BTreeMap<u32, LimitedWorker> = BTreeMap::new();
        let (mut next, mut paid) = (0, 0);
        for (step, worker, ms, splits) in steps {
            let worker = if next == 0 { 0 } else { worker % next };
            let of = InvocationAge { run: run(u64::from(worker)), age_ms: ms };
            match step {
                0 => {
                    let n = ledger.affordable(0).min(worker + 1);
                    ledger.start(next..next + n, ms);
                    next += n;
                }
                1 => if ledger.admit(worker, of.run) {
                    let one = known.entry(worker).or_default();
                    one.limit_ms = one.limit_ms.max(FIRST_MS);
                },
                2 => {
                    let demand = LeaseDemand { attempt: 1, ..demand(splits, ms) };
                    let Some(one) = known.get_mut(&worker) else { continue };
                    let said = InvocationAge { age_ms: one.age_ms, ..of };
                    if let Some(goes_on_ms) = ledger.pay(worker, said, &demand, 0) {
                        // A copy arrived late: the worker has left and does not receive the answer.
                        paid += demand.price;
                        if !one.has_left {
                            one.limit_ms = one.limit_ms.max(one.age_ms + goes_on_ms);
                        }
                    }
                }
                3 => if let Some(one) = known.get_mut(&worker).filter(|one| !one.has_left) {
                    one.age_ms = (one.age_ms + ms).min(one.limit_ms);
                },
                4 => if let Some(one) = known.get_mut(&worker) {
                    (one.limit_ms, one.has_left) = (one.age_ms, true);
                    ledger.leave(worker, InvocationAge { age_ms: one.age_ms, ..of });
                },
                5 => ledger.settle(ms * 10, |number| number != worker),
                _ => if ledger.pay_local(splits * budget.local_split) {
                    paid += splits * budget.local_split;
                },
            }
            let worst: u64 = known.values().map(|one| budget.invocation(one.limit_ms)).sum();
            prop_assert!(worst + paid <= cap, "{worst} + {paid} of {cap}: {ledger:?}");
            prop_assert!(ledger.committed() <= cap);
        }
    }
}
