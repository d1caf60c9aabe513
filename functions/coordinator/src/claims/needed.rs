//! Claims that name the split which the caller's trainer waits for.

use super::{Claiming, idle, leasing::leased};
use crate::{Splits, bundles::ScannedBundle};
use gristmill_model::splits::SplitPlace;
use gristmill_model::wire::{CallRefusal, ClaimReply, IdleReason};

impl Splits {
    /// Leases the bundle of the split at `place`, if it is claimable: one read by key, and no search. The window
    /// does not matter: what fills it is freed only after this split is made.
    pub(super) async fn take_needed(
        &self,
        claiming: &Claiming<'_>,
        place: SplitPlace,
    ) -> Result<ClaimReply, CallRefusal> {
        let (claim, item) = (claiming.claim, &claiming.snapshot.item);
        let Some(plan) = item.plan else { return Ok(claiming.idle()) };
        let at = place.linear(plan.n_splits);
        let course = item.course(at..at.saturating_add(1).min(claiming.reach.most));
        let mut bundles = ScannedBundle::all_unseen(&course);
        self.records.read_by_key(&claim.job, item, &mut bundles).await?;
        for bundle in &bundles {
            // An earlier sending of the claim has leased it.
            if let Some(held) = bundle.item.as_ref().filter(|held| held.is_held_by(claim.nonce)) {
                return Ok(leased(item, bundle, held));
            }
        }
        let mut put_off = Vec::new();
        if let Some(reply) = self.take_first(claiming, bundles, &mut put_off).await? {
            return Ok(reply);
        }
        for bundle in put_off {
            if let Some(reply) = self.take(claiming, &bundle, None).await? {
                return Ok(reply);
            }
        }
        Ok(idle(IdleReason::AllClaimed))
    }
}
