//! A trainer of all batches that connects to a fetcher, and other clients.

use crate::{
    Fault, Kind, Process,
    client::{Client, Ending},
    cloud::Cloud,
    host::{TrainerHost, is_done},
    trainer::Log,
};
use gristmill_model::wire::Register;
use std::sync::Arc;

/// Trains over the connection until the job is done, resuming after every death.
pub async fn train(cloud: Arc<Cloud>, host: Arc<TrainerHost>, log: Arc<Log>, register: Register) {
    let sim = Arc::clone(&cloud.sim);
    let keeps = host.trainer_keeps;
    while !log.is_done() && !log.is_given_up() && !sim.is_violated() {
        let process = Process::new(&sim, Kind::Trainer);
        let client = Client { cloud: &cloud, host: &host, log: &log, keeps, process: &process };
        match process.run(client.train(&register)).await {
            // The job is finished unless its fetcher still waits for the last acknowledgement, or the table has lost it.
            Some(Ending::Ended(last))
                if host.has_kept(last) && sim.count(&[Fault::WritesLost]) == 0 =>
            {
                return;
            }
            Some(Ending::Ended(_)) => {}
            Some(Ending::Refused(why)) if is_done(&why) => return log.finish(),
            Some(Ending::Refused(why)) => sim.event(format_args!("a trainer is refused: {why}")),
            Some(Ending::Nothing) | None => {}
        }
        sim.time.sleep(sim.between_ms(100, 5_000)).await;
    }
}

/// Connects malicious and faulty clients.
pub async fn disturb(cloud: Arc<Cloud>, host: Arc<TrainerHost>, log: Arc<Log>, register: Register) {
    let sim = Arc::clone(&cloud.sim);
    while !log.is_done() && !log.is_given_up() {
        sim.time.sleep(sim.between_ms(100, 20_000)).await;
        if !sim.happens(Fault::WrongClient) {
            continue;
        }
        let process = Process::new(&sim, Kind::Observer);
        let client =
            Client { cloud: &cloud, host: &host, log: &log, keeps: false, process: &process };
        for _ in 0..=sim.below(8) {
            client.disturb(&register).await;
        }
    }
}
