//! Asynchronous events: how the platform delays, repeats, drops and runs them, and reports failures.

use super::{LATEST_MS, SCALER, SimCloud};
use crate::{FaultKind, Mutant, ProcessKind, SimClock, SimProcess};
use bytes::Bytes;
use gristmill_model::InvocationId;
use gristmill_model::wire::protocol::{ProtocolMessage, read_event};
use gristmill_model::wire::{ReleaseCall, ScalerEvent, SpokenVersions, WorkerEvent};
use gristmill_ports::{Clock as _, FunctionMetrics};
use gristmill_scaler::ScalerFunction;
use gristmill_worker::WorkerFunction;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::OwnedSemaphorePermit;

const SCALER_TIMEOUT: Duration = Duration::from_secs(60);
/// Events that wait longer expire.
const EVENT_AGE_MS: u64 = 60_000;

impl SimCloud {
    /// Waits for concurrency for an event's function; `None` if the event expires first.
    async fn wait_for_slot(&self, kind: ProcessKind) -> Option<OwnedSemaphorePermit> {
        let give_up = self.sim.time.now() + Duration::from_millis(EVENT_AGE_MS);
        loop {
            match self.slot(kind) {
                None if self.sim.time.now() < give_up => {
                    self.sim.time.sleep(self.sim.between_ms(1_000, 5_000)).await;
                }
                slot => return slot,
            }
        }
    }

    fn run_scaler(self: &Arc<Self>, event: ScalerEvent) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let Some(_slot) = cloud.wait_for_slot(ProcessKind::Scaler).await else { return };
            let process = SimProcess::new(&cloud.sim, ProcessKind::Scaler);
            if cloud.sim.happens(FaultKind::VersionDeleted) {
                cloud.deployed.redeploy_workers();
            }
            let scaler = ScalerFunction {
                table: cloud.table(&process),
                invoker: cloud.platform(&process),
                worker_function: cloud.worker_function(),
                max_workers: None,
                spoken: cloud.deployed.scaler(),
                metrics: FunctionMetrics::default(),
            };
            let _ = cloud.invocation(&process, SCALER_TIMEOUT, scaler.handle(&event)).await;
        });
    }

    fn run_worker(
        self: &Arc<Self>,
        (event, spoken): (WorkerEvent, SpokenVersions),
        request_id: String,
    ) {
        let cloud = Arc::clone(self);
        tokio::spawn(async move {
            let Some(slot) = cloud.wait_for_slot(ProcessKind::Worker).await else {
                return cloud.report(&event, request_id, true).await;
            };
            let process = SimProcess::new(&cloud.sim, ProcessKind::Worker);
            cloud.workers.lock().push(process.clone());
            let lifetime = cloud.sim.between_ms(20_000, 900_000);
            let deadline_ms = SimClock(process.clone()).now_ms() + lifetime.as_millis() as u64;
            let runner = cloud.runner(&process, spoken);
            let function = WorkerFunction::new(runner, FunctionMetrics::default()).speaking(spoken);
            let work = function.handle(&event, request_id.clone(), deadline_ms);
            let ended = cloud.invocation(&process, lifetime, work).await;
            drop(slot);
            if let Some(Ok(_)) = ended {
                return;
            }
            cloud.sim.event(format_args!("worker {} of {request_id} died", event.worker));
            cloud.report(&event, request_id, false).await;
        });
    }

    /// Reports a failed invocation to the coordinator, as the platform does.
    async fn report(self: &Arc<Self>, event: &WorkerEvent, request_id: String, blameless: bool) {
        let sim = &self.sim;
        sim.time.sleep(sim.between_ms(10, 2_000)).await;
        let release = ReleaseCall {
            job: event.job.clone(),
            invocation: InvocationId::new(event.worker, &request_id),
            worker: Some(event.worker),
            blameless,
            expired: blameless,
            error: String::new(),
        };
        if !sim.happens(FaultKind::ReportLost) {
            self.deliver((release.clone().into(), None), None);
        }
        if sim.happens(FaultKind::ReportRepeated) {
            sim.time.sleep(sim.between_ms(1, LATEST_MS)).await;
            self.deliver((release.into(), None), None);
        }
    }

    /// Processes an accepted event.
    pub fn accept(self: &Arc<Self>, function: &str, payload: &Bytes) {
        let cloud = Arc::clone(self);
        let sim = &self.sim;
        if function == SCALER {
            let Some(mut event) = read::<ScalerEvent>(payload) else { return };
            if sim.mutant == Some(Mutant::NobodyIsSilent) {
                event.silent.clear();
            }
            let late = self.delay();
            tokio::spawn(async move {
                cloud.sim.time.sleep(late).await;
                cloud.run_scaler(event);
            });
            return;
        }
        let (Some(event), Some(spoken)) = (read::<WorkerEvent>(payload), self.spoken_by(function))
        else {
            return;
        };
        let request_id = format!("request-{}", self.events.fetch_add(1, Ordering::Relaxed));
        if sim.happens(FaultKind::EventDropped) {
            tokio::spawn(async move {
                cloud.sim.time.sleep(Duration::from_millis(EVENT_AGE_MS)).await;
                cloud.report(&event, request_id, true).await;
            });
            return;
        }
        let copies = if sim.happens(FaultKind::EventRepeated) { 2 + sim.below(2) } else { 1 };
        for _ in 0..copies {
            let (cloud, event, request_id) = (Arc::clone(self), event.clone(), request_id.clone());
            let late = self.delay();
            tokio::spawn(async move {
                cloud.sim.time.sleep(late).await;
                cloud.run_worker((event, spoken), request_id);
            });
        }
    }

    fn delay(&self) -> Duration {
        let most = if self.sim.happens(FaultKind::EventLate) { EVENT_AGE_MS } else { 400 };
        self.sim.between_ms(1, most)
    }
}

fn read<M: ProtocolMessage>(payload: &[u8]) -> Option<M> {
    read_event(serde_json::from_slice(payload).ok()?).ok()
}
