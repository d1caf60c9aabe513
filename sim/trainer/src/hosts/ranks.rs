//! All ranks of a run, and the steps that their batches make.

use super::{
    FetcherSummary, HostedRun,
    processes::FetcherProcesses,
    rank::{self, RankDelivery, RankEndpoint, RankStepBatch},
};
use gristmill_chunk::{ChunkFrame, ChunkLimits};
use gristmill_client::ProgramFailure;
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::RunRanks;
use gristmill_pipeline::KEY_FIELD;
use gristmill_stream::{DeliveredBatch, MemoryShare, RankBatch};
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

/// The deliveries to all ranks.
#[derive(Debug)]
pub struct ArrivedStep {
    /// The first batch of the step; none at the end of the job.
    pub start: Option<Cursor>,
    /// The batch of each rank; none for one that has no batch at an uneven end of an epoch.
    batches: Vec<Option<RankStepBatch>>,
}

impl ArrivedStep {
    /// The start of a later run that goes on after this step of `ranks`. Only the last data ranks may have no batch, at
    /// the end of an epoch. It is an error if others have none.
    pub fn next(&self, ranks: &RunRanks) -> Result<Cursor, String> {
        let of_rank = |has: bool| {
            let ranks = (0..).zip(&self.batches).filter(move |(_, batch)| batch.is_some() == has);
            ranks.map(|(rank, _)| rank)
        };
        let without = of_rank(false).min_by_key(|rank| ranks.data_rank(*rank));
        let after = |rank: &u32| {
            without.is_some_and(|without| ranks.data_rank(*rank) >= ranks.data_rank(without))
        };
        if let (Some(without), Some(rank)) = (without, of_rank(true).find(after)) {
            return Err(format!(
                "rank {without} got no batch at the step that begins at {}, and rank {rank} got one",
                self.start.unwrap_or_default(),
            ));
        }
        // At the end of an epoch some fetchers know that no step follows, and others do not yet.
        let next = self.batches.iter().flatten().map(|batch| batch.next).max();
        Ok(next.unwrap_or_default())
    }

    /// The batches of the step.
    pub fn into_batches(self) -> Result<Vec<Option<RankBatch>>, ProgramFailure> {
        let batch = |RankStepBatch { at, is_repeat, frame, .. }: RankStepBatch| {
            let Cursor { epoch, batch_index } = at;
            let parsed = ChunkFrame::parse(frame.clone(), &ChunkLimits::default());
            let keys = parsed.map_err(ProgramFailure::failed)?;
            let rows = keys.get(KEY_FIELD).map_or(0, |keys| keys.values().len() / size_of::<u64>());
            let rows = u32::try_from(rows).map_err(ProgramFailure::failed)?;
            let room = MemoryShare::default();
            let batch = DeliveredBatch { epoch, batch_index, rows, frame, room };
            Ok(RankBatch { batch, repeated_for: is_repeat.then_some(batch_index) })
        };
        self.batches.into_iter().map(|given| given.map(batch).transpose()).collect()
    }
}

struct HostedRankState {
    received: mpsc::Receiver<Result<RankDelivery, ProgramFailure>>,
    trained: mpsc::Sender<()>,
    /// The batch that it received and has yet to train on.
    pending: Option<RankDelivery>,
    /// Whether it trains on a batch.
    trains: bool,
}

/// The ranks of a run. Dropping it ends them.
pub struct HostedRanks {
    ranks: RunRanks,
    states: Vec<HostedRankState>,
    /// Those whose batch is missing.
    pub missing: Vec<u32>,
    tasks: JoinSet<Result<(), ProgramFailure>>,
}

impl HostedRanks {
    /// Starts the ranks of `run`, which connect to the fetchers of `hosts`.
    pub fn start(run: &HostedRun, hosts: &FetcherProcesses, patience: Duration) -> Self {
        let (mut states, mut tasks) = (Vec::new(), JoinSet::new());
        for rank in 0..run.ranks.get() {
            let host = run.host_of(rank);
            let place = RankEndpoint {
                socket: hosts.socket(host),
                rank,
                of: run.ranks.get(),
                run: run.name.clone(),
                patience,
                life: hosts.life(host),
            };
            let ((to, received), (trained, acks)) = (mpsc::channel(1), mpsc::channel(1));
            tasks.spawn(rank::run(place, to, acks));
            states.push(HostedRankState { received, trained, pending: None, trains: false });
        }
        Self { ranks: run.dealing(), states, missing: Vec::new(), tasks }
    }

    /// The next step of all ranks, or the end of the job. Cancel safe.
    pub async fn next(&mut self) -> Result<ArrivedStep, ProgramFailure> {
        let lacks =
            |(rank, state): (u32, &HostedRankState)| state.pending.is_none().then_some(rank);
        self.missing = (0..).zip(&self.states).filter_map(lacks).collect();
        while let Some(rank) = self.missing.first().copied() {
            let state = &mut self.states[rank as usize];
            let gone = || ProgramFailure::failed(format!("rank {rank} ended without a reason"));
            let received = state.received.recv().await.ok_or_else(gone)??;
            state.pending = Some(received);
            self.missing.remove(0);
        }
        let pending = self.states.iter().filter_map(|state| state.pending.as_ref());
        let came = step(&self.ranks, &pending.collect::<Vec<_>>());
        for (state, batch) in self.states.iter_mut().zip(&came.batches) {
            state.pending.take_if(|_| batch.is_some());
            state.trains = batch.is_some();
        }
        Ok(came)
    }

    /// The ranks of the last step have it in their checkpoints.
    pub async fn trained(&mut self) {
        for state in &mut self.states {
            if std::mem::take(&mut state.trains) {
                // A rank that has failed says so when its next batch is asked for.
                let _ = state.trained.send(()).await;
            }
        }
    }

    /// Resolves once the job is closed for all ranks. Cancel safe.
    pub async fn closed(&mut self) -> Result<(), ProgramFailure> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(ProgramFailure::failed)??;
        }
        Ok(())
    }

    /// Each rank at the end, and the summary of its fetcher.
    pub fn summaries(&self) -> impl Iterator<Item = (u32, &FetcherSummary)> {
        (0..).zip(&self.states).filter_map(|(rank, state)| match &state.pending {
            Some(RankDelivery::End(summary)) => Some((rank, summary)),
            _ => None,
        })
    }
}

/// The first batch of the step that a data rank's batch belongs to.
fn start_of(data_rank: u32, given: &RankStepBatch) -> Cursor {
    let Cursor { epoch, batch_index } = given.at;
    Cursor { epoch, batch_index: batch_index.saturating_sub(data_rank.into()) }
}

/// The first step of what `ranks` have received.
fn step(ranks: &RunRanks, pending: &[&RankDelivery]) -> ArrivedStep {
    let given = (0..).zip(pending).map(|(rank, received)| match received {
        RankDelivery::Step(given) => Some((start_of(ranks.data_rank(rank), given), given)),
        RankDelivery::End(_) => None,
    });
    let start = given.clone().flatten().map(|(start, _)| start).min();
    let of = |given: (Cursor, &RankStepBatch)| (Some(given.0) == start).then(|| given.1.clone());
    ArrivedStep { start, batches: given.map(|given| given.and_then(of)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use gristmill_model::splits::ranks::TailPolicy;
    use std::num::NonZeroU32;

    fn given(epoch: u32, batch_index: u64, next: Cursor) -> RankDelivery {
        let at = Cursor { epoch, batch_index };
        RankDelivery::Step(RankStepBatch { at, is_repeat: false, frame: Bytes::new(), next })
    }

    fn cursor(epoch: u32, batch_index: u64) -> Cursor {
        Cursor { epoch, batch_index }
    }

    /// Which ranks have a batch of the next step, and the start of a later run.
    fn next_of(pending: &[RankDelivery]) -> Result<Option<(Vec<bool>, Cursor)>, String> {
        next_of_replicas("1", pending)
    }

    /// As [`next_of`], where some of the ranks take the same batches.
    fn next_of_replicas(
        replicas: &str,
        pending: &[RankDelivery],
    ) -> Result<Option<(Vec<bool>, Cursor)>, String> {
        let count = NonZeroU32::new(pending.len() as u32).unwrap();
        let ranks = RunRanks::new(count, Cursor::default(), TailPolicy::Drop);
        let ranks = RunRanks { replicas: replicas.parse().unwrap(), ..ranks };
        let came = step(&ranks, &pending.iter().collect::<Vec<_>>());
        if came.start.is_none() {
            return Ok(None);
        }
        let next = came.next(&ranks)?;
        Ok(Some((came.batches.iter().map(Option::is_some).collect(), next)))
    }

    #[test]
    fn a_step_is_the_batches_that_begin_at_one_place() {
        let after = cursor(0, 6);
        let all = [given(0, 3, after), given(0, 4, after), given(0, 5, cursor(1, 0))];
        assert_eq!(next_of(&all), Ok(Some((vec![true; 3], cursor(1, 0)))));
    }

    #[test]
    fn the_last_ranks_may_have_none_at_the_end_of_an_epoch() {
        let uneven =
            [given(0, 3, cursor(0, 6)), given(1, 1, cursor(1, 3)), given(1, 2, cursor(1, 3))];
        assert_eq!(next_of(&uneven), Ok(Some((vec![true, false, false], cursor(0, 6)))));
        let hole =
            [given(0, 3, cursor(0, 6)), given(1, 1, cursor(1, 3)), given(0, 5, cursor(0, 6))];
        let why = next_of(&hole).unwrap_err();
        assert!(why.contains("rank 1 got no batch") && why.contains("rank 2 got one"), "{why}");
    }

    #[test]
    fn replicas_have_the_batch_of_their_data_rank() {
        let (last, after) = (cursor(1, 0), cursor(1, 3));
        let apart = [given(0, 2, last), given(1, 1, after), given(0, 2, last), given(1, 1, after)];
        let some = Ok(Some((vec![true, false, true, false], last)));
        assert_eq!(next_of_replicas("2x1", &apart), some);
        let hole = [given(1, 1, after), given(0, 3, last), given(1, 1, after), given(0, 3, last)];
        assert!(next_of_replicas("2x1", &hole).unwrap_err().contains("rank 0 got no batch"));
    }

    #[test]
    fn the_job_ends_when_no_rank_has_a_batch() {
        let end = || RankDelivery::End(serde_json::from_str(r#"{"closed":false}"#).unwrap());
        assert_eq!(next_of(&[end(), end()]), Ok(None));
        let one = [given(2, 4, cursor(3, 0)), end()];
        assert_eq!(next_of(&one), Ok(Some((vec![true, false], cursor(3, 0)))));
    }
}
