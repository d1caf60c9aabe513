//! `--hosts`: the steps of ranks whose fetchers are processes of their own, one for each of some hosts.

mod processes;
mod rank;
mod ranks;

use crate::{
    SyntheticTraining,
    trainer::{self, StepSource, TrainingView},
};
use gristmill_client::{JobHandle, ProgramFailure, ServiceLauncher, TailOption};
use gristmill_model::Epoch;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy, TrainingStep};
use gristmill_model::splits::replicas::RankReplicas;
use gristmill_model::wire::{JobStatus, JobView, StatusCall};
use gristmill_ports::call_with_retry;
use gristmill_stream::{
    DeliveryWaits, EpochCounts, EpochTotals, JobStatistics, ObservableRun, PolledJob, RankBatch,
    StepDelivery, distinct_batches,
    waiting::{WaitReason, while_saying},
};
pub use processes::RunningFetchers;
use processes::{FetcherProcesses, FetcherProgram};
use ranks::{ArrivedStep, HostedRanks};
use serde::Deserialize;
use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinSet};

/// Ranks of a job whose fetchers are other processes.
pub struct HostedSteps {
    job: JobHandle,
    /// How long a fetcher or the service may not answer.
    patience: Duration,
    program: Arc<FetcherProgram>,
    victims: RunningFetchers,
    run: HostedRun,
    hosts: FetcherProcesses,
    ranks: HostedRanks,
    watch: StatusWatch,
    polled: PolledJob,
    /// The present epoch, and batches of it so far.
    epoch: Epoch,
    batches: u64,
    /// Steps so far.
    step: u64,
    /// The step that has come from all ranks and is not delivered.
    came: Option<ArrivedStep>,
}

impl HostedSteps {
    /// Starts the fetchers of the first run of a training, which begins at `from`. They may be killed through
    /// `victims`. Fails without a place for sockets.
    pub fn start(
        training: &SyntheticTraining,
        hosts: NonZeroU32,
        launcher: ServiceLauncher,
        job: &JobHandle,
        from: Cursor,
        victims: &RunningFetchers,
    ) -> Result<Self, ProgramFailure> {
        let patience = training.stream.patience;
        let program = Arc::new(FetcherProgram::new(launcher, job, &training.stream));
        let pipeline = job.pipeline().map_err(ProgramFailure::failed)?;
        let run = HostedRun::first(training, hosts, job)?;
        let hosts = FetcherProcesses::start(&program, &run, victims)?;
        Ok(Self {
            ranks: HostedRanks::start(&run, &hosts, patience),
            watch: StatusWatch::start(job.clone()),
            polled: PolledJob::new(pipeline, job.view.clone()),
            epoch: from.epoch,
            batches: 0,
            step: 0,
            came: None,
            job: job.clone(),
            patience,
            program,
            victims: victims.clone(),
            run,
            hosts,
        })
    }

    /// The end of the present epoch. Its totals are known at the end of the job.
    fn end_epoch(&mut self) -> StepDelivery {
        let (epoch, batches) = (self.epoch, std::mem::take(&mut self.batches));
        self.epoch += 1;
        let plan = self.polled.view().and_then(|view| view.plan);
        let splits = plan.map_or(0, |plan| plan.n_splits);
        let totals = EpochTotals { epoch, batches, splits, ..EpochTotals::default() };
        StepDelivery::EpochEnd { totals, left_out: 0, left_batches: Vec::new() }
    }
}

impl StepSource for HostedSteps {
    type Observed = PolledJob;

    fn observed(&mut self) -> &PolledJob {
        if let Some(status) = self.watch.latest() {
            self.polled.update(status);
        }
        &self.polled
    }

    fn waiting(&self) -> (Duration, WaitReason) {
        (self.polled.present_wait(), self.watch.waiting(&self.ranks.missing))
    }

    async fn next(&mut self) -> Result<StepDelivery, ProgramFailure> {
        let came = match self.came.take() {
            Some(came) => came,
            None => {
                self.polled.begin_wait();
                let came = tokio::select! {
                    biased;
                    failure = self.hosts.failed() => return Err(failure),
                    came = self.ranks.next() => came?,
                };
                self.polled.end_wait();
                came
            }
        };
        let epoch = came.start.map_or(self.job.view.spec.epochs, |start| start.epoch);
        if self.epoch < epoch {
            self.came = Some(came);
            return Ok(self.end_epoch());
        }
        if came.start.is_none() {
            return Ok(StepDelivery::End);
        }
        let step = TrainingStep { epoch, number: self.step };
        self.step += 1;
        let next = came.next(&self.run.dealing()).map_err(ProgramFailure::Failed)?;
        let batches = came.into_batches()?;
        refuse_unequal(&batches).map_err(ProgramFailure::failed)?;
        self.batches += distinct_batches(&batches).count() as u64;
        Ok(StepDelivery::Step { step, batches, next })
    }

    async fn prepare(&mut self) -> Result<(), ProgramFailure> {
        // A rank asks for its next batch when it is done with this one; its fetcher has it by then.
        Ok(())
    }

    async fn checkpointed(&mut self, _next: Cursor) {
        self.ranks.trained().await;
    }

    async fn resume(self, run: trainer::LaterRun) -> Result<Self, ProgramFailure> {
        // Nothing of the old run is left but the text.
        drop(self.ranks);
        self.hosts.kill().await;
        let run = self.run.resumed(run);
        let hosts = FetcherProcesses::start(&self.program, &run, &self.victims)?;
        let ranks = HostedRanks::start(&run, &hosts, self.patience);
        Ok(Self { run, hosts, ranks, came: None, ..self })
    }

    async fn close(
        mut self,
        view: &mut TrainingView,
    ) -> Result<(JobStatistics, Option<JobView>), ProgramFailure> {
        self.victims.spare();
        let closing = || Some(WaitReason::patiently("the fetchers to close the job"));
        let closed = async {
            tokio::select! {
                biased;
                failure = self.hosts.failed() => Err(failure),
                closed = self.ranks.closed() => closed,
            }
        };
        while_saying(closed, closing, |what| view.progress.say(what)).await?;
        let mut known = BTreeMap::new();
        for (rank, summary) in self.ranks.summaries() {
            add_epochs(&mut known, summary);
            view.steps.waited(rank, summary.waits());
        }
        self.hosts.ended().await?;
        self.polled.update(self.job.status(self.patience).await?);
        let plan = self.polled.view().and_then(|view| view.plan);
        view.observer.amend(&known, plan);
        Ok((self.polled.statistics(), self.polled.view()))
    }
}

/// A run: it has one number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedRun {
    pub ranks: NonZeroU32,
    pub replicas: RankReplicas,
    pub hosts: NonZeroU32,
    /// The name, another one for each run.
    pub name: String,
    tail: Option<TailPolicy>,
    /// The number of the run, and the text of the checkpoint that it begins at.
    number: u32,
    resume: Option<String>,
    prefix: String,
}

impl HostedRun {
    /// The first run of a training.
    pub fn first(
        training: &SyntheticTraining,
        hosts: NonZeroU32,
        job: &JobHandle,
    ) -> Result<Self, ProgramFailure> {
        let SyntheticTraining { ranks, tail: TailOption { tail }, .. } = *training;
        let replicas = training.replicas.resolve(ranks)?;
        // A job of this name may have been trained on before.
        let prefix = format!("hosts-{}", job.service.ports.clock.nonce());
        let name = format!("{prefix}-0");
        Ok(Self { ranks, replicas, hosts, name, tail, number: 0, resume: None, prefix })
    }

    /// The ranks as they are dealt with, from the first batch on.
    pub fn dealing(&self) -> RunRanks {
        let tail = self.tail.unwrap_or(TailPolicy::Uneven);
        let ranks = RunRanks::new(self.ranks, Cursor::default(), tail);
        RunRanks { replicas: self.replicas, ..ranks }
    }

    /// The run that goes on at a checkpoint of this one.
    pub fn resumed(self, run: trainer::LaterRun) -> Self {
        let trainer::LaterRun { ranks, replicas, checkpoint } = run;
        let number = self.number + 1;
        let name = format!("{}-{number}", self.prefix);
        Self { ranks, replicas, name, number, resume: Some(checkpoint), ..self }
    }

    fn ranks_per_host(&self) -> u32 {
        self.ranks.get() / self.hosts.get()
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: u32) -> u32 {
        rank / self.ranks_per_host().max(1)
    }

    /// The flags of the fetcher of `host`.
    pub fn flags(&self, host: u32) -> Vec<String> {
        let count = self.ranks_per_host();
        let (first, last) = (host * count, host * count + count - 1);
        let mut flags = vec![
            "--ranks".to_owned(),
            format!("{first}-{last}"),
            "--of".to_owned(),
            self.ranks.to_string(),
            "--run".to_owned(),
            self.name.clone(),
        ];
        if !self.replicas.is_one() {
            flags.extend(["--replicas".to_owned(), self.replicas.to_string()]);
        }
        if let Some(resume) = &self.resume {
            flags.extend(["--resume".to_owned(), resume.clone()]);
        }
        if let Some(tail) = &self.tail {
            flags.extend(["--tail".to_owned(), tail.to_string()]);
        }
        flags
    }
}

/// Why `ranks` cannot be spread over `hosts`, if so.
pub fn refuse_shares(ranks: NonZeroU32, hosts: NonZeroU32) -> Option<String> {
    if ranks < hosts {
        return Some(format!(
            "--hosts {hosts} needs at least as many ranks, and there are {ranks}"
        ));
    }
    (!ranks.get().is_multiple_of(hosts.get()))
        .then(|| format!("--hosts {hosts} must divide the ranks evenly, and there are {ranks}"))
}

/// Why replicas, whose batches came from several fetchers, do not have the same bytes, if so. One that the epoch lacks is
/// given again under its own number.
fn refuse_unequal(batches: &[Option<RankBatch>]) -> Result<(), String> {
    let mut seen: BTreeMap<u64, (usize, &RankBatch)> = BTreeMap::new();
    let given =
        batches.iter().enumerate().filter_map(|(rank, given)| Some((rank, given.as_ref()?)));
    for (rank, given) in given {
        let (first, known) = *seen.entry(given.batch.batch_index).or_insert((rank, given));
        if known.batch.frame != given.batch.frame || known.repeated_for != given.repeated_for {
            let at = given.batch.cursor();
            return Err(format!("ranks {first} and {rank} were given other bytes of {at}"));
        }
    }
    Ok(())
}

/// Interval of questions.
const EVERY: Duration = Duration::from_millis(500);
/// Time within which the service must answer one.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Asks for the job's status until it is dropped.
pub struct StatusWatch {
    latest: watch::Receiver<Option<JobStatus>>,
    trouble: Option<String>,
    _asking: JoinSet<()>,
}

impl StatusWatch {
    /// Begins to ask.
    pub fn start(job: JobHandle) -> Self {
        let (sender, latest) = watch::channel(None);
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            // A service that does not answer is known to its link, and asked again.
            loop {
                let (ports, status) =
                    (&job.service.ports, StatusCall { job: job.view.job.clone() });
                let asked = call_with_retry(&*ports.coordinator, &*ports.clock, status, TIMEOUT);
                if let Ok(status) = asked.await
                    && sender.send(Some(status)).is_err()
                {
                    return;
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { latest, trouble: None, _asking: asking }
    }

    /// The latest status, if it is new.
    pub fn latest(&mut self) -> Option<JobStatus> {
        if !self.latest.has_changed().unwrap_or(false) {
            return None;
        }
        let status = self.latest.borrow_and_update().clone();
        self.trouble = status.as_ref().and_then(|status| status.trouble.clone());
        status
    }

    /// Why the step of some ranks is missing.
    pub fn waiting(&self, ranks: &[u32]) -> WaitReason {
        match &self.trouble {
            Some(trouble) => {
                WaitReason { text: format!("the job to continue: {trouble}"), is_fault: true }
            }
            None => {
                WaitReason::patiently(format!("the fetcher of {} to deliver a batch", named(ranks)))
            }
        }
    }
}

fn named(ranks: &[u32]) -> String {
    match ranks {
        [only] => format!("rank {only}"),
        [first, .., last] => format!("{} of ranks {first} to {last}", ranks.len()),
        [] => "all ranks".to_owned(),
    }
}

/// The payload of a fetcher's last frames.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FetcherSummary {
    /// Whether the job is closed: nothing is left to acknowledge.
    #[serde(default)]
    pub closed: bool,
    #[serde(default)]
    totals: Vec<EpochCounts>,
}

impl FetcherSummary {
    /// Waits of the fetcher's ranks, in all epochs that it has seen to their ends.
    pub fn waits(&self) -> DeliveryWaits {
        let mut waits = DeliveryWaits::default();
        self.totals.iter().for_each(|counts| waits += counts.totals.waits);
        waits
    }
}

/// Adds what one fetcher knows to the epochs that others have seen to their ends. One that was started later lacks the
/// earlier ones.
pub fn add_epochs(known: &mut BTreeMap<Epoch, EpochCounts>, summary: &FetcherSummary) {
    for counts in &summary.totals {
        let known = known.entry(counts.totals.epoch).or_insert(*counts);
        join(&mut known.totals, &counts.totals);
    }
}

/// Adds what another fetcher knows of an epoch: the work is that of the whole job, of which one may have seen less,
/// and all ranks waited for those that waited longest.
fn join(known: &mut EpochTotals, other: &EpochTotals) {
    known.splits = known.splits.max(other.splits);
    known.times = known.times.most(other.times);
    known.stored_bytes = known.stored_bytes.max(other.stored_bytes);
    if other.waits.total() > known.waits.total() {
        known.waits = other.waits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};
    use std::time::Duration;

    fn number(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    #[test]
    fn each_host_has_its_share_of_the_ranks() {
        let run = HostedRun {
            ranks: number(6),
            replicas: RankReplicas::default(),
            hosts: number(3),
            name: "r-0".to_owned(),
            tail: Some(TailPolicy::Drop),
            number: 0,
            resume: None,
            prefix: "r".to_owned(),
        };
        assert_eq!((0..6).map(|rank| run.host_of(rank)).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert_eq!(run.flags(2).join(" "), "--ranks 4-5 --of 6 --run r-0 --tail drop");
        let later = run.resumed(trainer::LaterRun {
            ranks: number(6),
            replicas: "3x1".parse().unwrap(),
            checkpoint: "{}".to_owned(),
        });
        assert_eq!(
            later.flags(0).join(" "),
            "--ranks 0-1 --of 6 --run r-1 --replicas 3x1 --resume {} --tail drop"
        );
    }

    #[test]
    fn hosts_have_equally_many_ranks() {
        assert_eq!(refuse_shares(number(4), number(2)), None);
        for (ranks, why) in [(1, "at least as many"), (3, "divide the ranks evenly")] {
            assert!(refuse_shares(number(ranks), number(2)).unwrap().contains(why), "{ranks}");
        }
    }

    #[test]
    fn ranks_are_named() {
        assert_eq!(named(&[3]), "rank 3");
        assert_eq!(named(&[1, 4, 6]), "3 of ranks 1 to 6");
    }

    /// The summary of a fetcher whose ranks waited for so many seconds in epoch 1.
    fn summary(compute_ms: u64, fetch: f64) -> FetcherSummary {
        let waits = json!({ "unclaimed": 0.5, "working": 0, "fetch": fetch, "decode": 0 });
        let epoch = json!({
            "epoch": 1, "batches": 5, "rows": 40, "skipped": 1, "left_out": 2, "splits": 3,
            "source_ms": 1, "compute_ms": compute_ms, "put_ms": 2, "stored_bytes": 9, "waits": waits,
        });
        from_value(json!({ "epochs": 2, "batches": 5, "closed": true, "totals": [epoch] })).unwrap()
    }

    #[test]
    fn fetchers_add_the_epochs_that_they_know() {
        let (one, two) = (summary(70, 1.0), summary(60, 2.0));
        assert!(one.closed);
        let none: FetcherSummary = from_value(json!({ "epochs": 2 })).unwrap();
        assert!(!none.closed && none.waits() == DeliveryWaits::default());
        let mut known = BTreeMap::new();
        [&one, &two, &none].into_iter().for_each(|summary| add_epochs(&mut known, summary));
        assert_eq!(known.keys().collect::<Vec<_>>(), [&1]);
        let EpochCounts { totals, left_out } = known[&1];
        assert_eq!((totals.rows, totals.skipped, totals.splits, left_out), (40, 1, 3, 2));
        assert_eq!((totals.times.compute_ms, totals.waits), (70, two.waits()));
        assert_eq!(one.waits().total(), Duration::from_millis(1500));
    }
}
