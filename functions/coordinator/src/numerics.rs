//! A job's numerics class: that of its first worker, unless its trainer chose one.

use crate::{
    Coordinator,
    coordinator::no_job,
    items::{ItemName, JobItem},
    store::Unchanged,
};
use gristmill_model::splits::Outcome;
use gristmill_model::wire::Claim;

impl Coordinator {
    /// Sets the job's numerics class to that of its first worker, unless its trainer chose one. Declines a
    /// worker of another class, with the error.
    pub(crate) async fn settle_numerics(
        &self,
        claim: &Claim,
        item: &JobItem,
    ) -> Result<JobItem, Unchanged<String>> {
        let caching = match item.spec.numerics.as_str() {
            "" => self.settle_points(item, &claim.numerics).await?,
            _ => item.caching.clone(),
        };
        let decide = |before: Option<&JobItem>| {
            let before = before.ok_or_else(|| no_job(&claim.job))?;
            let mut after = before.clone();
            match before.spec.numerics.as_str() {
                "" => {
                    after.spec.numerics.clone_from(&claim.numerics);
                    after.caching.clone_from(&caching);
                }
                settled if settled == claim.numerics => return Ok(Outcome::AlreadyApplied(after)),
                settled => {
                    return Err(Unchanged::Declined(format!(
                        "the job runs numerics class {settled}, and a worker has {}: results \
                         would differ; deploy workers of the trainer's architecture, or use no \
                         local workers",
                        claim.numerics
                    )));
                }
            }
            Ok(Outcome::Write(after))
        };
        let settled = self.store.update(&ItemName::Job(&claim.job), decide).await?;
        if settled.caching.is_some() {
            self.remember_numerics(&claim.numerics).await?;
        }
        Ok(settled)
    }
}
