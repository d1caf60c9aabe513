//! Leases one bundle by compare-and-set; records the death of its previous owner first.

use super::{Claiming, idle};
use crate::{
    Splits,
    bundles::ScannedBundle,
    items::{ItemName, JobItem},
    snapshot::JobSnapshot,
    store::{ItemUpdateError, VersionedItem, invalid},
};
use gristmill_model::JobName;
use gristmill_model::splits::{
    self, Bundle, BundleState, DeathEvidence, DeathLog, DeathRecord, LeaseTerm, SplitPlace,
    TransitionRefusal as SplitRefusal, course::EpochBundle,
};
use gristmill_model::wire::{CallRefusal, ClaimReply, IdleReason, Lease, LeaseWork};

/// The bundle (epoch, index) of a job whose operators are measured. Not the first one: its time is part of
/// how long a new worker takes to start.
const PROFILED: EpochBundle = (0, 1);
impl Splits {
    /// Claims a bundle; none if another worker has it.
    pub(super) async fn take(
        &self,
        claiming: &Claiming<'_>,
        candidate: &ScannedBundle,
        control: Option<SplitPlace>,
    ) -> Result<Option<ClaimReply>, CallRefusal> {
        let Claiming { claim, snapshot: JobSnapshot { item, .. }, .. } = claiming;
        let Some(after) = self.claim_one(claiming, candidate, control).await? else {
            return Ok(None);
        };
        match after.state {
            BundleState::Leased if after.owner == claim.nonce => {
                Ok(Some(leased(item, candidate, &after)))
            }
            BundleState::Dead => {
                let error = after.error.unwrap_or_default();
                self.records.fail_job(&claim.job, item, error).await?;
                Ok(Some(idle(IdleReason::JobEnded)))
            }
            // Another worker won the race.
            _ => Ok(None),
        }
    }

    async fn claim_one(
        &self,
        claiming: &Claiming<'_>,
        candidate: &ScannedBundle,
        control: Option<SplitPlace>,
    ) -> Result<Option<Bundle>, CallRefusal> {
        let Claiming { claim, snapshot: JobSnapshot { item, .. }, now_ms, .. } = claiming;
        let home = item.home(candidate.index);
        let name = ItemName::Bundle(&claim.job, home, candidate.epoch, candidate.index);
        let records = records_of(item, candidate);
        let limits = self.records.settings.limits_of(item.spec.settings.on_error);
        let is_new = candidate.version == 0;
        let mut death = None;
        // The first try may find a dead owner: its death is recorded and the claim repeated. Each attempt
        // has at most one death.
        for _ in 0..3 {
            let decide = |before: Option<&Bundle>| {
                // Another worker has claimed this bundle meanwhile. If it came back, it may need a control,
                // which only claims of returned bundles choose.
                if let Some(other) = before.filter(|b| is_new && !b.is_held_by(claim.nonce)) {
                    let until_ms = other.until_ms;
                    return Err(ItemUpdateError::Declined(SplitRefusal::Leased { until_ms }));
                }
                let open = before.map_or(records.len(), |bundle| bundle.todo().len()) as u64;
                let command = splits::ClaimTransition {
                    nonce: claim.nonce,
                    invocation: &claim.invocation,
                    term: LeaseTerm {
                        now_ms: *now_ms,
                        remaining_ms: claim.remaining_ms,
                        predicted_ms: claim.split_ms.saturating_mul(open),
                    },
                    first: candidate.positions.start,
                    records: &records,
                    death,
                    control,
                };
                splits::claim(before, &command, &limits).map_err(ItemUpdateError::Declined)
            };
            let claimed =
                self.records.store.update_versioned(&name, candidate.versioned(), decide).await;
            let refusal = match claimed {
                Ok((after, version)) => {
                    if after.is_held_by(claim.nonce) && claiming.snapshot.has_few_workers() {
                        let at = (claim.job.clone(), home, (candidate.epoch, candidate.index));
                        let item = Some(after.clone());
                        self.records.memory.keep_lease(at, VersionedItem { version, item });
                    }
                    return Ok(Some(after));
                }
                Err(ItemUpdateError::Fault(fault)) => return Err(fault),
                Err(ItemUpdateError::Declined(refusal)) => refusal,
            };
            match refusal {
                SplitRefusal::DeathUnrecorded { attempt, split_index } => {
                    let (epoch, bundle) = (candidate.epoch, candidate.index);
                    let record = DeathRecord { epoch, bundle, attempt };
                    death =
                        Some(self.record_death(&claim.job, record, split_index.is_some()).await?);
                }
                SplitRefusal::Dead { error } => {
                    self.records.fail_job(&claim.job, item, error).await?;
                    return Ok(None);
                }
                SplitRefusal::Invalid { what } => return Err(invalid(what)),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn record_death(
        &self,
        job: &JobName,
        record: DeathRecord,
        is_marked: bool,
    ) -> Result<DeathEvidence, CallRefusal> {
        tracing::info!(%job, ?record, is_marked, "a worker died");
        let decide = |before: Option<&DeathLog>| {
            Ok::<_, CallRefusal>(DeathLog::record(before, record, is_marked))
        };
        let log = self.records.store.update(&ItemName::Deaths(job), decide).await?;
        Ok(log.death(record, is_marked))
    }
}

pub(super) fn leased(item: &JobItem, candidate: &ScannedBundle, bundle: &Bundle) -> ClaimReply {
    let first = candidate.positions.start;
    let planned = item.plan.is_some();
    let caching = item.caching.as_ref().filter(|_| planned);
    let mut cache = caching.map(|c| c.view.orders(candidate.epoch)).unwrap_or_default();
    // The splits of one bundle are measured in every job, to report what its workers spend their time on.
    cache.profile |= planned && (candidate.epoch, candidate.index) == PROFILED;
    ClaimReply::Leased(Lease {
        home: item.home(candidate.index),
        control: bundle.control,
        epoch: candidate.epoch,
        bundle: candidate.index,
        attempt: bundle.attempt,
        work: if planned { LeaseWork::Splits } else { LeaseWork::Index },
        first,
        todo: bundle.todo().into_iter().map(|at| first + u32::from(at)).collect(),
        cache,
        on_error: item.spec.settings.on_error,
        compress: item.spec.compress,
    })
}

/// Source records of each position, counted as skipped if the split is poisoned. The last split of a file
/// may hold fewer, which only its worker knows.
fn records_of(item: &JobItem, candidate: &ScannedBundle) -> Vec<u32> {
    let records = item.plan.map_or(0, |plan| plan.split_records);
    candidate.positions.clone().map(|_| records).collect()
}
