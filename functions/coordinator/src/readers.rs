//! The part of readers in their run: they join, report, and one that leads merges the reports of all.
//!
//! A poll of the reader of rank 0 leads. When it is silent, the next reader does.

use crate::{
    Consumers,
    items::{ItemName, JobItem, reader_sks},
    polls::check_place,
    snapshot::{JobSnapshot, PollItems},
    store::{ItemCodec as _, VersionedItem, busy, invalid},
};
use gristmill_model::splits::readers::{self, RankRange, ReaderProgress, ReaderReport};
use gristmill_model::splits::run::{self, RunJoin, TrainingRun};
use gristmill_model::splits::{
    self, JobProgress, LackingSplits, TransitionOutcome, TransitionRefusal as SplitRefusal,
};
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    CallRefusal, PollCall, ReaderStanding, ReaderStatus, RefusalKind, RunStatus,
};
use gristmill_model::{JobName, RunToken, Visitation};
use std::num::NonZeroU32;

/// The part of a reader in its run after its poll has joined and reported.
pub(crate) struct ReaderRole {
    pub reader: ReaderStanding,
    /// Whether the poll does the job's shared work.
    pub leads: bool,
}

/// Refuses a reader of `ranks` if a reader of other ranks of the same run serves some of them.
fn overlapping(
    ranks: RankRange,
    progress: &JobProgress,
    others: &[ReaderProgress],
) -> Option<CallRefusal> {
    let of_run = others.iter().filter(|other| other.generation == progress.generation);
    let mut taken = of_run.filter(|other| other.ranks != ranks && other.ranks.overlaps(ranks));
    taken.next().map(|other| CallRefusal {
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
    progress: &JobProgress,
    reports: &[ReaderProgress],
    now_ms: u64,
) -> RunStatus {
    let all = RankRange::all(run.ranks.count);
    let of_run = reports.iter().filter(|report| report.generation == progress.generation);
    let current: Vec<_> = of_run
        .map(|report| {
            if report.ranks != all {
                return *report;
            }
            // It acknowledges on the job's progress itself.
            ReaderProgress {
                reader: report.reader,
                ..ReaderProgress::from_job_progress(progress, all)
            }
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
    let uncovered =
        if item.state.is_ended() { None } else { readers::waits_for(progress, &current, now_ms) };
    let readers = current.iter().map(status).collect();
    RunStatus { run, readers, uncovered, ended: progress.ended }
}

impl Consumers {
    /// Lets the reader that polls join, writes what it reports, and merges the reports if it leads. Updates the
    /// progress in `snapshot`.
    pub(crate) async fn take_part(
        &self,
        poll: &PollCall,
        snapshot: &mut JobSnapshot,
        items: &mut PollItems,
    ) -> Result<ReaderRole, CallRefusal> {
        let PollCall { job, ranks, of, .. } = poll;
        let read = std::mem::take(&mut items.progress);
        check_ranks(poll, &read)?;
        let lacking = self.unseen_by_table(poll, &snapshot.item, &read).await?;
        let read = match &poll.join {
            Some(join) => self.join(poll, &snapshot.item, read, join, lacking).await?,
            None => read,
        };
        let stored = std::mem::take(&mut items.reader);
        let (mut read, number) = match &poll.report {
            Some(report) => self.report(poll, read, stored, report, lacking).await?,
            None => (read, stored.item.map_or(0, |reader| reader.reader)),
        };
        if let Some(progress) = &read.item
            && (poll.report.is_some() || poll.join.is_some())
        {
            self.records.memory.keep_generation(job, reader_of(poll), progress.generation);
        }
        let heartbeat_ms = read.item.map_or(0, |progress| progress.heartbeat_ms);
        let leads = readers::leads(*ranks, heartbeat_ms, self.records.clock.now_ms());
        let mut uncovered = None;
        if leads && !poll.is_alone() && read.item.is_some_and(|progress| progress.run.is_some()) {
            (read, uncovered) = self.merge(job, read).await?;
        }
        let progress = read.item.unwrap_or_default();
        snapshot.progress = progress;
        let readers = of.get().div_ceil(ranks.count.get());
        let reader = ReaderStanding {
            run: progress.run,
            number,
            next_poll_ms: readers::poll_every_ms(readers, leads),
            next_report_ms: readers::report_every_ms(readers),
            uncovered,
        };
        Ok(ReaderRole { reader, leads })
    }

    /// Lets a reader join the job's current run, or begin a new one.
    async fn join(
        &self,
        poll: &PollCall,
        item: &JobItem,
        read: VersionedItem<JobProgress>,
        join: &RunJoin,
        lacking: Option<LackingSplits>,
    ) -> Result<VersionedItem<JobProgress>, CallRefusal> {
        let (job, ranks, visitation) = (&poll.job, poll.ranks, item.spec.settings.visitation);
        if visitation == Visitation::AtMostOnce && !poll.is_alone() {
            return Err(invalid(format!(
                "job {job} visits records at most once, which works with one reader only: serve all ranks by one \
                 fetcher"
            )));
        }
        let is_new = is_new(&read, join);
        let leaving = match read.item.filter(|_| is_new) {
            Some(progress) => self.keep_past_run(job, join.run.token, &progress).await?,
            None => None,
        };
        let now_ms = self.records.clock.now_ms();
        let decide = |before: Option<&JobProgress>| {
            if is_new && before.and_then(|before| before.past.leaving()) != leaving {
                return Err(busy(format!("another run of job {job} begins")));
            }
            let joined = if poll.is_alone() {
                run::join_alone(before, join, visitation, now_ms)
            } else {
                run::join(before, join, now_ms)
            };
            Ok(joined?.with(|after| {
                let mut after = after.with_lacking(lacking);
                // A reader without a number of epochs reads those that the job has now.
                if let Some(run) = &mut after.run {
                    run.epochs = run.epochs.or(Some(item.spec.epochs));
                }
                after
            }))
        };
        let joined =
            self.records.store.update_versioned(&ItemName::Progress(job), read, decide).await?;
        let is_only = is_new || poll.of == NonZeroU32::MIN;
        let others = if is_only { Vec::new() } else { self.reports(job).await? };
        match overlapping(ranks, &joined.0, &others) {
            Some(refusal) => Err(refusal),
            None => Ok(joined.into()),
        }
    }

    /// Refuses a run that was superseded long ago. Writes the token that another superseded run drops from `progress`, and
    /// returns it.
    async fn keep_past_run(
        &self,
        job: &JobName,
        run: RunToken,
        progress: &JobProgress,
    ) -> Result<Option<RunToken>, CallRefusal> {
        let Some(leaving) = progress.past.leaving() else { return Ok(None) };
        let known = self.records.store.read::<RunToken>(&ItemName::PastRun(job, run)).await?;
        if known.item.is_some() {
            return Err(SplitRefusal::Fenced { generation: progress.generation }.into());
        }
        let keep = |_: Option<&RunToken>| Ok::<_, CallRefusal>(TransitionOutcome::Write(leaving));
        self.records.store.update(&ItemName::PastRun(job, leaving), keep).await?;
        Ok(Some(leaving))
    }

    /// Writes what a reader of the current run reports: the reader of all ranks on the job's progress, one of several,
    /// or one that joins, on the item of its ranks. Returns the progress, and the number of the reader.
    ///
    /// The report of a run that the table has lost is not written: the answer says so, and the reader joins again.
    async fn report(
        &self,
        poll: &PollCall,
        read: VersionedItem<JobProgress>,
        reader: VersionedItem<ReaderProgress>,
        report: &ReaderReport,
        lacking: Option<LackingSplits>,
    ) -> Result<(VersionedItem<JobProgress>, u64), CallRefusal> {
        let (job, now_ms) = (&poll.job, self.records.clock.now_ms());
        let is_known = |progress: &JobProgress| {
            progress.run.is_some() && report.ack.generation <= progress.generation
        };
        let Some(JobProgress { generation: current, .. }) = read.item.filter(is_known) else {
            return Ok((read, 0));
        };
        let name = ItemName::Progress(job);
        if poll.is_alone() && poll.join.is_none() {
            let decide = |before: Option<&JobProgress>| {
                let acked = splits::ack(before, &report.ack, now_ms);
                acked.map(|acked| acked.with(|after| after.with_lacking(lacking)))
            };
            let acked = self.records.store.update_versioned(&name, read, decide).await?;
            return Ok((acked.into(), report.reader));
        }
        let decide = |before: Option<&ReaderProgress>| {
            if report.ack.generation != current {
                return Err(SplitRefusal::Fenced { generation: current });
            }
            readers::report(before, report, now_ms)
        };
        let of_ranks = ItemName::Reader(job, poll.ranks.first);
        let written = self.records.store.update_from(&of_ranks, reader, decide).await?;
        if lacking.is_none() || poll.join.is_some() {
            return Ok((read, written.reader));
        }
        let decide = |before: Option<&JobProgress>| {
            let before = before.copied().unwrap_or_default();
            let noted = TransitionOutcome::AlreadyApplied(before)
                .with(|before| before.with_lacking(lacking));
            Ok::<_, CallRefusal>(noted)
        };
        let noted = self.records.store.update_versioned(&name, read, decide).await?;
        Ok((noted.into(), written.reader))
    }

    /// Merges the reports of all readers into the job's progress. Returns the rank that keeps it from
    /// moving on, if there is one.
    async fn merge(
        &self,
        job: &JobName,
        read: VersionedItem<JobProgress>,
    ) -> Result<(VersionedItem<JobProgress>, Option<String>), CallRefusal> {
        let reports = self.reports(job).await?;
        let now_ms = self.records.clock.now_ms();
        let decide = |before: Option<&JobProgress>| readers::merge(before, &reports, now_ms);
        let name = ItemName::Progress(job);
        let merged = self.records.store.update_versioned(&name, read, decide).await?;
        let uncovered = readers::waits_for(&merged.0, &reports, now_ms);
        Ok((merged.into(), uncovered))
    }

    /// The splits that the reader knows of and the table lacks, the first time that this process hears of the reader.
    /// Refuses a run that begins at no place of the job.
    async fn unseen_by_table(
        &self,
        poll: &PollCall,
        item: &JobItem,
        read: &VersionedItem<JobProgress>,
    ) -> Result<Option<LackingSplits>, CallRefusal> {
        let job = &poll.job;
        if let Some(join) = poll.join.as_ref().filter(|join| is_new(read, join)) {
            check_place(job, item, &join.start)?;
        }
        let joins = poll.join.as_ref().map(|join| &join.start);
        let Some(ack) = joins.or(poll.report.as_ref().map(|report| &report.ack)) else {
            return Ok(None);
        };
        if joins.is_none()
            && self.records.memory.knows_generation(job, reader_of(poll), ack.generation)
        {
            return Ok(None);
        }
        let progress = read.item.unwrap_or_default();
        self.lacking(job, item, &progress, ack.delivered.max(poll.from)).await
    }

    /// The reports of all readers that ever reported, in order of rank.
    async fn reports(&self, job: &JobName) -> Result<Vec<ReaderProgress>, CallRefusal> {
        let pk = keys::job_partition(&self.records.store.ns, job);
        let (first, last) = reader_sks();
        let stored = self.records.store.range(&pk, &first, &last).await?;
        let reports = stored.iter().map(|(_, item)| ReaderProgress::decode(&item.body));
        reports.collect::<Result<Vec<_>, _>>().map_err(invalid)
    }

    /// The job's current run and its readers, for `status`.
    pub(crate) async fn run_status(
        &self,
        job: &JobName,
        item: &JobItem,
        progress: &JobProgress,
    ) -> Result<Option<RunStatus>, CallRefusal> {
        let Some(run) = progress.run else { return Ok(None) };
        // One rank has one reader, which needs no report of its own.
        let reports = match run.ranks.count {
            NonZeroU32::MIN => {
                vec![ReaderProgress::from_job_progress(progress, RankRange::all(run.ranks.count))]
            }
            _ => self.reports(job).await?,
        };
        Ok(Some(run_status(run, item, progress, &reports, self.records.clock.now_ms())))
    }
}

/// Whether `join` begins another run than the current one.
fn is_new(read: &VersionedItem<JobProgress>, join: &RunJoin) -> bool {
    let current = read.item.and_then(|progress| progress.run);
    current.is_none_or(|run| run.token != join.run.token)
}

/// Refuses ranks that do not agree with the run that is joined, or with the one that is reported to.
fn check_ranks(poll: &PollCall, read: &VersionedItem<JobProgress>) -> Result<(), CallRefusal> {
    let PollCall { ranks, of, join, report, .. } = poll;
    let current = read.item.filter(|progress| {
        report.as_ref().is_some_and(|report| report.ack.generation == progress.generation)
    });
    let joined = join.as_ref().map(|join| join.run.ranks.count);
    let run = joined.or(current.and_then(|progress| Some(progress.run?.ranks.count)));
    if run.is_some_and(|count| count != *of) || ranks.end() > of.get() {
        return Err(invalid(format!("{ranks} of {of} are not ranks of this run")));
    }
    Ok(())
}

/// The reader that polls, as processes remember it.
fn reader_of(poll: &PollCall) -> Option<u32> {
    (!poll.is_alone()).then_some(poll.ranks.first)
}
