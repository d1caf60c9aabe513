//! A job's numerics class: that of its first worker, unless its trainer chose one.

use crate::{Jobs, items::JobItem, store::ItemUpdateError};
use gristmill_model::wire::ClaimCall;

impl Jobs {
    /// Sets the job's numerics class to that of its first worker, unless its trainer chose one. Declines a
    /// worker of another class, with the error.
    pub(crate) async fn settle_numerics(
        &self,
        claim: &ClaimCall,
        item: &JobItem,
    ) -> Result<JobItem, ItemUpdateError<String>> {
        let caching = match item.spec.numerics.as_str() {
            "" => self.settle_points(item, &claim.numerics).await?,
            _ => item.caching.clone(),
        };
        let settle = |item: &mut JobItem| match item.spec.numerics.as_str() {
            "" => {
                item.spec.numerics.clone_from(&claim.numerics);
                item.caching.clone_from(&caching);
                Ok(())
            }
            settled if settled == claim.numerics => Ok(()),
            settled => Err(ItemUpdateError::Declined(format!(
                "the job runs numerics class {settled}, and a worker has {}: results would \
                 differ; deploy workers of the trainer's architecture, or use no local workers",
                claim.numerics
            ))),
        };
        let settled = self.records.change_job(&claim.job, settle).await?;
        if settled.caching.is_some() {
            self.remember_numerics(&claim.numerics).await?;
        }
        Ok(settled)
    }
}
