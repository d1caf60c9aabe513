//! Findings of good and of faulty setups.

use super::*;
use crate::commands::doctor::parse_dataset;
use gristmill_aws::{
    CallerIdentity, ConcurrencyQuota, DeployedFunction, ReadableObject, ServiceResponder,
};
use gristmill_client::NUMERICS;
use gristmill_model::wire::{AnyReply, CallRefusal};
use gristmill_ports::TableError;

fn refused(kind: RefusalKind, message: &str) -> Option<Result<AnyReply, CallError>> {
    Some(Err(CallError::Refused(CallRefusal { kind, message: message.to_owned() })))
}

fn worker(architecture: &str, reserved: Option<u32>) -> DeployedFunction {
    let (state, architecture) = ("Active".to_owned(), architecture.to_owned());
    DeployedFunction { state, architecture, reserved: Ok(reserved) }
}

fn overrides() -> Vec<(String, String)> {
    vec![("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:4566".to_owned())]
}

/// A healthy setup on AWS.
fn good() -> ProbeFindings {
    let responder = ServiceResponder {
        address: "https://b.s3.eu-west-1.amazonaws.com".to_owned(),
        ahead_s: Some(0),
        server: Some("AmazonS3".to_owned()),
    };
    let here = NUMERICS.split('/').next().unwrap();
    ProbeFindings {
        backend: Some(ServiceBackend::Aws),
        named: "namespace default".to_owned(),
        keys: Some(Ok("AKIAEXAMPLE".to_owned())),
        caller: Some(Ok(CallerIdentity {
            account: "1".to_owned(),
            arn: "arn:aws:iam::1:role/t".to_owned(),
        })),
        region: Some("eu-west-1".to_owned()),
        url_region: Some("eu-west-1".to_owned()),
        bucket: Some(Ok(Some("eu-west-1".to_owned()))),
        rights: Some(BucketRights { list: Ok(()), get_chunks: Ok(()), put_indices: Ok(()) }),
        coordinator_url: Some("https://x.lambda-url.eu-west-1.on.aws/".to_owned()),
        coordinator: refused(RefusalKind::NotFound, "there is no job x here"),
        coordinator_function: Some(Ok(worker("aarch64", Some(20)))),
        worker: Some(Ok(worker(here, None))),
        scaler: Some(Ok(worker("aarch64", None))),
        quota: Some(Ok(ConcurrencyQuota { limit: 1000, unreserved: 900 })),
        responders: [("s3", responder)].into(),
        ..ProbeFindings::default()
    }
}

fn verdict(findings: &ProbeFindings, name: &str) -> (DoctorCheckStatus, String) {
    let checks = judge(findings, 32);
    let check = checks.into_iter().find(|check| check.name == name).unwrap();
    let needs_advice = matches!(check.verdict, DoctorCheckStatus::Warn | DoctorCheckStatus::Fail);
    assert!(!needs_advice || !check.advice.is_empty(), "what to do: {check:?}");
    (check.verdict, format!("{}; {}", check.found, check.advice))
}

fn expect(findings: &ProbeFindings, name: &str, expected: DoctorCheckStatus, words: &str) {
    let (verdict, text) = verdict(findings, name);
    assert_eq!(verdict, expected, "{name}: {text}");
    assert!(text.contains(words), "{name}: {text}");
}

#[test]
fn a_good_place_has_nothing_to_put_right() {
    for check in judge(&good(), 32) {
        let expected =
            if check.name == "gateway" { DoctorCheckStatus::Skip } else { DoctorCheckStatus::Ok };
        assert_eq!(check.verdict, expected, "{check:?}");
    }
}

#[test]
fn missing_settings_fail_alone() {
    let findings = ProbeFindings {
        backend: Some(ServiceBackend::Aws),
        wrong: vec!["GRISTMILL_BUCKET is not set".to_owned()],
        ..ProbeFindings::default()
    };
    expect(&findings, "settings", DoctorCheckStatus::Fail, "BucketName");
    for check in judge(&findings, 1).iter().skip(1) {
        assert_eq!(check.verdict, DoctorCheckStatus::Skip, "{check:?}");
    }
}

#[test]
fn a_missing_table_is_distinguished_from_a_broken_coordinator() {
    // In the words that the coordinator passes on.
    let error = TableError::Rejected("there is no table g (BatchGetItem)".to_owned()).to_string();
    let findings =
        ProbeFindings { coordinator: refused(RefusalKind::TableRejected, &error), ..good() };
    expect(&findings, "coordinator", DoctorCheckStatus::Ok, "answers");
    expect(&findings, "table", DoctorCheckStatus::Fail, "there is no table g");
    let error = TableError::Unavailable("BatchGetItem on g: refused".to_owned()).to_string();
    let findings =
        ProbeFindings { coordinator: refused(RefusalKind::TableUnavailable, &error), ..good() };
    expect(&findings, "table", DoctorCheckStatus::Fail, "BatchGetItem on g");

    let other = "the call is for namespace a, this coordinator serves b";
    let findings = ProbeFindings { coordinator: refused(RefusalKind::Invalid, other), ..good() };
    expect(&findings, "coordinator", DoctorCheckStatus::Fail, "GRISTMILL_NAMESPACE");
    expect(&findings, "table", DoctorCheckStatus::Skip, "coordinator");
}

#[test]
fn a_closed_port_fails_where_it_is_and_nowhere_else() {
    let gone = || ProbeError::Unreachable("HeadBucket: refused (at http://127.0.0.1:1)".to_owned());
    let call = CallError::Unavailable("status to http://127.0.0.1:1/: refused".to_owned());
    let findings = ProbeFindings {
        caller: Some(Err(gone())),
        bucket: Some(Err(gone())),
        rights: Some(BucketRights {
            list: Err(gone()),
            get_chunks: Err(gone()),
            put_indices: Err(gone()),
        }),
        coordinator: Some(Err(call)),
        worker: Some(Err(gone())),
        scaler: None,
        quota: Some(Err(gone())),
        responders: [].into(),
        ..good()
    };
    expect(&findings, "bucket", DoctorCheckStatus::Fail, "127.0.0.1:1");
    expect(&findings, "coordinator", DoctorCheckStatus::Fail, "127.0.0.1:1");
    expect(&findings, "credentials", DoctorCheckStatus::Warn, "127.0.0.1:1");
    for name in ["permissions", "table", "functions", "concurrency", "clock"] {
        assert_eq!(verdict(&findings, name).0, DoctorCheckStatus::Skip, "{name}");
    }
}

#[test]
fn clocks_are_compared() {
    for (ahead_s, expected) in [
        (0, DoctorCheckStatus::Ok),
        (-60, DoctorCheckStatus::Ok),
        (61, DoctorCheckStatus::Warn),
        (-240, DoctorCheckStatus::Warn),
        (241, DoctorCheckStatus::Fail),
        (-4000, DoctorCheckStatus::Fail),
    ] {
        let mut findings = good();
        findings.responders.get_mut("s3").unwrap().ahead_s = Some(ahead_s);
        assert_eq!(verdict(&findings, "clock").0, expected, "{ahead_s}");
    }
    let mut findings = good();
    findings.responders.get_mut("s3").unwrap().ahead_s = Some(300);
    expect(&findings, "clock", DoctorCheckStatus::Fail, "300 s behind");
}

#[test]
fn regions_are_compared() {
    let elsewhere = ProbeFindings { bucket: Some(Ok(Some("us-east-2".to_owned()))), ..good() };
    expect(&elsewhere, "region", DoctorCheckStatus::Warn, "train in us-east-2");
    let split = ProbeFindings {
        url_region: Some("us-east-2".to_owned()),
        bucket: Some(Ok(None)),
        ..good()
    };
    expect(&split, "region", DoctorCheckStatus::Warn, "the coordinator is in us-east-2");
}

#[test]
fn the_coordinator_serves_ten_requests_for_each_reserved_call() {
    let reserving = |reserved| ProbeFindings {
        coordinator_function: Some(Ok(worker("aarch64", reserved))),
        ..good()
    };
    expect(&reserving(Some(6)), "calls", DoctorCheckStatus::Ok, "60 requests a second; 32 workers");
    expect(&reserving(Some(5)), "calls", DoctorCheckStatus::Warn, "CoordinatorConcurrency=20");
    expect(&reserving(None), "calls", DoctorCheckStatus::Ok, "no limit");
    let unknown = ProbeFindings { coordinator_function: None, ..good() };
    expect(&unknown, "calls", DoctorCheckStatus::Skip, "GRISTMILL_WORKER_FUNCTION");
}

#[test]
fn a_dataset_is_read_and_its_region_compared() {
    let found = |read| ProbeFindings {
        dataset: Some((parse_dataset("s3://b/train/x-*").unwrap(), read)),
        ..good()
    };
    let object = |region: Option<&str>| {
        Ok(ReadableObject { key: "train/x-1".to_owned(), region: region.map(str::to_owned) })
    };
    for region in [None, Some("eu-west-1")] {
        expect(
            &found(object(region)),
            "dataset",
            DoctorCheckStatus::Ok,
            "s3://b/train/x-1 is readable",
        );
    }
    expect(
        &found(object(Some("us-east-1"))),
        "dataset",
        DoctorCheckStatus::Warn,
        "deploy to us-east-1",
    );
    let denied = |text: &str| Err(ProbeError::Denied(text.to_owned()));
    expect(&found(denied("AccessDenied")), "dataset", DoctorCheckStatus::Fail, "--dataset");
    expect(
        &found(denied("InvalidObjectState: no")),
        "dataset",
        DoctorCheckStatus::Fail,
        "restore-object",
    );
    let missing = Err(ProbeError::Missing("s3://b/train/x-: no object".to_owned()));
    expect(&found(missing), "dataset", DoctorCheckStatus::Fail, "prefix");
    assert!(judge(&good(), 1).iter().all(|check| check.name != "dataset"));
    for wrong in ["b/x", "s3://", "s3:///x", "/data"] {
        assert!(parse_dataset(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_machine_outside_aws_pays_for_what_it_receives() {
    let outside = ProbeFindings { is_on_aws: Some(false), ..good() };
    expect(&outside, "gateway", DoctorCheckStatus::Warn, "$0.09 a GB");
    let emulated = ProbeFindings { overrides: overrides(), ..outside };
    expect(&emulated, "gateway", DoctorCheckStatus::Skip, "not all of this is AWS");
}

#[test]
fn a_denied_probe_is_no_failure() {
    let denied = || ProbeError::Denied("AccessDenied".to_owned());
    let findings = ProbeFindings {
        worker: Some(Err(denied())),
        scaler: Some(Err(denied())),
        quota: Some(Err(denied())),
        ..good()
    };
    expect(&findings, "functions", DoctorCheckStatus::Skip, "AccessDenied");
    expect(&findings, "concurrency", DoctorCheckStatus::Skip, "get-account-settings");
    let findings = ProbeFindings { worker: None, scaler: None, ..good() };
    expect(&findings, "functions", DoctorCheckStatus::Skip, "WorkerFunctionName");
}

#[test]
fn permissions_of_a_trainer_are_tried() {
    let denied = || Err(ProbeError::Denied("AccessDenied".to_owned()));
    let all = || BucketRights { list: Ok(()), get_chunks: Ok(()), put_indices: Ok(()) };
    for (rights, expected, words) in [
        (
            BucketRights { get_chunks: denied(), ..all() },
            DoctorCheckStatus::Fail,
            "may not get chunks",
        ),
        (BucketRights { list: denied(), ..all() }, DoctorCheckStatus::Fail, "TrainerPolicy"),
        (
            BucketRights { put_indices: denied(), ..all() },
            DoctorCheckStatus::Warn,
            "--local-workers",
        ),
    ] {
        let findings = ProbeFindings { rights: Some(rights), ..good() };
        expect(&findings, "permissions", expected, words);
    }
    let rejected = Some(Err(CallError::Rejected("answers 403".to_owned())));
    let findings = ProbeFindings { coordinator: rejected, ..good() };
    expect(&findings, "coordinator", DoctorCheckStatus::Fail, "TrainerPolicy");
}

#[test]
fn keys_are_found_and_accepted() {
    let none = ProbeFindings {
        backend: Some(ServiceBackend::Aws),
        keys: Some(Err("no AWS credentials found".to_owned())),
        ..ProbeFindings::default()
    };
    expect(&none, "credentials", DoctorCheckStatus::Fail, "AWS_PROFILE");
    expect(&none, "bucket", DoctorCheckStatus::Skip, "there are no credentials");
    let old = ProbeFindings {
        caller: Some(Err(ProbeError::KeysRefused("ExpiredToken".to_owned()))),
        ..good()
    };
    expect(&old, "credentials", DoctorCheckStatus::Fail, "ExpiredToken");
    let no_sts = ProbeError::Other("HTTP 404".to_owned());
    let no_sts = ProbeFindings { caller: Some(Err(no_sts)), ..good() };
    expect(&no_sts, "credentials", DoctorCheckStatus::Ok, "accepted by the coordinator");
}

#[test]
fn workers_are_of_this_class_and_have_room() {
    let foreign = ProbeFindings { worker: Some(Ok(worker("riscv", None))), ..good() };
    expect(&foreign, "functions", DoctorCheckStatus::Warn, "--local-workers");
    let here = NUMERICS.split('/').next().unwrap();
    for (reserved, unreserved, expected) in [
        (None, 900, DoctorCheckStatus::Ok),
        (None, 10, DoctorCheckStatus::Warn),
        (Some(100), 10, DoctorCheckStatus::Ok),
        (Some(31), 900, DoctorCheckStatus::Warn),
        (Some(0), 900, DoctorCheckStatus::Fail),
    ] {
        let findings = ProbeFindings {
            worker: Some(Ok(worker(here, reserved))),
            quota: Some(Ok(ConcurrencyQuota { limit: 1000, unreserved })),
            ..good()
        };
        let found = verdict(&findings, "concurrency");
        assert_eq!(found.0, expected, "{reserved:?} {unreserved}: {}", found.1);
    }
    let gone = ProbeError::Missing("ResourceNotFoundException".to_owned());
    let findings = ProbeFindings { worker: Some(Err(gone)), ..good() };
    expect(&findings, "functions", DoctorCheckStatus::Fail, "deploy the stack again");
}

#[test]
fn half_an_emulator_is_reported() {
    let emulated = ProbeFindings { overrides: overrides(), url_region: None, ..good() };
    expect(&emulated, "platform", DoctorCheckStatus::Ok, "an emulator: AWS_ENDPOINT_URL=http");
    let half = ProbeFindings { overrides: overrides(), ..good() };
    expect(&half, "platform", DoctorCheckStatus::Warn, "the coordinator is on AWS");
    let url = Some("http://127.0.0.1:9/".to_owned());
    let half = ProbeFindings { url_region: None, coordinator_url: url, ..good() };
    expect(&half, "platform", DoctorCheckStatus::Warn, "127.0.0.1:9");
}
