//! One look at one job: load its books, decide, write them, act on them.

use gristmill_policy::scaling::{Observation, top_up};
use gristmill_ports::{
    InvokeError, Invoked, Invoker, Item, ItemKey, Measure, Metrics, Table, TableError, WriteOutcome,
};
use gristmill_protocol::{ScaleDecision, ScaleState, ScalerEvent, VERSION, WorkerEvent, keys};
use serde::Serialize;
use std::sync::Arc;

/// A worker that was invoked this long ago and holds no lease is presumed gone: its event was lost,
/// or it died and nobody reported it. Above a cold start; one too many is harmless, it leaves at once.
const PRESUMED_GONE_MS: u64 = 20_000;
/// Decisions kept in the item, which costs a write unit per KB.
const MAX_LOG: usize = 12;
/// Tries at the compare-and-set before the event is left to the next kick.
const MAX_TRIES: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    #[error("the event has protocol version {0}, this scaler speaks {VERSION}: deploy one version")]
    Version(u32),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Invoke(#[from] InvokeError),
    #[error("the SCALE item cannot be read: {0}")]
    Corrupt(#[from] serde_json::Error),
}

/// The scaler with what it touches: its item and the worker function.
pub struct Scaler {
    pub table: Arc<dyn Table>,
    pub invoker: Arc<dyn Invoker>,
    /// Name (and version) of the worker function: what jobs that begin now keep.
    pub worker_function: String,
    pub metrics: Metrics,
}

/// What one look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Scaled {
    pub invoked: u32,
    /// Workers the platform did not accept.
    pub throttled: u32,
    /// Workers on the books afterwards.
    pub outstanding: u32,
}

impl Scaler {
    /// Brings the job's outstanding workers up to what the policy says, and prints what that came
    /// to. Doubled or late events are harmless: an idle worker leaves at once.
    pub async fn handle(&self, event: &ScalerEvent) -> Result<Scaled, ScaleError> {
        let scaled = self.scale(event).await?;
        let measured = [
            Measure::count("workers_invoked", u64::from(scaled.invoked)),
            Measure::count("workers_throttled", u64::from(scaled.throttled)),
            Measure::count("workers_outstanding", u64::from(scaled.outstanding)),
        ];
        self.metrics.print(event.at_ms, &measured, &[("job", event.job.as_str())]);
        Ok(scaled)
    }

    async fn scale(&self, event: &ScalerEvent) -> Result<Scaled, ScaleError> {
        if event.v != VERSION {
            return Err(ScaleError::Version(event.v));
        }
        let key =
            ItemKey { pk: keys::job_partition(&event.ns, &event.job), sk: keys::SCALE.into() };
        let mut item = self.table.read(std::slice::from_ref(&key)).await?.pop().flatten();
        for _ in 0..MAX_TRIES {
            let (version, mut state) = decode(item.as_ref())?;
            let workers = plan(&mut state, event);
            let outstanding = u32::try_from(state.outstanding.len()).unwrap_or(u32::MAX);
            if workers.is_empty() {
                return Ok(Scaled { outstanding, ..Scaled::default() });
            }
            let function =
                state.worker_function.get_or_insert_with(|| self.worker_function.clone());
            let function = function.clone();
            let body = serde_json::to_vec(&state)?.into();
            match self.table.write(&key, version, body, None).await? {
                WriteOutcome::Written => {
                    let (invoked, throttled) = self.invoke(event, &function, &workers).await?;
                    return Ok(Scaled { invoked, throttled, outstanding });
                }
                WriteOutcome::Conflict(current) => item = current,
            }
        }
        Ok(Scaled::default())
    }

    /// Starts workers until the platform takes no more; returns how many it took, and how many not.
    async fn invoke(
        &self,
        event: &ScalerEvent,
        function: &str,
        workers: &[u32],
    ) -> Result<(u32, u32), ScaleError> {
        let mut invoked = 0;
        for &worker in workers {
            let (ns, job) = (event.ns.clone(), event.job.clone());
            let payload = serde_json::to_vec(&WorkerEvent { v: VERSION, ns, job, worker })?;
            match self.invoker.invoke(function, payload.into()).await? {
                Invoked::Accepted => invoked += 1,
                // The platform is at its limit: those not accepted are presumed gone in time.
                Invoked::Throttled => {
                    tracing::warn!(job = %event.job, worker, "the platform throttles workers");
                    break;
                }
            }
        }
        Ok((invoked, workers.len() as u32 - invoked))
    }
}

fn decode(item: Option<&Item>) -> Result<(u64, ScaleState), serde_json::Error> {
    match item {
        Some(item) => Ok((item.version, serde_json::from_slice(&item.body)?)),
        None => Ok((0, ScaleState::default())),
    }
}

/// Applies the policy to the books; returns the numbers of the workers to invoke.
fn plan(state: &mut ScaleState, event: &ScalerEvent) -> Vec<u32> {
    let fresh = |&(_, sent_ms): &(u32, u64)| event.at_ms.saturating_sub(sent_ms) < PRESUMED_GONE_MS;
    // With a lease in sight nobody is struck off: which worker holds it is not known here.
    if event.active_workers == 0 {
        state.outstanding.retain(fresh);
    }
    let outstanding = u32::try_from(state.outstanding.len()).unwrap_or(u32::MAX);
    let observation = Observation { claimable: event.claimable, outstanding };
    let decision = top_up(&observation, event.wanted);
    let workers: Vec<u32> = (0..decision.invoke).map(|i| state.next_worker + i).collect();
    if workers.is_empty() {
        return workers;
    }
    state.target = event.wanted;
    state.next_worker += decision.invoke;
    state.outstanding.extend(workers.iter().map(|&worker| (worker, event.at_ms)));
    let workers_now = outstanding + decision.invoke;
    state.log.push(ScaleDecision {
        batch: event.batches,
        workers: workers_now,
        reason: decision.reason,
    });
    let excess = state.log.len().saturating_sub(MAX_LOG);
    state.log.drain(..excess);
    workers
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use gristmill_ports::memory::MemoryTable;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<WorkerEvent>>, Mutex<Vec<String>>);

    #[async_trait]
    impl Invoker for Recorder {
        async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError> {
            self.1.lock().unwrap().push(function.to_owned());
            self.0.lock().unwrap().push(serde_json::from_slice(&payload).unwrap());
            Ok(Invoked::Accepted)
        }
    }

    fn event(claimable: u32, active_workers: u32, at_ms: u64) -> ScalerEvent {
        let (ns, job) = ("a".parse().unwrap(), "j".parse().unwrap());
        ScalerEvent { v: VERSION, ns, job, claimable, active_workers, wanted: 3, batches: 0, at_ms }
    }

    fn scaler() -> (Scaler, Arc<Recorder>) {
        let invoker = Arc::new(Recorder::default());
        let table = Arc::new(MemoryTable::default());
        let worker_function = "worker".to_owned();
        let metrics = Metrics::default();
        (Scaler { table, invoker: invoker.clone(), worker_function, metrics }, invoker)
    }

    fn scaled(invoked: u32, outstanding: u32) -> Scaled {
        Scaled { invoked, throttled: 0, outstanding }
    }

    #[tokio::test]
    async fn doubled_events_invoke_once() {
        let (scaler, recorder) = scaler();
        assert_eq!(scaler.handle(&event(10, 0, 1_000)).await.unwrap(), scaled(3, 3));
        assert_eq!(scaler.handle(&event(10, 0, 1_000)).await.unwrap(), scaled(0, 3));
        let numbers: Vec<u32> = recorder.0.lock().unwrap().iter().map(|e| e.worker).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[tokio::test]
    async fn workers_that_never_came_are_replaced_in_time() {
        let (scaler, recorder) = scaler();
        scaler.handle(&event(10, 0, 1_000)).await.unwrap();
        assert_eq!(
            scaler.handle(&event(10, 1, 200_000)).await.unwrap().invoked,
            0,
            "one is seen at work"
        );
        assert_eq!(scaler.handle(&event(10, 0, 200_000)).await.unwrap(), scaled(3, 3));
        assert_eq!(
            recorder.0.lock().unwrap().last().unwrap().worker,
            5,
            "numbers are never reused"
        );
    }

    /// Takes one event and no more.
    struct Full(Recorder);

    #[async_trait]
    impl Invoker for Full {
        async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError> {
            let has_room = self.0.0.lock().unwrap().is_empty();
            match has_room {
                true => self.0.invoke(function, payload).await,
                false => Ok(Invoked::Throttled),
            }
        }
    }

    #[tokio::test]
    async fn workers_the_platform_does_not_take_are_tried_again_in_time() {
        let (scaler, _) = scaler();
        let scaler = Scaler { invoker: Arc::new(Full(Recorder::default())), ..scaler };
        let throttled = Scaled { invoked: 1, throttled: 2, outstanding: 3 };
        assert_eq!(scaler.handle(&event(10, 0, 1_000)).await.unwrap(), throttled);
        assert_eq!(scaler.handle(&event(10, 0, 2_000)).await.unwrap(), scaled(0, 3), "too soon");
        assert_eq!(scaler.handle(&event(10, 0, 200_000)).await.unwrap().throttled, 3);
    }

    #[tokio::test]
    async fn a_job_keeps_the_worker_version_it_began_with() {
        let (scaler, recorder) = scaler();
        scaler.handle(&event(10, 0, 1_000)).await.unwrap();
        let deployed = Scaler { worker_function: "worker:2".to_owned(), ..scaler };
        assert_eq!(deployed.handle(&event(10, 0, 200_000)).await.unwrap(), scaled(3, 3));
        let other = ScalerEvent { job: "k".parse().unwrap(), ..event(10, 0, 200_000) };
        deployed.handle(&other).await.unwrap();
        let functions = recorder.1.lock().unwrap().clone();
        assert_eq!(functions[..6], ["worker"; 6]);
        assert_eq!(functions[6..], ["worker:2"; 3]);
    }

    #[tokio::test]
    async fn another_version_is_refused_by_name() {
        let (scaler, _) = scaler();
        let other = ScalerEvent { v: 9, ..event(1, 0, 0) };
        assert!(scaler.handle(&other).await.unwrap_err().to_string().contains("version 9"));
    }
}
