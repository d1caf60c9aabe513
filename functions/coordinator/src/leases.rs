//! Leases: claimed, marked, flushed, failed, released. Each is one transition of one bundle.

use crate::{
    Coordinator,
    coordinator::{no_job, refuse},
    items::{ItemName, JobItem},
    progress::wanted,
    scan::{Scan, ScannedBundle},
    store::invalid,
};
use gristmill_protocol::{
    Claim, Fail, Flush, Idle, IdleReason, Lease, Leave, Mark, Refusal, Release, Reply, ScaleState,
    Work,
};
use gristmill_splits::{
    self as splits, Bundle, BundleState, Consumer, Death, DeathLog, DeathRecord, Metrics, Outcome,
    Place, Refusal as SplitRefusal, Term, job::JobEvent, retry_delay_ms,
};
use gristmill_types::{BundleIndex, Epoch, InvocationId, JobName};

/// Dead invocations the books remember: more than may have a claim on its way at one time.
const MAX_DEAD: usize = 8;
/// The bundle (epoch, index) of a job that is measured operator by operator. Not the first: what that
/// takes is how long a new worker takes to begin.
const PROFILED: (Epoch, BundleIndex) = (0, 1);

impl Coordinator {
    /// Leases the first bundle that may be claimed.
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<Reply, Refusal> {
        let (mut item, consumer) = self.job_and_consumer(&claim.job).await?;
        let another = claim.registered_ms != 0 && claim.registered_ms != item.registered_ms;
        if item.state.is_ended() || another {
            return Ok(idle(IdleReason::JobEnded));
        }
        if item.plan.is_some() && item.spec.numerics != claim.numerics {
            match self.settle_numerics(claim, &item).await? {
                Ok(settled) => item = settled,
                Err(error) if claim.local => return Err(invalid(error)),
                Err(error) => {
                    self.end_job(&claim.job, &JobEvent::Failed { error }).await?;
                    return Ok(idle(IdleReason::JobEnded));
                }
            }
        }
        let scan = self
            .scan(&claim.job, &item, &consumer, (consumer.delivered, consumer.delivered))
            .await?;
        let now_ms = self.clock.now_ms();
        // The answer to an earlier sending of this claim was lost.
        if let Some(bundle) = scan.owned_by(claim.nonce)
            && let Some(held) = &bundle.item
        {
            return Ok(leased(&item, bundle, held));
        }
        if !claim.local && self.is_surplus(claim, &item, &scan).await? {
            return Ok(idle(IdleReason::Surplus));
        }
        for (candidate, control) in self.trials(&claim.job, &item, &scan, now_ms).await? {
            let claimed = self.claim_one(claim, &item, candidate, (now_ms, control)).await?;
            let Some(after) = claimed else { continue };
            match after.state {
                BundleState::Leased if after.owner == claim.nonce => {
                    return Ok(leased(&item, candidate, &after));
                }
                BundleState::Dead => {
                    let error = after.error.unwrap_or_default();
                    self.end_job(&claim.job, &JobEvent::Failed { error }).await?;
                    return Ok(idle(IdleReason::JobEnded));
                }
                // Another worker was faster.
                _ => {}
            }
        }
        Ok(idle(why_idle(&scan, &item)))
    }

    /// Whether the job has workers enough without this one, which holds no lease. Of several that ask
    /// at a time each leaves only if those that work are enough by themselves.
    async fn is_surplus(
        &self,
        claim: &Claim,
        item: &JobItem,
        scan: &Scan,
    ) -> Result<bool, Refusal> {
        let others = scan.other_workers(self.clock.now_ms(), &claim.invocation);
        if !item.spec.autoscale {
            return Ok(others >= item.spec.workers);
        }
        let books = self.store.read::<ScaleState>(&ItemName::Scale(&claim.job)).await?;
        let books = books.item.unwrap_or_default();
        Ok(books.target > 0 && others >= wanted(item, &books))
    }

    /// The first worker decides the job's numerics class, if its trainer did not; the error says why
    /// one of another class may not work for it.
    async fn settle_numerics(
        &self,
        claim: &Claim,
        item: &JobItem,
    ) -> Result<Result<JobItem, String>, Refusal> {
        let caching = match item.spec.numerics.as_str() {
            "" => self.settle_points(item, &claim.numerics).await?,
            _ => item.caching.clone(),
        };
        let decide = |before: Option<&JobItem>| {
            let before = before.ok_or_else(|| Err(no_job(&claim.job)))?;
            let mut after = before.clone();
            match before.spec.numerics.as_str() {
                "" => {
                    after.spec.numerics.clone_from(&claim.numerics);
                    after.caching.clone_from(&caching);
                }
                settled if settled == claim.numerics => return Ok(Outcome::AlreadyApplied(after)),
                settled => {
                    return Err(Ok(format!(
                        "the job runs numerics class {settled}, a worker came with {}: results would \
                         differ; deploy workers of the trainer's architecture, or use no local workers",
                        claim.numerics
                    )));
                }
            }
            Ok(Outcome::Write(after))
        };
        match self.store.update(&ItemName::Job(&claim.job), decide).await? {
            Ok(settled) => {
                if settled.caching.is_some() {
                    self.remember_numerics(&claim.numerics).await?;
                }
                Ok(Ok(settled))
            }
            Err(Ok(mixed)) => Ok(Err(mixed)),
            Err(Err(refusal)) => Err(refusal),
        }
    }

    /// Tries to claim one bundle; none if somebody else has it.
    async fn claim_one(
        &self,
        claim: &Claim,
        item: &JobItem,
        candidate: &ScannedBundle,
        (now_ms, control): (u64, Option<Place>),
    ) -> Result<Option<Bundle>, Refusal> {
        let name = ItemName::Bundle(&claim.job, candidate.epoch, candidate.index);
        let records = records_of(item, candidate);
        let limits = self.settings.limits_of(item.spec.on_error);
        let mut death = None;
        // A dead owner found once is recorded and the claim repeated; it is found once per attempt.
        for _ in 0..3 {
            let decide = |before: Option<&Bundle>| {
                let open = before.map_or(records.len(), |bundle| bundle.todo().len()) as u64;
                let command = splits::Claim {
                    nonce: claim.nonce,
                    invocation: &claim.invocation,
                    term: Term {
                        now_ms,
                        remaining_ms: claim.remaining_ms,
                        predicted_ms: claim.split_ms.saturating_mul(open),
                    },
                    first: candidate.positions.start,
                    records: &records,
                    death,
                    control,
                };
                splits::claim(before, &command, &limits)
            };
            match self.store.update_from(&name, candidate.versioned(), decide).await? {
                Ok(after) => return Ok(Some(after)),
                Err(SplitRefusal::DeathUnrecorded { attempt, .. }) => {
                    let (epoch, bundle) = (candidate.epoch, candidate.index);
                    let record = DeathRecord { epoch, bundle, attempt };
                    death = self.record_death(&claim.job, record).await?;
                }
                Err(SplitRefusal::Dead { error }) => {
                    self.end_job(&claim.job, &JobEvent::Failed { error }).await?;
                    return Ok(None);
                }
                Err(SplitRefusal::Invalid { what }) => return Err(invalid(what)),
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn record_death(
        &self,
        job: &JobName,
        record: DeathRecord,
    ) -> Result<Option<Death>, Refusal> {
        tracing::info!(%job, ?record, "a worker died");
        let decide = |before: Option<&DeathLog>| Ok::<_, Refusal>(DeathLog::record(before, record));
        let log = self.store.update(&ItemName::Deaths(job), decide).await??;
        Ok(log.death(record))
    }

    /// Notes which split is about to be started.
    pub(crate) async fn mark(&self, mark: &Mark) -> Result<Reply, Refusal> {
        let command = splits::Mark { attempt: mark.attempt, nonce: mark.nonce, cur: mark.index };
        self.transition(&mark.job, mark.epoch, mark.bundle, |before| splits::mark(before, &command))
            .await
    }

    /// Commits splits and renews the lease.
    pub(crate) async fn flush(&self, flush: &Flush) -> Result<Reply, Refusal> {
        let commit = |commit: &gristmill_protocol::Commit| splits::Commit {
            at: commit.index,
            local: commit.local,
            bytes: commit.object_bytes,
            crc32c: commit.crc32c,
            rows: commit.rows,
            batches: commit.batches,
            remainder: commit.remainder_rows,
            skipped: commit.skipped,
        };
        let commits: Vec<_> = flush.commits.iter().map(commit).collect();
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&Bundle>| {
            let open = before.map_or(0, |bundle| bundle.todo().len()) as u64;
            let predicted_ms = flush.split_ms.saturating_mul(open);
            let command = splits::Flush {
                attempt: flush.attempt,
                nonce: flush.nonce,
                commits: &commits,
                next: flush.next,
                term: Term { now_ms, remaining_ms: flush.remaining_ms, predicted_ms },
                spent: Metrics {
                    source_ms: flush.cost.source_ms,
                    compute_ms: flush.cost.compute_ms,
                    put_ms: flush.cost.put_ms,
                },
            };
            splits::flush(before, &command)
        };
        let reply = self.transition(&flush.job, flush.epoch, flush.bundle, decide).await?;
        if let Some(profile) = &flush.profile {
            self.add_profile(&flush.job, profile).await;
        }
        Ok(reply)
    }

    /// Takes a bundle back; a fatal failure ends the job.
    pub(crate) async fn fail(&self, fail: &Fail) -> Result<Reply, Refusal> {
        let retry_at_ms = self.clock.now_ms().saturating_add(retry_delay_ms(fail.attempt));
        let command = splits::Fail {
            attempt: fail.attempt,
            nonce: fail.nonce,
            error: &fail.error,
            retry_at_ms,
            fatal: fail.fatal,
        };
        let reply = self
            .transition(&fail.job, fail.epoch, fail.bundle, |before| splits::fail(before, &command))
            .await?;
        if fail.fatal {
            self.end_job(&fail.job, &JobEvent::Failed { error: fail.error.clone() }).await?;
        }
        Ok(reply)
    }

    /// Frees what a dead invocation held, and strikes its worker off the scaler's books.
    pub(crate) async fn release(&self, release: &Release) -> Result<Reply, Refusal> {
        let Release { job, invocation, worker, blameless, error } = release;
        let (item, consumer) = self.job_and_consumer(job).await?;
        let scan =
            self.scan(job, &item, &consumer, (consumer.delivered, consumer.delivered)).await?;
        let dead = std::slice::from_ref(invocation);
        let freed = self.release_held(job, &scan, dead, *blameless).await?.len();
        tracing::info!(%job, invocation = %invocation.0, leases = freed, "a dead worker was reported");
        if let Some(worker) = worker {
            let ended = (!blameless).then_some((scan.progress(&item), error.as_str()));
            self.strike_off(job, *worker, Some(invocation), ended).await?;
        }
        Ok(Reply::Applied)
    }

    /// Takes a worker that leaves off the books.
    pub(crate) async fn leave(&self, leave: &Leave) -> Result<Reply, Refusal> {
        let Leave { job, worker, error } = leave;
        let progress = match error {
            Some(_) => {
                let (item, consumer) = self.job_and_consumer(job).await?;
                let scan = self
                    .scan(job, &item, &consumer, (consumer.delivered, consumer.delivered))
                    .await?;
                scan.progress(&item)
            }
            None => 0,
        };
        let ended = error.as_deref().map(|error| (progress, error));
        self.strike_off(job, *worker, None, ended).await?;
        Ok(Reply::Applied)
    }

    /// Frees what `dead` invocations hold in `scan`; which of them held something.
    async fn release_held(
        &self,
        job: &JobName,
        scan: &Scan,
        dead: &[InvocationId],
        blameless: bool,
    ) -> Result<Vec<InvocationId>, Refusal> {
        let mut released = Vec::new();
        for bundle in &scan.bundles {
            let held = |b: &&Bundle| b.state == BundleState::Leased && dead.contains(&b.invocation);
            let Some(lease) = bundle.item.as_ref().filter(held) else { continue };
            let (invocation, attempt) = (&lease.invocation, Some(lease.attempt));
            let command = splits::Release { invocation, attempt, blameless };
            let name = ItemName::Bundle(job, bundle.epoch, bundle.index);
            let decide = |before: Option<&Bundle>| splits::release(before, &command);
            // A refusal says that the bundle has moved on: nothing is left to free.
            if self.store.update_from(&name, bundle.versioned(), decide).await?.is_ok() {
                released.push(invocation.clone());
            }
        }
        Ok(released)
    }

    /// Frees leases whose claim arrived after its worker was reported dead; whether there were any.
    /// A worker has one claim under way at most, so that is done once for each: should the platform
    /// run a doubled event under the same name, it loses one lease and no more.
    pub(crate) async fn release_late_claims(
        &self,
        job: &JobName,
        scan: &Scan,
        dead: &[InvocationId],
    ) -> Result<bool, Refusal> {
        let released = self.release_held(job, scan, dead, false).await?;
        if released.is_empty() {
            return Ok(false);
        }
        self.update_books(job, |books| books.dead.retain(|dead| !released.contains(dead))).await?;
        Ok(true)
    }

    /// Removes a worker that ended from the scaler's books; one that died stays known for a while. `ended`
    /// is what had been committed by then, and the error it ended for.
    async fn strike_off(
        &self,
        job: &JobName,
        worker: u32,
        dead: Option<&InvocationId>,
        ended: Option<(u64, &str)>,
    ) -> Result<(), Refusal> {
        let now_ms = self.clock.now_ms();
        self.update_books(job, |books| {
            let known = dead.is_none_or(|dead| !books.dead.contains(dead));
            if let Some((progress, error)) = ended.filter(|_| known) {
                books.barren.note(1, progress, now_ms, error);
            }
            books.outstanding.retain(|(number, _)| *number != worker);
            if let Some(dead) = dead.filter(|dead| !books.dead.contains(dead)) {
                books.dead.push(dead.clone());
                let excess = books.dead.len().saturating_sub(MAX_DEAD);
                books.dead.drain(..excess);
            }
        })
        .await
    }

    /// Changes the scaler's books; nothing is written if they stay the same.
    async fn update_books(
        &self,
        job: &JobName,
        change: impl Fn(&mut ScaleState),
    ) -> Result<(), Refusal> {
        let decide = |before: Option<&ScaleState>| {
            let books = before.cloned().unwrap_or_default();
            let mut after = books.clone();
            change(&mut after);
            Ok::<_, Refusal>(match after == books {
                true => Outcome::AlreadyApplied(after),
                false => Outcome::Write(after),
            })
        };
        self.store.update(&ItemName::Scale(job), decide).await??;
        Ok(())
    }

    async fn transition(
        &self,
        job: &JobName,
        epoch: Epoch,
        bundle: BundleIndex,
        decide: impl FnMut(Option<&Bundle>) -> Result<Outcome<Bundle>, SplitRefusal>,
    ) -> Result<Reply, Refusal> {
        let name = ItemName::Bundle(job, epoch, bundle);
        match self.store.update(&name, decide).await? {
            Ok(_) => Ok(Reply::Applied),
            Err(refusal) => Err(refuse(&refusal)),
        }
    }

    /// The job and its trainer; a trainer not heard of yet stands at the start.
    pub(crate) async fn job_and_consumer(
        &self,
        job: &JobName,
    ) -> Result<(JobItem, Consumer), Refusal> {
        let names = [ItemName::Job(job), ItemName::Consumer(job)];
        let items = self.store.read_raw(&names).await?;
        let [job_item, consumer] = items.as_slice() else {
            return Err(invalid("the table answered another number of items than asked for"));
        };
        let item = crate::store::decode::<JobItem>(&names[0], job_item.as_ref())?.item;
        let item = item.ok_or_else(|| crate::coordinator::no_job(job))?;
        let consumer = crate::store::decode::<Consumer>(&names[1], consumer.as_ref())?.item;
        Ok((item, consumer.unwrap_or_default()))
    }
}

fn idle(reason: IdleReason) -> Reply {
    Reply::Idle(Idle { reason })
}

fn why_idle(scan: &Scan, item: &JobItem) -> IdleReason {
    let last = item.plan.map(|plan| u64::from(plan.n_splits) * u64::from(item.spec.epochs));
    let end = scan
        .bundles
        .last()
        .map_or(0, |b| b.linear + u64::from(b.positions.end - b.positions.start));
    match last {
        Some(last) if end < last => IdleReason::WindowFull,
        _ => IdleReason::AllClaimed,
    }
}

fn leased(item: &JobItem, candidate: &ScannedBundle, bundle: &Bundle) -> Reply {
    let first = candidate.positions.start;
    let planned = item.plan.is_some();
    let caching = item.caching.as_ref().filter(|_| planned);
    let mut cache = caching.map(|c| c.view.orders(candidate.epoch)).unwrap_or_default();
    // Of every job a few splits, so that it can be told what its workers' time goes into.
    cache.profile |= planned && (candidate.epoch, candidate.index) == PROFILED;
    Reply::Leased(Lease {
        control: bundle.control.map(|place| (place.epoch, place.position)),
        epoch: candidate.epoch,
        bundle: candidate.index,
        attempt: bundle.attempt,
        work: if planned { Work::Splits } else { Work::Index },
        first,
        todo: bundle.todo().into_iter().map(|at| first + u32::from(at)).collect(),
        cache,
    })
}

/// Source records of each position: what a poisoned split counts as skipped. The last split of a
/// file may hold fewer, which only the worker that reads it knows.
fn records_of(item: &JobItem, candidate: &ScannedBundle) -> Vec<u32> {
    let records = item.plan.map_or(0, |plan| plan.split_records);
    candidate.positions.clone().map(|_| records).collect()
}
