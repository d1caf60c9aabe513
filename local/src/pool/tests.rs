//! Workers that fail in every way that a process can, and those that go on.

use super::*;
use gristmill_host::ServiceFile;
use gristmill_model::wire::VERSION;
use gristmill_ports::limits::StackConcurrency;
use tempfile::TempDir;
use tokio::{sync::mpsc::UnboundedReceiver, time::timeout};

const SOON: Duration = Duration::from_secs(60);
/// Answers each order with some lines that are none, trouble that passes, and its end.
const WORKS: &str = r#"read setup; while read order; do
    printf '\377\376 {"done":\n{"done":1}\n{"trouble":"no space"}\n{"trouble":null}\n{"done":"well"}\n'
done"#;
const HANGS: &str = "exec sleep 1000";

struct World {
    dir: TempDir,
    pool: WorkerPool,
    failed: UnboundedReceiver<FailedOrder>,
}

fn event(worker: u32) -> WorkerEvent {
    let (ns, job) = ("n".parse().unwrap(), "j".parse().unwrap());
    WorkerEvent { v: VERSION, ns, job, worker, first_ms: None }
}

fn order(worker: u32) -> WorkerOrder {
    WorkerOrder { event: event(worker), request: worker.to_string(), deadline_ms: u64::MAX }
}

/// The pool of a service on `dir` whose workers are `program` with `args`.
fn pool_on(dir: TempDir, program: &str, args: &[&str], max: u32) -> World {
    pool_of((dir, None), program, args, max)
}

/// The same, as a function of the imitated Lambda.
fn pool_of(
    (dir, lambda): (TempDir, Option<LambdaImitation>),
    program: &str,
    args: &[&str],
    max: u32,
) -> World {
    let (send, failed) = mpsc::unbounded_channel();
    let service = ServiceFile {
        endpoint: String::new(),
        token: String::new(),
        state_dir: dir.path().to_owned(),
        namespace: "n".parse().unwrap(),
        bucket: String::new(),
        version: String::new(),
        pid: 0,
        s3: None,
        credentials: None,
    };
    let setup = WorkerSetup { service, memory_mb: 1769 };
    let args = args.iter().map(Into::into).collect();
    let program = WorkerProgram { program: program.into(), args, max };
    let log = LogFile::new(dir.path().join("worker.log"));
    let running = Some(dir.path().join("running"));
    let pool = WorkerPool::new(program, &setup, log, running, send, lambda).unwrap();
    World { dir, pool, failed }
}

fn pool(script: &str, max: u32) -> World {
    pool_on(tempfile::tempdir().unwrap(), "/bin/sh", &["-c", script], max)
}

impl World {
    async fn failure(&mut self) -> FailedOrder {
        timeout(SOON, self.failed.recv()).await.unwrap().unwrap()
    }

    /// Events that are noted as in progress.
    fn noted(&self) -> usize {
        fs::read_dir(self.dir.path().join("running")).unwrap().count()
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(SOON, waiting).await.is_ok(), "{what}");
}

#[tokio::test]
async fn each_way_to_fail_is_said_and_leaves_room_for_the_next_event() {
    let sh = |script| ("/bin/sh", vec!["-c", script]);
    for ((program, args), words) in [
        (("/bin/false", vec![]), ["exit status: 1", "the worker died"]),
        (("/nowhere/worker", vec![]), ["cannot start /nowhere/worker", "No such file"]),
        (
            sh("echo at first >&2; echo out of memory >&2; exit 3"),
            ["exit status: 3", ": out of memory"],
        ),
        (sh("kill -9 $$"), ["signal: 9", "the worker died"]),
        (sh("read setup; kill -11 $$"), ["signal: 11", "the worker died"]),
        (sh(r"printf '\377\376 {]\n\nrubbish'; exit 4"), ["exit status: 4", "the worker died"]),
        (sh("exec >&-; sleep 1000"), ["it closed a pipe", "the worker died"]),
        (
            sh(r#"read setup; while read order; do echo '{"failed":"a bad day"}'; done"#),
            ["a bad day", ""],
        ),
    ] {
        let mut world = pool_on(tempfile::tempdir().unwrap(), program, &args, 1);
        for worker in [7, 8] {
            assert_eq!(
                world.pool.invoke(event(worker)),
                InvokeOutcome::Accepted,
                "{program} {args:?}"
            );
            let failed = world.failure().await;
            assert_eq!(
                (failed.order.event.worker, failed.cause),
                (worker, FailureCause::WorkerFailed)
            );
            let error = failed.error;
            assert!(words.iter().all(|words| error.contains(words)), "{words:?}: {error}");
            assert_eq!(world.noted(), 0, "{error}");
            let log = fs::read_to_string(world.dir.path().join("worker.log")).unwrap();
            assert!(log.contains(&format!("worker {worker} of j: {error}\n")), "{log}");
            // The next event is for this process if it lives, and for another one if not.
            until("the worker neither rests nor is gone", || {
                let state = world.pool.0.lock();
                state.workers == 0 || !state.idle.is_empty()
            })
            .await;
        }
        world.pool.close().await;
    }
}

#[tokio::test]
async fn one_process_takes_one_event_after_the_other_and_may_print() {
    let mut world = pool(WORKS, 1);
    for worker in 0..3 {
        assert_eq!(world.pool.invoke(event(worker)), InvokeOutcome::Accepted);
        until("the worker is not done", || !world.pool.0.lock().idle.is_empty()).await;
        assert_eq!((world.noted(), world.pool.trouble()), (0, None));
    }
    assert_eq!(world.pool.0.lock().processes.len(), 1);
    assert!(world.failed.try_recv().is_err());
    let resting = *world.pool.0.lock().processes.first_key_value().unwrap().0;
    let resting = rustix::process::Pid::from_raw(resting.cast_signed()).unwrap();
    rustix::process::kill_process(resting, rustix::process::Signal::KILL).unwrap();
    // Nothing was lost with it.
    until("the dead process is counted", || world.pool.0.lock().workers == 0).await;
    assert!(world.failed.try_recv().is_err());
    assert_eq!(world.pool.invoke(event(3)), InvokeOutcome::Accepted);
    until("no process follows", || !world.pool.0.lock().idle.is_empty()).await;
    assert_eq!((world.pool.status().busy, world.pool.status().idle), (0, 1));
    world.pool.close().await;
}

#[tokio::test]
async fn trouble_is_known_while_it_lasts() {
    let world = pool(r#"read setup; read order; echo '{"trouble":"no space"}'; sleep 1000"#, 1);
    world.pool.invoke(event(0));
    until("no trouble", || world.pool.trouble().as_deref() == Some("no space")).await;
    world.pool.close().await;
}

#[tokio::test]
async fn a_process_that_gives_no_answer_in_time_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(LogFile::new(dir.path().join("worker.log")));
    let flood = "while :; do printf 'rubbish that never ends a line'; done";
    for script in [HANGS, flood, "exec <&-; exec sleep 1000"] {
        let args = ["-c", script].map(Into::into).to_vec();
        let program = WorkerProgram { program: "/bin/sh".into(), args, max: 1 };
        let mut process = WorkerProcess::start(&program, "{}", &log).unwrap();
        let patience = Duration::from_millis(200);
        let error = timeout(SOON, process.run(&order(0), patience, |_| {})).await.unwrap();
        let error = error.unwrap_err();
        assert!(matches!(error, process::WorkerProcessError::Died(_)), "{script}: {error}");
        let pid = rustix::process::Pid::from_raw(process.pid.cast_signed()).unwrap();
        let lives = || rustix::process::test_kill_process(pid).is_ok();
        assert!(lives(), "{script}");
        drop(process);
        until("the process goes on", || !lives()).await;
    }
}

#[tokio::test]
async fn a_full_pool_throttles_and_a_killed_worker_makes_room() {
    let mut world = pool(HANGS, 2);
    let start = |worker| world.pool.invoke(event(worker));
    assert_eq!(
        [0, 1, 2].map(start),
        [InvokeOutcome::Accepted, InvokeOutcome::Accepted, InvokeOutcome::Throttled]
    );
    assert_eq!(world.noted(), 2, "an event that was not accepted is noted");
    until("two work", || world.pool.status().busy == 2).await;
    let killed = [world.pool.kill_one(), world.pool.kill_one()];
    assert!(killed[0] != killed[1] && !killed.contains(&None), "{killed:?}");
    let failed = [world.failure().await, world.failure().await];
    let mut workers = failed.each_ref().map(|failed| failed.order.event.worker);
    workers.sort_unstable();
    assert_eq!(workers, [0, 1]);
    assert!(failed.iter().all(|failed| failed.error.contains("signal: 9")), "{failed:?}");
    until("there is room", || world.pool.0.lock().workers == 0).await;
    assert_eq!((world.noted(), world.pool.kill_one()), (0, None));
    assert_eq!(world.pool.invoke(event(3)), InvokeOutcome::Accepted);
    world.pool.close().await;
    assert_eq!(world.pool.invoke(event(4)), InvokeOutcome::Throttled, "it is closed");
}

#[tokio::test]
async fn the_next_service_reports_the_events_that_one_left_and_blames_nobody() {
    let world = pool(HANGS, 2);
    for worker in [5, 6] {
        assert_eq!(world.pool.invoke(event(worker)), InvokeOutcome::Accepted);
    }
    world.pool.close().await;
    assert_eq!(world.noted(), 2);
    fs::write(world.dir.path().join("running/torn"), "{").unwrap();
    let mut next = pool_on(world.dir, "/bin/sh", &["-c", WORKS], 2);
    let left = [next.failure().await, next.failure().await];
    let mut workers = left.each_ref().map(|left| left.order.event.worker);
    workers.sort_unstable();
    assert_eq!(workers, [5, 6]);
    assert!(left.iter().all(|left| left.cause == FailureCause::ServiceEnded), "{left:?}");
    assert!(next.noted() == 0 && next.failed.try_recv().is_err());
    next.pool.close().await;
}

#[tokio::test]
async fn events_on_the_imitated_lambda_wait_for_an_environment() {
    let concurrency = StackConcurrency { growth: 1, ..StackConcurrency::documented(20, 2) };
    let lambda = Some(LambdaImitation::new(concurrency));
    let dir = tempfile::tempdir().unwrap();
    let mut world = pool_of((dir, lambda), "/bin/sh", &["-c", HANGS], 100);
    for worker in 0..3 {
        assert_eq!(world.pool.invoke(event(worker)), InvokeOutcome::Accepted);
    }
    until("none runs", || world.pool.status().busy >= 1).await;
    until("the second one is not added later", || world.pool.status().busy == 2).await;
    // The third one waits until the account has room.
    let before = world.pool.0.lock().tasks.len();
    assert!(world.pool.kill_one().is_some());
    assert_eq!(world.failure().await.cause, FailureCause::WorkerFailed);
    until("the third one does not follow", || world.pool.status().busy == 2).await;
    assert!(before >= 3, "two processes and an event that waits");
    world.pool.close().await;
    assert_eq!(world.pool.invoke(event(9)), InvokeOutcome::Throttled, "it is closed");
}

#[tokio::test]
async fn an_event_that_finds_no_environment_expires_and_blames_nobody() {
    let none = LambdaImitation::new(StackConcurrency::documented(20, 0));
    let lambda = Some(none.expiring(Duration::from_millis(50)));
    let dir = tempfile::tempdir().unwrap();
    let mut world = pool_of((dir, lambda), "/bin/sh", &["-c", WORKS], 100);
    assert_eq!(world.pool.invoke(event(3)), InvokeOutcome::Accepted);
    let failed = world.failure().await;
    assert_eq!((failed.order.event.worker, failed.cause), (3, FailureCause::EventExpired));
    assert!(failed.cause != FailureCause::WorkerFailed && world.pool.0.lock().workers == 0);
    world.pool.close().await;
}

#[tokio::test]
async fn events_on_the_imitated_lambda_do_not_exceed_the_processes_of_the_pool() {
    let lambda = Some(LambdaImitation::new(StackConcurrency::documented(20, 100)));
    let dir = tempfile::tempdir().unwrap();
    let world = pool_of((dir, lambda), "/bin/sh", &["-c", HANGS], 1);
    assert_eq!([1, 2].map(|worker| world.pool.invoke(event(worker))), [InvokeOutcome::Accepted; 2]);
    until("none runs", || world.pool.status().busy == 1).await;
    assert_eq!(world.pool.0.lock().workers, 1);
    assert!(world.pool.kill_one().is_some());
    until("the other one does not follow", || world.pool.status().busy == 1 && world.noted() == 1)
        .await;
    world.pool.close().await;
}
