//! Upgrades in mid-job: stack first, trainer first, or rolled back, while the job runs, waits, or reads its cache.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_faults::{
    CachePosition, FaultScenario, Mutant, SimulationOutcome, UpgradeMoment, UpgradeOrder,
    UpgradePlan, simulate_upgrade,
};

const ORDERS: [UpgradeOrder; 3] =
    [UpgradeOrder::StackFirst, UpgradeOrder::TrainerFirst, UpgradeOrder::RolledBack];

fn upgraded(
    scenario: &FaultScenario,
    order: UpgradeOrder,
    moment: UpgradeMoment,
) -> SimulationOutcome {
    simulate_upgrade(scenario, UpgradePlan { order, moment }, None).unwrap()
}

/// The versions of the protocol that are spoken: a trainer keeps the one it began with until it starts again.
fn spoken(order: UpgradeOrder, moment: UpgradeMoment) -> &'static [u32] {
    match (order, moment) {
        (UpgradeOrder::TrainerFirst, UpgradeMoment::JobRuns) => &[2],
        // It starts again after the upgrade, and a job that was rolled back has seen no other stack.
        (UpgradeOrder::RolledBack, UpgradeMoment::JobWaits) => &[2],
        _ => &[2, 3],
    }
}

/// Checks that all is delivered, part of it after the upgrade, in the versions `spoken`.
fn check(outcome: &SimulationOutcome, cell: &str, spoken: &[u32]) {
    let SimulationOutcome { counts, scenario, batches, .. } = outcome;
    assert_eq!(counts.violations, Vec::<String>::new(), "{cell}");
    let of_epoch = scenario.files.iter().sum::<u32>() / scenario.batch_size;
    assert_eq!(*batches, (of_epoch * scenario.epochs) as usize, "{cell}");
    let upgraded = counts.upgraded.unwrap_or_else(|| panic!("{cell}: no upgrade"));
    assert!(upgraded.batches < *batches, "{cell}: it came after the job");
    let versions: Vec<u32> = counts.versions.keys().copied().collect();
    assert_eq!(versions, spoken, "{cell}: {:?}", counts.versions);
}

fn check_all(moment: UpgradeMoment, cached: CachePosition) {
    for order in ORDERS {
        let cell = format!("{order:?}, {moment:?}, {cached:?}");
        let outcome = upgraded(&FaultScenario::for_upgrade(cached), order, moment);
        println!("{cell}: {:?}, {:?}", outcome.counts.versions, outcome.counts.upgraded);
        check(&outcome, &cell, spoken(order, moment));
    }
}

#[test]
fn a_job_that_runs_goes_on() {
    check_all(UpgradeMoment::JobRuns, CachePosition::Nowhere);
}

#[test]
fn a_job_that_waits_goes_on_with_its_next_trainer() {
    check_all(UpgradeMoment::JobWaits, CachePosition::Nowhere);
}

#[test]
fn a_cache_is_read_before_and_after() {
    for cached in [CachePosition::Inner, CachePosition::Whole] {
        let scenario = FaultScenario::for_upgrade(cached);
        check_all(UpgradeMoment::CacheIsRead, cached);
        for order in ORDERS {
            let counts = upgraded(&scenario, order, UpgradeMoment::CacheIsRead).counts;
            let before = counts.upgraded.unwrap().cache_reads;
            assert!(before > 0, "{order:?}, {cached:?}: nothing was read before");
            assert!(counts.cache_reads > before, "{order:?}, {cached:?}: nothing was read after");
        }
    }
}

#[test]
fn peers_that_speak_one_version_alone_end_the_job() {
    let scenario = FaultScenario::for_upgrade(CachePosition::Nowhere);
    for order in ORDERS {
        let upgrade = UpgradePlan { order, moment: UpgradeMoment::JobRuns };
        let outcome = simulate_upgrade(&scenario, upgrade, Some(Mutant::SpeaksOneVersion)).unwrap();
        assert!(!outcome.counts.violations.is_empty(), "{order:?}");
    }
}
