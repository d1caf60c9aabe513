//! Jobs with a budget: who is let in, what is paid for, and how the job ends and goes on.

use super::*;
use gristmill_model::wire::{
    DescribeCall, GivenOptions, InvocationAge, JobBudget, OPTIONS, OptionMeaning, SpendingLedger,
};

/// Picodollars of a worker's millisecond: prices are round here.
const WORKER_MS: u64 = 10;
const SPLIT: u64 = 1_000;

fn budget(cap: u64) -> JobBudget {
    JobBudget { cap, worker_ms: WORKER_MS, split: SPLIT, local_split: 100, ..JobBudget::default() }
}

fn said(worker: u32, age_ms: u64) -> InvocationAge {
    InvocationAge { run: Nonce([worker as u8; 8]), age_ms }
}

impl World {
    /// Joins the job with another budget.
    async fn give(&self, cap: u64, resumes: Option<u32>) -> JobView {
        let spec = JobSpec { budget: Some(budget(cap)), ..JobSpec::new(String::new()) };
        let view = self.call(StatusCall { job: self.job.clone() }).await.unwrap().job;
        let spec = JobSpec { pipeline: view.spec.pipeline, ..spec };
        let given = GivenOptions::only(["budget-usd".to_owned()]);
        let join = RegisterCall::join(self.job.clone(), spec, given);
        let nonce = Some(self.clock.nonce());
        self.call(RegisterCall { nonce, resumes, ..join }).await.unwrap()
    }

    /// Does with the ledger what a scaler does that sends `workers`.
    async fn send(&self, workers: Range<u32>) {
        let job = self.call(StatusCall { job: self.job.clone() }).await.unwrap().job;
        let (version, mut scale) = self.scale().await;
        let kept = scale.spending.as_ref();
        let budget = job.spec.budget.unwrap();
        let mut ledger = SpendingLedger::continued(kept, job.registered_ms, budget).unwrap();
        ledger.start(workers.clone(), self.clock.now_ms());
        scale.outstanding.add(workers, self.clock.now_ms());
        scale.spending = Some(ledger);
        let body = serde_json::to_vec(&scale).unwrap().into();
        self.table.write(&self.scale_key(), version, body, None).await.unwrap();
    }

    async fn is_let_in(&self, worker: u32, run: InvocationAge) -> bool {
        let admits = Some((worker, run));
        self.call(DescribeCall { job: self.job.clone(), admits }).await.is_ok()
    }

    async fn claim_at(&self, worker: u32, said: Option<InvocationAge>) -> ClaimReply {
        self.call(ClaimCall { said, ..self.claim_of_worker(worker) }).await.unwrap()
    }

    async fn spent(&self) -> u64 {
        self.scale().await.1.spending.unwrap().committed()
    }
}

#[tokio::test]
async fn only_the_invocation_that_was_let_in_gets_leases() {
    let world = World::running(ErrorPolicy::Fail).await;
    world.give(1_000_000, None).await;
    world.send(1..2).await;
    assert!(!world.is_let_in(2, said(2, 5)).await, "nobody sent it");
    assert!(world.is_let_in(1, said(1, 5)).await && world.is_let_in(1, said(1, 9)).await);
    assert!(!world.is_let_in(1, said(7, 5)).await, "a copy of its event");
    let surplus = ClaimReply::Idle(IdleReply { reason: IdleReason::Surplus });
    for (worker, said) in [(1, None), (1, Some(said(7, 50))), (2, Some(said(2, 50)))] {
        assert_eq!(world.claim_at(worker, said).await, surplus);
    }
    let ClaimReply::Leased(lease) = world.claim_at(1, Some(said(1, 50))).await else { panic!() };
    assert_eq!(lease.attempt, 1, "those that went back were no attempts");
    assert_eq!(lease.goes_on_ms, Some(30_000));
    // Those that were not let in have cost something.
    let others = 2 * 2_800 * WORKER_MS;
    let splits = lease.todo.len() as u64 * SPLIT + others;
    assert_eq!(world.spent().await, splits + (30_050 + 800) * WORKER_MS);
    let said = Some(said(1, 2_000));
    for _ in 0..2 {
        let leave = LeaveCall { job: world.job.clone(), worker: 1, error: None, said };
        world.call(leave).await.unwrap();
        assert_eq!(world.spent().await, splits + 2_800 * WORKER_MS);
    }
    assert_eq!(world.claim_at(1, said).await, surplus, "it has left");
}

#[tokio::test]
async fn a_job_ends_when_its_budget_does_and_goes_on_with_more() {
    let world = World::running(ErrorPolicy::Fail).await;
    // One worker, with the copies of its event, and a lease of 10 s.
    let cap = 6_800 * WORKER_MS + 2 * 2_800 * WORKER_MS + 20 * SPLIT;
    world.give(cap, None).await;
    world.send(1..2).await;
    assert!(world.is_let_in(1, said(1, 5)).await);
    let ClaimReply::Leased(lease) = world.claim_at(1, Some(said(1, 50))).await else { panic!() };
    world.flush(&lease, BATCH, 0).await;
    assert_eq!(world.poll(0, None).await.job.state, JobState::Running);
    let made = lease.todo.len() as u32;
    let leave =
        LeaveCall { job: world.job.clone(), worker: 1, error: None, said: Some(said(1, 5_900)) };
    world.call(leave).await.unwrap();
    assert_eq!(
        world.poll(0, None).await.job.state,
        JobState::Running,
        "the trainer has splits to take"
    );
    let failed = world.poll(made, None).await.job;
    let JobState::Failed { error, .. } = &failed.state else { panic!("{failed:?}") };
    assert!(error.contains("its budget is spent") && error.contains("--budget-usd"), "{error}");
    assert!(world.spent().await <= cap);
    let again = world.give(cap, Some(failed.resumed)).await;
    assert_eq!(again.state, JobState::Running);
    let failed = world.poll(made, None).await.job;
    assert!(matches!(failed.state, JobState::Failed { .. }), "it has no more than before");
    world.give(3 * cap, Some(failed.resumed)).await;
    world.pass(2).await;
    assert_eq!(world.poll(made, None).await.job.state, JobState::Running);
    let facts = world.last_kick().budget.unwrap();
    assert_eq!((facts.budget.cap, facts.budget.revision), (3 * cap, 2));
    let before = world.spent().await;
    world.send(2..3).await;
    assert_eq!(world.spent().await, before + 6_800 * WORKER_MS, "what was spent stays so");
}

#[tokio::test]
async fn workers_on_the_trainers_host_pay_for_requests_alone_and_stop_at_the_cap() {
    let world = World::running(ErrorPolicy::Fail).await;
    // Until their run is known they may make splits that are stored for others.
    world.give(20 * SPLIT + 50, None).await;
    let claim = |nonce: Nonce| ClaimCall {
        local: true,
        invocation: InvocationId("local".into()),
        nonce,
        ..world.claim_of_worker(0)
    };
    let mut splits = 0;
    while let Ok(ClaimReply::Leased(lease)) = world.call(claim(world.clock.nonce())).await {
        splits += lease.todo.len() as u64;
        assert_eq!((lease.goes_on_ms, world.spent().await), (None, splits * SPLIT));
    }
    assert!((1..=20).contains(&splits), "{splits}");
}

#[test]
fn a_change_of_the_budget_has_a_revision_of_its_own() {
    let (_, meaning) = OPTIONS.iter().find(|(name, _)| *name == "budget-usd").unwrap();
    let OptionMeaning::OfJoiner(words, take) = meaning else { panic!() };
    let mut spec = JobSpec::new(String::new());
    assert_eq!(words(&spec), "none");
    for revision in 1..3 {
        take(&mut spec, &JobSpec { budget: Some(budget(7)), ..JobSpec::new(String::new()) });
        assert_eq!(spec.budget.unwrap().revision, revision);
    }
    spec.budget = Some(budget(2_500_000_000_000));
    assert_eq!(words(&spec), "$2.5");
}
