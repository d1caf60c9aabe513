//! Handles one event for one job: reads the scaler's state, decides, writes it, invokes workers.

use futures::future::join_all;
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    AccountRoom, DepartedWorkers, FIRST_MS, MeasuredValue, MetricsOrigin, ScaleDecision,
    ScaleState, ScalerEvent, SpendingLedger, SpokenVersions, TrainingReport, WorkerEvent,
    WorkerMetrics, protocol,
};
use gristmill_policy::placement::{
    LocalPart, PlacementDecision, PlacementObservation, PlacementSettings, PlacementState,
    WorkerTarget, place,
};
use gristmill_policy::scaling::{
    Decision, Policy, PolicyName, Reason, ScalerFacts, Settings, UnknownPolicy, top_up,
};
use gristmill_ports::{
    FunctionMetrics, InvokeError, InvokeOutcome, Invoker, ItemKey, MetricValue, Table, TableError,
    TableItem, WriteOutcome,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
};

/// Initial workers under autoscaling: two give a first batch and a first measurement soon.
const START_WORKERS: u32 = 2;
/// Decisions kept in the item; a write costs one unit per KB.
const MAX_LOG: usize = 12;
/// Number of concurrent invocations.
const SIDE_BY_SIDE: usize = 16;
/// No invocation lasts longer: a worker invoked earlier has ended, even if its end was never reported.
const LIFE_MS: u64 = 16 * 60 * 1000;
/// Jobs of a pipeline that are further apart measure anew: 90 days.
const METRICS_LIFETIME_S: u64 = 90 * 86_400;
/// Attempts at the compare-and-set before the event is dropped; the next kick repeats it.
const MAX_TRIES: u32 = 8;

/// An event that must be sent again, or cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    #[error("{}", protocol::other_event(*.0, *.1))]
    Version(u32, SpokenVersions),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error("the SCALE item cannot be read: {0}")]
    Corrupt(#[from] serde_json::Error),
}

/// The scaler with its ports: the table with its item, and the invoker of the worker function.
pub struct ScalerFunction {
    pub table: Arc<dyn Table>,
    pub invoker: Arc<dyn Invoker>,
    /// Name (and version) of the worker function. A job keeps the one it started with.
    pub worker_function: String,
    /// The region in which workers run.
    pub region: String,
    /// Most workers of a job that leave the account room for coordinator and scaler, if known.
    pub max_workers: Option<NonZeroU32>,
    /// The versions of the protocol that it speaks.
    pub spoken: SpokenVersions,
    pub metrics: FunctionMetrics,
}

/// The outcome of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ScalerOutcome {
    pub invoked: u32,
    /// Workers that the platform did not accept.
    pub throttled: u32,
    /// Workers that could not be invoked: the function is gone, or the scaler lacks permission.
    pub refused: u32,
    /// Outstanding workers afterwards.
    pub outstanding: u32,
}

impl ScalerFunction {
    /// Invokes workers until the outstanding ones reach the policy's target, and prints metrics. Duplicate
    /// or late events are harmless: a worker without work leaves at once.
    pub async fn handle(&self, event: &ScalerEvent) -> Result<ScalerOutcome, ScaleError> {
        let scaled = self.scale(event).await?;
        let measured = [
            MetricValue::count("workers_invoked", u64::from(scaled.invoked)),
            MetricValue::count("workers_throttled", u64::from(scaled.throttled)),
            MetricValue::count("workers_refused", u64::from(scaled.refused)),
            MetricValue::count("workers_outstanding", u64::from(scaled.outstanding)),
        ];
        self.metrics.print(event.at_ms, &measured, &[("job", event.job.as_str())]);
        Ok(scaled)
    }

    async fn scale(&self, event: &ScalerEvent) -> Result<ScalerOutcome, ScaleError> {
        if !self.spoken.includes(event.v) {
            return Err(ScaleError::Version(event.v, self.spoken));
        }
        let event = &self.within_account(event);
        let key =
            ItemKey { pk: keys::job_partition(&event.ns, &event.job), sk: keys::SCALE.into() };
        let mut item = self.table.read(std::slice::from_ref(&key)).await?.pop().flatten();
        let known = decode(item.as_ref())?.1;
        let left = self.left(event, &known).await?;
        let stored = if known.policy.is_none() { self.stored(event, &known).await } else { None };
        for _ in 0..MAX_TRIES {
            let (version, mut state) = decode(item.as_ref())?;
            let before = state.clone();
            let expired = state.outstanding.expired(&left);
            state.outstanding.settle(&left);
            let (workers, measured) = plan(&mut state, event, expired, stored.as_ref())?;
            let outstanding = state.outstanding.len();
            let same = |of: &ScaleState| {
                let decided = (of.policy.clone(), of.placement.clone(), of.target, of.local);
                (decided, of.room, of.spending.clone())
            };
            if workers.is_empty() && same(&state) == same(&before) {
                return Ok(ScalerOutcome { outstanding, ..ScalerOutcome::default() });
            }
            let function = self.pin(&mut state);
            let speaks = state.worker_spoken.nearest(event.v);
            let body = serde_json::to_vec(&state)?.into();
            match self.table.write(&key, version, body, None).await? {
                WriteOutcome::Written => {
                    if let Some(measured) = measured {
                        self.keep(event, &state, &measured).await;
                    }
                    let started = self.invoke(event, speaks, &function, &workers).await?;
                    let Started { invoked, throttled, not_started, refused } = started;
                    if let Some(error) = refused {
                        self.note_refused(event, &key, &not_started, &error).await?;
                    }
                    let refused = not_started.len() as u32;
                    if !throttled.is_empty() {
                        self.change(&key, |state| note_throttled(state, event, &throttled)).await?;
                    }
                    let throttled = throttled.len() as u32;
                    let outstanding = outstanding - throttled;
                    return Ok(ScalerOutcome { invoked, throttled, refused, outstanding });
                }
                WriteOutcome::Conflict(current) => item = current,
            }
        }
        Ok(ScalerOutcome::default())
    }

    /// Limits the workers so that the account has room for the functions that give them work: a worker
    /// whose calls are throttled takes up concurrency and does nothing.
    fn within_account(&self, event: &ScalerEvent) -> ScalerEvent {
        let most = self.max_workers.map_or(u32::MAX, NonZeroU32::get);
        ScalerEvent { wanted: event.wanted.min(most), ..event.clone() }
    }

    /// The worker function that the job keeps, from its first workers on.
    fn pin(&self, state: &mut ScaleState) -> String {
        if state.worker_function.is_none() {
            state.worker_spoken = self.spoken;
        }
        state.worker_function.get_or_insert_with(|| self.worker_function.clone()).clone()
    }

    /// The item in which jobs of this pipeline keep what they measure on these workers. Modes in which a cache does a part
    /// of the work have none.
    fn metrics_key(&self, event: &ScalerEvent, state: &ScaleState) -> Option<ItemKey> {
        let pipeline = event.pipeline.filter(|_| event.autoscale && event.mode == 0)?;
        let function = state.worker_function.as_deref().unwrap_or(&self.worker_function);
        let (pk, sk) = keys::metrics(&event.ns, pipeline, function, &self.region);
        Some(ItemKey { pk, sk })
    }

    /// The measurements of earlier jobs. None if it cannot be read: this job then measures itself.
    async fn stored(&self, event: &ScalerEvent, state: &ScaleState) -> Option<WorkerMetrics> {
        let key = self.metrics_key(event, state)?;
        let item = self.table.read(&[key]).await.ok()?.pop().flatten()?;
        serde_json::from_slice(&item.body).ok()
    }

    /// Keeps what this job measured for later ones: beside what it began with, or in its place if that was discarded.
    /// Best effort: the next epoch's end does it again.
    async fn keep(&self, event: &ScalerEvent, state: &ScaleState, measured: &WorkerMetrics) {
        let Some(key) = self.metrics_key(event, state) else { return };
        let expires_at_s = event.at_ms / 1_000 + METRICS_LIFETIME_S;
        let Ok(mut items) = self.table.read(std::slice::from_ref(&key)).await else { return };
        let mut item = items.pop().flatten();
        for _ in 0..MAX_TRIES {
            let version = item.as_ref().map_or(0, |item| item.version);
            let known =
                item.and_then(|item| serde_json::from_slice::<WorkerMetrics>(&item.body).ok());
            let merged = match known.filter(|_| state.metrics == MetricsOrigin::Stored) {
                Some(known) => known.merge(measured),
                None => *measured,
            };
            let Ok(body) = serde_json::to_vec(&merged) else { return };
            match self.table.write(&key, version, body.into(), Some(expires_at_s)).await {
                Ok(WriteOutcome::Conflict(current)) => item = current,
                Ok(WriteOutcome::Written) => return,
                Err(error) => {
                    tracing::warn!(job = %event.job, %error, "measurements are not kept");
                    return;
                }
            }
        }
    }

    /// Lets `change` change the state. Best effort: after several conflicts the other writes stand.
    async fn change(
        &self,
        key: &ItemKey,
        change: impl Fn(&mut ScaleState),
    ) -> Result<(), ScaleError> {
        let mut item = self.table.read(std::slice::from_ref(key)).await?.pop().flatten();
        for _ in 0..MAX_TRIES {
            let (version, mut state) = decode(item.as_ref())?;
            change(&mut state);
            let body = serde_json::to_vec(&state)?.into();
            match self.table.write(key, version, body, None).await? {
                WriteOutcome::Written => break,
                WriteOutcome::Conflict(current) => item = current,
            }
        }
        Ok(())
    }

    /// Records that workers could not be invoked, and why; they stop being outstanding at once. A version
    /// that is gone is replaced by the current one, whose first claim shows whether it may work for the job.
    async fn note_refused(
        &self,
        event: &ScalerEvent,
        key: &ItemKey,
        workers: &[u32],
        error: &InvokeError,
    ) -> Result<(), ScaleError> {
        tracing::warn!(job = %event.job, %error, "workers cannot be invoked");
        let note = |state: &mut ScaleState| {
            state.outstanding.retain(|worker, _| !workers.contains(&worker));
            let count = workers.len() as u32;
            state.failed_workers.note(count, event.progress, event.at_ms, &error.to_string());
            let kept = state.worker_function.as_deref();
            if error.gone
                && kept == Some(&error.function)
                && *error.function != *self.worker_function
            {
                let (gone, current) = (&error.function, &self.worker_function);
                let reason =
                    format!("worker version {gone} was deleted: using {current} from now on");
                state.worker_function = Some(current.clone());
                state.worker_spoken = self.spoken;
                let target = state.target;
                log(state, event.batches, target, reason);
            }
        };
        self.change(key, note).await
    }

    /// Reads which outstanding workers have left since the state was written.
    async fn left(
        &self,
        event: &ScalerEvent,
        state: &ScaleState,
    ) -> Result<BTreeMap<u32, DepartedWorkers>, ScaleError> {
        let shards = state.outstanding.shards(|_| true);
        let key = |shard: &u32| {
            let (pk, sk) = keys::left(&event.ns, &event.job, *shard);
            ItemKey { pk, sk }
        };
        let items = self.table.read(&shards.iter().map(key).collect::<Vec<_>>()).await?;
        let shards = shards.into_iter().zip(items);
        // An unreadable item counts as absent: departed workers are also found by their silence.
        let left = shards
            .filter_map(|(shard, item)| Some((shard, serde_json::from_slice(&item?.body).ok()?)));
        Ok(left.collect())
    }

    /// Invokes workers, several at a time, until the platform accepts no more.
    async fn invoke(
        &self,
        event: &ScalerEvent,
        speaks: u32,
        function: &str,
        workers: &[u32],
    ) -> Result<Started, ScaleError> {
        let mut started = Started::default();
        for some in workers.chunks(SIDE_BY_SIDE) {
            let payloads = some.iter().map(|&worker| {
                let (ns, job) = (event.ns.clone(), event.job.clone());
                let first_ms = event.budget.map(|_| FIRST_MS);
                protocol::write(&WorkerEvent { v: speaks, ns, job, worker, first_ms }, speaks)
            });
            let payloads = payloads.collect::<Result<Vec<_>, _>>()?.into_iter();
            let invoked = payloads.map(|payload| self.invoker.invoke(function, payload.into()));
            for (worker, invoked) in some.iter().zip(join_all(invoked).await) {
                match invoked {
                    Ok(InvokeOutcome::Accepted) => started.invoked += 1,
                    Ok(InvokeOutcome::Throttled) => started.throttled.push(*worker),
                    Err(error) => {
                        started.not_started.push(*worker);
                        started.refused = Some(error);
                    }
                }
            }
            if !started.throttled.is_empty() || started.refused.is_some() {
                break;
            }
        }
        let failed = started.throttled.len() + started.not_started.len();
        let untried = &workers[started.invoked as usize + failed..];
        match started.refused {
            Some(_) => started.not_started.extend(untried),
            None if !started.throttled.is_empty() => started.throttled.extend(untried),
            None => {}
        }
        if !started.throttled.is_empty() {
            let throttled = started.throttled.len();
            tracing::warn!(job = %event.job, throttled, "the platform throttles workers");
        }
        Ok(started)
    }
}

#[derive(Default)]
struct Started {
    invoked: u32,
    /// Workers that the platform did not accept, because it is at its limit.
    throttled: Vec<u32>,
    /// Workers that could not be invoked, with the error.
    not_started: Vec<u32>,
    refused: Option<InvokeError>,
}

fn decode(item: Option<&TableItem>) -> Result<(u64, ScaleState), serde_json::Error> {
    match item {
        // The tombstone of a forgotten job of this name.
        Some(item) if *item.body == [0] => Ok((item.version, ScaleState::default())),
        Some(item) => Ok((item.version, serde_json::from_slice(&item.body)?)),
        None => Ok((0, ScaleState::default())),
    }
}

/// Applies the policy to the scaler's state; returns the numbers of the workers to invoke, and what is to be kept for
/// later jobs. Events to `expired` workers expired since the last one.
fn plan(
    state: &mut ScaleState,
    event: &ScalerEvent,
    expired: u32,
    stored: Option<&WorkerMetrics>,
) -> Result<(Vec<u32>, Option<WorkerMetrics>), ScaleError> {
    // Worker numbers are never reused, so a repeated event removes no other worker.
    let silent: BTreeSet<u32> = event.silent.iter().copied().collect();
    state.outstanding.retain(|worker, sent_ms| {
        !silent.contains(&worker) && event.at_ms.saturating_sub(sent_ms) < LIFE_MS
    });
    let outstanding = state.outstanding.len();
    see_room(state, event, expired);
    let facts = ScalerFacts {
        clients: 1,
        claimable: event.claimable,
        outstanding,
        throttled: state.throttled,
        mode: event.mode,
    };
    let measured = settle_target(state, event, &facts, stored)?;
    let mut top_up = top_up(&facts, state.attainable(state.target, event.at_ms));
    top_up.invoke = top_up.invoke.min(affordable(state, event));
    let workers: Vec<u32> = (0..top_up.invoke).map(|i| state.next_worker + i).collect();
    if workers.is_empty() {
        return Ok((workers, measured));
    }
    let first = state.next_worker;
    state.next_worker += top_up.invoke;
    state.outstanding.add(first..state.next_worker, event.at_ms);
    if let Some(ledger) = &mut state.spending {
        ledger.start(first..state.next_worker, event.at_ms);
    }
    // Under autoscaling, the policy's decisions are logged instead.
    if !event.autoscale {
        log(state, event.batches, outstanding + top_up.invoke, top_up.reason);
    }
    Ok((workers, measured))
}

/// How many more workers the job's budget pays for.
fn affordable(state: &mut ScaleState, event: &ScalerEvent) -> u32 {
    let Some(facts) = event.budget else { return u32::MAX };
    let Some(ledger) = SpendingLedger::at(state, &facts, event.at_ms) else { return 0 };
    let most = ledger.affordable(facts.kept);
    state.spending = Some(ledger);
    most
}

/// Records that the platform did not accept the events to `workers`: they are not outstanding, and tried again when
/// there may be room.
fn note_throttled(state: &mut ScaleState, event: &ScalerEvent, workers: &[u32]) {
    state.outstanding.retain(|worker, _| !workers.contains(&worker));
    if let Some(ledger) = &mut state.spending {
        workers.iter().for_each(|worker| ledger.take_back(*worker));
    }
    state.room = Some(AccountRoom::seen(state.outstanding.len(), event.at_ms));
    if event.autoscale {
        state.throttled = state.throttled.saturating_add(workers.len() as u32);
    }
}

/// Learns the account's room from events that expired, or from such as did not.
fn see_room(state: &mut ScaleState, event: &ScalerEvent, expired: u32) {
    let (outstanding, at_ms) = (state.outstanding.len(), event.at_ms);
    if expired == 0 {
        state.room = state.room.and_then(|room| room.tried(outstanding, event.wanted, at_ms));
        return;
    }
    if state.room.is_none() {
        let reason = format!(
            "the account has no room for {expired} more workers within a minute: fewer are tried from now on"
        );
        log(state, event.batches, outstanding, reason);
    }
    state.room = Some(AccountRoom::seen(outstanding, at_ms));
}

/// Sets the target: the job's fixed number of workers, or the policy's decision on the trainer's report. Returns what is
/// to be kept for later jobs: once an epoch, from convergence on.
fn settle_target(
    state: &mut ScaleState,
    event: &ScalerEvent,
    facts: &ScalerFacts,
    stored: Option<&WorkerMetrics>,
) -> Result<Option<WorkerMetrics>, ScaleError> {
    if !event.autoscale {
        (state.target, state.local) = (event.wanted, None);
        return Ok(None);
    }
    let settings = settings(state, event);
    let name = event.policy.as_deref().map_or(Ok(PolicyName::default()), str::parse)?;
    // One that another version wrote and this one cannot read counts as absent: the policy starts anew.
    let kept = state.policy.clone().and_then(|kept| serde_json::from_value::<Policy>(kept).ok());
    let kept = kept.filter(|policy| policy.name() == name);
    let mut policy = kept.unwrap_or_else(|| name.begin(&settings, stored));
    state.metrics = policy.origin();
    let mut placement = begin_placement(state, event, policy.target(&settings), stored);
    if !state.is_decided() {
        state.target = policy.target(&settings);
        state.local = placement.as_ref().map(|placement| placement.target.local);
        state.placement = placement.as_ref().map(serde_json::to_value).transpose()?;
        let reason = Reason::Start { origin: state.metrics };
        let started = Decision { target: state.target, reason };
        log(state, event.batches, started.target, started.to_string());
        // Its first measurements may not be stored any more when the first report arrives.
        state.policy = Some(serde_json::to_value(&policy)?);
    }
    let Some(report) = &event.training else { return Ok(None) };
    let seen = match &placement {
        Some(placement) => placement.remote_part(report, facts),
        None => beside_fixed(state, report, facts)?,
    };
    let decision = policy.decide(&seen, facts, &settings);
    state.throttled = 0;
    let was_stored = std::mem::replace(&mut state.metrics, policy.origin());
    if let Some(stored) = placement.as_mut().filter(|_| was_stored != state.metrics) {
        // Trials of earlier jobs say nothing about this one.
        *stored = PlacementState::begin(stored.target);
    }
    let measured = measured(policy.metrics(&settings), placement.as_ref())
        .filter(|_| state.kept.is_none_or(|kept| kept < event.epoch));
    if measured.is_some() {
        state.kept = Some(event.epoch);
    }
    let has_converged = policy.has_converged(&settings);
    state.policy = Some(serde_json::to_value(policy)?);
    let (mut remote, mut local, mut reason) = (decision.target, None, decision.to_string());
    if let Some(before) = placement {
        let seen = PlacementObservation {
            report,
            facts,
            remote,
            has_converged,
            lasts: !event.is_passing,
            host_cores: report.host_cores,
            batches_left: event.batches_left,
        };
        let (after, target, why) = settle_placement(&seen, &before, event.max_local);
        reason = why.unwrap_or(reason);
        (remote, local) = (target.remote, Some(target.local));
        state.placement = Some(serde_json::to_value(after)?);
    }
    if (remote, local) != (state.target, state.local) {
        (state.target, state.local) = (remote, local);
        log(state, event.batches, remote, reason);
    }
    Ok(measured)
}

fn settings(state: &ScaleState, event: &ScalerEvent) -> Settings {
    Settings {
        start: START_WORKERS,
        max_workers: state.attainable(event.wanted, event.at_ms),
        budget_workers: event.budget_workers,
        ..Settings::default()
    }
}

/// The placement after a report, its target, and the reason if it is not the scaling policy's.
fn settle_placement(
    seen: &PlacementObservation<'_>,
    before: &PlacementState,
    max_local: Option<u32>,
) -> (PlacementState, WorkerTarget, Option<String>) {
    let max_local = max_local.unwrap_or(0);
    let settings = PlacementSettings { max_local, ..PlacementSettings::default() };
    let (after, PlacementDecision { target, reason }) = place(seen, before, &settings);
    let why = if target.local != before.target.local {
        Some(reason.to_string())
    } else if target.remote == 0 {
        Some("local workers make enough".to_owned())
    } else if target.remote != seen.remote {
        Some("local workers do not make enough".to_owned())
    } else {
        None
    };
    (after, target, why)
}

/// The state of the placement, if the scaler decides on it. It begins with the counts at which earlier jobs ended, or
/// with remote workers alone.
fn begin_placement(
    state: &ScaleState,
    event: &ScalerEvent,
    remote: u32,
    stored: Option<&WorkerMetrics>,
) -> Option<PlacementState> {
    let max_local = event.max_local?;
    // As with a policy, one that cannot be read counts as absent.
    let kept = state.placement.clone().and_then(|kept| serde_json::from_value(kept).ok());
    let begun = || match stored.and_then(|stored| stored.local) {
        Some(local) => {
            // The cast saturates.
            let local = (local.mean.round() as u32).min(max_local);
            PlacementState::begin_with(WorkerTarget { remote, local })
        }
        None => PlacementState::begin(WorkerTarget { remote, local: 0 }),
    };
    Some(kept.unwrap_or_else(begun))
}

/// Measurements to be kept for later jobs, with the local workers of a job that is placed: once no other count is
/// worth a trial.
fn measured(
    remote: Option<WorkerMetrics>,
    placement: Option<&PlacementState>,
) -> Option<WorkerMetrics> {
    let Some(placement) = placement else { return remote };
    let local = Some(MeasuredValue::one(placement.target.local.into()));
    remote.filter(|_| placement.has_converged).map(|remote| WorkerMetrics { local, ..remote })
}

/// The report as of remote workers alone, beside local ones on which the scaler does not decide.
fn beside_fixed(
    state: &mut ScaleState,
    report: &TrainingReport,
    facts: &ScalerFacts,
) -> Result<TrainingReport, ScaleError> {
    let kept = state.placement.take();
    if kept.is_none() && report.local_workers == 0.0 {
        return Ok(*report);
    }
    let mut part: LocalPart =
        kept.and_then(|kept| serde_json::from_value(kept).ok()).unwrap_or_default();
    let left = part.remote_part(report, report.local_workers, facts);
    part.add(report, report.local_workers, facts, true);
    state.placement = Some(serde_json::to_value(part)?);
    Ok(left)
}

fn log(state: &mut ScaleState, batch: u64, workers: u32, reason: String) {
    state.log.push(ScaleDecision { batch, workers, local: state.local, reason });
    let excess = state.log.len().saturating_sub(MAX_LOG);
    state.log.drain(..excess);
}

#[cfg(test)]
mod tests;
