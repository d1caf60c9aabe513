//! All ranks of a run, and the steps that their batches make.

use super::{
    processes::Hosts,
    rank::{self, Given, Place, Received},
    run::Run,
    summary::Summary,
};
use gristmill_client::{Failure, Job, cursor::Identity};
use gristmill_model::splits::Cursor;
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

/// A step: the batch of each rank.
#[derive(Debug)]
pub struct Step {
    /// None for a rank that has no batch at an uneven end of an epoch.
    pub batches: Vec<Option<Given>>,
    /// The text of the checkpoint after this step.
    pub text: String,
}

/// One rank, as its trainer sees it.
struct Seat {
    received: mpsc::Receiver<Result<Received, Failure>>,
    trained: mpsc::Sender<()>,
    /// The batch that it received and has yet to train on.
    pending: Option<Received>,
}

/// The ranks of a run. Dropping it ends them.
pub struct Ranks {
    seats: Vec<Seat>,
    missing: Vec<u32>,
    tasks: JoinSet<Result<(), Failure>>,
}

impl Ranks {
    /// Starts the ranks of `run`, which connect to the fetchers of `hosts`.
    pub fn start(run: &Run, hosts: &Hosts, job: &Job, patience: Duration) -> Self {
        let (mut seats, mut tasks) = (Vec::new(), JoinSet::new());
        for rank in 0..run.ranks.get() {
            let host = run.host_of(rank);
            let place = Place {
                socket: hosts.socket(host),
                identity: Identity::of(&job.view),
                rank,
                of: run.ranks.get(),
                run: run.name.clone(),
                patience,
                life: hosts.life(host),
            };
            let ((to, received), (trained, acks)) = (mpsc::channel(1), mpsc::channel(1));
            tasks.spawn(rank::run(place, to, acks));
            seats.push(Seat { received, trained, pending: None });
        }
        Self { seats, missing: Vec::new(), tasks }
    }

    /// The next step of all ranks; none at the end of the job. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Step>, Failure> {
        let lacks = |(rank, seat): (u32, &Seat)| seat.pending.is_none().then_some(rank);
        self.missing = (0..).zip(&self.seats).filter_map(lacks).collect();
        while let Some(rank) = self.missing.first().copied() {
            let seat = &mut self.seats[rank as usize];
            let gone = || Failure::failed(format!("rank {rank} ended without a reason"));
            let received = seat.received.recv().await.ok_or_else(gone)??;
            seat.pending = Some(received);
            self.missing.remove(0);
        }
        let pending: Vec<_> = self.seats.iter().filter_map(|seat| seat.pending.as_ref()).collect();
        let Some(start) = first_start(&pending) else { return Ok(None) };
        let batches: Vec<_> = (0..).zip(&pending).map(|(rank, it)| at(start, rank, it)).collect();
        for (seat, batch) in self.seats.iter_mut().zip(&batches) {
            if batch.is_some() {
                seat.pending = None;
            }
        }
        step(start, batches).map(Some).map_err(Failure::Failed)
    }

    /// Ranks whose batch is missing.
    pub fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// The ranks of a step have it in their checkpoints.
    pub async fn trained(&self, batches: &[Option<Given>]) {
        for (seat, _) in self.seats.iter().zip(batches).filter(|(_, batch)| batch.is_some()) {
            // A rank that has failed says so when its next batch is asked for.
            let _ = seat.trained.send(()).await;
        }
    }

    /// Resolves once the job is closed for all ranks. Cancel safe.
    pub async fn closed(&mut self) -> Result<(), Failure> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(Failure::failed)??;
        }
        Ok(())
    }

    /// The summaries of the fetchers at the end.
    pub fn summaries(&self) -> impl Iterator<Item = &Summary> {
        self.seats.iter().filter_map(|seat| match &seat.pending {
            Some(Received::End(summary)) => Some(summary),
            _ => None,
        })
    }
}

/// The first batch of the step that a rank's batch belongs to.
fn start_of(rank: u32, given: &Given) -> Cursor {
    let Cursor { epoch, batch_index } = given.at;
    Cursor { epoch, batch_index: batch_index.saturating_sub(rank.into()) }
}

/// The start of the first step that some rank has a batch of.
fn first_start(pending: &[&Received]) -> Option<Cursor> {
    let starts = (0..).zip(pending).filter_map(|(rank, received)| match received {
        Received::Step(given) => Some(start_of(rank, given)),
        Received::End(_) => None,
    });
    starts.min()
}

/// A rank's batch of the step at `start`.
fn at(start: Cursor, rank: u32, received: &Received) -> Option<Given> {
    match received {
        Received::Step(given) if start_of(rank, given) == start => Some(given.clone()),
        Received::Step(_) | Received::End(_) => None,
    }
}

/// The step of these batches. Only the last ranks may have none, at the end of an epoch.
fn step(start: Cursor, batches: Vec<Option<Given>>) -> Result<Step, String> {
    let given = batches.iter().take_while(|batch| batch.is_some()).count();
    if let Some(rank) = batches.iter().skip(given).position(Option::is_some) {
        return Err(format!(
            "rank {given} got no batch at the step that begins at {start}, and rank {} got one",
            given + rank
        ));
    }
    // At the end of an epoch some fetchers know that no step follows, and others do not yet.
    let last = batches.iter().flatten().max_by_key(|batch| batch.next);
    let text = last.map(|batch| batch.checkpoint.clone());
    let text = text.ok_or_else(|| format!("the step that begins at {start} has no batch"))?;
    Ok(Step { batches, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn given(epoch: u32, batch_index: u64, next: Cursor) -> Received {
        Received::Step(Given {
            at: Cursor { epoch, batch_index },
            is_repeat: false,
            frame: Bytes::new(),
            next,
            checkpoint: next.to_string(),
        })
    }

    fn cursor(epoch: u32, batch_index: u64) -> Cursor {
        Cursor { epoch, batch_index }
    }

    fn next_of(pending: &[Received]) -> Result<Option<(Vec<bool>, String)>, String> {
        let pending: Vec<&Received> = pending.iter().collect();
        let Some(start) = first_start(&pending) else { return Ok(None) };
        let batches = (0..).zip(&pending).map(|(rank, it)| at(start, rank, it)).collect();
        let Step { batches, text } = step(start, batches)?;
        Ok(Some((batches.iter().map(Option::is_some).collect(), text)))
    }

    #[test]
    fn a_step_is_the_batches_that_begin_at_one_place() {
        let after = cursor(0, 6);
        let all = [given(0, 3, after), given(0, 4, after), given(0, 5, cursor(1, 0))];
        assert_eq!(next_of(&all), Ok(Some((vec![true; 3], cursor(1, 0).to_string()))));
    }

    #[test]
    fn the_last_ranks_may_have_none_at_the_end_of_an_epoch() {
        let uneven =
            [given(0, 3, cursor(0, 6)), given(1, 1, cursor(1, 3)), given(1, 2, cursor(1, 3))];
        assert_eq!(
            next_of(&uneven),
            Ok(Some((vec![true, false, false], cursor(0, 6).to_string())))
        );
        let hole =
            [given(0, 3, cursor(0, 6)), given(1, 1, cursor(1, 3)), given(0, 5, cursor(0, 6))];
        let why = next_of(&hole).unwrap_err();
        assert!(why.contains("rank 1 got no batch") && why.contains("rank 2 got one"), "{why}");
    }

    #[test]
    fn the_job_ends_when_no_rank_has_a_batch() {
        let end = || Received::End(serde_json::from_str(r#"{"closed":false}"#).unwrap());
        assert_eq!(next_of(&[end(), end()]), Ok(None));
        let one = [given(2, 4, cursor(3, 0)), end()];
        assert_eq!(next_of(&one), Ok(Some((vec![true, false], cursor(3, 0).to_string()))));
    }
}
