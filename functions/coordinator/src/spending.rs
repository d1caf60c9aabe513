//! Jobs with a budget: workers are let in, their leases are paid for, and the job ends when nobody can go on.

use crate::{
    CallHandler, Jobs, Splits,
    items::{ItemName, JobItem},
    kicks::silent_workers,
    scan::WindowScan,
    snapshot::JobSnapshot,
    store::invalid,
};
use gristmill_model::JobName;
use gristmill_model::splits::{JobProgress, TransitionOutcome};
use gristmill_model::wire::{
    BudgetFacts, CallRefusal, ClaimCall, ClaimReply, FailCall, IdleReason, IdleReply,
    InvocationAge, Lease, LeaseDemand, PICODOLLARS, ScaleState, SpendingLedger,
};

/// The budget of a job as its ledger needs it, if it has one. Local workers need theirs until all splits are made.
pub(crate) fn budget_facts(item: &JobItem, progress: &JobProgress) -> Option<BudgetFacts> {
    let mut budget = item.spec.budget?;
    if !stays_on_the_host(item, progress) {
        budget.local_split = budget.splits(1, split_bytes(item), false);
    }
    let delivered = item.plan.map_or(0, |plan| progress.delivered.linear(plan.n_splits));
    let left = item.run().saturating_sub(delivered);
    let kept = if progress.local_workers > 0 { budget.splits(left, 0, true) } else { 0 };
    Some(BudgetFacts { budget, registered_ms: item.registered_ms, kept })
}

/// Whether splits made on a trainer's host are stored nowhere else: for no other reader, and in no cache. Local workers may
/// begin before their run has joined.
fn stays_on_the_host(item: &JobItem, progress: &JobProgress) -> bool {
    item.caching.is_none() && progress.run.is_some_and(|run| run.ranks.count.get() == 1)
}

/// Estimated bytes of a split.
fn split_bytes(item: &JobItem) -> u64 {
    item.plan.map_or(0, |plan| plan.batch_bytes.saturating_mul(u64::from(plan.split_batches())))
}

impl Jobs {
    /// Begins the ledger of a job with a budget, if it has none. A late event of an earlier job of the name may have left
    /// another, by which nobody would be paid.
    pub(crate) async fn begin_spending(
        &self,
        job: &JobName,
        item: &JobItem,
    ) -> Result<(), CallRefusal> {
        let (registered_ms, Some(budget)) = (item.registered_ms, item.spec.budget) else {
            return Ok(());
        };
        let begin = |scale: &mut ScaleState| {
            let kept = SpendingLedger::continued(scale.spending.as_ref(), registered_ms, budget);
            scale.spending =
                Some(kept.unwrap_or_else(|| SpendingLedger::new(registered_ms, budget)));
        };
        self.records.store.change_or_create(&ItemName::Scale(job), begin).await.map(|_| ())
    }
}

impl Splits {
    /// Lets a worker of a job with a budget in, once.
    pub(crate) async fn admit(
        &self,
        job: &JobName,
        (worker, said): (u32, InvocationAge),
    ) -> Result<(), CallRefusal> {
        let mut is_expected = false;
        self.change_ledger(job, |ledger| is_expected = ledger.admit(worker, said.run)).await?;
        if is_expected { Ok(()) } else { Err(invalid("the worker is not expected")) }
    }

    /// The worker says that it ends now.
    pub(crate) async fn settle(
        &self,
        job: &JobName,
        worker: u32,
        said: Option<InvocationAge>,
    ) -> Result<(), CallRefusal> {
        let Some(said) = said else { return Ok(()) };
        self.change_ledger(job, |ledger| ledger.leave(worker, said)).await
    }

    /// Changes a ledger that exists.
    async fn change_ledger(
        &self,
        job: &JobName,
        mut change: impl FnMut(&mut SpendingLedger),
    ) -> Result<(), CallRefusal> {
        let decide = |before: Option<&ScaleState>| {
            let before = before.cloned().unwrap_or_default();
            let mut after = before.clone();
            if let Some(ledger) = &mut after.spending {
                change(ledger);
            }
            Ok::<_, CallRefusal>(TransitionOutcome::new(Some(&before), after))
        };
        self.records.store.update(&ItemName::Scale(job), decide).await?;
        Ok(())
    }

    /// Whether the budget pays for a bundle that a worker on a trainer's host makes. Without, it would lease bundles and give
    /// them back, again and again. Ends the job if its trainer needs the bundle and nobody else is paid: with readers that are
    /// not there yet, a bundle beyond the window is one that only this worker could make.
    pub(crate) async fn pays_host(
        &self,
        claim: &ClaimCall,
        JobSnapshot { item, progress, .. }: &JobSnapshot,
    ) -> Result<bool, CallRefusal> {
        let Some(facts) = budget_facts(item, progress).filter(|_| claim.local) else {
            return Ok(true);
        };
        let job = &claim.job;
        let scale = self.records.store.read::<ScaleState>(&ItemName::Scale(job)).await?;
        let scale = scale.item.unwrap_or_default();
        let now_ms = self.records.clock.now_ms();
        let pays = SpendingLedger::at(&scale, &facts, now_ms)
            .is_some_and(|ledger| ledger.pays_bundle(facts.kept, facts.budget.local_split));
        if !pays && let (Some(place), Some(plan)) = (claim.needed, item.plan) {
            let mut scan = self.records.scan(job, item, progress, progress.delivered).await?;
            let at = place.linear(plan.n_splits);
            let is_for_all = scan.candidates(now_ms).any(|bundle| bundle.span().contains(&at));
            let needed = self.records.read_bundles(job, item, &item.ranges(at..at + 1)).await?;
            let is_open = needed.iter().any(|bundle| bundle.open() > 0);
            scan.bundles.extend(needed);
            if let Some(error) = pays_nobody(item, &facts, &scale, &scan, now_ms, is_for_all)
                && is_open
            {
                self.records.fail_job(job, item, error).await?;
            }
        }
        Ok(pays)
    }

    /// `lease`, once it is paid for; a worker whose lease the budget does not pay for gives it back. It is leased first, so
    /// that its price is known; a coordinator that dies in between has given nobody the lease.
    pub(crate) async fn paid(
        &self,
        claim: &ClaimCall,
        JobSnapshot { item, progress, .. }: &JobSnapshot,
        mut lease: Lease,
    ) -> Result<ClaimReply, CallRefusal> {
        let Some(facts) = budget_facts(item, progress) else {
            return Ok(ClaimReply::Leased(lease));
        };
        let splits = lease.todo.len() as u64;
        let (price, attempt) =
            (facts.budget.splits(splits, split_bytes(item), claim.local), lease.attempt);
        let demand = LeaseDemand { splits, price, split_ms: claim.split_ms, attempt };
        let now_ms = self.records.clock.now_ms();
        let (mut pays, mut goes_on_ms) = (false, None);
        let decide = |before: Option<&ScaleState>| {
            let before = before.cloned().unwrap_or_default();
            let mut after = before.clone();
            after.spending = SpendingLedger::at(&before, &facts, now_ms);
            pays = after.spending.as_mut().is_some_and(|ledger| {
                if claim.local {
                    return ledger.pay_local(price);
                }
                let worker = claim.invocation.worker().zip(claim.said);
                goes_on_ms =
                    worker.and_then(|(worker, said)| ledger.pay(worker, said, &demand, facts.kept));
                goes_on_ms.is_some()
            });
            Ok::<_, CallRefusal>(TransitionOutcome::new(Some(&before), after))
        };
        self.records.store.update(&ItemName::Scale(&claim.job), decide).await?;
        if pays {
            lease.goes_on_ms = goes_on_ms;
            return Ok(ClaimReply::Leased(lease));
        }
        let back = FailCall {
            lease: lease.reference(&claim.job, claim.nonce),
            error: "the budget does not pay for it".to_owned(),
            fatal: false,
            record: None,
            blameless: true,
        };
        self.handle(&back).await?;
        Ok(ClaimReply::Idle(IdleReply { reason: IdleReason::Surplus }))
    }
}

/// The error of a job whose budget pays for nobody who could make the split that its trainer needs next. Until the trainer
/// needs it, the job delivers what it has paid for.
pub(crate) fn spent(
    item: &JobItem,
    progress: &JobProgress,
    scale: &ScaleState,
    scan: &WindowScan,
    now_ms: u64,
) -> Option<String> {
    let facts = budget_facts(item, progress)?;
    let is_waiting = item.plan.is_none() || scan.awaits_gap();
    let may_be_paid = item.spec.workers > 0 || facts.kept > 0;
    (is_waiting && may_be_paid && scan.claimable(now_ms) > 0)
        .then(|| pays_nobody(item, &facts, scale, scan, now_ms, true))
        .flatten()
}

/// The error of a job in which nobody works and whose budget pays for nobody: no worker on a trainer's host, and none that is
/// started, if one of these could make what is needed.
fn pays_nobody(
    item: &JobItem,
    facts: &BudgetFacts,
    scale: &ScaleState,
    scan: &WindowScan,
    now_ms: u64,
    is_for_all: bool,
) -> Option<String> {
    let ledger = SpendingLedger::at(scale, facts, now_ms).filter(|_| !item.state.is_ended())?;
    let living = scale.outstanding.len() as usize > silent_workers(scale, scan, now_ms).len();
    let ends = !living
        && scan.active_workers(now_ms) == 0
        && ledger.is_exhausted(
            facts.kept,
            facts.budget.local_split,
            is_for_all && item.spec.workers > 0,
        );
    ends.then(|| {
        let cap = ledger.budget.cap as f64 / PICODOLLARS;
        format!(
            "its budget is spent: ${:.4} of ${cap}, and what is left pays for no further worker; start the program again \
             with a larger --budget-usd, and it goes on from its checkpoint",
            ledger.spent_usd()
        )
    })
}
