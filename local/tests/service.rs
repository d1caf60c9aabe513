//! The endpoint of a service under load, and its end.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use futures::future::join_all;
use gristmill_host::{HostServiceClient, ServiceFile, StateDir, is_alive, registered};
use gristmill_local::{ExternalStores, MachineService, ServiceConfig, WorkerProgram};
use gristmill_model::{
    JobName,
    splits::{SplitPlace, readers::RankRange},
    wire::{
        Dataset, JobSpec, PollCall, RefusalKind, RegisterCall, SourceFile, SpokenVersions,
        StatusCall, TrainerMetrics,
    },
};
use gristmill_ports::{CallError, Coordinator};
use std::{num::NonZeroU32, path::Path, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

async fn service(dir: &Path, port: Option<u16>) -> MachineService {
    service_of(dir, port, &["/bin/false"]).await
}

async fn service_of(dir: &Path, port: Option<u16>, worker: &[&str]) -> MachineService {
    speaking(SpokenVersions::BUILD, (dir, port), worker).await
}

/// A service of a release that speaks these versions of the protocol, whose only worker is the process `worker`.
async fn speaking(
    spoken: SpokenVersions,
    (dir, port): (&Path, Option<u16>),
    worker: &[&str],
) -> MachineService {
    let args = worker[1..].iter().map(Into::into).collect();
    let config = ServiceConfig {
        state: StateDir::open(dir).unwrap(),
        keeps_jobs: true,
        port,
        workers: WorkerProgram { program: worker[0].into(), args, max: 1 },
        worker_memory_mb: 1769,
        credentials: None,
        cache_gib: NonZeroU32::MIN,
        spoken,
        lambda: None,
        elsewhere: ExternalStores::default(),
    };
    MachineService::start(config).await.unwrap()
}

async fn all_answer(file: &ServiceFile, clients: usize) {
    let clients = (0..clients).map(|_| async { HostServiceClient::new(file).status().await });
    let answers = timeout(Duration::from_secs(60), join_all(clients)).await.unwrap();
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} failed: {}", failed.len(), failed[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(&dir.path().join("state"), Some(0)).await;
    let file = service.file().clone();
    let address = file.endpoint.trim_start_matches("http://").to_owned();
    let mut slow = Vec::new();
    for k in 0..300 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let begun = ["", "POST /call HTTP/1.1\r\nHost: x\r\n"][k % 2];
        stream.write_all(begun.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    all_answer(&file, 64).await;
    all_answer(&file, 1_000).await;
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_serves_many_and_knows_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let running = service(&state, None).await;
    let file = running.file().clone();
    assert!(registered().contains(&file));
    all_answer(&file, 1_000).await;
    let calls = HostServiceClient::new(&file);
    let ask = StatusCall { job: "unknown".parse().unwrap() };
    let answer = calls.exchange(&ask.into()).await;
    assert!(
        matches!(&answer, Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::NotFound),
        "{answer:?}"
    );
    let stranger = ServiceFile { token: file.token.replace(['0', '1', '2'], "f"), ..file.clone() };
    let refused = HostServiceClient::new(&stranger).status().await;
    assert!(matches!(refused, Err(CallError::Denied(_))), "{refused:?}");
    assert!(calls.disk().await.unwrap().used_bytes > 0);
    assert_eq!(calls.kill_worker().await.unwrap(), None);
    let (stopped, asked) =
        tokio::join!(timeout(Duration::from_secs(10), running.stopped()), calls.stop());
    assert!(stopped.is_ok() && asked.is_ok());
    running.shutdown().await;
    assert!(!is_alive(&file.state_dir) && !registered().contains(&file));
    // The next service is found at the same place by those who knew this one.
    let next = service(&state, None).await;
    assert_eq!((&next.file().endpoint, &next.file().token), (&file.endpoint, &file.token));
    calls.status().await.unwrap();
    next.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_is_reported_and_another_one_takes_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let worker = ["/bin/sh", "-c", "exec sleep 1000"];
    let service = service_of(&dir.path().join("state"), None, &worker).await;
    let calls = HostServiceClient::new(service.file());
    let coordinator: &dyn Coordinator = &calls;
    let job: JobName = "j".parse().unwrap();
    let pipeline = "source: { tfrecord: x, features: { v: { key: v, dtype: i64 } } }\n\
                    ops: [batch: { size: 4 }]\n";
    let pipeline = gristmill_operators::parse(pipeline).unwrap().canonical_json();
    let spec = JobSpec { workers: 1, ..JobSpec::new(pipeline) };
    let dataset = Dataset::one("data", vec![SourceFile::new("f", 100, "e")]);
    coordinator.call(RegisterCall::new(job.clone(), spec, dataset)).await.unwrap();
    // The job goes on while its trainer polls.
    let poll = PollCall {
        job: job.clone(),
        registered_ms: 0,
        from: SplitPlace { epoch: 0, position: 0 },
        ranks: RankRange::all(NonZeroU32::MIN),
        of: NonZeroU32::MIN,
        join: None,
        report: None,
        metrics: TrainerMetrics::default(),
        training: None,
    };
    let killed = async || loop {
        let polled = coordinator.call(poll.clone()).await;
        assert!(polled.is_ok(), "{polled:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        if let Some(process) = calls.kill_worker().await.unwrap() {
            break process;
        }
    };
    let within = Duration::from_secs(60);
    let first = timeout(within, killed()).await.unwrap();
    let second = timeout(within, killed()).await.unwrap();
    assert_ne!(first, second);
    let status = coordinator.call(StatusCall { job: job.clone() }).await.unwrap();
    let counts = calls.status().await.unwrap().counts;
    // The second death may be reported by now.
    assert_eq!(counts["functions.worker"], 2, "{status:?}");
    assert!((1..=2).contains(&counts["coordinator.release"]), "{counts:?}");
    assert!(status.scale.failed_workers.error.contains("signal: 9"), "{:?}", status.scale);
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_another_release_is_spoken_to_or_named_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let ask = || StatusCall { job: "unknown".parse().unwrap() }.into();
    for (oldest, newest, words) in [
        (2, 2, None),
        (3, 4, None),
        (0, 1, Some("upgrade the stack first")),
        (4, 5, Some("upgrade gristmill where")),
    ] {
        let spoken = SpokenVersions { oldest, newest };
        let state = dir.path().join(format!("state-{newest}"));
        let running = speaking(spoken, (&state, None), &["/bin/false"]).await;
        let calls = HostServiceClient::new(running.file());
        assert_eq!(calls.status().await.unwrap().spoken, spoken);
        let answer = calls.exchange(&ask()).await.unwrap_err();
        match words {
            None => {
                assert!(
                    matches!(&answer, CallError::Refused(refusal) if refusal.kind == RefusalKind::NotFound),
                    "{spoken}: {answer:?}"
                );
            }
            Some(words) => {
                let text = answer.to_string();
                assert!(matches!(answer, CallError::Rejected(_)), "{spoken}: {answer:?}");
                assert!(text.contains(words) && !text.contains('\n'), "{spoken}: {text}");
            }
        }
        running.shutdown().await;
    }
}
