//! A trainer of all batches that connects to a fetcher, and other clients.

use crate::{
    FaultKind, ProcessKind, SimProcess,
    client::{ConnectionEnd, SimClient},
    cloud::SimCloud,
    host::{TrainerHost, is_done},
    trainer::DeliveryLog,
};
use gristmill_model::wire::RegisterCall;
use std::sync::Arc;

/// Trains over the connection until the job is done, resuming after every death.
pub async fn train(
    cloud: Arc<SimCloud>,
    host: Arc<TrainerHost>,
    log: Arc<DeliveryLog>,
    register: RegisterCall,
) {
    let sim = Arc::clone(&cloud.sim);
    let keeps = host.trainer_keeps;
    while !log.is_done() && !log.is_given_up() && !sim.is_violated() {
        let process = SimProcess::new(&sim, ProcessKind::Trainer);
        let client = SimClient { cloud: &cloud, host: &host, log: &log, keeps, process: &process };
        match process.run(client.train(&register)).await {
            // The job is finished unless its fetcher still waits for the last acknowledgement, or the table has lost it.
            Some(ConnectionEnd::Ended(last))
                if host.has_kept(last) && sim.count(&[FaultKind::WritesLost]) == 0 =>
            {
                return;
            }
            Some(ConnectionEnd::Ended(_)) => {}
            Some(ConnectionEnd::Refused(why)) if is_done(&why) => return log.finish(),
            Some(ConnectionEnd::Refused(why)) => {
                sim.event(format_args!("a trainer is refused: {why}"))
            }
            Some(ConnectionEnd::Nothing) | None => {}
        }
        sim.time.sleep(sim.between_ms(100, 5_000)).await;
    }
}

/// Connects malicious and faulty clients.
pub async fn disturb(
    cloud: Arc<SimCloud>,
    host: Arc<TrainerHost>,
    log: Arc<DeliveryLog>,
    register: RegisterCall,
) {
    let sim = Arc::clone(&cloud.sim);
    while !log.is_done() && !log.is_given_up() {
        sim.time.sleep(sim.between_ms(100, 20_000)).await;
        if !sim.happens(FaultKind::WrongClient) {
            continue;
        }
        let process = SimProcess::new(&sim, ProcessKind::Observer);
        let client =
            SimClient { cloud: &cloud, host: &host, log: &log, keeps: false, process: &process };
        for _ in 0..=sim.below(8) {
            client.disturb(&register).await;
        }
    }
}
