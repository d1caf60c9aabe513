//! Claims: lease the bundle that a trainer waits for, a returned one, or the next bundle of a partition.

use crate::{
    CallHandler, Splits,
    bundles::ScannedBundle,
    items::{INDEX_EPOCH, ItemName, JobItem, bundle_partition, parse_bundle_sk},
    scan::WorkableRange,
    snapshot::{FEW_ACTIVE, JobSnapshot},
    store::{ItemUpdateError, busy, invalid},
};
use futures::future::try_join_all;
use gristmill_model::{
    BundleIndex, Epoch, JobName,
    splits::{
        self, Bundle, BundleState, DeathEvidence, DeathLog, DeathRecord, JobProgress, LeaseTerm,
        SplitPlace, TransitionRefusal as SplitRefusal,
        ranges::{BundleRanges, EpochBundle, FEWEST_PARTITIONS},
        search::{BundleSearch, PartitionEnd, SearchScope, SearchStep},
        window::WindowOccupancy,
    },
    wire::{CallRefusal, ClaimCall, ClaimReply, IdleReason, IdleReply, Lease, LeaseWork},
};

/// A claim picks one of this many returned bundles at random.
const FIRST_RETURNED: usize = 4;
/// Latest bundles to read of a partition; they fit in one read unit. An earlier sending of the claim may
/// have leased one of them.
const LATEST: usize = 4;
/// The same for a claim that is sent again: its nonce leads it to the same partitions, and others have claimed since.
const LATEST_OF_RESENT: usize = 64;

struct Claiming<'a> {
    claim: &'a ClaimCall,
    snapshot: &'a JobSnapshot,
    reach: WorkableRange,
    ahead: WindowOccupancy,
    now_ms: u64,
}

impl<'a> Claiming<'a> {
    fn new(claim: &'a ClaimCall, snapshot: &'a JobSnapshot, now_ms: u64) -> Self {
        let seen = snapshot.hints.item.as_ref();
        let (window, ready_bytes) = seen.map_or((0, 0), |seen| (seen.window, seen.ready_bytes));
        let reach = WorkableRange::new(&snapshot.item, &snapshot.progress, window);
        let ahead = WindowOccupancy { delivered: reach.delivered, ready: 0, ready_bytes };
        Self { claim, snapshot, reach, ahead, now_ms }
    }

    fn ranges(&self) -> BundleRanges {
        self.snapshot.item.ranges(self.reach.delivered..self.reach.end)
    }

    fn admits(&self, bundle: &ScannedBundle) -> bool {
        let range = bundle.span();
        range.start < self.reach.end
            && self.reach.window.is_none_or(|window| window.admits(self.ahead, &range))
    }

    fn idle(&self) -> ClaimReply {
        idle(if self.reach.goes_on { IdleReason::WindowFull } else { IdleReason::AllClaimed })
    }
}

impl CallHandler<ClaimCall> for Splits {
    /// Leases a claimable bundle, or says why the worker should stop.
    async fn handle(&self, claim: &ClaimCall) -> Result<ClaimReply, CallRefusal> {
        let mut snapshot = self.records.snapshot_for(claim).await?;
        if !self.pays_host(claim, &snapshot).await? {
            return Ok(idle(IdleReason::Surplus));
        }
        match self.assign(claim, &mut snapshot).await? {
            ClaimReply::Leased(lease) => self.paid(claim, &snapshot, lease).await,
            idle => Ok(idle),
        }
    }
}

impl Splits {
    async fn assign(
        &self,
        claim: &ClaimCall,
        snapshot: &mut JobSnapshot,
    ) -> Result<ClaimReply, CallRefusal> {
        let item = &snapshot.item;
        let another = claim.registered_ms != 0 && claim.registered_ms != item.registered_ms;
        if item.state.is_ended() || another {
            return Ok(idle(IdleReason::JobEnded));
        }
        if item.plan.is_some() && item.spec.numerics != claim.numerics {
            let settled = self.jobs.settle_numerics(claim, item).await?;
            if settled.spec.numerics != claim.numerics {
                let error = format!(
                    "the job runs numerics class {}, and a worker has {}: results would differ; deploy workers of \
                     the trainer's architecture, or use no local workers",
                    settled.spec.numerics, claim.numerics
                );
                if claim.local {
                    return Err(invalid(error));
                }
                self.records.fail_job(&claim.job, item, error).await?;
                return Ok(idle(IdleReason::JobEnded));
            }
            snapshot.item = settled;
        }
        let claiming = Claiming::new(claim, snapshot, self.records.clock.now_ms());
        // Without a plan there is nothing to need but an index.
        if let Some(place) = claim.needed.filter(|_| snapshot.item.plan.is_some()) {
            return self.take_needed(&claiming, place).await;
        }
        if claim.resent
            && !snapshot.has_many_workers()
            && let Some(reply) = self.lease_taken_before(&claiming).await?
        {
            return Ok(reply);
        }
        let seen = snapshot.hints.item.as_ref();
        if !claim.local
            && seen.is_some_and(|seen| seen.is_surplus(&claim.invocation, claiming.now_ms))
        {
            return Ok(idle(IdleReason::Surplus));
        }
        if seen.is_some_and(|seen| seen.shows_nothing(claiming.reach.delivered, claiming.now_ms)) {
            return Ok(claiming.idle());
        }
        self.find(&claiming).await
    }

    /// Tries one of the first returned bundles, then the next of a partition, then the other returned ones.
    async fn find(&self, claiming: &Claiming<'_>) -> Result<ClaimReply, CallRefusal> {
        let mut returned = returned(claiming);
        let chance = u64::from_be_bytes(claiming.claim.nonce.0);
        // The trainer needs the first ones soonest; a random choice spreads concurrent claims over them.
        let first = returned.len().min(FIRST_RETURNED) as u64;
        let one = (first > 0).then(|| returned.remove((chance % first) as usize));
        let mut put_off = Vec::new();
        if let Some(reply) = self.take_returned(claiming, one.into_iter(), &mut put_off).await? {
            return Ok(reply);
        }
        if let Some(reply) = self.take_next(claiming).await? {
            return Ok(reply);
        }
        let returned = returned.into_iter();
        if let Some(reply) = self.take_returned(claiming, returned, &mut put_off).await? {
            return Ok(reply);
        }
        let last = self.take_first(claiming, put_off, None).await?;
        Ok(last.unwrap_or_else(|| claiming.idle()))
    }

    /// The lease that an earlier sending of the claim obtained, if any.
    async fn lease_taken_before(
        &self,
        claiming: &Claiming<'_>,
    ) -> Result<Option<ClaimReply>, CallRefusal> {
        let Claiming { claim, snapshot: JobSnapshot { item, progress, .. }, .. } = claiming;
        let scan =
            self.records.scan(&claim.job, item, progress, progress.horizon().slowest).await?;
        let bundle = scan.owned_by(claim.nonce);
        Ok(bundle.and_then(|bundle| Some(leased(item, bundle, bundle.item.as_ref()?))))
    }

    /// Reads `bundles` and claims one of them, as [`take_first`](Self::take_first) does.
    async fn take_returned(
        &self,
        claiming: &Claiming<'_>,
        bundles: impl Iterator<Item = ScannedBundle>,
        put_off: &mut Vec<ScannedBundle>,
    ) -> Result<Option<ClaimReply>, CallRefusal> {
        let mut bundles: Vec<_> = bundles.collect();
        if bundles.is_empty() {
            return Ok(None);
        }
        let Claiming { claim, snapshot: JobSnapshot { item, .. }, .. } = claiming;
        self.records.read_by_key(&claim.job, item, &mut bundles).await?;
        self.take_first(claiming, bundles, Some(put_off)).await
    }

    /// Claims the first of `bundles` that is claimable. With `put_off`, it gets the bundles whose split killed workers
    /// while there is no committed split to serve as their control.
    async fn take_first(
        &self,
        claiming: &Claiming<'_>,
        bundles: Vec<ScannedBundle>,
        mut put_off: Option<&mut Vec<ScannedBundle>>,
    ) -> Result<Option<ClaimReply>, CallRefusal> {
        let Claiming { claim, snapshot: JobSnapshot { item, progress, .. }, now_ms, .. } = claiming;
        for bundle in bundles.into_iter().filter(|bundle| bundle.is_claimable(*now_ms)) {
            let mut control = None;
            if let Some(put_off) = put_off.as_mut().filter(|_| bundle.has_suspect()) {
                control = self.control(&claim.job, item, progress).await?;
                if control.is_none() {
                    put_off.push(bundle);
                    continue;
                }
            }
            if let Some(reply) = self.take(claiming, &bundle, control).await? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Claims the first bundle behind the end of one of the partitions.
    async fn take_next(&self, claiming: &Claiming<'_>) -> Result<Option<ClaimReply>, CallRefusal> {
        let Claiming { claim, snapshot, reach, ahead, .. } = claiming;
        let item = &snapshot.item;
        let ranges = claiming.ranges();
        let (window, partitions) = (reach.window, item.partitions());
        let few = snapshot.active() < FEW_ACTIVE && partitions == FEWEST_PARTITIONS;
        let scope = SearchScope { partitions, window, ahead: *ahead, few };
        let ends = self.records.memory.ends(&claim.job, item);
        let mut search = BundleSearch::new(&ranges, scope, claim.nonce, ends);
        let taken = self.search(claiming, &ranges, &mut search).await;
        let from = ranges.by_epoch.first().map_or(0, |range| range.epoch);
        self.records.memory.keep_ends(&claim.job, item, search.into_ends(), from);
        taken
    }

    async fn search(
        &self,
        claiming: &Claiming<'_>,
        ranges: &BundleRanges,
        search: &mut BundleSearch<'_>,
    ) -> Result<Option<ClaimReply>, CallRefusal> {
        let Claiming { claim, snapshot: JobSnapshot { item, .. }, .. } = claiming;
        loop {
            match search.step() {
                SearchStep::Look(ends) => {
                    let latest = self.latest_of(claiming, ranges, &ends).await?;
                    let mut read = latest.iter().flatten();
                    let own = |b: &ScannedBundle| Some(leased(item, b, b.lease_of(claim.nonce)?));
                    if let Some(reply) = read.find_map(own) {
                        return Ok(Some(reply));
                    }
                    for (end, latest) in ends.into_iter().zip(latest) {
                        search.saw(end, latest.iter().map(|bundle| bundle.index).max());
                    }
                }
                SearchStep::Claim(found) => {
                    let Some(range) = ranges.by_epoch.get(found.end.range) else { return Ok(None) };
                    let unseen = ScannedBundle::in_range(ranges, range, found.bundle);
                    if let Some(reply) = self.take(claiming, &unseen, None).await? {
                        search.claimed(found);
                        return Ok(Some(reply));
                    }
                    search.taken(found);
                }
                SearchStep::Nothing => return Ok(None),
                SearchStep::Crowded => {
                    return Err(busy("too many concurrent claims: send the call again"));
                }
            }
        }
    }

    /// The latest bundles of each of `ends`. If few workers are active and the ranges have no more bundles
    /// than there are ends, reads them all by key: it costs no more units and is one request.
    async fn latest_of(
        &self,
        claiming: &Claiming<'_>,
        ranges: &BundleRanges,
        ends: &[PartitionEnd],
    ) -> Result<Vec<Vec<ScannedBundle>>, CallRefusal> {
        let Claiming { claim: ClaimCall { job, .. }, snapshot, .. } = claiming;
        let item = &snapshot.item;
        if ranges.len() > ends.len() || !snapshot.has_few_workers() {
            let look = |end: &PartitionEnd| self.latest(claiming, ranges, *end);
            return try_join_all(ends.iter().map(look)).await;
        }
        let bundles = self.records.read_bundles(job, item, ranges).await?;
        let partitions = item.partitions();
        let of_end = |end: &PartitionEnd| {
            let epoch = ranges.by_epoch.get(end.range).map(|range| range.epoch);
            let lies_there = |bundle: &&ScannedBundle| {
                let is_stored = bundle.version > 0;
                let partition = bundle.index % partitions;
                is_stored && Some(bundle.epoch) == epoch && partition == end.partition
            };
            bundles.iter().filter(lies_there).cloned().collect()
        };
        Ok(ends.iter().map(of_end).collect())
    }

    async fn latest(
        &self,
        Claiming { claim, snapshot, .. }: &Claiming<'_>,
        ranges: &BundleRanges,
        end: PartitionEnd,
    ) -> Result<Vec<ScannedBundle>, CallRefusal> {
        let (job, item) = (&claim.job, &snapshot.item);
        let Some(range) = ranges.by_epoch.get(end.range) else { return Ok(Vec::new()) };
        let partition = item.partition_at(end.partition);
        let pk = bundle_partition(&self.records.settings.ns, job, partition, range.epoch);
        let mut latest = Vec::new();
        let is_again = claim.resent && snapshot.has_many_workers();
        let most = if is_again { LATEST_OF_RESENT } else { LATEST };
        for (sk, stored) in self.records.store.last(&pk, most).await? {
            let Some(index) = parse_bundle_sk(&sk) else { continue };
            let name = ItemName::Bundle(job, partition, range.epoch, index);
            let mut bundle = ScannedBundle::in_range(ranges, range, index);
            bundle.read(&name, Some(&stored))?;
            latest.push(bundle);
        }
        Ok(latest)
    }
}

/// Returned bundles according to the hints, in order: those that belong to the job and lie within reach.
fn returned(claiming: &Claiming<'_>) -> Vec<ScannedBundle> {
    let JobSnapshot { item, hints, .. } = claiming.snapshot;
    let division = item.division();
    let named = hints.item.iter().flat_map(|seen| &seen.returned);
    let of_job = |(epoch, index): &&EpochBundle| {
        (*epoch == INDEX_EPOCH) == item.plan.is_none() && *index < division.bundles()
    };
    let base = |epoch: Epoch| match epoch {
        INDEX_EPOCH => 0,
        epoch => u64::from(epoch) * u64::from(division.n_splits()),
    };
    let unseen = |&(epoch, index): &(Epoch, BundleIndex)| {
        ScannedBundle::unseen(&division, epoch, base(epoch), index)
    };
    let mut returned: Vec<_> =
        named.filter(of_job).map(unseen).filter(|bundle| claiming.admits(bundle)).collect();
    returned.sort_by_key(|bundle| bundle.linear);
    returned
}

fn idle(reason: IdleReason) -> ClaimReply {
    ClaimReply::Idle(IdleReply { reason })
}

impl Splits {
    /// Leases the bundle of the split at `place`, if it is claimable: one read by key, and no search. The window
    /// does not matter: what fills it is freed only after this split is made.
    async fn take_needed(
        &self,
        claiming: &Claiming<'_>,
        place: SplitPlace,
    ) -> Result<ClaimReply, CallRefusal> {
        let (claim, item) = (claiming.claim, &claiming.snapshot.item);
        let Some(plan) = item.plan else { return Ok(claiming.idle()) };
        let at = place.linear(plan.n_splits);
        let ranges = item.ranges(at..at.saturating_add(1).min(claiming.reach.most));
        let mut bundles = ScannedBundle::all_unseen(&ranges);
        self.records.read_by_key(&claim.job, item, &mut bundles).await?;
        // An earlier sending of the claim may have leased it.
        let own =
            |bundle: &ScannedBundle| Some(leased(item, bundle, bundle.lease_of(claim.nonce)?));
        if let Some(reply) = bundles.iter().find_map(own) {
            return Ok(reply);
        }
        let mut put_off = Vec::new();
        if let Some(reply) = self.take_first(claiming, bundles, Some(&mut put_off)).await? {
            return Ok(reply);
        }
        let last = self.take_first(claiming, put_off, None).await?;
        Ok(last.unwrap_or_else(|| idle(IdleReason::AllClaimed)))
    }
}

/// The bundle (epoch, index) of a job whose operators are measured. Not the first one: its time is part of
/// how long a new worker takes to start.
const PROFILED: EpochBundle = (0, 1);
impl Splits {
    /// Claims a bundle; none if another worker has it.
    async fn take(
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
        let (partition, at) = (item.partition(candidate.index), (candidate.epoch, candidate.index));
        let name = item.bundle(&claim.job, at.0, at.1);
        // The last split of a file may hold fewer records, which only its worker knows.
        let records =
            vec![item.plan.map_or(0, |plan| plan.split_records); candidate.positions.len()];
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
                    return Err(SplitRefusal::Leased { until_ms: other.until_ms });
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
                splits::claim(before, &command, &limits)
            };
            let claimed =
                self.records.store.update_versioned(&name, candidate.versioned(), decide).await;
            let refusal = match claimed {
                Ok((after, version)) => {
                    if after.is_held_by(claim.nonce) && claiming.snapshot.has_few_workers() {
                        let address = (claim.job.clone(), partition, at);
                        self.records.memory.keep_lease(address, (after.clone(), version).into());
                    }
                    return Ok(Some(after));
                }
                Err(ItemUpdateError::Fault(fault)) => return Err(fault),
                Err(ItemUpdateError::Declined(refusal)) => refusal,
            };
            match refusal {
                SplitRefusal::DeathUnrecorded { attempt, split_index } => {
                    let record = DeathRecord { epoch: at.0, bundle: at.1, attempt };
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

fn leased(item: &JobItem, candidate: &ScannedBundle, bundle: &Bundle) -> ClaimReply {
    let first = candidate.positions.start;
    let planned = item.plan.is_some();
    let caching = item.caching.as_ref().filter(|_| planned);
    let mut cache = caching.map(|c| c.view.orders(candidate.epoch)).unwrap_or_default();
    // The splits of one bundle are measured in every job, to report what its workers spend their time on.
    cache.profile |= planned && (candidate.epoch, candidate.index) == PROFILED;
    ClaimReply::Leased(Lease {
        partition: item.partition(candidate.index),
        control: bundle.control,
        epoch: candidate.epoch,
        bundle: candidate.index,
        attempt: bundle.attempt,
        work: if planned { LeaseWork::Splits } else { LeaseWork::Index },
        first,
        todo: bundle.todo().into_iter().map(|at| first + u32::from(at)).collect(),
        cache,
        on_error: item.spec.settings.on_error,
        removal: item.spec.settings.removal,
        compress: item.spec.compress,
        goes_on_ms: None,
    })
}

/// Number of splits behind the trainer to search if none ahead of it is committed.
const SEARCHED_BACK: u64 = 64;

impl Splits {
    /// The committed split with the most rows ahead of the trainer, or else just behind it.
    pub(crate) async fn control(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<Option<SplitPlace>, CallRefusal> {
        let longest = |bundles: &[ScannedBundle]| {
            let committed = bundles.iter().filter_map(ScannedBundle::longest_committed);
            committed.max_by_key(|(rows, _)| *rows).map(|(_, place)| place)
        };
        let scan = self.records.scan(job, item, progress, progress.horizon().slowest).await?;
        if let Some(place) = longest(&scan.bundles) {
            return Ok(Some(place));
        }
        let delivered = scan.ahead.delivered;
        let behind = delivered.saturating_sub(SEARCHED_BACK)..delivered;
        Ok(longest(&self.records.read_bundles(job, item, &item.ranges(behind)).await?))
    }
}
