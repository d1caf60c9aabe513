//! Tests of the decisions of a look.

use super::*;
use crate::{
    bundles::ScannedBundle,
    caching::JobCaching,
    fixtures::{N_SPLITS, bundle, commit, indexing_job, poll, running_job},
    scan::scanned,
};
use gristmill_model::splits::{BundleState, WorkerTimes, order::BundleDivision};
use gristmill_model::wire::{CachingView, TrainingReport, WorkerFailureSeries};
use gristmill_policy::caching::{CachingState, Mode};

const NOW_MS: u64 = 500_000;

fn settings() -> CoordinatorSettings {
    CoordinatorSettings::new("a".parse().unwrap(), "bucket".into(), "scaler".into())
}

/// Bundles of the first epoch, with this many of their splits committed. Their leases have run out.
fn bundles(committed: &[u8]) -> Vec<ScannedBundle> {
    let division = BundleDivision::new(N_SPLITS, 4);
    let bundle = |(index, committed): (u32, &u8)| {
        let commits: Vec<_> = (0..*committed).map(|split_index| commit(split_index, 10)).collect();
        bundle(&division, index, 1, 0, 0, &commits, WorkerTimes::default())
    };
    (0..).zip(committed).map(bundle).collect()
}

fn given_up(mut bundles: Vec<ScannedBundle>) -> Vec<ScannedBundle> {
    let item = bundles[0].item.as_mut().unwrap();
    (item.state, item.error) = (BundleState::Dead, Some("no such file".into()));
    bundles
}

/// The caching of a job whose second epoch is not settled.
fn caching(mode: Mode) -> JobCaching {
    JobCaching {
        view: CachingView { points: Vec::new(), modes: Vec::new(), unsettled: Some(1) },
        state: CachingState::new(mode),
        numerics: String::new(),
        decided: None,
        predicted: None,
        totals: None,
    }
}

#[test]
fn an_index_is_finished_once_every_file_is_in_it() {
    let committed = |files: u32| {
        let division = indexing_job().division();
        let bundle =
            |index| bundle(&division, index, 1, 0, 0, &[commit(0, 10)], WorkerTimes::default());
        scanned((0..files).map(bundle).collect())
    };
    assert_eq!(next(&indexing_job(), &committed(15)), None);
    assert_eq!(next(&indexing_job(), &committed(16)), Some(JobChange::FinishIndexing));
    assert_eq!(next(&running_job(), &committed(16)), None);
}

#[test]
fn a_bundle_that_was_given_up_fails_the_job_once() {
    let scan = scanned(given_up(bundles(&[0, 1])));
    let error = "no such file".to_owned();
    let fail = JobChange::Fail { error: error.clone() };
    assert_eq!(next(&running_job(), &scan), Some(fail));
    let failed = JobItem { state: JobState::Failed { error, at_record: false }, ..running_job() };
    assert_eq!(next(&failed, &scan), None);
}

#[test]
fn caching_is_settled_by_a_profile_at_any_time_and_by_a_complete_epoch() {
    let with = |mode| JobItem { caching: Some(caching(mode)), ..running_job() };
    let part = scanned(bundles(&[1]));
    assert_eq!(next(&with(Mode::Profile), &part), Some(JobChange::SettleCaching));
    assert_eq!(next(&with(Mode::Put { point: 0 }), &part), None);
    let division = running_job().division();
    let open: Vec<_> =
        (0..division.bundles()).map(|b| ScannedBundle::unseen(&division, 0, 0, b)).collect();
    let whole = |bundle: &ScannedBundle| u8::try_from(bundle.positions.len()).unwrap();
    let all = scanned(bundles(&open.iter().map(whole).collect::<Vec<_>>()));
    assert_eq!(next(&with(Mode::Put { point: 0 }), &all), Some(JobChange::SettleCaching));
    let stopped = JobItem { state: JobState::Stopped, ..with(Mode::Profile) };
    assert_eq!(next(&stopped, &part), None);
}

#[test]
fn a_scan_begins_where_skips_are_not_counted_yet() {
    let place = |position| SplitPlace { epoch: 0, position };
    let progress = JobProgress { delivered: place(8), ..JobProgress::default() };
    let read = |item: Option<SkipCounts>| VersionedItem { version: 1, item };
    let counted = |position| {
        read(Some(SkipCounts { before: place(position), skipped: 0, rows: 0, first: None }))
    };
    assert_eq!(scan_from(&progress, None), place(8));
    assert_eq!(scan_from(&progress, Some(&read(None))), place(0));
    assert_eq!(scan_from(&progress, Some(&counted(5))), place(5));
    assert_eq!(scan_from(&progress, Some(&counted(9))), place(8), "the trainer went back");
}

#[test]
fn looks_are_steady_until_one_comes_late() {
    let last = WindowHints { at_ms: NOW_MS, steady_since_ms: 7, ..WindowHints::default() };
    assert_eq!(steady_since(None, NOW_MS), NOW_MS);
    assert_eq!(steady_since(Some(&last), NOW_MS + LOOKS_APART_MS - 1), 7);
    let late = NOW_MS + LOOKS_APART_MS;
    assert_eq!(steady_since(Some(&last), late), late);
}

fn decided(scale: &ScaleState, scan: &WindowScan) -> WindowDecision {
    let (item, progress) = (&running_job(), &JobProgress::default());
    let view = WindowInputs { item, progress, scale, scan, steady_since_ms: 9, now_ms: NOW_MS };
    decide(&settings(), &poll(), &view)
}

#[test]
fn a_report_counts_while_something_is_left_to_hand_out() {
    let mut item = running_job();
    item.spec.autoscale = true;
    let reporting = PollCall { training: Some(TrainingReport::default()), ..poll() };
    let counts = |scan: WindowScan| {
        let (scale, progress) = (ScaleState::default(), JobProgress::default());
        let ns = "a".parse().unwrap();
        let kick = kick_due(&ns, &reporting, &item, &scale, &scan, &progress, NOW_MS);
        kick.is_some_and(|event| event.training.is_some())
    };
    let [open, made] = [[1, 1, 1], [1, 1, 2]].map(|committed| scanned(bundles(&committed)));
    assert!(counts(open.clone()) && counts(made.clone()), "the run goes on behind them");
    assert!(counts(open.at_end()) && !counts(made.at_end()));
}

#[test]
fn work_without_workers_kicks_the_scaler_and_is_hinted_at() {
    let WindowDecision { kick, failure, hints } =
        decided(&ScaleState::default(), &scanned(bundles(&[1, 1, 1])));
    assert_eq!((failure, hints.trouble), (None, None));
    assert_eq!((hints.at_ms, hints.steady_since_ms), (NOW_MS, 9));
    assert_eq!(hints.returned, [(0, 2)], "the bundle that is not complete");
    assert_eq!((hints.claimable, hints.progress), (1, 3));
    let seen = kick.unwrap();
    assert_eq!((seen.claimable, seen.progress), (1, 3));
    let complete = decided(&ScaleState::default(), &scanned(bundles(&[1, 1, 2])));
    assert!(complete.kick.is_none() && complete.hints.returned.is_empty());
}

#[test]
fn workers_that_all_fail_are_reported_and_in_the_end_fail_the_job() {
    let scan = scanned(bundles(&[0]));
    let failing = |workers, lasted_ms| {
        let mut scale = ScaleState::default();
        let progress = scan.progress(&running_job());
        let error = "signal: killed".to_owned();
        let latest_ms = NOW_MS - 1;
        scale.failed_workers =
            WorkerFailureSeries { workers, progress, lasted_ms, latest_ms, error };
        decided(&scale, &scan)
    };
    let some = failing(10, 100_000);
    assert!(some.kick.is_none(), "no worker is started while they rest");
    let trouble = some.hints.trouble.unwrap();
    assert!(trouble.starts_with("10 workers died or could not start within 100 s"), "{trouble}");
    assert_eq!(some.failure, None);
    let all = failing(20, 120_000);
    let error = all.failure.unwrap();
    assert!(error.starts_with("20 workers died or could not start within 120 s"), "{error}");
    assert!(error.contains("signal: killed"), "{error}");
    assert_eq!(all.hints.trouble, None, "the job's error says it");
}
