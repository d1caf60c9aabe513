//! Histories of trainers and servers that fail: nothing is lost or repeated without an error.

#![allow(clippy::unwrap_used, reason = "a simulation that cannot be created fails the test")]

#[test]
fn histories_of_a_trainer_and_its_server_come_to_every_batch_once() {
    let (mut refusals, mut deaths) = (0, 0);
    for seed in 0..300 {
        let history = gristmill_faults::history(seed).unwrap();
        assert!(history.violations.is_empty(), "seed {seed}: {history:#?}");
        refusals += history.refusals;
        deaths += history.deaths;
    }
    assert!(refusals > 100 && deaths > 50, "{refusals} refusals, {deaths} deaths: too calm");
}
