//! Handles one event for one job: reads the scaler's state, decides, writes it, invokes workers.

use futures::future::join_all;
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    AccountRoom, DepartedWorkers, ScaleDecision, ScaleState, ScalerEvent, SpokenVersions,
    WorkerEvent, protocol,
};
use gristmill_policy::scaling::{
    Policy, PolicyName, Reason, ScalerFacts, Settings, UnknownPolicy, top_up,
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
        let left = self.left(event, &decode(item.as_ref())?.1).await?;
        for _ in 0..MAX_TRIES {
            let (version, mut state) = decode(item.as_ref())?;
            let before = state.clone();
            let expired = state.outstanding.expired(&left);
            state.outstanding.settle(&left);
            let workers = plan(&mut state, event, expired)?;
            let outstanding = state.outstanding.len();
            let same = |of: &ScaleState| (of.policy.clone(), of.target, of.room);
            if workers.is_empty() && same(&state) == same(&before) {
                return Ok(ScalerOutcome { outstanding, ..ScalerOutcome::default() });
            }
            let function = self.pin(&mut state);
            let speaks = state.worker_spoken.nearest(event.v);
            let body = serde_json::to_vec(&state)?.into();
            match self.table.write(&key, version, body, None).await? {
                WriteOutcome::Written => {
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
            state.barren.note(count, event.progress, event.at_ms, &error.to_string());
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
                protocol::write(&WorkerEvent { v: speaks, ns, job, worker }, speaks)
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

/// The result of invoking workers.
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

/// Applies the policy to the scaler's state; returns the numbers of the workers to invoke. Events to `expired` workers
/// expired since the last one.
fn plan(state: &mut ScaleState, event: &ScalerEvent, expired: u32) -> Result<Vec<u32>, ScaleError> {
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
    settle_target(state, event, &facts)?;
    let top_up = top_up(&facts, state.attainable(state.target, event.at_ms));
    let workers: Vec<u32> = (0..top_up.invoke).map(|i| state.next_worker + i).collect();
    if workers.is_empty() {
        return Ok(workers);
    }
    let first = state.next_worker;
    state.next_worker += top_up.invoke;
    state.outstanding.add(first..state.next_worker, event.at_ms);
    // Under autoscaling, the policy's decisions are logged instead.
    if !event.autoscale {
        log(state, event.batches, outstanding + top_up.invoke, top_up.reason);
    }
    Ok(workers)
}

/// Records that the platform did not accept the events to `workers`: they are not outstanding, and tried again when
/// there may be room.
fn note_throttled(state: &mut ScaleState, event: &ScalerEvent, workers: &[u32]) {
    state.outstanding.retain(|worker, _| !workers.contains(&worker));
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

/// Sets the target: the job's fixed number of workers, or the policy's decision on the trainer's report.
fn settle_target(
    state: &mut ScaleState,
    event: &ScalerEvent,
    facts: &ScalerFacts,
) -> Result<(), ScaleError> {
    if !event.autoscale {
        state.target = event.wanted;
        return Ok(());
    }
    let settings = Settings {
        start: START_WORKERS,
        max_workers: state.attainable(event.wanted, event.at_ms),
        // At one dollar per worker-hour, the budget is a number of workers.
        budget_usd_per_hour: event.budget_workers.map(f64::from),
        usd_per_worker_hour: 1.0,
        ..Settings::default()
    };
    let name = event.policy.as_deref().map_or(Ok(PolicyName::default()), str::parse)?;
    // One that another version wrote and this one cannot read counts as absent: the policy starts anew.
    let kept = state.policy.clone().and_then(|kept| serde_json::from_value::<Policy>(kept).ok());
    let kept = kept.filter(|policy| policy.name() == name.as_str());
    let mut policy = kept.unwrap_or_else(|| name.begin(&settings));
    if state.target == 0 {
        state.target = policy.target(&settings);
        let reason = Reason::Start { workers: state.target };
        log(state, event.batches, state.target, reason.to_string());
    }
    let Some(report) = &event.training else { return Ok(()) };
    let decision = policy.decide(report, facts, &settings);
    state.throttled = 0;
    state.policy = Some(serde_json::to_value(policy)?);
    if decision.target != state.target {
        state.target = decision.target;
        log(state, event.batches, decision.target, decision.reason.to_string());
    }
    Ok(())
}

fn log(state: &mut ScaleState, batch: u64, workers: u32, reason: String) {
    state.log.push(ScaleDecision { batch, workers, reason });
    let excess = state.log.len().saturating_sub(MAX_LOG);
    state.log.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use gristmill_model::wire::TrainingReport;
    use gristmill_policy::scaling::POLICIES;
    use gristmill_ports::memory::MemoryTable;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<WorkerEvent>>, Mutex<Vec<String>>);

    #[async_trait]
    impl Invoker for Recorder {
        async fn invoke(
            &self,
            function: &str,
            payload: Bytes,
        ) -> Result<InvokeOutcome, InvokeError> {
            self.1.lock().unwrap().push(function.to_owned());
            self.0.lock().unwrap().push(serde_json::from_slice(&payload).unwrap());
            Ok(InvokeOutcome::Accepted)
        }
    }

    fn event(claimable: u32, silent: &[u32], at_ms: u64) -> ScalerEvent {
        let (ns, job) = ("a".parse().unwrap(), "j".parse().unwrap());
        ScalerEvent {
            v: SpokenVersions::BUILD.newest,
            ns,
            job,
            claimable,
            silent: silent.to_vec(),
            wanted: 3,
            autoscale: false,
            policy: None,
            budget_workers: None,
            training: None,
            mode: 0,
            batches: 0,
            progress: 0,
            at_ms,
        }
    }

    fn scaler() -> (ScalerFunction, Arc<Recorder>) {
        let invoker = Arc::new(Recorder::default());
        let table = Arc::new(MemoryTable::default());
        let worker_function = "worker".to_owned();
        let metrics = FunctionMetrics::default();
        let scaler = ScalerFunction {
            table,
            invoker: invoker.clone(),
            worker_function,
            max_workers: None,
            spoken: SpokenVersions::BUILD,
            metrics,
        };
        (scaler, invoker)
    }

    fn scaled(invoked: u32, outstanding: u32) -> ScalerOutcome {
        ScalerOutcome { invoked, outstanding, ..ScalerOutcome::default() }
    }

    #[tokio::test]
    async fn doubled_events_invoke_once() {
        let (scaler, recorder) = scaler();
        assert_eq!(scaler.handle(&event(10, &[], 1_000)).await.unwrap(), scaled(3, 3));
        assert_eq!(scaler.handle(&event(10, &[], 1_000)).await.unwrap(), scaled(0, 3));
        let numbers: Vec<u32> = recorder.0.lock().unwrap().iter().map(|e| e.worker).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[tokio::test]
    async fn workers_leave_the_account_room_for_the_control_plane() {
        let (scaler, _) = scaler();
        let scaler = ScalerFunction { max_workers: NonZeroU32::new(7), ..scaler };
        let wanted = ScalerEvent { wanted: 40, ..event(100, &[], 1_000) };
        assert_eq!(scaler.handle(&wanted).await.unwrap(), scaled(7, 7));
    }

    #[tokio::test]
    async fn silent_workers_are_replaced_and_nobody_else() {
        let (scaler, recorder) = scaler();
        scaler.handle(&event(10, &[], 1_000)).await.unwrap();
        assert_eq!(scaler.handle(&event(10, &[], 200_000)).await.unwrap(), scaled(0, 3));
        assert_eq!(scaler.handle(&event(10, &[1], 200_000)).await.unwrap(), scaled(1, 3));
        assert_eq!(scaler.handle(&event(10, &[1], 200_000)).await.unwrap(), scaled(0, 3), "again");
        let numbers: Vec<u32> = recorder.0.lock().unwrap().iter().map(|e| e.worker).collect();
        assert_eq!(numbers, [0, 1, 2, 3], "numbers are never reused");
    }

    /// Records that the events to `workers` expired.
    async fn expire(scaler: &ScalerFunction, event: &ScalerEvent, workers: std::ops::Range<u32>) {
        for worker in workers {
            let (pk, sk) =
                keys::left(&event.ns, &event.job, worker / gristmill_model::wire::LEFT_SHARD);
            let key = ItemKey { pk, sk };
            let item = scaler.table.read(std::slice::from_ref(&key)).await.unwrap().pop().flatten();
            let left = item.as_ref().map_or(DepartedWorkers::default(), |item| {
                serde_json::from_slice(&item.body).unwrap()
            });
            let body = serde_json::to_vec(&left.with_expired(worker)).unwrap().into();
            let version = item.map_or(0, |item| item.version);
            scaler.table.write(&key, version, body, None).await.unwrap();
        }
    }

    async fn state_of(scaler: &ScalerFunction, event: &ScalerEvent) -> ScaleState {
        let pk = keys::job_partition(&event.ns, &event.job);
        let item = scaler.table.read(&[ItemKey { pk, sk: keys::SCALE.into() }]).await.unwrap();
        decode(item[0].as_ref()).unwrap().1
    }

    #[tokio::test]
    async fn events_that_expire_are_not_sent_again_before_there_may_be_room() {
        let (scaler, _) = scaler();
        let wanted = |at_ms| ScalerEvent { wanted: 975, ..event(10_000, &[], at_ms) };
        assert_eq!(scaler.handle(&wanted(0)).await.unwrap(), scaled(975, 975));
        // The account runs 200 of them. The others expire within a second or two.
        expire(&scaler, &wanted(0), 200..500).await;
        assert_eq!(scaler.handle(&wanted(60_500)).await.unwrap(), scaled(0, 675));
        expire(&scaler, &wanted(0), 500..975).await;
        let mut sent = 0;
        for s in 62..400 {
            sent += scaler.handle(&wanted(s * 1_000)).await.unwrap().invoked;
            let state = state_of(&scaler, &wanted(0)).await;
            // Those that were sent a minute ago expire too.
            if s % 60 == 0 {
                let first = state.next_worker - (state.outstanding.len() - 200);
                expire(&scaler, &wanted(0), first..state.next_worker).await;
            }
        }
        assert!((32..=6 * 32).contains(&sent), "{sent} of 775 in six minutes");
        let log = state_of(&scaler, &wanted(0)).await.log;
        assert!(log.iter().any(|decision| decision.reason.contains("no room")), "{log:?}");
    }

    #[tokio::test]
    async fn once_there_is_room_all_that_are_wanted_are_started() {
        let (scaler, _) = scaler();
        let wanted = |at_ms| ScalerEvent { wanted: 975, ..event(10_000, &[], at_ms) };
        scaler.handle(&wanted(0)).await.unwrap();
        expire(&scaler, &wanted(0), 200..975).await;
        let mut least = 975;
        for s in 61..420 {
            let outstanding = scaler.handle(&wanted(s * 1_000)).await.unwrap().outstanding;
            least = least.min(outstanding);
        }
        assert_eq!(least, 200);
        assert_eq!(state_of(&scaler, &wanted(0)).await.outstanding.len(), 975);
    }

    #[tokio::test]
    async fn a_policy_does_not_want_more_than_the_account_runs() {
        let (scaler, _) = scaler();
        let auto =
            |at_ms| ScalerEvent { autoscale: true, wanted: 400, ..event(10_000, &[], at_ms) };
        scaler.handle(&auto(0)).await.unwrap();
        // A worker takes 100 times as long as a step.
        let slow = TrainingReport { remote_compute_s: 5.0, ..report(100) };
        let mut event = ScalerEvent { training: Some(slow), ..auto(1_000) };
        let mut batches = 100;
        for s in 1..60 {
            batches += 10;
            let training = Some(TrainingReport { batches, ..slow });
            event = ScalerEvent { training, at_ms: s * 1_000, ..event };
            scaler.handle(&event).await.unwrap();
        }
        let target = state_of(&scaler, &event).await.target;
        assert!(target > 80, "{target}");
        expire(&scaler, &event, 10..state_of(&scaler, &event).await.next_worker).await;
        for s in 61..68 {
            let training = Some(TrainingReport { batches: batches + s, ..slow });
            event = ScalerEvent { training, at_ms: s * 1_000, ..event };
            scaler.handle(&event).await.unwrap();
        }
        assert_eq!(state_of(&scaler, &event).await.target, 10);
    }

    #[tokio::test]
    async fn those_that_have_left_or_outlived_every_invocation_are_replaced() {
        let (scaler, recorder) = scaler();
        let many = |at_ms| ScalerEvent { wanted: 100, ..event(1_000, &[], at_ms) };
        assert_eq!(scaler.handle(&many(1_000)).await.unwrap(), scaled(100, 100));
        let event = event(0, &[], 0);
        for (shard, bits) in [(0, u32::MAX), (1, u32::MAX), (2, 0b101)] {
            let (pk, sk) = keys::left(&event.ns, &event.job, shard);
            let body = serde_json::to_vec(&DepartedWorkers { bits, expired: 0 }).unwrap().into();
            scaler.table.write(&ItemKey { pk, sk }, 0, body, None).await.unwrap();
        }
        assert_eq!(scaler.handle(&many(2_000)).await.unwrap(), scaled(66, 100));
        assert_eq!(scaler.handle(&many(3_000)).await.unwrap(), scaled(0, 100), "seen once");
        assert_eq!(scaler.handle(&many(1_000 + LIFE_MS)).await.unwrap(), scaled(34, 100));
        let mut numbers: Vec<u32> = recorder.0.lock().unwrap().iter().map(|e| e.worker).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    }

    /// Accepts one event, then throttles.
    struct Full(Recorder);

    #[async_trait]
    impl Invoker for Full {
        async fn invoke(
            &self,
            function: &str,
            payload: Bytes,
        ) -> Result<InvokeOutcome, InvokeError> {
            let has_room = self.0.0.lock().unwrap().is_empty();
            if has_room {
                self.0.invoke(function, payload).await
            } else {
                Ok(InvokeOutcome::Throttled)
            }
        }
    }

    #[tokio::test]
    async fn workers_the_platform_does_not_take_are_tried_again_in_time() {
        let (scaler, _) = scaler();
        let scaler = ScalerFunction { invoker: Arc::new(Full(Recorder::default())), ..scaler };
        let throttled =
            ScalerOutcome { invoked: 1, throttled: 2, outstanding: 1, ..ScalerOutcome::default() };
        assert_eq!(scaler.handle(&event(10, &[], 1_000)).await.unwrap(), throttled);
        assert_eq!(scaler.handle(&event(10, &[], 2_000)).await.unwrap(), scaled(0, 1), "too soon");
        assert_eq!(scaler.handle(&event(10, &[], 12_000)).await.unwrap().throttled, 2);
    }

    #[tokio::test]
    async fn a_job_keeps_the_worker_version_it_began_with() {
        let (scaler, recorder) = scaler();
        scaler.handle(&event(10, &[], 1_000)).await.unwrap();
        let deployed = ScalerFunction { worker_function: "worker:2".to_owned(), ..scaler };
        assert_eq!(deployed.handle(&event(10, &[0, 1, 2], 200_000)).await.unwrap(), scaled(3, 3));
        let other = ScalerEvent { job: "k".parse().unwrap(), ..event(10, &[], 200_000) };
        deployed.handle(&other).await.unwrap();
        let functions = recorder.1.lock().unwrap().clone();
        assert_eq!(functions[..6], ["worker"; 6]);
        assert_eq!(functions[6..], ["worker:2"; 3]);
    }

    /// Only the named function exists.
    struct Deployed(Recorder, &'static str);

    #[async_trait]
    impl Invoker for Deployed {
        async fn invoke(
            &self,
            function: &str,
            payload: Bytes,
        ) -> Result<InvokeOutcome, InvokeError> {
            if function == self.1 {
                self.0.invoke(function, payload).await
            } else {
                Err(InvokeError {
                    function: function.to_owned(),
                    reason: "Function not found".to_owned(),
                    gone: true,
                })
            }
        }
    }

    #[tokio::test]
    async fn a_version_that_is_gone_is_reported_and_given_up_for_the_current_one() {
        let (scaler, _) = scaler();
        scaler.handle(&event(10, &[], 1_000)).await.unwrap();
        let state = || async {
            let event = event(0, &[], 0);
            let pk = keys::job_partition(&event.ns, &event.job);
            let item = scaler.table.read(&[ItemKey { pk, sk: keys::SCALE.into() }]).await.unwrap();
            decode(item[0].as_ref()).unwrap().1
        };
        let deployed = |name: &'static str| ScalerFunction {
            table: Arc::clone(&scaler.table),
            invoker: Arc::new(Deployed(Recorder::default(), name)),
            worker_function: name.to_owned(),
            max_workers: None,
            spoken: SpokenVersions::BUILD,
            metrics: FunctionMetrics::default(),
        };
        // No newer version is deployed.
        let lost = ScalerFunction { worker_function: "worker".to_owned(), ..deployed("worker:9") };
        let event = event(10, &[0, 1, 2], 60_000);
        let scaled = lost.handle(&event).await.unwrap();
        assert_eq!((scaled.invoked, scaled.refused), (0, 3));
        let after = state().await;
        assert!(after.outstanding.is_empty(), "{after:?}");
        assert_eq!((after.barren.workers, after.barren.latest_ms), (3, 60_000));
        assert!(after.barren.error.contains("Function not found"), "{after:?}");
        let current = deployed("worker:2");
        assert_eq!(current.handle(&event).await.unwrap().refused, 3);
        let after = state().await;
        assert_eq!(after.worker_function.as_deref(), Some("worker:2"));
        assert!(
            after.log.last().unwrap().reason.contains("worker was deleted: using worker:2"),
            "{after:?}"
        );
        assert_eq!(current.handle(&event).await.unwrap().invoked, 3);
    }

    /// A trainer that needs 50 ms per batch, for which a worker needs 400 ms.
    fn report(batches: u64) -> TrainingReport {
        TrainingReport {
            batches,
            step_s: 0.05,
            stall_s: 0.15,
            remote_workers: 2.0,
            remote_compute_s: 0.4,
            ..TrainingReport::default()
        }
    }

    #[tokio::test]
    async fn the_policy_decides_from_reports_within_its_limits() {
        let (scaler, recorder) = scaler();
        let auto = ScalerEvent { autoscale: true, wanted: 40, ..event(100, &[], 1_000) };
        assert_eq!(scaler.handle(&auto).await.unwrap().outstanding, 2, "to begin with");
        let reported = ScalerEvent { training: Some(report(100)), ..auto.clone() };
        let outstanding = scaler.handle(&reported).await.unwrap().outstanding;
        assert!((7..=9).contains(&outstanding), "{outstanding}");
        assert_eq!(scaler.handle(&reported).await.unwrap(), scaled(0, outstanding), "repeated");
        assert_eq!(recorder.0.lock().unwrap().len(), outstanding as usize);
        let key = ItemKey { pk: keys::job_partition(&auto.ns, &auto.job), sk: keys::SCALE.into() };
        let item = scaler.table.read(&[key]).await.unwrap();
        let (_, state) = decode(item[0].as_ref()).unwrap();
        assert_eq!(state.target, outstanding);
        assert!(state.log.last().unwrap().reason.starts_with("estimate: "), "{:?}", state.log);

        let budget = ScalerEvent { job: "k".parse().unwrap(), budget_workers: Some(4), ..auto };
        scaler.handle(&budget).await.unwrap();
        let reported = ScalerEvent { training: Some(report(100)), ..budget };
        assert_eq!(scaler.handle(&reported).await.unwrap().outstanding, 4);
    }

    #[tokio::test]
    async fn a_job_selects_its_policy_by_name() {
        for name in POLICIES {
            let (scaler, _) = scaler();
            let policy = Some(name.to_string());
            let auto =
                ScalerEvent { autoscale: true, wanted: 40, policy, ..event(100, &[], 1_000) };
            scaler.handle(&auto).await.unwrap();
            let reported = ScalerEvent { training: Some(report(100)), ..auto.clone() };
            scaler.handle(&reported).await.unwrap();
            let pk = keys::job_partition(&auto.ns, &auto.job);
            let item = scaler.table.read(&[ItemKey { pk, sk: keys::SCALE.into() }]).await.unwrap();
            let (_, state) = decode(item[0].as_ref()).unwrap();
            let policy: Policy = serde_json::from_value(state.policy.unwrap()).unwrap();
            assert_eq!(policy.name(), name.as_str());
            assert_eq!(state.target, policy.target(&Settings::default()), "{name}");
        }
        let (scaler, _) = scaler();
        let policy = Some("guess".to_owned());
        let unknown = ScalerEvent { autoscale: true, policy, ..event(100, &[], 1_000) };
        let error = scaler.handle(&unknown).await.unwrap_err().to_string();
        assert!(error.contains("`guess`") && error.contains("coverage"), "{error}");
    }

    #[tokio::test]
    async fn workers_are_invoked_in_a_version_that_their_function_speaks() {
        let (scaler, recorder) = scaler();
        let versions = || -> Vec<u32> {
            std::mem::take(&mut *recorder.0.lock().unwrap()).iter().map(|event| event.v).collect()
        };
        let of = |job: &str, v: u32, silent: &[u32], at_ms: u64| ScalerEvent {
            job: job.parse().unwrap(),
            v,
            ..event(10, silent, at_ms)
        };
        let before = ScalerFunction { spoken: SpokenVersions::only(2), ..scaler };
        before.handle(&of("old", 2, &[], 1_000)).await.unwrap();
        assert_eq!(versions(), [2, 2, 2]);
        let present = ScalerFunction { spoken: SpokenVersions::BUILD, ..before };
        // The job is of version 3, as one is that was registered just before its stack was replaced by the one before.
        present.handle(&of("old", 3, &[0, 1, 2], 200_000)).await.unwrap();
        assert_eq!(versions(), [2, 2, 2], "they keep the worker function that speaks version 2");
        for (job, v) in [("new", 3), ("waiting", 2)] {
            present.handle(&of(job, v, &[], 1_000)).await.unwrap();
            assert_eq!(versions(), [v; 3]);
        }
    }

    #[tokio::test]
    async fn another_version_is_refused_by_name() {
        let (scaler, _) = scaler();
        let other = ScalerEvent { v: 9, ..event(1, &[], 0) };
        assert!(scaler.handle(&other).await.unwrap_err().to_string().contains("version 9"));
    }
}
