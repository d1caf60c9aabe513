//! How far the trainer is, and what it felt on the way: what the poller reports.

use crate::ledger::Place;
use gristmill_model::wire::{
    Ack, Polled, ReadyEntry, ReadyKind, TrainerMetrics, TrainingReport, WorkerSeconds,
};
use gristmill_model::{Epoch, Nonce};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// Batches over which the reported means are taken (Cachew 4.3 averages over the last 100).
const METRIC_BATCHES: usize = 100;
/// Batches of the first report.
const FIRST_REPORT_BATCHES: u64 = 10;
/// A report covers no longer than this, if it has batches enough to mean anything: large batches take
/// seconds each.
const REPORT_AT_LEAST: Duration = Duration::from_secs(5);
const FEWEST_BATCHES: u64 = 5;

#[derive(Debug)]
struct Inner {
    /// Which run of the trainer this is, once that is settled.
    /// This run's, and the one it takes over from.
    generation: Option<(u64, u64)>,
    /// Every generation of this process: none of them is another trainer's.
    own: Vec<u64>,
    /// Where this run begins: the batch, and the first split it needs.
    began: Option<((Epoch, u64), Place)>,
    /// The trainer has said where it begins: the run may be taken over.
    announced: bool,
    /// The furthest batch that the coordinator may know this generation to be durable before.
    said: Option<(Epoch, u64)>,
    delivered: Place,
    durable: (Epoch, u64),
    durable_place: Place,
    /// The place a restart would need, by the batch it would restart at.
    resume_places: BTreeMap<(Epoch, u64), Place>,
    acked: Option<Ack>,
    /// (time since the batch before, part of it spent waiting).
    recent: VecDeque<(Duration, Duration)>,
    batches: u64,
    queue_batches: u32,
    report: Gathering,
    /// What splits that became ready cost since the last report, by the epoch from which on workers do what they did
    /// there: those of an epoch that the trainer has yet to reach are kept until it does.
    costs: BTreeMap<Option<Epoch>, Cost>,
    /// The next report goes out soon: nothing is known yet of what workers do now.
    soon: bool,
    /// The epoch from which on they do it.
    mode_from: Option<Epoch>,
}

/// What a trainer felt of one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Felt {
    /// Time since the batch before.
    pub since_last: Duration,
    /// Part of it spent waiting.
    pub waited: Duration,
    /// Part of that in which its split was committed: it was on its way here.
    pub fetching: Duration,
}

/// What the next report will be made of.
#[derive(Debug, Default)]
struct Gathering {
    /// Batches handed over since the last report, the time from each to the next, and the waiting
    /// part of it.
    batches: u64,
    time: Duration,
    waited: Duration,
    fetching: Duration,
    polls: u32,
    full_polls: u32,
    queue_batches: u64,
    workers: u64,
    ahead_batches: u64,
    lease_batches: u32,
}

/// What workers spent on so many batches, in seconds.
#[derive(Debug, Default)]
struct Cost {
    spent: WorkerSeconds,
    batches: f64,
}

impl Cost {
    fn add(&mut self, entry: &ReadyEntry, batch_size: f64) {
        self.spent.source_s += f64::from(entry.cost.source_ms) / 1e3;
        self.spent.compute_s += f64::from(entry.cost.compute_ms) / 1e3;
        self.spent.put_s += f64::from(entry.cost.put_ms) / 1e3;
        self.batches += f64::from(entry.rows) / batch_size;
    }

    fn per_batch(&self) -> Option<WorkerSeconds> {
        let WorkerSeconds { source_s, compute_s, put_s } = self.spent;
        let mean = |seconds: f64| seconds / self.batches;
        (self.batches > 0.0).then(|| WorkerSeconds {
            source_s: mean(source_s),
            compute_s: mean(compute_s),
            put_s: mean(put_s),
        })
    }
}

/// Shared by the trainer's side (which advances it) and the poller (which reports it).
#[derive(Debug)]
pub(crate) struct Progress {
    inner: Mutex<Inner>,
    /// Somebody waits for the next poll.
    pub urgent: Notify,
    /// Wakes the poller, unless its last poll was a moment ago.
    pub soon: Notify,
    /// Somebody waits for every acknowledgement.
    always: AtomicBool,
    /// Up to where the coordinator knows the trainer to be.
    told: watch::Sender<(Epoch, u64)>,
}

impl Progress {
    /// A trainer that resumes at batch `durable`; nothing is reported before the splits it needs
    /// are known, see [`Progress::starts_at`].
    pub fn new(durable: (Epoch, u64)) -> Self {
        let inner = Inner {
            generation: None,
            own: Vec::new(),
            began: None,
            announced: false,
            said: None,
            delivered: (durable.0, 0),
            durable,
            durable_place: (durable.0, 0),
            resume_places: BTreeMap::new(),
            acked: None,
            recent: VecDeque::new(),
            batches: 0,
            queue_batches: 0,
            report: Gathering::default(),
            costs: BTreeMap::new(),
            soon: true,
            mode_from: None,
        };
        Self {
            inner: Mutex::new(inner),
            urgent: Notify::new(),
            soon: Notify::new(),
            always: AtomicBool::new(false),
            told: watch::Sender::new((0, 0)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over from the run of generation `last`. The clock alone would not do: this host's may be
    /// behind that of the last one. `lot` keeps two runs that begin at one moment apart.
    pub fn takes_over(&self, last: u64, now_ms: u64, lot: Nonce) {
        const LOT_BITS: u32 = 16;
        let mut inner = self.lock();
        if inner.generation.is_some() {
            return;
        }
        let [.., high, low] = lot.0;
        let lot = u64::from(u16::from_be_bytes([high, low]));
        let after = (last >> LOT_BITS) + 1;
        let generation = (now_ms.max(after) << LOT_BITS) | lot;
        inner.generation = Some((generation, last));
        inner.own.push(generation);
    }

    /// After a refusal that named another generation: `true` if it may have been one of this process's
    /// own, so that the next answer decides.
    pub fn takes_over_anew(&self) -> bool {
        let mut inner = self.lock();
        let anew = inner.acked.is_none() && inner.own.len() > 1;
        if anew {
            (inner.generation, inner.said) = (None, None);
        }
        anew
    }

    /// Whether `generation` is one of this process's.
    pub fn is_own(&self, generation: u64) -> bool {
        self.lock().own.contains(&generation)
    }

    /// Whether the coordinator knows of this generation.
    pub fn is_heard(&self) -> bool {
        self.lock().acked.is_some()
    }

    /// The trainer is there and begins where the stream does: the coordinator is told.
    pub fn announce(&self) {
        self.lock().announced = true;
        self.urgent.notify_one();
        self.told.send_modify(|_| ());
    }

    /// The coordinator does not let a trainer begin there: nothing more is said before it begins elsewhere.
    pub fn withdraw(&self) {
        let mut inner = self.lock();
        (inner.announced, inner.began) = (false, None);
        (inner.generation, inner.said, inner.acked) = (None, None, None);
    }

    /// The stream begins anew at batch `at`, which its trainer has yet to confirm. What this generation said
    /// cannot be taken back: behind it another one begins.
    pub fn reopen(&self, at: (Epoch, u64)) {
        let mut inner = self.lock();
        (inner.announced, inner.began) = (false, None);
        inner.resume_places.clear();
        if inner.said.is_some_and(|said| at < said) {
            (inner.generation, inner.said, inner.acked) = (None, None, None);
        }
        (inner.delivered, inner.durable, inner.durable_place) = ((at.0, 0), at, (at.0, 0));
        inner.queue_batches = 0;
        drop(inner);
        self.urgent.notify_one();
    }

    /// Everything before this batch is safe.
    pub fn durable_until(&self) -> (Epoch, u64) {
        self.lock().durable
    }

    /// Whether the coordinator knows all that there is to say.
    pub fn is_settled(&self) -> bool {
        let inner = self.lock();
        inner.acked.is_some() && next_ack(&inner).is_none()
    }

    /// Resolves once it is known with which split the stream begins.
    pub async fn located(&self) {
        self.until(|inner| inner.began.is_some()).await;
    }

    /// The batch that the stream begins with, once it is known.
    pub fn begins_at(&self) -> Option<(Epoch, u64)> {
        self.lock().began.map(|(batch, _)| batch)
    }

    /// Resolves once the coordinator has accepted where the stream begins.
    pub async fn admitted(&self) {
        self.until(|inner| inner.announced && inner.began.is_some() && inner.acked.is_some()).await;
    }

    async fn until(&self, holds: impl Fn(&Inner) -> bool) {
        let mut told = self.told.subscribe();
        while !holds(&self.lock()) {
            // The sender lives as long as self.
            let _ = told.changed().await;
        }
    }

    /// The stream goes on with batch `at` and the split at `next`, and needs what splits from `needed` on
    /// left over.
    pub fn starts_at(&self, at: (Epoch, u64), needed: Place, next: Place) {
        let mut inner = self.lock();
        inner.delivered = inner.delivered.max(next);
        inner.durable = inner.durable.max(at);
        inner.durable_place = inner.durable_place.max(needed);
        inner.began = Some((inner.durable, inner.durable_place));
        drop(inner);
        self.told.send_modify(|_| ());
    }

    /// A batch is about to be handed to the trainer; a restart at it would need splits from
    /// `resume_place` on.
    pub fn next_is(&self, batch: (Epoch, u64), resume_place: Place) {
        self.lock().resume_places.insert(batch, resume_place);
    }

    /// A batch is handed to the trainer.
    pub fn handed_over(&self, felt: Felt, queue_batches: usize) {
        let Felt { since_last, waited, fetching } = felt;
        let mut inner = self.lock();
        inner.batches += 1;
        inner.queue_batches = u32::try_from(queue_batches).unwrap_or(u32::MAX);
        inner.recent.truncate(METRIC_BATCHES - 1);
        inner.recent.push_front((since_last, waited));
        let report = &mut inner.report;
        report.batches += 1;
        report.time += since_last;
        report.waited += waited.min(since_last);
        report.fetching += fetching.min(waited).min(since_last);
    }

    /// Every split before `place` is taken in: it is in this host's memory, or with the trainer.
    pub fn passed(&self, place: Place) {
        let mut inner = self.lock();
        inner.delivered = inner.delivered.max(place);
    }

    /// The first place not taken in.
    pub fn delivered(&self) -> Place {
        self.lock().delivered
    }

    /// Everything before `next` is safe: a restart begins there. Older words are ignored.
    pub fn durable(&self, next: (Epoch, u64)) {
        let mut inner = self.lock();
        if next <= inner.durable {
            return;
        }
        inner.durable = next;
        // The batch after `next` may not have been handed over yet: what the last one needed is a
        // safe, slightly early answer.
        let known = inner.resume_places.range(..=next).next_back().map(|(_, place)| *place);
        let at_epoch_start = (next.1 == 0).then_some((next.0, 0));
        let place = at_epoch_start.into_iter().chain(known).max();
        inner.durable_place = inner.durable_place.max(place.unwrap_or_default());
        inner.resume_places = inner.resume_places.split_off(&next);
    }

    /// The acknowledgement to send now, if there is a new one. The first one says where this run
    /// begins, and nothing of what it has done since: only so can the coordinator tell that another
    /// run was there first.
    pub fn send_ack(&self) -> Option<Ack> {
        let mut inner = self.lock();
        let ack = next_ack(&inner)?;
        inner.said = inner.said.max(Some(ack.durable));
        Some(ack)
    }

    /// From now on progress is acknowledged at every poll.
    pub fn acknowledge_always(&self) {
        self.always.store(true, Ordering::Relaxed);
        self.urgent.notify_one();
    }

    pub fn acknowledges_always(&self) -> bool {
        self.always.load(Ordering::Relaxed)
    }

    /// Resolves once the coordinator knows that everything before `next` is consumed.
    pub async fn told(&self, next: (Epoch, u64)) {
        self.urgent.notify_one();
        // The sender lives as long as self.
        let _ = self.told.subscribe().wait_for(|told| *told >= next).await;
    }

    /// `ack` has been written.
    pub fn acknowledged(&self, ack: Ack) {
        let mut inner = self.lock();
        // The stream may have begun anew since.
        if inner.generation.is_none_or(|(generation, _)| generation != ack.generation) {
            return;
        }
        inner.acked = Some(ack);
        drop(inner);
        self.told.send_replace(ack.durable);
    }

    /// Where the stream starts has not been accepted yet; nobody knows whether it may.
    pub fn is_unheard(&self) -> bool {
        let inner = self.lock();
        inner.began.is_some() && inner.acked.is_none()
    }

    /// How many splits have been delivered beyond the last acknowledged one, within an epoch's
    /// arithmetic of `n_splits`.
    pub fn unreported_splits(&self, n_splits: u32) -> u64 {
        let inner = self.lock();
        let linear =
            |(epoch, position): Place| u64::from(epoch) * u64::from(n_splits) + u64::from(position);
        let reported = inner.acked.map_or(0, |ack| linear(ack.delivered));
        linear(inner.delivered).saturating_sub(reported)
    }

    /// Takes in what a poll said of workers, for the next report.
    pub fn polled(&self, polled: &Polled) {
        let Some(plan) = polled.job.plan else { return };
        let batch_size = f64::from(plan.batch_size.max(1));
        let mut inner = self.lock();
        let caching = polled.job.caching.as_ref();
        let mode_from = |epoch: Epoch| caching.and_then(|c| c.of(epoch)).map(|mode| mode.from);
        for entry in polled.ready.iter().filter(|entry| entry.kind == ReadyKind::Object) {
            inner.costs.entry(mode_from(entry.epoch)).or_default().add(entry, batch_size);
        }
        let mode_from = mode_from(inner.delivered.0);
        if inner.mode_from != mode_from {
            // What was felt of computing says nothing of reading a cache.
            inner.report = Gathering::default();
            inner.costs.retain(|of, _| *of >= mode_from);
            (inner.soon, inner.mode_from) = (true, mode_from);
        }
        let fetched = u64::from(inner.queue_batches);
        let report = &mut inner.report;
        report.polls += 1;
        report.full_polls += u32::from(polled.window_full);
        report.workers += u64::from(polled.active_workers);
        let per_split = u64::from(plan.split_records / plan.batch_size.max(1));
        report.ahead_batches = u64::from(polled.ahead) * per_split;
        report.lease_batches = u32::try_from(per_split).unwrap_or(u32::MAX).saturating_mul(plan.r);
        let ready: u64 = polled.ready.iter().map(|entry| u64::from(entry.batches)).sum();
        report.queue_batches += fetched + ready;
    }

    /// The report on the batches since the last one, when there are enough of them: it goes out with
    /// one poll. The first comes soon, as a rough number of workers is better than any number.
    pub fn report(&self) -> Option<TrainingReport> {
        let mut inner = self.lock();
        let enough = match inner.soon {
            true => FIRST_REPORT_BATCHES,
            false => METRIC_BATCHES as u64,
        };
        let long = inner.report.time >= REPORT_AT_LEAST && inner.report.batches >= FEWEST_BATCHES;
        if inner.report.batches < enough && !long || inner.report.polls == 0 {
            return None;
        }
        inner.soon = false;
        let batches = inner.batches;
        let Gathering { time, waited, fetching, polls, .. } = inner.report;
        let mode_from = inner.mode_from;
        let worker = inner.costs.remove(&mode_from).and_then(|cost| cost.per_batch());
        let gathered = std::mem::take(&mut inner.report);
        let (n, polls) = (gathered.batches as f64, f64::from(polls));
        Some(TrainingReport {
            batches,
            step_s: time.saturating_sub(waited).as_secs_f64() / n,
            stall_s: waited.as_secs_f64() / n,
            fetch_stall_s: fetching.as_secs_f64() / n,
            queue_batches: gathered.queue_batches as f64 / polls,
            ahead_batches: gathered.ahead_batches,
            lease_batches: gathered.lease_batches,
            window_full: f64::from(gathered.full_polls) / polls,
            workers: gathered.workers as f64 / polls,
            worker,
        })
    }

    /// What the trainer felt lately.
    pub fn metrics(&self) -> TrainerMetrics {
        let inner = self.lock();
        let n = inner.recent.len().max(1) as f64;
        let total: Duration = inner.recent.iter().map(|(time, _)| *time).sum();
        let waited: Duration = inner.recent.iter().map(|(_, waited)| *waited).sum();
        let stall_fraction = match total.is_zero() {
            true => 0.0,
            false => (waited.as_secs_f64() / total.as_secs_f64()).min(1.0),
        };
        TrainerMetrics {
            batch_time_ms: total.as_secs_f64() * 1e3 / n,
            stall_fraction,
            batches: inner.batches,
            queue_batches: inner.queue_batches,
        }
    }
}

fn next_ack(inner: &Inner) -> Option<Ack> {
    let began = inner.began.filter(|_| inner.announced)?;
    let (durable, durable_position) = match inner.acked {
        Some(_) => (inner.durable, inner.durable_place),
        None => began,
    };
    let ((generation, over), delivered) = (inner.generation?, inner.delivered);
    let ack = Ack { generation, over, delivered, durable, durable_position };
    (inner.acked != Some(ack)).then_some(ack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::wire::{CacheMode, CachingView, EpochMode};

    const TIMES: Felt = Felt {
        since_last: Duration::from_millis(50),
        waited: Duration::from_millis(10),
        fetching: Duration::from_millis(4),
    };

    fn begun() -> Progress {
        let progress = Progress::new((0, 0));
        progress.takes_over(0, 1, Nonce([0; 8]));
        progress.announce();
        progress
    }

    #[test]
    fn a_later_run_has_a_larger_generation_whatever_its_clock_says() {
        let generation = |last, now_ms, lot| {
            let progress = Progress::new((0, 0));
            progress.starts_at((0, 0), (0, 0), (0, 0));
            progress.announce();
            assert_eq!(progress.ack(), None, "nothing is said before it is settled");
            progress.takes_over(last, now_ms, Nonce([lot; 8]));
            progress.ack().unwrap().generation
        };
        let first = generation(0, 5_000, 9);
        assert!(generation(first, 1, 0) > first);
        assert!(generation(first, 9_000, 0) > first);
        assert_ne!(generation(first, 9_000, 0), generation(first, 9_000, 1));
    }

    #[test]
    fn durable_never_frees_what_a_restart_needs() {
        let progress = begun();
        progress.starts_at((0, 0), (0, 0), (0, 0));
        // Batch 2 joins a remainder of split 0, so a restart at 1 or 2 needs split 0.
        for (g, place, resume) in
            [(0, (0, 0), (0, 0)), (1, (0, 1), (0, 0)), (2, (0, 1), (0, 0)), (3, (0, 2), (0, 2))]
        {
            progress.next_is((0, g), resume);
            progress.handed_over(TIMES, 0);
            progress.passed(place);
        }
        progress.durable((0, 2));
        let first = progress.ack().unwrap();
        assert_eq!(first.durable, (0, 0), "first of all, where it begins");
        progress.acknowledged(first);
        assert_eq!(progress.ack().unwrap().durable, (0, 2));
        assert_eq!(progress.ack().unwrap().durable_position, (0, 0));
        progress.durable((0, 3));
        assert_eq!(progress.ack().unwrap().durable_position, (0, 2));
        progress.durable((0, 1));
        assert_eq!(progress.ack().unwrap().durable, (0, 3), "an older word is ignored");
        progress.durable((1, 0));
        assert_eq!(progress.ack().unwrap().durable_position, (1, 0));
    }

    #[test]
    fn a_process_goes_on_with_its_generation_unless_it_goes_back_behind_its_word() {
        let progress = begun();
        progress.starts_at((0, 0), (0, 0), (0, 0));
        assert_eq!(progress.ack(), progress.send_ack());
        progress.acknowledged(progress.ack().unwrap());
        let first = progress.ack_now().generation;
        progress.durable((0, 7));
        // Not sent yet: the trainer may still think otherwise.
        progress.reopen((0, 5));
        assert_eq!(progress.ack(), None, "its trainer has yet to say so");
        progress.starts_at((0, 5), (0, 1), (0, 2));
        progress.announce();
        let ack = progress.send_ack().unwrap();
        assert_eq!((ack.generation, ack.durable, ack.delivered), (first, (0, 5), (0, 2)));
        // Under way while the stream goes back behind it.
        progress.reopen((0, 3));
        progress.acknowledged(ack);
        progress.starts_at((0, 3), (0, 1), (0, 1));
        progress.announce();
        assert_eq!(progress.ack(), None, "another generation is to be settled");
        progress.takes_over(first, 2, Nonce([0; 8]));
        let ack = progress.send_ack().unwrap();
        assert!(ack.generation > first && ack.over == first && ack.durable == (0, 3));
        assert!(progress.is_own(first) && progress.is_own(ack.generation) && !progress.is_own(9));
    }

    impl Progress {
        fn ack(&self) -> Option<Ack> {
            next_ack(&self.lock())
        }

        fn ack_now(&self) -> Ack {
            self.lock().acked.unwrap()
        }
    }

    fn polled(ready_batches: u32) -> Polled {
        let view = serde_json::json!({
            "job": { "job": "j", "spec": { "pipeline": "", "seed": 0, "epochs": 1, "on_error": "fail",
                "numerics": "", "split_batches": null, "workers": 4, "local_workers": 0,
                "max_skipped": "0" },
                "dataset_version": "0".repeat(64), "n_files": 1, "state": "running",
                "plan": { "records": 640, "batch_size": 8, "drop_last": false, "in_order": false, "split_records": 32,
                    "n_splits": 20, "r": 1, "window_splits": 8, "window_bytes": 1 } },
            "generation": 0, "active_workers": 3, "claimable": 0, "window_full": true, "ahead": 2,
            "indexed_files": 1, "scale": { "target": 0, "next_worker": 0, "outstanding": [], "log": [] },
            "ready": [{ "epoch": 0, "position": 0, "bundle": 0, "attempt": 1, "nonce": "0".repeat(16),
                "kind": "object", "object_bytes": 1, "crc32c": 0, "rows": 8 * ready_batches,
                "batches": ready_batches, "remainder_rows": 0, "skipped": 0,
                "cost": { "source_ms": 40, "compute_ms": 400, "put_ms": 0 } }],
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn a_report_covers_the_batches_since_the_last_one() {
        let progress = begun();
        for _ in 0..9 {
            progress.handed_over(TIMES, 2);
        }
        progress.polled(&polled(4));
        assert_eq!(progress.report(), None, "too few");
        progress.handed_over(TIMES, 2);
        let report = progress.report().unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!((report.batches, report.ahead_batches), (10, 8));
        assert!(close(report.step_s, 0.04) && close(report.stall_s, 0.01), "{report:?}");
        assert!(close(report.fetch_stall_s, 0.004), "{report:?}");
        assert!(close(report.queue_batches, 6.0) && close(report.workers, 3.0), "{report:?}");
        let worker = report.worker.unwrap();
        assert!(close(worker.source_s, 0.01) && close(worker.compute_s, 0.1), "{worker:?}");
        assert_eq!(progress.report(), None, "it goes out once");
        for _ in 0..99 {
            progress.handed_over(TIMES, 0);
        }
        progress.polled(&polled(4));
        assert_eq!(progress.report(), None);
        progress.handed_over(TIMES, 0);
        assert_eq!(progress.report().unwrap().batches, 110);
    }

    #[test]
    fn what_splits_of_another_mode_cost_is_kept_until_the_trainer_is_there() {
        let mode = |from, mode| EpochMode { from, mode, reason: String::new(), shelf: None };
        let modes = vec![mode(0, CacheMode::Profile), mode(1, CacheMode::Compute)];
        let caching = CachingView { points: Vec::new(), modes, unsettled: None };
        let poll = |epoch, compute_ms| {
            let mut polled = polled(4);
            polled.job.caching = Some(caching.clone());
            polled.ready[0].epoch = epoch;
            polled.ready[0].cost.compute_ms = compute_ms;
            polled
        };
        let progress = begun();
        let compute_s = || {
            (0..100).for_each(|_| progress.handed_over(TIMES, 0));
            progress.report().unwrap().worker.map(|worker| (worker.compute_s * 1e3).round())
        };
        progress.polled(&poll(0, 400));
        progress.polled(&poll(1, 800));
        assert_eq!(compute_s(), Some(100.0), "the trainer is in epoch 0");
        progress.polled(&poll(1, 1200));
        assert_eq!(compute_s(), None, "nothing new of that mode");
        progress.passed((1, 0));
        progress.polled(&poll(0, 400));
        assert_eq!(compute_s(), Some(250.0), "both splits of epoch 1, and no other");
    }

    #[test]
    fn says_only_what_is_new() {
        let progress = begun();
        progress.starts_at((0, 0), (0, 0), (0, 0));
        let ack = progress.ack().unwrap();
        progress.acknowledged(ack);
        assert_eq!(progress.ack(), None);
        progress.handed_over(TIMES, 2);
        progress.passed((0, 3));
        assert_eq!(progress.unreported_splits(10), 3);
        assert!(progress.ack().is_some());
        assert!((progress.metrics().stall_fraction - 0.2).abs() < 1e-9);
    }
}
