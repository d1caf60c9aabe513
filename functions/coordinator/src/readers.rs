//! The polls of several readers of one training run.
//!
//! A poll of the reader of rank 0 leads: it merges the reports of all readers into the job's progress
//! and does the job's shared work, as the poll of a single reader does. The others follow: they read
//! the job's progress and the splits that are ready. When the leader is silent, the next reader leads.

use crate::{
    Coordinator, Handle,
    items::{ItemName, JobItem, reader_sks},
    polls::steps,
    snapshot::{JobSnapshot, PollItems},
    store::{Stored as _, Unchanged, Versioned, decode, invalid},
};
use gristmill_model::splits::readers::{self, RankRange, ReaderProgress, Report};
use gristmill_model::splits::run::{self, Join, TrainingRun};
use gristmill_model::splits::{JobProgress, Outcome, Refusal as SplitRefusal};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    Poll, PollReader, Polled, ReaderPolled, ReaderStatus, Refusal, RefusalKind, RunStatus,
};
use gristmill_model::{JobName, Visitation};

/// Most bundles of splits in the answer to a poll that follows.
const FOLLOWED_BUNDLES: usize = 96;

impl Handle<PollReader> for Coordinator {
    async fn handle(&self, call: &PollReader) -> Result<ReaderPolled, Refusal> {
        let PollReader { job, ranks, .. } = call;
        let names = [ItemName::Progress(job), ItemName::Reader(job, ranks.first)];
        let items = self.store.read_raw(&names).await?;
        let [progress, reader] = items.as_slice() else {
            return Err(invalid("the table answered another number of items than asked for"));
        };
        let progress = decode::<JobProgress>(&names[0], progress.as_ref())?;
        let reader = decode::<ReaderProgress>(&names[1], reader.as_ref())?;
        let progress = match &call.join {
            Some(join) => Some(self.join(call, progress, join).await?),
            None => progress.item,
        };
        let (run, progress) = joined(progress)?;
        self.note_lacking(call, &progress).await?;
        let mut number = reader.item.map_or(0, |reader| reader.reader);
        if let Some(report) = &call.report {
            number = self.report(&names[1], reader, (&progress, report)).await?.reader;
        }
        let count = run.ranks.count;
        let leads = readers::leads(*ranks, progress.heartbeat_ms, self.clock.now_ms());
        let (polled, uncovered) = match leads {
            // A reader of all ranks acknowledges on the job's progress itself.
            true if *ranks == RankRange::all(count) => (self.handle(&led(call)).await?, None),
            true => {
                let uncovered = self.merge(job).await?;
                (self.handle(&led(call)).await?, uncovered)
            }
            false => (self.follow(call).await?, None),
        };
        let readers = count.get().div_ceil(ranks.count.get());
        Ok(ReaderPolled {
            polled,
            run,
            reader: number,
            next_poll_ms: readers::poll_every_ms(readers, leads),
            next_report_ms: readers::report_every_ms(readers),
            uncovered,
        })
    }
}

/// The poll of a single reader that does the shared work of `call`.
fn led(call: &PollReader) -> Poll {
    let PollReader { job, from, metrics, training, registered_ms, .. } = call;
    Poll {
        job: job.clone(),
        registered_ms: *registered_ms,
        from: *from,
        ack: None,
        metrics: *metrics,
        report: *training,
    }
}

/// The run that a reader is one of.
fn joined(progress: Option<JobProgress>) -> Result<(TrainingRun, JobProgress), Refusal> {
    let progress = progress.and_then(|progress| Some((progress.run?, progress)));
    progress.ok_or_else(|| invalid("the reader has not joined: send a call that joins"))
}

/// Refuses a reader of `ranks` if a reader of other ranks of the same run serves some of them.
fn overlapping(
    ranks: RankRange,
    progress: &JobProgress,
    others: &[ReaderProgress],
) -> Option<Refusal> {
    let of_run = others.iter().filter(|other| other.generation == progress.generation);
    let mut taken = of_run.filter(|other| other.ranks != ranks && other.ranks.overlaps(ranks));
    taken.next().map(|other| Refusal {
        kind: RefusalKind::Fenced,
        message: format!(
            "another reader of this run serves {}, and this one {ranks}: give each rank to one, in a new run",
            other.ranks
        ),
    })
}

/// The state of `run` from the job's progress and the reports of its readers.
fn run_status(
    run: TrainingRun,
    item: &JobItem,
    (progress, reports): (&JobProgress, &[ReaderProgress]),
    now_ms: u64,
) -> RunStatus {
    let all = RankRange::all(run.ranks.count);
    let of_run = reports.iter().filter(|report| report.generation == progress.generation);
    let current: Vec<_> = of_run
        .map(|report| match report.ranks == all {
            // It acknowledges on the job's progress itself.
            true => ReaderProgress {
                delivered: progress.delivered,
                durable: progress.durable,
                durable_place: progress.durable_place,
                heartbeat_ms: progress.heartbeat_ms,
                ..*report
            },
            false => *report,
        })
        .collect();
    let plan = item.plan.map_or((1, 0), |plan| (plan.n_splits, plan.split_batches()));
    let furthest = current.iter().map(|reader| reader.delivered.linear(plan.0)).max();
    let status = |progress: &ReaderProgress| {
        let behind = furthest.unwrap_or(0) - progress.delivered.linear(plan.0);
        ReaderStatus {
            progress: *progress,
            lag_batches: behind.saturating_mul(u64::from(plan.1)),
            silent_ms: now_ms.saturating_sub(progress.heartbeat_ms),
        }
    };
    let uncovered = match item.state.is_ended() {
        true => None,
        false => readers::waits_for(progress, &current, now_ms),
    };
    RunStatus { run, readers: current.iter().map(status).collect(), uncovered }
}

impl Coordinator {
    /// Lets a reader join the job's current run, or begin a new one.
    async fn join(
        &self,
        call: &PollReader,
        read: Versioned<JobProgress>,
        join: &Join,
    ) -> Result<JobProgress, Refusal> {
        let (job, ranks) = (&call.job, call.ranks);
        let item = self.job(job).await?;
        steps::check_job(job, &item, call.registered_ms)?;
        if item.spec.settings.visitation == Visitation::AtMostOnce {
            return Err(invalid(format!(
                "job {job} visits records at most once, which works with one reader only: start \
                 one fetcher without --run"
            )));
        }
        let progress = read.item.unwrap_or_default();
        let is_new = progress.run.is_none_or(|run| run.token != join.run.token);
        let lacking = if is_new {
            steps::check_place(job, &item, &join.start)?;
            self.lacking(job, &item, &progress, join.start.delivered).await?
        } else {
            None
        };
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&JobProgress>| {
            let joined = match ranks == RankRange::all(join.run.ranks.count) {
                true => run::join_alone(before, join, now_ms),
                false => run::join(before, join, now_ms),
            };
            let joined = joined.map(|joined| joined.with(|after| after.with_lacking(lacking)));
            joined.map_err(Unchanged::Declined)
        };
        let progress = self.store.update_from(&ItemName::Progress(job), read, decide).await?;
        let others = match is_new {
            true => Vec::new(),
            false => self.reports(job).await?,
        };
        match overlapping(ranks, &progress, &others) {
            Some(refusal) => Err(refusal),
            None => Ok(progress),
        }
    }

    /// Writes the report of a reader of the current run.
    async fn report(
        &self,
        name: &ItemName<'_>,
        read: Versioned<ReaderProgress>,
        (progress, report): (&JobProgress, &Report),
    ) -> Result<ReaderProgress, Refusal> {
        let (current, now_ms) = (progress.generation, self.clock.now_ms());
        let decide = |before: Option<&ReaderProgress>| {
            let fenced = SplitRefusal::Fenced { generation: current };
            match report.ack.generation == current {
                true => readers::report(before, report, now_ms).map_err(Unchanged::Declined),
                false => Err(Unchanged::Declined(fenced)),
            }
        };
        Ok(self.store.update_from(name, read, decide).await?)
    }

    /// Merges the reports of all readers into the job's progress. Returns the rank that keeps it from
    /// moving on, if there is one.
    async fn merge(&self, job: &JobName) -> Result<Option<String>, Refusal> {
        let reports = self.reports(job).await?;
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&JobProgress>| {
            readers::merge(before, &reports, now_ms).map_err(Unchanged::Declined)
        };
        let progress: JobProgress = self.store.update(&ItemName::Progress(job), decide).await?;
        Ok(readers::waits_for(&progress, &reports, now_ms))
    }

    /// Notes what the table lacks of the splits that a reader knows of, the first time that this process hears of it.
    async fn note_lacking(&self, call: &PollReader, progress: &JobProgress) -> Result<(), Refusal> {
        let (job, reader) = (&call.job, Some(call.ranks.first));
        if self.memory.knows_run(job, reader, progress.generation) {
            return Ok(());
        }
        let item = self.job(job).await?;
        let delivered = call.report.map_or(call.from, |report| report.ack.delivered);
        if let Some(lacking) = self.lacking(job, &item, progress, delivered.max(call.from)).await? {
            let decide = |before: Option<&JobProgress>| {
                let before = before.copied().unwrap_or_default();
                let after = before.with_lacking(Some(lacking));
                Ok::<_, Refusal>(Outcome::AlreadyApplied(before).with(|_| after))
            };
            self.store.update(&ItemName::Progress(job), decide).await?;
        }
        self.memory.keep_run(job, reader, progress.generation);
        Ok(())
    }

    /// The reports of all readers that ever reported, in order of rank.
    async fn reports(&self, job: &JobName) -> Result<Vec<ReaderProgress>, Refusal> {
        let pk = keys::job_partition(&self.store.ns, job);
        let (first, last) = reader_sks();
        let stored = self.store.range(&pk, &first, &last).await?;
        let reports = stored.iter().map(|(_, item)| ReaderProgress::decode(&item.body));
        reports.collect::<Result<Vec<_>, _>>().map_err(invalid)
    }

    /// The job's current run and its readers, for `status`.
    pub(crate) async fn run_status(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<Option<RunStatus>, Refusal> {
        let Some(run) = progress.run else { return Ok(None) };
        let reports = self.reports(job).await?;
        Ok(Some(run_status(run, item, (progress, &reports), self.clock.now_ms())))
    }

    /// Reads the job's progress and the splits that are ready, and changes nothing.
    async fn follow(&self, PollReader { job, from, .. }: &PollReader) -> Result<Polled, Refusal> {
        let (snapshot, PollItems { scale, first, .. }) =
            self.poll_snapshot(job, Some(*from)).await?;
        let seen = snapshot.hints();
        let JobSnapshot { item, progress, .. } = snapshot;
        let splits = item.plan.map_or(0, |plan| plan.max_bundle_splits as usize);
        let most = FOLLOWED_BUNDLES * splits;
        let mut ready = self.committed((job, &item), *from, first, most).await?;
        ready.entries.retain(|entry| item.locates(entry.place.epoch));
        let now_ms = self.clock.now_ms();
        Ok(steps::answer(item.view(job), item.n_files, &progress, (scale, seen), ready, now_ms))
    }
}
