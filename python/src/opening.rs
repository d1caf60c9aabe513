//! Opening a stream, until the service has accepted it.

use gristmill_client::{
    Failure, FetchError, Fetcher, Job, RankOptions, Steps, StreamOptions, server::Beginning,
};
use gristmill_model::splits::Cursor;

pub enum Opening {
    Refused(String),
    Failed(FetchError),
}

impl From<FetchError> for Opening {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

/// Opens a stream at `at`, or where the job's last trainer was; waits until the service has accepted it.
pub async fn open(
    job: &Job,
    at: Option<Cursor>,
    ranks: &RankOptions,
    options: &StreamOptions,
) -> Result<(Steps, Cursor), Opening> {
    let refused = |why: Failure| Opening::Refused(why.to_string());
    let asked = ranks.own(job).map_err(refused)?;
    let status = match (asked, at) {
        (None, Some(_)) => None,
        _ => Some(job.status(options.patience).await?),
    };
    let (own, begin) = match (asked, status) {
        (Some(own), Some(status)) => {
            let begins = Beginning::of(&status, own, at, None);
            let (beginning, own) = begins.map_err(Opening::Refused)?;
            (Some(own), beginning.known())
        }
        (_, status) => (None, at.or(status.map(|status| status.durable)).unwrap_or_default()),
    };
    let fetcher = job.open_for(own, begin, options).await?;
    let mut steps = Steps::new(fetcher);
    match accepted(steps.fetcher()).await {
        // Another rank began the run, and nobody named another place.
        Err(FetchError::RunBegan { from, .. }) if at.is_none() => {
            steps.begin_run(from).await;
            accepted(steps.fetcher()).await?;
            Ok((steps, from))
        }
        accepted => Ok(accepted.map(|()| (steps, begin))?),
    }
}

/// Waits until the service has accepted the stream.
async fn accepted(fetcher: &Fetcher) -> Result<(), FetchError> {
    fetcher.located().await?;
    fetcher.announce();
    fetcher.admitted().await
}
