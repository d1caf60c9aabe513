//! Collection: objects behind the trainer's durable cursor are deleted. The horizon is written
//! first, on the item of the cursor it follows; a sweep that dies is done again from where the last
//! one ended.

use crate::{
    Coordinator,
    caching::Passed,
    coordinator::refuse,
    items::{ItemName, JobItem, Swept},
    jobs::object_fault,
    scan::ScannedBundle,
};
use gristmill_protocol::{Refusal, keys};
use gristmill_splits::{
    self as splits, Consumer, EntryKind, Outcome, Place,
    collect::{ChunkName, Verdict, verdict},
    job::JobState,
    order::Ramp,
};
use gristmill_types::JobName;

impl Coordinator {
    /// Deletes what `consumer` has durably passed, once that is worth two writes.
    pub(crate) async fn collect(
        &self,
        job: &JobName,
        item: &JobItem,
        consumer: Consumer,
    ) -> Result<(), Refusal> {
        let Some(plan) = item.plan.filter(|plan| plan.n_splits > 0) else { return Ok(()) };
        let n = plan.n_splits;
        let passed =
            consumer.durable_place.linear(n).saturating_sub(consumer.collected_place.linear(n));
        let worth = u64::from(plan.window_splits / 2).max(8);
        if passed < worth && item.state != JobState::Done {
            return Ok(());
        }
        let consumer = self.move_horizon(job).await?;
        self.sweep(job, item, &Ramp::new(n, plan.r), consumer.collected_place).await
    }

    /// Moves the horizon up to what is durable: no trainer begins before it.
    pub(crate) async fn move_horizon(&self, job: &JobName) -> Result<Consumer, Refusal> {
        let decide = |before: Option<&Consumer>| splits::collected(before);
        let consumer = self.store.update(&ItemName::Consumer(job), decide).await?;
        consumer.map_err(|refusal| refuse(&refusal))
    }

    /// Deletes the objects of all splits before `horizon` that are not deleted yet.
    async fn sweep(
        &self,
        job: &JobName,
        item: &JobItem,
        ramp: &Ramp,
        horizon: Place,
    ) -> Result<(), Refusal> {
        let caching = item.caching.as_ref();
        let name = ItemName::Swept(job);
        let read = self.store.read::<Swept>(&name).await?;
        let swept = read.item.unwrap_or_default().place;
        let n = ramp.n_splits();
        let (mut at, mut end) = (swept.linear(n), horizon.linear(n));
        let mut names = Vec::new();
        while at < end {
            let (epoch, position) = ((at / u64::from(n)) as u32, (at % u64::from(n)) as u32);
            match caching.map_or(Passed::Deleted, |caching| caching.passed(epoch)) {
                Passed::Deleted => {}
                Passed::Kept => {
                    at = (u64::from(epoch) + 1) * u64::from(n);
                    continue;
                }
                Passed::Undecided => {
                    end = at;
                    break;
                }
            }
            let Some(index) = ramp.bundle_of(position) else { break };
            names.push((epoch, index));
            at = u64::from(epoch) * u64::from(n) + u64::from(ramp.positions(index).end);
        }
        let mut doomed = Vec::new();
        for bundle in self.read_bundles(job, ramp, &names).await? {
            let shelf = caching.and_then(|caching| caching.view.chunks_shelf(bundle.epoch));
            doomed.extend(self.deletable(job, shelf, &bundle, horizon).await?);
        }
        if !doomed.is_empty() {
            let deleted = self.objects.delete(&self.settings.bucket, &doomed).await;
            deleted.map_err(|error| object_fault(&error))?;
        }
        // Behind what is not decided yet, the sweep goes on later.
        let place = match end < horizon.linear(n) {
            true => {
                Place { epoch: (end / u64::from(n)) as u32, position: (end % u64::from(n)) as u32 }
            }
            false => horizon,
        };
        let after = Swept { place };
        let decide = |before: Option<&Swept>| {
            Ok::<_, Refusal>(match before {
                Some(before) if before.place >= place => Outcome::AlreadyApplied(*before),
                _ => Outcome::Write(after),
            })
        };
        self.store.update_from(&name, read, decide).await??;
        Ok(())
    }

    /// Keys of a bundle's objects that may go. Only where an attempt failed can there be objects
    /// that no entry names: those are listed.
    async fn deletable(
        &self,
        job: &JobName,
        shelf: Option<&str>,
        bundle: &ScannedBundle,
        horizon: Place,
    ) -> Result<Vec<String>, Refusal> {
        let Some(item) = &bundle.item else { return Ok(Vec::new()) };
        let own = keys::bundle_prefix(&self.settings.ns, job, bundle.epoch, bundle.index);
        let prefix = shelf.map_or(own, |shelf| keys::shelf_bundle(shelf, bundle.index));
        let mut doomed = Vec::new();
        for (position, entry) in bundle.positions.clone().zip(&item.entries) {
            let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::Object) else {
                continue;
            };
            let (attempt, nonce) = (entry.attempt, entry.nonce);
            let name = ChunkName { epoch: bundle.epoch, position, attempt, nonce };
            if verdict(&name, Some(item), bundle.positions.start, horizon, false) != Verdict::Keep {
                doomed.push(keys::chunk(&prefix, position, attempt, nonce));
            }
        }
        if item.attempt > 1 && item.state == splits::BundleState::Done {
            let listed = self.objects.list(&self.settings.bucket, &prefix).await;
            for info in listed.map_err(|error| object_fault(&error))? {
                let orphan = keys::parse_chunk(&prefix, &info.key).is_some_and(
                    |(position, attempt, nonce)| {
                        let name = ChunkName { epoch: bundle.epoch, position, attempt, nonce };
                        let verdict =
                            verdict(&name, Some(item), bundle.positions.start, horizon, false);
                        verdict == Verdict::DeleteOrphan
                    },
                );
                if orphan {
                    doomed.push(info.key);
                }
            }
        }
        Ok(doomed)
    }
}
