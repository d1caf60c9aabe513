//! The polls of several readers of one training run.
//!
//! A poll of the reader of rank 0 leads: it merges the reports of all readers into the job's progress
//! and does the job's shared work, as the poll of a single reader does. The others follow: they read
//! the job's progress and the splits that are ready. When the leader is silent, the next reader leads.

use crate::{
    Coordinator, Handle,
    items::{ItemName, reader_sks},
    polls::steps,
    snapshot::{JobSnapshot, PollItems},
    store::{Stored as _, Unchanged, Versioned, decode, invalid},
};
use gristmill_model::splits::readers::{self, RankRange, ReaderProgress, Report};
use gristmill_model::splits::run::{self, Join, TrainingRun};
use gristmill_model::splits::{Consumer, Refusal as SplitRefusal};
use gristmill_model::stored::keys;
use gristmill_model::wire::{Poll, PollReader, Polled, ReaderPolled, Refusal};
use gristmill_model::{JobName, Visitation};

/// Most bundles of splits in the answer to a poll that follows.
const FOLLOWED_BUNDLES: usize = 96;

impl Handle<PollReader> for Coordinator {
    async fn handle(&self, call: &PollReader) -> Result<ReaderPolled, Refusal> {
        let PollReader { job, ranks, .. } = call;
        let names = [ItemName::Consumer(job), ItemName::Reader(job, ranks.first)];
        let items = self.store.read_raw(&names).await?;
        let [consumer, reader] = items.as_slice() else {
            return Err(invalid("the table answered another number of items than asked for"));
        };
        let consumer = decode::<Consumer>(&names[0], consumer.as_ref())?;
        let reader = decode::<ReaderProgress>(&names[1], reader.as_ref())?;
        let consumer = match &call.join {
            Some(join) => Some(self.join(job, consumer, join).await?),
            None => consumer.item,
        };
        let (run, progress) = joined(consumer)?;
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
    let PollReader { job, from, metrics, training, .. } = call;
    Poll { job: job.clone(), from: *from, ack: None, metrics: *metrics, report: *training }
}

/// The run that a reader is one of.
fn joined(consumer: Option<Consumer>) -> Result<(TrainingRun, Consumer), Refusal> {
    let consumer = consumer.and_then(|consumer| Some((consumer.run?, consumer)));
    consumer.ok_or_else(|| invalid("the reader has not joined: send a call that joins"))
}

impl Coordinator {
    /// Lets a reader join the job's current run, or begin a new one.
    async fn join(
        &self,
        job: &JobName,
        read: Versioned<Consumer>,
        join: &Join,
    ) -> Result<Consumer, Refusal> {
        let item = self.job(job).await?;
        if item.spec.settings.visitation == Visitation::AtMostOnce {
            return Err(invalid(format!(
                "job {job} visits records at most once, which works with one reader only: start \
                 one fetcher without --run"
            )));
        }
        let consumer = read.item.unwrap_or_default();
        let is_new = consumer.run.is_none_or(|run| run.token != join.run.token);
        if is_new {
            self.admit((job, &item), &consumer, &join.start).await?;
        }
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&Consumer>| {
            run::join(before, join, now_ms).map_err(Unchanged::Declined)
        };
        Ok(self.store.update_from(&ItemName::Consumer(job), read, decide).await?)
    }

    /// Writes the report of a reader of the current run.
    async fn report(
        &self,
        name: &ItemName<'_>,
        read: Versioned<ReaderProgress>,
        (progress, report): (&Consumer, &Report),
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
        let pk = keys::job_partition(&self.store.ns, job);
        let (first, last) = reader_sks();
        let stored = self.store.range(&pk, &first, &last).await?;
        let reports = stored.iter().map(|(_, item)| ReaderProgress::decode(&item.body));
        let reports = reports.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        let now_ms = self.clock.now_ms();
        let decide = |before: Option<&Consumer>| {
            readers::merge(before, &reports, now_ms).map_err(Unchanged::Declined)
        };
        let consumer: Consumer = self.store.update(&ItemName::Consumer(job), decide).await?;
        Ok(readers::covering(&consumer, &reports).err().map(|uncovered| uncovered.to_string()))
    }

    /// Reads the job's progress and the splits that are ready, and changes nothing.
    async fn follow(&self, PollReader { job, from, .. }: &PollReader) -> Result<Polled, Refusal> {
        let (snapshot, PollItems { scale, first, .. }) =
            self.poll_snapshot(job, Some(*from)).await?;
        let seen = snapshot.hints();
        let JobSnapshot { item, consumer, .. } = snapshot;
        let splits = item.plan.map_or(0, |plan| plan.max_bundle_splits as usize);
        let most = FOLLOWED_BUNDLES * splits;
        let mut ready = self.committed((job, &item), *from, first, most).await?;
        ready.entries.retain(|entry| item.locates(entry.place.epoch));
        let now_ms = self.clock.now_ms();
        Ok(steps::answer(item.view(job), item.n_files, &consumer, (scale, seen), ready, now_ms))
    }
}
