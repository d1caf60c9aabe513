//! Calls that are retried until a service answers, or patience runs out.

use crate::{FetchError, Fetcher, FetcherConfig, FetcherPorts, listing};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::{
    CoordinatorCall, DescribeCall, JobState, JobView, RegisterCall, StatusCall,
};
use gristmill_model::{JobName, Namespace, Visitation};
use gristmill_ports::{CallError, Clock, outlast};
use std::{pin::pin, time::Duration};

impl Fetcher {
    /// Registers `register`, or joins the job of that name, and returns the job. Retries a failing service for
    /// `patience`.
    ///
    /// # Errors
    /// [`FetchError::JobFailed`] if it failed at once, such as for a dataset without records.
    pub async fn register(
        ports: &FetcherPorts,
        own: (&Namespace, &str),
        register: RegisterCall,
        patience: Duration,
    ) -> Result<JobView, FetchError> {
        let mut register = listing::tell(ports, own, register, patience).await?;
        register.nonce.get_or_insert_with(|| ports.clock.nonce());
        let mut view = ask(ports, &register, patience).await?;
        if let JobState::Failed { error } = &view.state {
            let had_failed = error.clone();
            (register.resumes, register.nonce) = (Some(view.resumed), Some(ports.clock.nonce()));
            view = ask(ports, &register, patience).await?;
            if !matches!(view.state, JobState::Failed { .. }) {
                tracing::warn!("job {} had failed, and goes on: {had_failed}", view.job);
            }
        }
        match view.state {
            JobState::Failed { error } => Err(FetchError::JobFailed(error)),
            _ => Ok(view),
        }
    }

    /// The job of that name; otherwise as [`Fetcher::register`].
    pub async fn describe(
        ports: &FetcherPorts,
        job: &JobName,
        patience: Duration,
    ) -> Result<JobView, FetchError> {
        ask(ports, &DescribeCall { job: job.clone() }, patience).await
    }
}

/// First and longest pause between attempts.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Sends `call` until it succeeds, or `patience` runs out: a service that denies it may be fixed meanwhile.
pub async fn ask<C: CoordinatorCall>(
    ports: &FetcherPorts,
    call: &C,
    patience: Duration,
) -> Result<C::Reply, FetchError> {
    let passes = |error: &CallError| error.is_passing() || matches!(error, CallError::Denied(_));
    let calling = async || ports.coordinator.call(call.clone()).await;
    insist(&*ports.clock, patience, calling, passes, FetchError::from).await
}

/// Attempts until one succeeds or fails for good, or this process has run for `patience`.
pub(crate) async fn insist<T, E: std::fmt::Display>(
    clock: &dyn Clock,
    patience: Duration,
    attempt: impl AsyncFn() -> Result<T, E>,
    passes: impl Fn(&E) -> bool,
    stays: impl Fn(E) -> FetchError,
) -> Result<T, FetchError> {
    let mut over = pin!(outlast(clock, patience));
    let mut rest = FIRST_REST;
    let mut last = "it takes the call and says nothing".to_owned();
    loop {
        tokio::select! {
            biased;
            outcome = attempt() => match outcome {
                Ok(value) => return Ok(value),
                Err(error) if passes(&error) => last = error.to_string(),
                Err(error) => return Err(stays(error)),
            },
            () = &mut over => break,
        }
        tokio::select! {
            biased;
            () = &mut over => break,
            () = clock.sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
        }
    }
    Err(FetchError::Unreachable { waited_s: patience.as_secs(), error: last })
}

/// The batch to begin with.
pub(crate) async fn beginning(
    ports: &FetcherPorts,
    config: &FetcherConfig,
    visitation: Visitation,
) -> Result<Cursor, FetchError> {
    // A reader of a run that has a name begins where the others do.
    if visitation == Visitation::ExactlyOnce || config.own.is_some() {
        return Ok(config.resume);
    }
    let status = ask(ports, &StatusCall { job: config.job.clone() }, config.patience).await?;
    Ok(config.resume.max(status.durable))
}
