//! Decisions and invocations of the scaler over ports in memory.

use super::*;
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::Fingerprint;
use gristmill_model::wire::{BudgetFacts, JobBudget, TrainingReport};
use gristmill_policy::scaling::POLICIES;
use gristmill_ports::memory::MemoryTable;
use std::sync::Mutex;

#[derive(Default)]
struct Recorder(Mutex<Vec<WorkerEvent>>, Mutex<Vec<String>>);

#[async_trait]
impl Invoker for Recorder {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
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
        budget: None,
        max_local: None,
        batches_left: 0,
        training: None,
        mode: 0,
        is_passing: false,
        pipeline: None,
        epoch: 0,
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
        region: "here".to_owned(),
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
        let left = item
            .as_ref()
            .map_or(DepartedWorkers::default(), |item| serde_json::from_slice(&item.body).unwrap());
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
    let auto = |at_ms| ScalerEvent { autoscale: true, wanted: 400, ..event(10_000, &[], at_ms) };
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
async fn workers_that_left_or_outlived_every_invocation_are_replaced() {
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
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let has_room = self.0.0.lock().unwrap().is_empty();
        if has_room { self.0.invoke(function, payload).await } else { Ok(InvokeOutcome::Throttled) }
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
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
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
        region: "here".to_owned(),
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
    assert_eq!((after.failed_workers.workers, after.failed_workers.latest_ms), (3, 60_000));
    assert!(after.failed_workers.error.contains("Function not found"), "{after:?}");
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
        let auto = ScalerEvent { autoscale: true, wanted: 40, policy, ..event(100, &[], 1_000) };
        scaler.handle(&auto).await.unwrap();
        let reported = ScalerEvent { training: Some(report(100)), ..auto.clone() };
        scaler.handle(&reported).await.unwrap();
        let pk = keys::job_partition(&auto.ns, &auto.job);
        let item = scaler.table.read(&[ItemKey { pk, sk: keys::SCALE.into() }]).await.unwrap();
        let (_, state) = decode(item[0].as_ref()).unwrap();
        let policy: Policy = serde_json::from_value(state.policy.unwrap()).unwrap();
        assert_eq!(policy.name(), *name);
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

/// A budget for so many first starts of workers, with the copies of their events.
fn budget_for(workers: u64) -> BudgetFacts {
    let budget = JobBudget { worker_ms: 1, ..JobBudget::default() };
    let one = 6_800 + 2 * 2_800;
    let budget = JobBudget { cap: one * workers + one / 2, ..budget };
    BudgetFacts { budget, registered_ms: 1, kept: 0 }
}

#[tokio::test]
async fn no_more_workers_are_sent_than_a_budget_pays_for() {
    let (scaler, recorder) = scaler();
    let within = |at_ms| ScalerEvent { budget: Some(budget_for(2)), ..event(10, &[], at_ms) };
    assert_eq!(scaler.handle(&within(1_000)).await.unwrap(), scaled(2, 2));
    assert!(recorder.0.lock().unwrap().iter().all(|event| event.first_ms == Some(FIRST_MS)));
    assert_eq!(scaler.handle(&within(2_000)).await.unwrap(), scaled(0, 2), "a copy of the event");
    // They were silent: they were not let in, and copies of their events may still come.
    let silent = ScalerEvent { silent: vec![0, 1], ..within(100_000) };
    assert_eq!(scaler.handle(&silent).await.unwrap(), scaled(1, 1));
    assert_eq!(scaler.handle(&within(180_999)).await.unwrap(), scaled(0, 1));
    assert_eq!(scaler.handle(&within(181_000)).await.unwrap(), scaled(1, 2));
    let ledger = state_of(&scaler, &within(0)).await.spending.unwrap();
    assert_eq!((ledger.workers.len(), ledger.spent), (2, 2 * 2_800));
}

#[tokio::test]
async fn an_event_of_an_earlier_job_of_the_name_sends_nobody() {
    let (scaler, _) = scaler();
    let of = |registered_ms, at_ms| {
        let budget = Some(BudgetFacts { registered_ms, ..budget_for(1) });
        ScalerEvent { budget, ..event(10, &[], at_ms) }
    };
    assert_eq!(scaler.handle(&of(5, 1_000)).await.unwrap(), scaled(1, 1));
    let before = state_of(&scaler, &of(5, 0)).await;
    let silent = ScalerEvent { silent: vec![0], ..of(4, 200_000) };
    assert_eq!(scaler.handle(&silent).await.unwrap().invoked, 0);
    assert_eq!(state_of(&scaler, &of(5, 0)).await.spending, before.spending);
}

/// A job that trains for `reports` reports; its trainer's step is in seconds, its workers take 0.4 s for a batch.
async fn train(scaler: &ScalerFunction, job: &str, step_s: f64, reports: u64) -> ScaleState {
    let pipeline = Some(Fingerprint::from_content("test", b"pipeline"));
    let job = job.parse().unwrap();
    let begin = event(10_000, &[], 0);
    let begin = ScalerEvent { job, autoscale: true, wanted: 400, pipeline, ..begin };
    scaler.handle(&begin).await.unwrap();
    for n in 1..=reports {
        let target = f64::from(state_of(scaler, &begin).await.target);
        let training = TrainingReport {
            step_s,
            stall_s: (0.4 / target - step_s).max(0.0),
            remote_workers: target,
            lease_batches: 1,
            ..report(100 * n)
        };
        let (epoch, at_ms) = ((n / 40) as u32, 1_000 * n);
        let event = ScalerEvent { training: Some(training), epoch, at_ms, ..begin.clone() };
        scaler.handle(&event).await.unwrap();
    }
    state_of(scaler, &begin).await
}

/// The items in which jobs keep what they measured.
async fn kept(table: &MemoryTable) -> Vec<(WorkerMetrics, Option<u64>)> {
    let mut kept = Vec::new();
    for (key, expires_at_s) in table.expiries() {
        if key.pk == "T#a#METRICS" {
            let item = table.read(&[key]).await.unwrap().pop().flatten().unwrap();
            assert!(item.body.len() <= 1_024, "{} bytes", item.body.len());
            kept.push((serde_json::from_slice(&item.body).unwrap(), expires_at_s));
        }
    }
    kept
}

#[tokio::test]
async fn a_job_begins_where_the_one_before_converged_and_adds_to_what_it_measured() {
    let (scaler, _) = scaler();
    let table = Arc::new(MemoryTable::default());
    let scaler = ScalerFunction { table: table.clone(), ..scaler };
    let first = train(&scaler, "one", 0.05, 100).await;
    assert_eq!((first.target, first.metrics), (9, MetricsOrigin::Measured));
    let [(metrics, Some(expires_at_s))] = kept(&table).await[..] else { panic!() };
    assert_eq!((metrics.workers.mean, metrics.workers.count), (9.0, 1), "not its own again");
    assert_eq!(expires_at_s, 80 + METRICS_LIFETIME_S, "written when its third epoch began");
    let second = train(&scaler, "two", 0.05, 50).await;
    assert_eq!((second.target, second.metrics), (9, MetricsOrigin::Stored));
    let reasons: Vec<&str> = second.log.iter().map(|entry| entry.reason.as_str()).collect();
    assert_eq!(reasons, ["start: 9 workers, as earlier jobs of this pipeline"]);
    assert!(kept(&table).await[0].0.workers.count > 1);
}

#[tokio::test]
async fn a_job_under_another_load_discards_what_was_stored_and_replaces_it() {
    let (scaler, _) = scaler();
    let table = Arc::new(MemoryTable::default());
    let scaler = ScalerFunction { table: table.clone(), ..scaler };
    train(&scaler, "one", 0.05, 60).await;
    let second = train(&scaler, "two", 0.1, 3).await;
    assert_eq!(second.metrics, MetricsOrigin::Measured);
    let last = &second.log.last().unwrap().reason;
    assert_eq!(
        last,
        "stored metrics discarded: three reports differ from them by over 20 %: 5 workers"
    );
    train(&scaler, "three", 0.02, 60).await;
    let metrics = kept(&table).await[0].0;
    assert_eq!((metrics.workers.mean, metrics.step_s.count), (21.0, 1), "{metrics:?}");
    let last = train(&scaler, "four", 0.02, 1).await;
    assert_eq!(last.target, 21);
}

#[tokio::test]
async fn jobs_of_a_fixed_number_keep_nothing_and_a_damaged_item_is_none() {
    let (scaler, _) = scaler();
    let table = Arc::new(MemoryTable::default());
    let scaler = ScalerFunction { table: table.clone(), ..scaler };
    scaler.handle(&event(100, &[], 1_000)).await.unwrap();
    assert!(kept(&table).await.is_empty());
    let pipeline = Fingerprint::from_content("test", b"pipeline");
    let (pk, sk) = keys::metrics(&"a".parse().unwrap(), pipeline, "worker", "here");
    table.write(&ItemKey { pk, sk }, 0, Bytes::from_static(b"{"), None).await.unwrap();
    assert_eq!(train(&scaler, "one", 0.05, 60).await.metrics, MetricsOrigin::Measured);
    assert_eq!(kept(&table).await.len(), 1, "replaced");
}

/// The state after 300 reports of a trainer that needs four workers, on a host of eight processors of which it keeps
/// `busy` busy, and whose step becomes longer by `slowed` with each local worker.
async fn placed(max_local: Option<u32>, busy: f64, slowed: f64) -> ScaleState {
    let (scaler, _) = scaler();
    placed_on(&scaler, "one", max_local, (busy, slowed)).await
}

/// The same for a job of this name.
async fn placed_on(
    scaler: &ScalerFunction,
    job: &str,
    max_local: Option<u32>,
    (busy, slowed): (f64, f64),
) -> ScaleState {
    let begin = ScalerEvent {
        job: job.parse().unwrap(),
        pipeline: Some(Fingerprint::from_content("test", b"pipeline")),
        autoscale: true,
        wanted: 16,
        max_local,
        batches_left: 1_000_000,
        ..event(10_000, &[], 0)
    };
    scaler.handle(&begin).await.unwrap();
    for i in 1..300 {
        let ScaleState { target, local, .. } = state_of(scaler, &begin).await;
        let [remote, local] = [target, local.unwrap_or(0)].map(f64::from);
        let step_s = 0.1 * (1.0 + slowed * local);
        let batch_s = step_s.max(0.4 / (remote + local));
        let training = Some(TrainingReport {
            batches: i * 100,
            step_s: step_s * (1.0 + 0.002 * (i % 3) as f64),
            stall_s: batch_s - step_s,
            ahead_batches: if batch_s > step_s { 0 } else { 40 },
            lease_batches: 1,
            window_full: if batch_s > step_s { 0.0 } else { 0.9 },
            queue_batches: if batch_s > step_s { 0.0 } else { 10.0 },
            remote_workers: remote / (remote + local) * 0.4 / batch_s,
            local_workers: local / (remote + local) * 0.4 / batch_s,
            local_share: local / (remote + local),
            remote_compute_s: if remote > 0.0 { 0.4 } else { 0.0 },
            busy_cores: (busy + local).min(8.0),
            host_cores: 8.0,
            ..TrainingReport::default()
        });
        let (epoch, at_ms) = ((i / 40) as u32, i * 5_000);
        let event = ScalerEvent { training, epoch, at_ms, ..begin.clone() };
        scaler.handle(&event).await.unwrap();
    }
    state_of(scaler, &begin).await
}

#[tokio::test]
async fn a_job_begins_with_the_local_workers_of_the_one_before() {
    let (scaler, _) = scaler();
    let first = placed_on(&scaler, "one", Some(7), (1.0, 0.0)).await;
    let second = placed_on(&scaler, "two", Some(7), (1.0, 0.0)).await;
    assert_eq!((second.target, second.local), (first.target, first.local), "{:?}", second.log);
    let local: Vec<_> = second.log.iter().map(|decision| decision.local).collect();
    assert!(local.windows(2).filter(|pair| pair[0] != pair[1]).count() <= 1, "{:?}", second.log);
    let smaller = placed_on(&scaler, "three", Some(2), (1.0, 0.0)).await;
    assert!(smaller.local <= Some(2), "{:?}", smaller.log);
}

#[tokio::test]
async fn nothing_is_tried_in_a_mode_that_does_not_last() {
    let (scaler, _) = scaler();
    let begin = ScalerEvent {
        autoscale: true,
        wanted: 16,
        max_local: Some(7),
        batches_left: 1_000_000,
        is_passing: true,
        ..event(10_000, &[], 0)
    };
    scaler.handle(&begin).await.unwrap();
    for n in 1..200 {
        let remote_workers = f64::from(state_of(&scaler, &begin).await.target);
        let idle = TrainingReport {
            step_s: 0.1,
            remote_workers,
            remote_compute_s: 0.4,
            busy_cores: 1.0,
            host_cores: 8.0,
            ..report(n * 100)
        };
        let training =
            Some(TrainingReport { stall_s: (0.4 / remote_workers - 0.1).max(0.0), ..idle });
        let event = ScalerEvent { training, at_ms: n * 5_000, ..begin.clone() };
        scaler.handle(&event).await.unwrap();
    }
    let state = state_of(&scaler, &begin).await;
    assert_eq!(state.local, Some(0), "{:?}", state.log);
    assert!(state.target >= 4, "its workers are still counted: {:?}", state.log);
}

#[tokio::test]
async fn remote_workers_are_as_many_as_fixed_local_ones_leave() {
    let (scaler, _) = scaler();
    let begin = ScalerEvent { autoscale: true, wanted: 40, ..event(10_000, &[], 0) };
    scaler.handle(&begin).await.unwrap();
    for n in 1..200 {
        let remote = f64::from(state_of(&scaler, &begin).await.target);
        // Four batches a second of the ten that the trainer takes are made beside it, and 0.625 by a function.
        let (made, local) = (remote / 1.6 + 4.0, 4.0);
        let training = Some(TrainingReport {
            step_s: 0.1,
            stall_s: (1.0 / made - 0.1).max(0.0),
            local_workers: 2.0,
            local_share: local / made.min(10.0),
            remote_workers: remote.min(9.6),
            remote_compute_s: 1.6,
            lease_batches: 1,
            ahead_batches: 20,
            ..report(n * 100)
        });
        let event = ScalerEvent { training, at_ms: n * 5_000, ..begin.clone() };
        scaler.handle(&event).await.unwrap();
    }
    let state = state_of(&scaler, &begin).await;
    assert!(
        (9..=11).contains(&state.target),
        "{} of 17 without them: {:?}",
        state.target,
        state.log
    );
    assert_eq!(state.local, None);
}

#[tokio::test]
async fn work_moves_to_an_idle_host_and_away_from_a_busy_one() {
    let idle = placed(Some(7), 1.0, 0.0).await;
    assert!(idle.local.is_some_and(|local| (4..=6).contains(&local)), "{idle:?}");
    assert_eq!(idle.target, 0, "local workers make all: {:?}", idle.log);
    let moves: Vec<_> = idle.log.iter().filter_map(|decision| decision.local).collect();
    assert!(moves.len() > 1 && moves.is_sorted(), "{:?}", idle.log);
    for (busy, slowed) in [(8.0, 0.0), (1.0, 0.2)] {
        let full = placed(Some(7), busy, slowed).await;
        assert_eq!(full.local, Some(0), "{full:?}");
        assert!((4..=6).contains(&full.target), "{full:?}");
    }
}

#[tokio::test]
async fn without_a_placement_nobody_decides_on_local_workers() {
    let fixed = placed(None, 1.0, 0.0).await;
    assert_eq!((fixed.local, &fixed.placement), (None, &None));
    assert!((4..=6).contains(&fixed.target), "{fixed:?}");
    assert!(fixed.log.iter().all(|decision| decision.local.is_none()));
}
