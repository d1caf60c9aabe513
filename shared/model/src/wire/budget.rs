//! A hard cap on what a job spends: its prices, and the ledger in the scaler's item by which no function is started and
//! nothing is leased that the cap might not pay for.
//!
//! Money that an invocation may still spend counts as spent. Each invocation measures its own age, by its monotonic clock,
//! and ends itself at the limit that the ledger has set aside for it. So no comparison of two clocks decides: wrong wall
//! clocks only move the moment at which the money for copies of an event is free again ([`COPIES_KNOWN_MS`]).

use crate::{Nonce, splits::MAX_BUNDLE_SPLITS, wire::ScaleState};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// A millionth of a millionth of a dollar: a millisecond of the smallest function costs more than a thousand.
pub const PICODOLLARS: f64 = 1e12;

/// The cap of a job, over all its runs, and the prices, in picodollars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobBudget {
    pub cap: u64,
    /// A millisecond of a worker.
    pub worker_ms: u64,
    /// Requests of a split that a worker makes, and of one made on a trainer's host.
    pub split: u64,
    pub local_split: u64,
    /// A MiB of batches: stored for a while, and transferred.
    pub mib: u64,
    /// How many times programs that joined the job have changed it: a late event may bring an earlier one.
    #[serde(default)]
    pub revision: u32,
}

impl JobBudget {
    /// The cap in dollars.
    pub fn cap_usd(&self) -> f64 {
        self.cap as f64 / PICODOLLARS
    }

    /// The most that an invocation of `age_ms` has cost.
    fn invocation(&self, age_ms: u64) -> u64 {
        (age_ms.saturating_add(AROUND_MS)).saturating_mul(self.worker_ms)
    }

    /// The price of `splits` of `bytes` each, beside the time of their worker.
    pub fn splits(&self, splits: u64, bytes: u64, local: bool) -> u64 {
        if local {
            return splits.saturating_mul(self.local_split);
        }
        let stored = bytes.div_ceil(1 << 20).saturating_mul(self.mib);
        splits.saturating_mul(self.split.saturating_add(stored))
    }
}

/// A budget as the scaler needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetFacts {
    pub budget: JobBudget,
    /// When the job was registered: an event of an earlier job of the name must not change its ledger.
    pub registered_ms: u64,
    /// Picodollars that workers on trainers' hosts need for the rest of the job.
    pub kept: u64,
}

/// The age at which an invocation ends that the coordinator has not let in.
pub const ADMISSION_MS: u64 = 2_000;
/// The age until which the first lease must have come.
pub const FIRST_MS: u64 = 6_000;
/// The age at which a worker may end after it has begun to leave: for its notice, and no longer.
pub const LEAVING_MS: u64 = 500;
/// Time that is billed beside that which an invocation measures: its cold start, and its end after it has begun to leave.
const AROUND_MS: u64 = 300 + LEAVING_MS;
/// The platform may run an event so many times more; all but the first to be let in end by [`ADMISSION_MS`].
const COPIES: u64 = 2;
/// No copy of an event begins later after the event was sent: it expires after a minute. The rest is the error that the
/// wall clocks of coordinator and scaler may have, together.
const COPIES_KNOWN_MS: u64 = 180_000;
/// The least lease of a worker, unless less would do or is left.
const LEASE_MS: u64 = 30_000;
/// Time of a lease beside its splits: reads, writes and calls.
const BESIDE_MS: u64 = 3_000;
/// The longest lease, for any prediction.
const LONGEST_MS: u64 = 900_000;

/// The part of an invocation in the ledger that is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaidWorker {
    /// The invocation that was let in, by a nonce of its own: copies of an event have one request id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Nonce>,
    /// The age at which it ends.
    pub limit_ms: u64,
}

/// An invocation's word on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationAge {
    /// Drawn by the invocation.
    pub run: Nonce,
    /// Milliseconds since it began, by its monotonic clock, when it says so.
    pub age_ms: u64,
}

/// A lease to be paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseDemand {
    pub splits: u64,
    /// Picodollars beside the worker's time.
    pub price: u64,
    /// Predicted time of a split, 0 if unknown.
    pub split_ms: u64,
    /// The attempt at the bundle: one that ended for want of time is given twice as much.
    pub attempt: u32,
}

impl LeaseDemand {
    /// The time that is useful at least, and the time to set aside.
    fn times_ms(&self) -> (u64, u64) {
        let doubled = |ms: u64| {
            let factor = 1u64 << self.attempt.saturating_sub(1).min(10);
            ms.saturating_mul(factor).min(LONGEST_MS)
        };
        if self.split_ms == 0 {
            return (doubled(BESIDE_MS + BESIDE_MS / 2), doubled(LEASE_MS));
        }
        let splits_ms = self.split_ms.saturating_mul(self.splits);
        let least_ms = self.split_ms.saturating_add(self.split_ms / 4);
        (doubled(least_ms + BESIDE_MS), doubled(splits_ms + splits_ms / 2 + BESIDE_MS))
    }
}

/// Money that a job has spent, and that those who work for it may still spend. Every change is one compare-and-set of the item
/// that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendingLedger {
    pub registered_ms: u64,
    pub budget: JobBudget,
    /// Picodollars of splits, and of invocations that have ended.
    pub spent: u64,
    /// Invocations that have not ended, as far as is known, by their number.
    #[serde(with = "as_pairs")]
    pub workers: BTreeMap<u32, PaidWorker>,
    /// Events sent lately: when, and how many.
    pub sent: Vec<(u64, u32)>,
    /// The time of a split, as a worker last predicted it; 0 before.
    #[serde(default)]
    pub split_ms: u64,
    /// Picodollars that the latest lease needed at least, beside the first money of its worker. Without them, a worker would
    /// be started in vain.
    #[serde(default)]
    pub needed: u64,
}

impl SpendingLedger {
    /// The ledger of a job that has spent nothing.
    pub fn new(registered_ms: u64, budget: JobBudget) -> Self {
        let (workers, sent) = (BTreeMap::new(), Vec::new());
        Self { registered_ms, budget, spent: 0, workers, sent, split_ms: 0, needed: 0 }
    }

    /// The ledger of the job that was registered then, with its newest budget; none if the kept one is that of another job
    /// of the name.
    pub fn continued(kept: Option<&Self>, registered_ms: u64, budget: JobBudget) -> Option<Self> {
        let Some(kept) = kept else { return Some(Self::new(registered_ms, budget)) };
        let newer = budget.revision > kept.budget.revision;
        let budget = if newer { budget } else { kept.budget };
        (kept.registered_ms == registered_ms).then(|| Self { budget, ..kept.clone() })
    }

    /// Picodollars spent, those included that invocations may still spend.
    pub fn committed(&self) -> u64 {
        let limits = self.workers.values().map(|worker| self.budget.invocation(worker.limit_ms));
        limits.fold(self.spent, u64::saturating_add)
    }

    /// The same in dollars.
    pub fn spent_usd(&self) -> f64 {
        self.committed() as f64 / PICODOLLARS
    }

    /// Picodollars for copies of the events sent lately.
    fn held(&self) -> u64 {
        let sent = self.sent.iter().map(|(_, events)| u64::from(*events)).sum::<u64>();
        self.copies().saturating_mul(sent)
    }

    /// Picodollars that are free, beside `kept`.
    fn room(&self, kept: u64) -> u64 {
        let taken = self.committed().saturating_add(self.held()).saturating_add(kept);
        self.budget.cap.saturating_sub(taken)
    }

    /// Picodollars for copies of one event.
    fn copies(&self) -> u64 {
        self.budget.invocation(ADMISSION_MS).saturating_mul(COPIES)
    }

    /// Whether no further worker can be paid for, if one that is started `helps`, nor, if `kept` is money for local workers, a
    /// bundle of splits at `local_split` that they make. A tenth of the cap or more that is held for copies of events is
    /// worth waiting for.
    pub fn is_exhausted(&self, kept: u64, local_split: u64, helps: bool) -> bool {
        let later = self.room(kept).saturating_add(self.held());
        let is_worth_it = later >= self.start_price() && later >= self.budget.cap / 10;
        let waits = !self.sent.is_empty() && is_worth_it;
        let pays_remote = helps && self.affordable(kept) > 0;
        let pays_local = kept > 0 && self.pays_bundle(kept, local_split);
        !pays_remote && !pays_local && !waits
    }

    /// Picodollars of a worker that can do something: copies of its event, its first money, and the least of a lease.
    fn start_price(&self) -> u64 {
        let first = self.budget.invocation(FIRST_MS).saturating_add(self.copies());
        first.saturating_add(self.needed)
    }

    /// Workers that can be started.
    pub fn affordable(&self, kept: u64) -> u32 {
        let most = self.room(kept).checked_div(self.start_price()).unwrap_or(u64::MAX);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Sets the first money aside for `workers`, whose events are about to be sent. There must be [room](Self::affordable).
    pub fn start(&mut self, workers: Range<u32>, at_ms: u64) {
        self.sent.push((at_ms, workers.end.saturating_sub(workers.start)));
        let paid = PaidWorker { run: None, limit_ms: FIRST_MS };
        self.workers.extend(workers.map(|worker| (worker, paid)));
    }

    /// The ledger in `scale` as it is at `now_ms`, if there is one of the job that `facts` are of.
    pub fn at(scale: &ScaleState, facts: &BudgetFacts, now_ms: u64) -> Option<Self> {
        let stored = scale.spending.as_ref();
        let mut ledger = Self::continued(stored, facts.registered_ms, facts.budget)?;
        let outstanding: BTreeSet<u32> =
            scale.outstanding.iter().map(|(worker, _)| worker).collect();
        ledger.settle(now_ms, |worker| outstanding.contains(&worker));
        Some(ledger)
    }

    /// Takes away what is known at `now_ms`: events of which no copy can begin any more, and workers that are not
    /// `outstanding`. A worker that was let in and has not said goodbye has spent all it could.
    pub fn settle(&mut self, now_ms: u64, outstanding: impl Fn(u32) -> bool) {
        self.sent.retain(|(at_ms, _)| now_ms.saturating_sub(*at_ms) < COPIES_KNOWN_MS);
        let gone: Vec<u32> =
            self.workers.keys().copied().filter(|worker| !outstanding(*worker)).collect();
        gone.into_iter().for_each(|worker| self.lose(worker));
    }

    /// A worker is gone without a word: it has spent all it could.
    pub fn lose(&mut self, worker: u32) {
        let Some(PaidWorker { run, limit_ms }) = self.workers.remove(&worker) else { return };
        let limit_ms = run.map_or(ADMISSION_MS, |_| limit_ms);
        self.spent = self.spent.saturating_add(self.budget.invocation(limit_ms));
    }

    /// The platform did not accept the event to `worker`.
    pub fn take_back(&mut self, worker: u32) {
        self.workers.remove(&worker);
    }

    /// Lets an invocation in. False for a copy, and for a worker that is not expected any more: they have cost something.
    pub fn admit(&mut self, worker: u32, run: Nonce) -> bool {
        let paid = self.workers.get_mut(&worker);
        let is_expected = paid.is_some_and(|paid| *paid.run.get_or_insert(run) == run);
        if !is_expected {
            // Money was set aside for copies; calls that arrive twice do not count beyond the cap.
            let most = self.budget.cap.saturating_sub(self.committed());
            self.spent += self.budget.invocation(ADMISSION_MS).min(most);
        }
        is_expected
    }

    /// Pays for a lease. Returns how long after its word the worker may go on; none if that is too short to be of use, or
    /// the worker was not let in. The limit never falls: a worker may not have received the last one. Notes in any case
    /// what the lease needs.
    pub fn pay(
        &mut self,
        worker: u32,
        said: InvocationAge,
        demand: &LeaseDemand,
        kept: u64,
    ) -> Option<u64> {
        let known_ms = if demand.split_ms > 0 { demand.split_ms } else { self.split_ms };
        let (least_ms, wanted_ms) = LeaseDemand { split_ms: known_ms, ..*demand }.times_ms();
        let paid = self.workers.get(&worker).filter(|paid| paid.run == Some(said.run))?;
        let first_age_ms = if paid.limit_ms > FIRST_MS { ADMISSION_MS } else { said.age_ms };
        let beyond_ms = first_age_ms.saturating_add(least_ms).saturating_sub(FIRST_MS);
        self.needed = demand.price.saturating_add(beyond_ms.saturating_mul(self.budget.worker_ms));
        let left = self.room(kept).checked_sub(demand.price)?;
        let more_ms = left.checked_div(self.budget.worker_ms).unwrap_or(u64::MAX);
        let paid = self.workers.get_mut(&worker)?;
        let most_ms = paid.limit_ms.saturating_add(more_ms);
        let wanted_ms = said.age_ms.saturating_add(wanted_ms);
        let limit_ms = wanted_ms.min(most_ms).max(paid.limit_ms);
        let goes_on_ms = limit_ms.checked_sub(said.age_ms).filter(|ms| *ms >= least_ms)?;
        paid.limit_ms = limit_ms;
        self.spent = self.spent.saturating_add(demand.price);
        self.split_ms = known_ms;
        Some(goes_on_ms)
    }

    /// Whether a bundle of splits at `local_split` can be paid for, which a trainer's host makes; the rest of the job needs
    /// `kept`.
    pub fn pays_bundle(&self, kept: u64, local_split: u64) -> bool {
        self.room(0) >= local_split.saturating_mul(MAX_BUNDLE_SPLITS as u64).min(kept)
    }

    /// Pays for what is made on a trainer's host; false if the cap does not allow it.
    pub fn pay_local(&mut self, price: u64) -> bool {
        let pays = price <= self.room(0);
        self.spent = self.spent.saturating_add(if pays { price } else { 0 });
        pays
    }

    /// An invocation ends now: what it had left is free again. A late copy of its word changes nothing.
    pub fn leave(&mut self, worker: u32, said: InvocationAge) {
        let of_run = |paid: &&PaidWorker| paid.run == Some(said.run);
        let Some(paid) = self.workers.get(&worker).filter(of_run) else { return };
        let age_ms = said.age_ms.min(paid.limit_ms);
        self.workers.remove(&worker);
        self.spent = self.spent.saturating_add(self.budget.invocation(age_ms));
    }
}

/// A map as a list of pairs: replies are read by their tag first, and then keys are no numbers any more.
mod as_pairs {
    use super::{BTreeMap, PaidWorker};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(
        of: &BTreeMap<u32, PaidWorker>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        of.iter().collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u32, PaidWorker>, D::Error> {
        Ok(Vec::<(u32, PaidWorker)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
