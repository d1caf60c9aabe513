//! The required quality of the autocache decision.

#![allow(clippy::unwrap_used, reason = "a case that fails fails the test")]

mod study;

use fastrand::Rng;
use gristmill_policy::caching::Mode;
use study::{Case, NOISE, SyntheticPipeline, study};

#[test]
fn the_decision_is_never_5_percent_dearer_than_the_best_mode_on_200_pipelines() {
    let study = study(0..200, NOISE);
    println!("{study}");
    let worst = study.worst().unwrap();
    assert_eq!(study.beyond(0.05), 0, "{worst:?}: {:.1} %", 1e2 * worst.regret());
    // The pipelines cover computing, and caching at inner points and at the end.
    let count = |is: &dyn Fn(&Case) -> bool| study.cases.iter().filter(|case| is(case)).count();
    assert!(count(&|case| case.best == Mode::Compute) >= 20);
    assert!(count(&|case| case.best != Mode::Compute) >= 20);
    assert!(count(&|case| matches!(case.best, Mode::Put { point: 0 })) >= 10);
}

#[test]
fn the_same_seeds_give_the_same_study() {
    assert_eq!(study(7..20, NOISE), study(7..20, NOISE));
}

#[test]
fn the_bar_can_be_missed() {
    // Always computing, or always caching at the end, misses it by far.
    let always = |mode: fn(&SyntheticPipeline) -> Mode| {
        (0..200).map(|seed| SyntheticPipeline::draw(&mut Rng::with_seed(seed))).fold(
            0.0f64,
            |worst, pipeline| {
                let usd = |mode: Mode| pipeline.job_usd(mode, 20);
                let best = (0..pipeline.points.len() as u32).map(|point| Mode::Put { point });
                let best = best.map(usd).fold(f64::MAX, f64::min).min(usd(Mode::Compute));
                worst.max(usd(mode(&pipeline)) / best - 1.0)
            },
        )
    };
    assert!(always(|_| Mode::Compute) > 1.0);
    assert!(always(|pipeline| Mode::Put { point: pipeline.points.len() as u32 - 1 }) > 1.0);
}

#[test]
fn other_pipelines_fare_alike() {
    // Noise decides cases near the 3 % tie: 3 of the first 3,000.
    let study = study(10_000..10_600, NOISE);
    assert!(study.beyond(0.05) <= 3, "{} of 600", study.beyond(0.05));
    assert!(study.beyond(0.30) == 0, "{:?}", study.worst());
}
