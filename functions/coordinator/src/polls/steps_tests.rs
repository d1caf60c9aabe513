//! Tests of the decisions of a poll.

use super::*;
use crate::fixtures::{
    EPOCHS, N_SPLITS, bundle, commit, indexing_job, poll, running_job, snapshot,
};
use gristmill_model::splits::{Cursor, LackingSplits, WorkerTimes, order::BundleDivision};
use gristmill_model::wire::TrainingReport;

const NOW_MS: u64 = 100_000;

fn place(epoch: u32, position: u32) -> SplitPlace {
    SplitPlace { epoch, position }
}

/// A trainer that has everything up to `delivered`, and a checkpoint of batch 0 of `durable`.
fn trainer(durable: u32, delivered: SplitPlace) -> JobProgress {
    let durable = Cursor { epoch: durable, batch_index: 0 };
    JobProgress { generation: 3, delivered, durable, ..JobProgress::default() }
}

/// The first acknowledgement of a new run of the trainer.
fn resumes(durable: u32, delivered: SplitPlace) -> ProgressAck {
    ProgressAck {
        generation: 4,
        over: 3,
        delivered,
        durable: Cursor { epoch: durable, batch_index: 7 },
        durable_place: place(durable, 0),
        ended: None,
        local_workers: 0,
    }
}

fn job() -> JobName {
    "j".parse().unwrap()
}

/// Hints of a look `age_ms` ago.
fn looked(age_ms: u64) -> WindowHints {
    WindowHints { at_ms: NOW_MS - age_ms, ..WindowHints::default() }
}

#[test]
fn a_window_is_looked_at_first_and_then_the_more_rarely_the_larger_it_is() {
    let due = |hints: Option<WindowHints>| is_look_due(&snapshot(hints), &poll(), false, NOW_MS);
    assert!(due(None));
    // A window of ten bundles.
    assert!(!due(Some(looked(9))) && due(Some(looked(10))));
    // With few workers at work, a change comes later.
    let few = |age_ms| WindowHints { remote_workers: 1, ..looked(age_ms) };
    assert!(!due(Some(few(LOOK_SOON_MS - 1))) && due(Some(few(LOOK_SOON_MS))));
    let large = |age_ms| {
        let mut snapshot = snapshot(Some(looked(age_ms)));
        snapshot.item.plan.as_mut().unwrap().window_splits = 1 << 20;
        is_look_due(&snapshot, &poll(), false, NOW_MS)
    };
    assert!(!large(LOOK_EVERY_MS - 1) && large(LOOK_EVERY_MS));
    let index = |n_files, age_ms| {
        let item = JobItem { n_files, ..indexing_job() };
        let snapshot = JobSnapshot { item, ..snapshot(Some(looked(age_ms))) };
        is_look_due(&snapshot, &poll(), false, NOW_MS)
    };
    assert!(!index(800, 99) && index(800, 100));
    assert!(!index(1_000_000, 31_249) && index(1_000_000, 31_250));
}

#[test]
fn a_change_a_report_and_a_passed_epoch_make_a_look_due_earlier() {
    let mut snapshot = snapshot(Some(looked(LOOK_SOON_MS)));
    snapshot.item.plan.as_mut().unwrap().window_splits = 1 << 20;
    let seen = |snapshot: &mut JobSnapshot, change: fn(&mut WindowHints)| {
        change(snapshot.hints.item.as_mut().unwrap());
    };
    assert!(!is_look_due(&snapshot, &poll(), true, NOW_MS));
    seen(&mut snapshot, |hints| hints.window_full = true);
    assert!(is_look_due(&snapshot, &poll(), true, NOW_MS), "the trainer has made room");
    assert!(!is_look_due(&snapshot, &poll(), false, NOW_MS), "the window is still full");
    seen(&mut snapshot, |hints| hints.is_due = true);
    assert!(is_look_due(&snapshot, &poll(), false, NOW_MS));
    seen(&mut snapshot, |hints| hints.at_ms += 1);
    assert!(!is_look_due(&snapshot, &poll(), true, NOW_MS), "too soon");
    let report = PollCall { training: Some(TrainingReport::default()), ..poll() };
    assert!(!is_look_due(&snapshot, &report, false, NOW_MS));
    snapshot.item.spec.autoscale = true;
    assert!(is_look_due(&snapshot, &report, false, NOW_MS), "the scaler decides by it");
}

#[test]
fn due_steps_follow_the_state_of_the_job_and_the_places_of_its_trainer() {
    let due = |state: JobState, durable, from| {
        let item = JobItem { state, ..running_job() };
        let progress = trainer(durable, place(1, 50));
        DueSteps::from_snapshot(&JobSnapshot { item, progress, ..snapshot(None) }, from)
    };
    let behind = place(1, 49);
    let here = place(1, 50);
    let running = |from| due(JobState::Running, 1, from);
    assert_eq!(running(here), DueSteps { horizon: false, close: true, collect: true });
    assert_eq!(running(behind), DueSteps { horizon: false, close: true, collect: false });
    let all = due(JobState::Running, EPOCHS, here);
    assert_eq!(all, DueSteps { horizon: true, close: true, collect: true });
    let nothing = DueSteps { horizon: false, close: false, collect: false };
    for state in [
        JobState::Indexing,
        JobState::Done,
        JobState::Stopped,
        JobState::Failed { error: String::new(), at_record: false },
    ] {
        assert_eq!(due(state, EPOCHS, here), nothing);
    }
}

#[test]
fn a_trainer_of_a_forgotten_job_does_not_reach_a_later_job_of_the_name() {
    let (job, item) = ("j".parse().unwrap(), running_job());
    for registered_ms in [0, item.registered_ms] {
        assert_eq!(check_job(&job, &item, registered_ms), Ok(()));
    }
    let late = check_job(&job, &item, item.registered_ms + 1).unwrap_err();
    assert_eq!(late.kind, RefusalKind::NotFound);
}

#[test]
fn splits_that_a_trainer_knows_of_are_looked_up_from_the_head_on() {
    let progress = trainer(0, place(0, 30));
    let plan = running_job().plan.unwrap();
    let of = |progress: &JobProgress, known| unseen(plan, progress, known);
    assert_eq!(of(&progress, place(0, 30)), None, "where the last run was");
    assert_eq!(of(&progress, place(0, 12)), None, "an older checkpoint");
    let ahead = UnseenSplits { from: place(0, 30), most: 75, to: 105 };
    assert_eq!(of(&progress, place(1, 5)), Some(ahead));
    let lacking = LackingSplits { from: place(0, 20), to: place(0, 30) };
    let lacks = progress.with_lacking(Some(lacking));
    assert_eq!(of(&lacks, place(0, 30)).map(|unseen| unseen.from), Some(place(0, 20)));
}

#[test]
fn only_a_checkpoint_beyond_the_plan_is_refused() {
    let begins = |ack: &ProgressAck| check_place(&job(), &running_job(), ack);
    // The end of the last epoch is the last place there is.
    assert!(begins(&resumes(EPOCHS, place(EPOCHS, 0))).is_ok());
    for ack in [resumes(1, place(EPOCHS, 1)), resumes(EPOCHS + 1, place(1, 0))] {
        let refusal = begins(&ack).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Invalid);
        assert!(refusal.message.contains("beyond job j"), "{refusal}");
    }
    assert!(check_place(&job(), &indexing_job(), &resumes(9, place(9, 0))).is_ok());
}

#[test]
fn an_answer_says_whether_the_next_split_waits_for_a_worker() {
    let division = BundleDivision::new(N_SPLITS, 4);
    let answered = |item: &JobItem, gap: Option<(u64, crate::bundles::ScannedBundle)>| {
        let prefix = CommittedPrefix { entries: Vec::new(), gap };
        let seen = WindowHints {
            remote_workers: 1,
            local_workers: 1,
            claimable: 9,
            window: 40,
            indexed: 5,
            ..looked(0)
        };
        let (item, progress) = (item.clone(), trainer(0, place(0, 0)));
        let snapshot = JobSnapshot { item, progress, ..snapshot(None) };
        let (scale, reader) = (ScaleState::default(), ReaderStanding::default());
        answer(&job(), snapshot, scale, Some(seen), prefix, reader, NOW_MS)
    };
    let leased = bundle(&division, 0, 1, NOW_MS, 0, &[], WorkerTimes::default());
    let unclaimed = crate::bundles::ScannedBundle::unseen(&division, 0, 0, 0);
    let polled = answered(&running_job(), Some((0, leased)));
    assert!(!polled.head_of_line_blocked, "a worker has it");
    assert_eq!((polled.active_workers(), polled.claimable, polled.window), (2, 9, 40));
    assert_eq!((polled.generation, polled.indexed_files), (3, 16));
    assert!(answered(&running_job(), Some((0, unclaimed))).head_of_line_blocked);
    assert!(!answered(&running_job(), None).head_of_line_blocked);
    let indexing = answered(&indexing_job(), None);
    assert_eq!((indexing.head_of_line_blocked, indexing.indexed_files), (true, 5));
    let committed = bundle(&division, 2, 1, 0, 0, &[commit(0, 10)], WorkerTimes::default());
    assert!(
        answered(&running_job(), Some((3, committed))).head_of_line_blocked,
        "its lease ran out"
    );
}

#[test]
fn an_answer_without_a_look_has_the_hints_of_the_last_one_and_the_readers_standing() {
    let seen = WindowHints { remote_workers: 3, claimable: 9, window_full: true, ..looked(5) };
    let snapshot = JobSnapshot { progress: trainer(0, place(0, 7)), ..snapshot(Some(seen)) };
    let reader = ReaderStanding { number: 8, next_poll_ms: 50, ..ReaderStanding::default() };
    let (scale, ready) = (ScaleState::default(), CommittedPrefix::default());
    let polled = answer(&job(), snapshot, scale, None, ready, reader.clone(), NOW_MS);
    assert_eq!((polled.active_workers(), polled.claimable, polled.window_full), (3, 9, true));
    assert_eq!((polled.delivered, polled.reader), (place(0, 7), reader));
}
