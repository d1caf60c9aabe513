//! Opening a stream, until the service has accepted it.

use gristmill_client::{JobHandle, ProgramFailure, RankOptions, StreamOptions};
use gristmill_model::splits::{Cursor, ranks::RunRanks};
use gristmill_model::wire::{JobState, JobStatus};
use gristmill_serve::StartCandidates;
use gristmill_stream::{FetchError, Fetcher, ServedRanks, StepStream};

pub enum StreamOpenError {
    Refused(String),
    Failed(FetchError),
}

impl From<FetchError> for StreamOpenError {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

/// Opens a stream at `at`, or where the job's last trainer was; waits until the service has accepted it.
pub async fn open(
    job: &JobHandle,
    at: Option<Cursor>,
    ranks: &RankOptions,
    options: &StreamOptions,
) -> Result<(StepStream, Cursor), StreamOpenError> {
    let refused = |why: ProgramFailure| StreamOpenError::Refused(why.to_string());
    let asked = ranks.own(job).map_err(refused)?;
    let status = match (asked, at) {
        (None, Some(_)) if job.view.state != JobState::Done => None,
        _ => Some(job.status(options.patience).await?),
    };
    let (own, begin) = match (asked, status) {
        (Some(own), Some(status)) => {
            let (begin, own) = begins(&status, own, at).map_err(StreamOpenError::Refused)?;
            (Some(own), begin)
        }
        (_, Some(status)) => {
            let beginning = StartCandidates::from_job_status(&status, at);
            let past_end = at.map(|at| beginning.past_end(RunRanks::one(at), 0, at));
            (None, first(&status, &beginning, past_end))
        }
        (_, None) => (None, at.unwrap_or_default()),
    };
    let fetcher = job.open_for(own, begin, options).await?;
    let mut steps = StepStream::new(fetcher);
    match accepted(steps.fetcher()).await {
        // Another rank began the run, and nobody named another place.
        Err(FetchError::RunBegan { from, .. }) if at.is_none() => {
            steps.begin_run(from).await;
            accepted(steps.fetcher()).await?;
            Ok((steps, from))
        }
        // A state after the last batch of an epoch is before the stream, which begins with the next epoch.
        accepted => Ok(accepted.map(|()| (steps, at.map_or(begin, |at| at.min(begin))))?),
    }
}

/// The beginning of the stream of a rank that wants `at` next. In a run that has begun, that is where its last one was
/// durable: the rank may return to any later state.
fn begins(
    status: &JobStatus,
    own: ServedRanks,
    at: Option<Cursor>,
) -> Result<(Cursor, ServedRanks), String> {
    let is_known = status.run.as_ref().is_some_and(|known| known.run.token == own.run.token);
    let (beginning, own) =
        StartCandidates::from_run_status(status, own, at.filter(|_| !is_known), None)?;
    let rank = own.range.first;
    let past_end = at.map(|at| beginning.past_end(own.run.ranks, rank, at));
    let begin = first(status, &beginning, past_end);
    match at.filter(|_| past_end < Some(begin)) {
        None => Ok((begin, own)),
        Some(at) => Err(format!(
            "rank {rank} wants {at}, and its run is safe up to {begin}, of which nothing is kept: load a state at or \
             after that, or begin a new run on all ranks (another run=...)"
        )),
    }
}

/// The first batch of a stream: none for a reader that has all of a job that is done.
fn first(status: &JobStatus, beginning: &StartCandidates, past_end: Option<Cursor>) -> Cursor {
    let end = Cursor::start_of(status.job.spec.epochs);
    let has_all = status.job.state == JobState::Done && past_end == Some(end);
    if has_all { end } else { beginning.known() }
}

/// Waits until the service has accepted the stream.
async fn accepted(fetcher: &Fetcher) -> Result<(), FetchError> {
    fetcher.located().await?;
    fetcher.announce();
    fetcher.admitted().await
}
