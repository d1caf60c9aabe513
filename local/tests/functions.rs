//! Tests of the function host from outside: by the SDK, over plain HTTP, and by killing processes. `lambda.rs` tests
//! what it has in common with Lambda.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod support;

use std::path::Path;
use std::time::Duration;

use aws_sdk_lambda::Client;
use aws_sdk_lambda::config::retry::RetryConfig;
use aws_sdk_lambda::config::{BehaviorVersion, Region};
use aws_sdk_lambda::operation::invoke::InvokeOutput;
use aws_sdk_lambda::primitives::Blob;
use aws_sdk_lambda::types::InvocationType;
use gristmill_local::functions::{AdminHooks, Schedule};
use gristmill_local::{
    Credentials, FunctionConfig, FunctionHost, HostConfig, LocalError, UrlAuth, UrlConfig,
};
use serde_json::{Value, json};
use support::{echo_function, eventually, living, request, sdk_credentials, signed_headers};

fn keys() -> Credentials {
    Credentials { access_key_id: "AKIATEST".into(), secret_access_key: "secret".into() }
}

fn echo(name: &str) -> FunctionConfig {
    FunctionConfig {
        timeout: Duration::from_secs(120),
        ..FunctionConfig::new(name, echo_function())
    }
}

async fn start(functions: Vec<FunctionConfig>) -> FunctionHost {
    FunctionHost::start(HostConfig::new(keys(), functions)).await.unwrap()
}

fn client(host: &FunctionHost) -> Client {
    let config = aws_sdk_lambda::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .endpoint_url(host.endpoint())
        .credentials_provider(sdk_credentials(&keys()))
        .retry_config(RetryConfig::disabled())
        .build();
    Client::from_conf(config)
}

type Invoked = Result<InvokeOutput, aws_sdk_lambda::Error>;

async fn invoke(client: &Client, function: &str, event: Value) -> Invoked {
    let payload = Blob::new(event.to_string());
    Ok(client.invoke().function_name(function).payload(payload).send().await?)
}

async fn send(client: &Client, function: &str, event: Value) -> Invoked {
    let payload = Blob::new(event.to_string());
    let call = client.invoke().function_name(function).payload(payload);
    Ok(call.invocation_type(InvocationType::Event).send().await?)
}

fn body(output: &InvokeOutput) -> Value {
    serde_json::from_slice(output.payload().unwrap().as_ref()).unwrap()
}

fn recorded(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn busy(host: &FunctionHost, function: &str, count: usize) {
    eventually("environments become busy", || {
        let environments = host.environments(function).unwrap();
        environments.iter().filter(|e| e.busy).count() == count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_function_is_counted_and_inherits_nothing() {
    let host = start(vec![echo("echo")]).await;
    let client = client(&host);
    for _ in 0..2 {
        let output = invoke(&client, "echo", json!({})).await.unwrap();
        let environment = &body(&output)["environment"];
        assert_eq!(environment["AWS_ACCESS_KEY_ID"], "AKIATEST");
        assert_eq!(environment["CARGO_MANIFEST_DIR"], Value::Null, "inherited from the host");
    }
    let stats = host.stats().functions["echo"].clone();
    assert_eq!((stats.cold_starts, stats.invocations_sync, stats.concurrent), (1, 2, 0));
    assert!(stats.peak_rss_bytes > 0 && stats.init_ms_max > 0, "{stats:?}");
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_crashes_and_timeouts_are_function_errors() {
    let short = FunctionConfig { timeout: Duration::from_millis(500), ..echo("short") };
    let host = start(vec![echo("echo"), short]).await;
    let client = client(&host);

    let failed = invoke(&client, "echo", json!({"error": "on purpose"})).await.unwrap();
    assert_eq!(failed.function_error(), Some("Unhandled"));
    assert_eq!(body(&failed)["errorMessage"], "on purpose");
    let pid = body(&invoke(&client, "echo", json!({})).await.unwrap())["pid"].clone();
    assert_eq!(host.stats().functions["echo"].cold_starts, 1, "an error keeps the environment");

    for (event, reason) in [
        (json!({"exit": 7}), "Runtime exited with error: exit status 7"),
        (json!({"abort": true}), "Runtime exited with error: signal: aborted"),
        (json!({"exit": 0}), "Runtime exited without providing a reason"),
    ] {
        let crashed = invoke(&client, "echo", event).await.unwrap();
        assert_eq!(crashed.function_error(), Some("Unhandled"));
        assert_eq!(body(&crashed)["errorType"], "Runtime.ExitError");
        let message = body(&crashed)["errorMessage"].as_str().unwrap().to_owned();
        assert!(message.starts_with("RequestId: ") && message.ends_with(reason), "{message}");
    }
    assert_ne!(body(&invoke(&client, "echo", json!({})).await.unwrap())["pid"], pid);

    let warm = body(&invoke(&client, "short", json!({})).await.unwrap());
    let late = invoke(&client, "short", json!({"sleep_ms": 60_000})).await.unwrap();
    assert_eq!(late.function_error(), Some("Unhandled"));
    let message = body(&late)["errorMessage"].as_str().unwrap().to_owned();
    assert!(message.ends_with("Task timed out after 0.50 seconds"), "{message}");
    assert!(
        !living(u32::try_from(warm["pid"].as_u64().unwrap()).unwrap()),
        "killed at its deadline"
    );

    let stats = host.stats();
    assert_eq!(stats.functions["short"].timeouts, 1);
    let echo = &stats.functions["echo"];
    assert_eq!((echo.errors, echo.crashes, echo.environments), (1, 3, 1));
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_cannot_start_says_so() {
    let failing = |name: &str, init: &str| {
        let mut function = echo(name);
        function.env.insert("INIT".into(), init.into());
        function
    };
    let absent = FunctionConfig::new("absent", "/no/such/binary");
    let functions = vec![failing("exits", "fail"), failing("hangs", "hang"), absent];
    let config =
        HostConfig { init_timeout: Duration::from_secs(2), ..HostConfig::new(keys(), functions) };
    let host = FunctionHost::start(config).await.unwrap();
    let client = client(&host);
    for (name, error_type, words) in [
        ("exits", "Runtime.ExitError", "exit status 3"),
        ("hangs", "Runtime.InitError", "the function asked for no event within 2 s"),
        ("absent", "Runtime.InitError", "cannot start /no/such/binary"),
    ] {
        let output = invoke(&client, name, json!({})).await.unwrap();
        assert_eq!(output.function_error(), Some("Unhandled"), "{name}");
        let answer = body(&output);
        assert_eq!(answer["errorType"], error_type, "{name}");
        assert!(answer["errorMessage"].as_str().unwrap().contains(words), "{answer}");
        assert_eq!(host.stats().functions[name].init_failures, 1, "{name}");
        assert!(host.environments(name).unwrap().is_empty(), "{name}");
    }
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_refused_and_events_wait_at_the_concurrency_limit() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut function = FunctionConfig { reserved_concurrency: Some(2), ..echo("busy") };
    function.env.insert("RECORD".into(), record.path().to_str().unwrap().into());
    let host = start(vec![function]).await;
    let client = client(&host);
    let accepted = send(&client, "busy", json!({"n": 0, "sleep_ms": 600_000})).await.unwrap();
    assert_eq!(accepted.status_code(), 202);
    send(&client, "busy", json!({"n": 1, "sleep_ms": 600_000})).await.unwrap();
    eventually("both run", || recorded(record.path()).len() == 2).await;

    let error = invoke(&client, "busy", json!({})).await.unwrap_err();
    let aws_sdk_lambda::Error::TooManyRequestsException(error) = error else { panic!("{error:?}") };
    let reason = error.reason().unwrap().as_str();
    assert_eq!(reason, "ReservedFunctionConcurrentInvocationLimitExceeded");

    // More events than places: none is refused, each runs once there is room.
    for n in 2..5 {
        assert_eq!(send(&client, "busy", json!({"n": n})).await.unwrap().status_code(), 202);
    }
    eventually("they wait", || host.stats().functions["busy"].events_waiting == 3).await;
    assert_eq!(recorded(record.path()).len(), 2);
    let victim = host.kill_one("busy", |all| all.iter().find(|e| e.busy).map(|e| e.pid)).unwrap();
    assert!(victim.is_some());
    eventually("the waiting ran", || recorded(record.path()).len() == 5).await;

    let stats = host.stats().functions["busy"].clone();
    assert_eq!((stats.concurrent_max, stats.kills, stats.crashes), (2, 1, 1));
    assert_eq!((stats.invocations_event, stats.invocations_sync), (5, 0));
    // One caller refused, and at least the event at the head of the queue had to wait.
    assert!(stats.throttles >= 2, "{stats:?}");
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_limit_spans_functions() {
    let config = HostConfig {
        account_concurrency: 1,
        ..HostConfig::new(keys(), vec![echo("one"), echo("two")])
    };
    let host = FunctionHost::start(config).await.unwrap();
    let client = client(&host);
    send(&client, "one", json!({"sleep_ms": 600_000})).await.unwrap();
    busy(&host, "one", 1).await;
    let error = invoke(&client, "two", json!({})).await.unwrap_err();
    let aws_sdk_lambda::Error::TooManyRequestsException(error) = error else { panic!("{error:?}") };
    assert_eq!(error.reason().unwrap().as_str(), "ConcurrentInvocationLimitExceeded");
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reserved_is_nobody_elses() {
    let reserved = FunctionConfig { reserved_concurrency: Some(1), ..echo("one") };
    let config = HostConfig {
        account_concurrency: 2,
        ..HostConfig::new(keys(), vec![reserved, echo("two"), echo("three")])
    };
    let host = FunctionHost::start(config).await.unwrap();
    let client = client(&host);
    send(&client, "two", json!({"sleep_ms": 600_000})).await.unwrap();
    busy(&host, "two", 1).await;
    assert!(invoke(&client, "three", json!({})).await.is_err(), "one place is not reserved");
    invoke(&client, "one", json!({})).await.unwrap();
    host.shutdown().await;

    let reserved = FunctionConfig { reserved_concurrency: Some(3), ..echo("one") };
    let config = HostConfig { account_concurrency: 2, ..HostConfig::new(keys(), vec![reserved]) };
    let error = FunctionHost::start(config).await.unwrap_err().to_string();
    assert!(error.contains("reserve 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_and_expired_events_reach_the_failure_destination() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut failures = echo("failures");
    failures.env.insert("RECORD".into(), record.path().to_str().unwrap().into());
    let work = FunctionConfig {
        on_failure: Some("failures".into()),
        reserved_concurrency: Some(1),
        max_event_age: Duration::from_secs(2),
        retry_attempts: 1,
        ..echo("work")
    };
    let config = HostConfig {
        retry_delay: Duration::from_millis(20),
        ..HostConfig::new(keys(), vec![work, failures])
    };
    let host = FunctionHost::start(config).await.unwrap();
    let client = client(&host);

    let crash = send(&client, "work", json!({"exit": 9, "id": "c"})).await.unwrap();
    drop(crash);
    eventually("the crash is reported", || recorded(record.path()).len() == 1).await;
    let report = recorded(record.path()).remove(0);
    assert_eq!(report["version"], "1.0");
    assert!(report["timestamp"].as_str().unwrap().ends_with('Z'), "{report}");
    let context = &report["requestContext"];
    assert_eq!(context["condition"], "RetriesExhausted");
    assert_eq!(context["approximateInvokeCount"], 2);
    let arn = "arn:aws:lambda:us-east-1:000000000000:function:work:$LATEST";
    assert_eq!(context["functionArn"], arn);
    assert_eq!(report["requestPayload"], json!({"exit": 9, "id": "c"}));
    let response =
        json!({"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"});
    assert_eq!(report["responseContext"], response);
    assert_eq!(report["responsePayload"]["errorType"], "Runtime.ExitError");

    let sleeper = send(&client, "work", json!({"sleep_ms": 600_000})).await.unwrap();
    drop(sleeper);
    busy(&host, "work", 1).await;
    send(&client, "work", json!({"id": "too late"})).await.unwrap();
    eventually("the old event is reported", || recorded(record.path()).len() == 2).await;
    let report = recorded(record.path()).remove(1);
    assert_eq!(report["requestContext"]["condition"], "EventAgeExceeded");
    assert_eq!(report["requestContext"]["approximateInvokeCount"], 0);
    assert_eq!(report["requestPayload"], json!({"id": "too late"}));
    assert_eq!(report["responseContext"], Value::Null);
    assert_eq!(host.stats().functions["work"].events_expired, 1);
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_have_not_ended_outlive_their_host() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let events = tempfile::tempdir().unwrap();
    let config = || {
        let mut failures = echo("failures");
        failures.env.insert("RECORD".into(), record.path().to_str().unwrap().into());
        let once = FunctionConfig { on_failure: Some("failures".into()), ..echo("once") };
        let mut again = FunctionConfig { retry_attempts: 1, ..echo("again") };
        again.env = failures.env.clone();
        let event_dir = Some(events.path().to_owned());
        HostConfig { event_dir, ..HostConfig::new(keys(), vec![once, again, failures]) }
    };
    let left = || std::fs::read_dir(events.path()).unwrap().count();

    let host = FunctionHost::start(config()).await.unwrap();
    host.send("once", "{}").unwrap();
    eventually("what has ended is forgotten", || left() == 0).await;
    let id = host.send("once", r#"{"sleep_ms": 600000}"#).unwrap();
    busy(&host, "once", 1).await;
    host.send("again", r#"{"sleep_ms": 300, "id": "again"}"#).unwrap();
    eventually("it runs", || recorded(record.path()).len() == 1).await;
    // Like a kill: no notification, no cleanup.
    drop(host);
    assert_eq!(left(), 2);
    std::fs::write(events.path().join("torn"), r#"{"function": "on"#).unwrap();

    let host = FunctionHost::start(config()).await.unwrap();
    eventually("one is reported, the other runs again", || {
        recorded(record.path()).len() == 3 && left() == 0
    })
    .await;
    let (reports, runs): (Vec<_>, Vec<_>) =
        recorded(record.path()).into_iter().partition(|event| event["version"] == "1.0");
    assert_eq!(reports[0]["requestContext"]["condition"], "HostEnded");
    assert_eq!(reports[0]["requestContext"]["requestId"], id);
    assert_eq!((reports.len(), runs.len()), (1, 2));
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_id_of_a_killed_invocation_is_the_one_its_sender_knows() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut failures = echo("failures");
    failures.env.insert("RECORD".into(), record.path().to_str().unwrap().into());
    let work = FunctionConfig { on_failure: Some("failures".into()), ..echo("work") };
    let host = start(vec![work, failures]).await;
    let id = host.send("work", r#"{"sleep_ms": 600000}"#).unwrap();
    busy(&host, "work", 1).await;
    let info = host.environments("work").unwrap().remove(0);
    assert_eq!(info.request_id.as_deref(), Some(id.as_str()));
    assert!(host.kill(info.pid));
    eventually("the kill is reported", || recorded(record.path()).len() == 1).await;
    let report = recorded(record.path()).remove(0);
    assert_eq!(report["requestContext"]["requestId"], id.as_str());
    let message = report["responsePayload"]["errorMessage"].as_str().unwrap();
    assert!(message.ends_with("signal: killed"), "{message}");
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn function_urls_carry_text_and_bytes_and_check_signatures() {
    let mut function = FunctionConfig { reserved_concurrency: Some(1), ..echo("web") };
    function.url = Some(UrlConfig::default());
    function.timeout = Duration::from_secs(2);
    let mut open = echo("open");
    open.url = Some(UrlConfig { auth: UrlAuth::None, listener: None });
    let host = start(vec![function, open]).await;
    let base = host.url("web").unwrap();
    let keys = keys();

    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let url = format!("{base}/a%20b?x=1&x=2&y=%26");
    let headers = [("content-type", "application/octet-stream")];
    let answer = support::signed_request(&keys, "POST", &url, &headers, &bytes).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.body, bytes);
    assert_eq!(answer.header("x-number"), Some("7"));
    assert!(answer.headers.contains("set-cookie: a=1\r\nset-cookie: b=2"), "{}", answer.headers);
    assert!(answer.header("x-amzn-requestid").is_some());

    let headers = [("content-type", "application/json"), ("cookie", "k=v; l=w")];
    let url = format!("{base}/event?x=1&x=2&y=%26");
    let answer = support::signed_request(&keys, "PUT", &url, &headers, br#"{"q":1}"#).await;
    let event = answer.json();
    assert_eq!(
        (event["version"].clone(), event["rawPath"].clone()),
        (json!("2.0"), json!("/event"))
    );
    assert_eq!(event["rawQueryString"], "x=1&x=2&y=%26");
    assert_eq!(event["queryStringParameters"], json!({"x": "1,2", "y": "&"}));
    assert_eq!(event["cookies"], json!(["k=v", "l=w"]));
    assert_eq!(
        (event["body"].clone(), event["isBase64Encoded"].clone()),
        (json!(r#"{"q":1}"#), json!(false))
    );
    let context = &event["requestContext"];
    assert_eq!(context["http"]["method"], "PUT");
    assert_eq!(context["authorizer"]["iam"]["accessKey"], "AKIATEST");
    assert!(context["time"].as_str().unwrap().ends_with(" +0000"), "{context}");

    let url = format!("{base}/bare");
    let answer = support::signed_request(&keys, "GET", &url, &[], b"").await;
    assert_eq!((answer.status, answer.json()), (200, json!({"no": "status"})));

    // A signature of something else, and none at all.
    let other = signed_headers(&keys, "GET", &format!("{base}/other"), &[], b"");
    assert_eq!(request("GET", &url, &other, b"").await.status, 403);
    assert_eq!(request("GET", &url, &[], b"").await.status, 403);
    let answer = request("GET", &format!("{}/event", host.url("open").unwrap()), &[], b"").await;
    assert_eq!(answer.json()["requestContext"]["authorizer"], Value::Null);

    let too_long = vec![0; 6 * 1024 * 1024 + 1];
    assert_eq!(support::signed_request(&keys, "POST", &url, &[], &too_long).await.status, 413);
    let abort = support::signed_request(&keys, "GET", &format!("{base}/abort"), &[], b"").await;
    assert_eq!(abort.status, 502);
    let sleep = format!("{base}/sleep?ms=60000");
    let (late, refused) =
        tokio::join!(support::signed_request(&keys, "GET", &sleep, &[], b""), async {
            busy(&host, "web", 1).await;
            support::signed_request(&keys, "GET", &url, &[], b"").await
        });
    assert_eq!((late.status, refused.status), (504, 429));
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_routes_count_kill_mount_and_discover() {
    let config = HostConfig {
        admin: AdminHooks {
            trouble: None,
            service: Some(std::sync::Arc::new(|| json!({"service": "test"}))),
            stats: Some(std::sync::Arc::new(|| json!({"table": {"writes": 3}}))),
            mounts: Some(std::sync::Arc::new(|| json!({"mounts": [{"name": "a", "path": "/b"}]}))),
            mount: Some(std::sync::Arc::new(|name, path| match path.is_dir() {
                true => Ok(()),
                false => Err(format!("{name}: {} is no directory", path.display())),
            })),
        },
        ..HostConfig::new(keys(), vec![echo("echo")])
    };
    let host = FunctionHost::start(config).await.unwrap();
    let url = |route: &str| format!("{}/gristmill/{route}", host.endpoint());
    assert_eq!(request("GET", &url("service"), &[], b"").await.json(), json!({"service": "test"}));
    assert_eq!(request("GET", &url("stats"), &[], b"").await.status, 403);
    assert_eq!(request("GET", &url("mounts"), &[], b"").await.status, 403);

    let keys = keys();
    let kill = async || {
        let body = br#"{"function": "echo"}"#;
        support::signed_request(&keys, "POST", &url("kill"), &[], body).await
    };
    assert_eq!(kill().await.json()["pid"], Value::Null, "nothing is busy");
    let id = host.send("echo", r#"{"sleep_ms": 600000}"#).unwrap();
    busy(&host, "echo", 1).await;
    let killed = kill().await.json();
    assert_eq!(killed["request_id"], id.as_str());
    let pid = u32::try_from(killed["pid"].as_u64().unwrap()).unwrap();
    eventually("it died", || !living(pid)).await;
    eventually("it is counted", || host.stats().functions["echo"].environments == 0).await;

    let stats = support::signed_request(&keys, "GET", &url("stats"), &[], b"").await.json();
    assert_eq!(stats["table"]["writes"], 3);
    assert_eq!(stats["functions"]["echo"]["kills"], 1);
    let mount = async |path: &str| {
        let body = json!({"name": "data", "path": path}).to_string();
        support::signed_request(&keys, "POST", &url("mounts"), &[], body.as_bytes()).await
    };
    assert_eq!(mount("/tmp").await.status, 200);
    let refused = mount("/no/such").await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["message"].as_str().unwrap().contains("no directory"));
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_environments_go_and_frozen_ones_come_back() {
    let config = HostConfig {
        idle_timeout: Duration::from_millis(300),
        freeze: true,
        log_dir: Some(tempfile::tempdir().unwrap().keep()),
        ..HostConfig::new(keys(), vec![echo("echo")])
    };
    let logs = config.log_dir.clone().unwrap();
    let host = FunctionHost::start(config).await.unwrap();
    let client = client(&host);
    let first = body(&invoke(&client, "echo", json!({})).await.unwrap());
    let pid = u32::try_from(first["pid"].as_u64().unwrap()).unwrap();
    let stopped =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") T "));
    eventually("it is frozen or gone", || stopped() || !living(pid)).await;
    for _ in 0..20 {
        let output = invoke(&client, "echo", json!({})).await.unwrap();
        assert_eq!(output.function_error(), None);
    }
    eventually("nothing is kept", || host.environments("echo").unwrap().is_empty()).await;
    assert_eq!(host.stats().functions["echo"].crashes, 0, "an end while idle is no crash");
    assert!(body(&invoke(&client, "echo", json!({})).await.unwrap())["pid"] != first["pid"]);
    let log = std::fs::read_to_string(logs.join("echo.log")).unwrap();
    assert!(log.contains(&format!("started {pid}")), "{log}");
    host.shutdown().await;
    std::fs::remove_dir_all(logs).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_send_events() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut function = echo("tick");
    function.env.insert("RECORD".into(), record.path().to_str().unwrap().into());
    let schedule = Schedule {
        every: Duration::from_millis(50),
        function: "tick".into(),
        payload: r#"{"tick":true}"#.into(),
    };
    let config =
        HostConfig { schedules: vec![schedule], ..HostConfig::new(keys(), vec![function]) };
    let host = FunctionHost::start(config).await.unwrap();
    eventually("three came", || recorded(record.path()).len() >= 3).await;
    assert_eq!(recorded(record.path())[0], json!({"tick": true}));
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shut_down_host_leaves_no_process_not_even_a_grandchild() {
    let host = start(vec![echo("echo")]).await;
    let client = client(&host);
    let child = body(&invoke(&client, "echo", json!({"child": true})).await.unwrap());
    let child = u32::try_from(child["child"].as_u64().unwrap()).unwrap();
    assert!(living(child));
    host.send("echo", r#"{"sleep_ms": 600000}"#).unwrap();
    host.send("echo", r#"{"sleep_ms": 600000}"#).unwrap();
    busy(&host, "echo", 2).await;
    let pids: Vec<u32> = host.environments("echo").unwrap().iter().map(|e| e.pid).collect();
    let address = host.address();
    host.shutdown().await;
    for pid in pids.into_iter().chain([child]) {
        eventually("it is gone", || !living(pid)).await;
    }
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "still listening");
}

/// A measurement, for changes to the path of an invocation.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn warm_round_trips() {
    let mut function = echo("web");
    function.url = Some(UrlConfig::default());
    let host = start(vec![function]).await;
    let url = format!("{}/", host.url("web").unwrap());
    let headers = signed_headers(&keys(), "POST", &url, &[], b"{}");
    let mut connection = support::Connection::open(&url).await;
    let client = client(&host);
    let rounds = 2000;
    for _ in 0..50 {
        assert_eq!(connection.request("POST", "/", &headers, b"{}").await, 201);
    }
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        assert_eq!(connection.request("POST", "/", &headers, b"{}").await, 201);
    }
    println!("function URL: {:?} a call", start.elapsed() / rounds);
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        invoke(&client, "web", json!({})).await.unwrap();
    }
    println!("Invoke API through the SDK: {:?} a call", start.elapsed() / rounds);
    host.shutdown().await;
}

/// The process that the next test kills; not a test of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_killed_host_leaves_no_process"]
async fn as_a_host_process() {
    let Ok(out) = std::env::var("HOST_PROCESS_OUT") else { return };
    let host = start(vec![echo("echo")]).await;
    host.send("echo", r#"{"sleep_ms": 600000}"#).unwrap();
    busy(&host, "echo", 1).await;
    invoke(&client(&host), "echo", json!({})).await.unwrap();
    let pids: Vec<u32> = host.environments("echo").unwrap().iter().map(|e| e.pid).collect();
    std::fs::write(format!("{out}.new"), json!(pids).to_string()).unwrap();
    std::fs::rename(format!("{out}.new"), out).unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_host_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("pids");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_host_process", "--ignored"])
        .env("HOST_PROCESS_OUT", &out)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the host is up", || out.exists()).await;
    let pids: Vec<u32> = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| living(*pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    for pid in pids {
        eventually("it died with its host", || !living(pid)).await;
    }
}

#[tokio::test]
async fn configurations_that_cannot_work_are_refused() {
    let lost = FunctionConfig { on_failure: Some("nobody".into()), ..echo("a") };
    for functions in [vec![echo("a"), echo("a")], vec![echo("a b")], vec![lost]] {
        let error = FunctionHost::start(HostConfig::new(keys(), functions)).await.unwrap_err();
        assert!(matches!(error, LocalError::Config(_)), "{error}");
    }
    let host = start(vec![echo("a")]).await;
    assert!(matches!(host.send("b", "{}"), Err(LocalError::UnknownFunction(_))));
    host.shutdown().await;
}
