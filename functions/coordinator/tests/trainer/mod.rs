//! The polls of a plain trainer, which is a run of one rank: it joins once and then reports.

use gristmill_model::splits::ranks::RunRanks;
use gristmill_model::splits::readers::{RankRange, ReaderReport};
use gristmill_model::splits::run::{RunJoin, TrainingRun};
use gristmill_model::splits::{Cursor, ProgressAck, SplitPlace};
use gristmill_model::wire::{PollCall, PollReply, TrainerMetrics};
use gristmill_model::{JobName, RunToken};
use std::num::NonZeroU32;

/// A poll that only asks for the splits from `from` on.
pub fn asks(job: &JobName, from: SplitPlace) -> PollCall {
    PollCall {
        job: job.clone(),
        registered_ms: 0,
        from,
        ranks: RankRange::all(NonZeroU32::MIN),
        of: NonZeroU32::MIN,
        join: None,
        report: None,
        metrics: TrainerMetrics::default(),
        training: None,
    }
}

/// A run of a plain trainer, in a job each of whose splits is one batch.
pub struct Trainer {
    generation: u64,
    /// The generation of the run that it takes over from, 0 if none.
    over: u64,
    /// None before it first joins.
    run: Option<TrainingRun>,
    /// Whether the table has this run, as far as it knows.
    is_joined: bool,
}

impl Trainer {
    pub fn new(generation: u64, over: u64) -> Self {
        Self { generation, over, run: None, is_joined: false }
    }

    /// The poll of one that asks for the splits from `from` on, has everything before `delivered`, and a checkpoint at
    /// `durable`. The first one joins; it joins again if the table has lost that.
    pub fn poll(
        &mut self,
        job: &JobName,
        from: SplitPlace,
        delivered: SplitPlace,
        durable: SplitPlace,
    ) -> PollCall {
        let Self { generation, over, .. } = *self;
        let cursor = Cursor { epoch: durable.epoch, batch_index: u64::from(durable.position) };
        let ack = ProgressAck {
            generation,
            over,
            delivered,
            durable: cursor,
            durable_place: durable,
            ended: None,
            local_workers: 0,
        };
        let is_successor = self.run.is_some();
        let token = RunToken::from_name(&format!("trainer {generation}"));
        let begun = TrainingRun { token, ranks: RunRanks::one(cursor), epochs: None };
        let run = *self.run.get_or_insert(begun);
        let polls = asks(job, from);
        if self.is_joined {
            let (reader, ranks) = (generation, polls.ranks);
            PollCall { report: Some(ReaderReport { reader, over_reader: 0, ranks, ack }), ..polls }
        } else {
            PollCall { join: Some(RunJoin { run, start: ack, is_successor }), ..polls }
        }
    }

    /// Learns from the answer whether the table has its run.
    pub fn answered(&mut self, polled: &PollReply) {
        self.is_joined = self.run.is_some() && polled.generation >= self.generation;
    }
}
