//! Findings of good and of faulty setups.

use super::*;
use crate::commands::doctor::parse_dataset;
use gristmill_aws::{Caller, DeployedFunction, Quota, ReadableObject, Responder};
use gristmill_client::NUMERICS;
use gristmill_model::wire::{AnyReply, Refusal};
use gristmill_ports::TableError;

fn refused(kind: RefusalKind, message: &str) -> Option<Result<AnyReply, CallError>> {
    Some(Err(CallError::Refused(Refusal { kind, message: message.to_owned() })))
}

fn worker(architecture: &str, reserved: Option<u32>) -> DeployedFunction {
    let (state, architecture) = ("Active".to_owned(), architecture.to_owned());
    DeployedFunction { state, architecture, reserved: Ok(reserved) }
}

fn overrides() -> Vec<(String, String)> {
    vec![("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:4566".to_owned())]
}

/// A healthy setup on AWS.
fn good() -> Findings {
    let responder = Responder {
        address: "https://b.s3.eu-west-1.amazonaws.com".to_owned(),
        ahead_s: Some(0),
        server: Some("AmazonS3".to_owned()),
    };
    let here = NUMERICS.split('/').next().unwrap();
    Findings {
        backend: Some(Backend::Aws),
        named: "namespace default".to_owned(),
        keys: Some(Ok("AKIAEXAMPLE".to_owned())),
        caller: Some(Ok(Caller {
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
        quota: Some(Ok(Quota { limit: 1000, unreserved: 900 })),
        responders: [("s3", responder)].into(),
        ..Findings::default()
    }
}

fn verdict(findings: &Findings, name: &str) -> (Verdict, String) {
    let checks = judge(findings, 32);
    let check = checks.into_iter().find(|check| check.name == name).unwrap();
    let needs_advice = matches!(check.verdict, Verdict::Warn | Verdict::Fail);
    assert!(!needs_advice || !check.advice.is_empty(), "what to do: {check:?}");
    (check.verdict, format!("{}; {}", check.found, check.advice))
}

fn expect(findings: &Findings, name: &str, expected: Verdict, words: &str) {
    let (verdict, text) = verdict(findings, name);
    assert_eq!(verdict, expected, "{name}: {text}");
    assert!(text.contains(words), "{name}: {text}");
}

#[test]
fn a_good_place_has_nothing_to_put_right() {
    for check in judge(&good(), 32) {
        let expected = if check.name == "gateway" { Verdict::Skip } else { Verdict::Ok };
        assert_eq!(check.verdict, expected, "{check:?}");
    }
}

#[test]
fn missing_settings_fail_alone() {
    let findings = Findings {
        backend: Some(Backend::Aws),
        wrong: vec!["GRISTMILL_BUCKET is not set".to_owned()],
        ..Findings::default()
    };
    expect(&findings, "settings", Verdict::Fail, "BucketName");
    for check in judge(&findings, 1).iter().skip(1) {
        assert_eq!(check.verdict, Verdict::Skip, "{check:?}");
    }
}

#[test]
fn a_missing_table_is_distinguished_from_a_broken_coordinator() {
    // In the words that the coordinator passes on.
    let error = TableError::Rejected("there is no table g (BatchGetItem)".to_owned()).to_string();
    let findings = Findings { coordinator: refused(RefusalKind::TableRejected, &error), ..good() };
    expect(&findings, "coordinator", Verdict::Ok, "answers");
    expect(&findings, "table", Verdict::Fail, "there is no table g");
    let error = TableError::Unavailable("BatchGetItem on g: refused".to_owned()).to_string();
    let findings = Findings { coordinator: refused(RefusalKind::TableUnavailable, &error), ..good() };
    expect(&findings, "table", Verdict::Fail, "BatchGetItem on g");

    let other = "the call is for namespace a, this coordinator serves b";
    let findings = Findings { coordinator: refused(RefusalKind::Invalid, other), ..good() };
    expect(&findings, "coordinator", Verdict::Fail, "GRISTMILL_NAMESPACE");
    expect(&findings, "table", Verdict::Skip, "coordinator");
}

#[test]
fn a_closed_port_fails_where_it_is_and_nowhere_else() {
    let gone = || Trouble::Unreachable("HeadBucket: refused (at http://127.0.0.1:1)".to_owned());
    let call = CallError::Unavailable("status to http://127.0.0.1:1/: refused".to_owned());
    let findings = Findings {
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
    expect(&findings, "bucket", Verdict::Fail, "127.0.0.1:1");
    expect(&findings, "coordinator", Verdict::Fail, "127.0.0.1:1");
    expect(&findings, "credentials", Verdict::Warn, "127.0.0.1:1");
    for name in ["permissions", "table", "functions", "concurrency", "clock"] {
        assert_eq!(verdict(&findings, name).0, Verdict::Skip, "{name}");
    }
}

#[test]
fn clocks_are_compared() {
    for (ahead_s, expected) in [
        (0, Verdict::Ok),
        (-60, Verdict::Ok),
        (61, Verdict::Warn),
        (-240, Verdict::Warn),
        (241, Verdict::Fail),
        (-4000, Verdict::Fail),
    ] {
        let mut findings = good();
        findings.responders.get_mut("s3").unwrap().ahead_s = Some(ahead_s);
        assert_eq!(verdict(&findings, "clock").0, expected, "{ahead_s}");
    }
    let mut findings = good();
    findings.responders.get_mut("s3").unwrap().ahead_s = Some(300);
    expect(&findings, "clock", Verdict::Fail, "300 s behind");
}

#[test]
fn regions_are_compared() {
    let elsewhere = Findings { bucket: Some(Ok(Some("us-east-2".to_owned()))), ..good() };
    expect(&elsewhere, "region", Verdict::Warn, "train in us-east-2");
    let split =
        Findings { url_region: Some("us-east-2".to_owned()), bucket: Some(Ok(None)), ..good() };
    expect(&split, "region", Verdict::Warn, "the coordinator is in us-east-2");
}

#[test]
fn the_coordinator_serves_ten_requests_for_each_reserved_call() {
    let reserving = |reserved| Findings {
        coordinator_function: Some(Ok(worker("aarch64", reserved))),
        ..good()
    };
    expect(&reserving(Some(6)), "calls", Verdict::Ok, "60 requests a second; 32 workers");
    expect(&reserving(Some(5)), "calls", Verdict::Warn, "CoordinatorConcurrency=20");
    expect(&reserving(None), "calls", Verdict::Ok, "no limit");
    let unknown = Findings { coordinator_function: None, ..good() };
    expect(&unknown, "calls", Verdict::Skip, "GRISTMILL_WORKER_FUNCTION");
}

#[test]
fn a_dataset_is_read_and_its_region_compared() {
    let found = |read| Findings { dataset: Some((parse_dataset("s3://b/train/x-*").unwrap(), read)), ..good() };
    let object = |region: Option<&str>| {
        Ok(ReadableObject { key: "train/x-1".to_owned(), region: region.map(str::to_owned) })
    };
    for region in [None, Some("eu-west-1")] {
        expect(&found(object(region)), "dataset", Verdict::Ok, "s3://b/train/x-1 is readable");
    }
    expect(&found(object(Some("us-east-1"))), "dataset", Verdict::Warn, "deploy to us-east-1");
    let denied = |text: &str| Err(Trouble::Denied(text.to_owned()));
    expect(&found(denied("AccessDenied")), "dataset", Verdict::Fail, "--dataset");
    expect(&found(denied("InvalidObjectState: no")), "dataset", Verdict::Fail, "restore-object");
    let missing = Err(Trouble::Missing("s3://b/train/x-: no object".to_owned()));
    expect(&found(missing), "dataset", Verdict::Fail, "prefix");
    assert!(judge(&good(), 1).iter().all(|check| check.name != "dataset"));
    for wrong in ["b/x", "s3://", "s3:///x", "/data"] {
        assert!(parse_dataset(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_machine_outside_aws_pays_for_what_it_receives() {
    let outside = Findings { is_on_aws: Some(false), ..good() };
    expect(&outside, "gateway", Verdict::Warn, "$0.09 a GB");
    let emulated = Findings { overrides: overrides(), ..outside };
    expect(&emulated, "gateway", Verdict::Skip, "not all of this is AWS");
}

#[test]
fn what_may_not_be_asked_is_no_failure() {
    let denied = || Trouble::Denied("AccessDenied".to_owned());
    let findings = Findings {
        worker: Some(Err(denied())),
        scaler: Some(Err(denied())),
        quota: Some(Err(denied())),
        ..good()
    };
    expect(&findings, "functions", Verdict::Skip, "AccessDenied");
    expect(&findings, "concurrency", Verdict::Skip, "get-account-settings");
    let findings = Findings { worker: None, scaler: None, ..good() };
    expect(&findings, "functions", Verdict::Skip, "WorkerFunctionName");
}

#[test]
fn what_a_trainer_must_be_able_to_do_is_tried() {
    let denied = || Err(Trouble::Denied("AccessDenied".to_owned()));
    let all = || BucketRights { list: Ok(()), get_chunks: Ok(()), put_indices: Ok(()) };
    for (rights, expected, words) in [
        (BucketRights { get_chunks: denied(), ..all() }, Verdict::Fail, "may not get chunks"),
        (BucketRights { list: denied(), ..all() }, Verdict::Fail, "TrainerPolicy"),
        (BucketRights { put_indices: denied(), ..all() }, Verdict::Warn, "--local-workers"),
    ] {
        let findings = Findings { rights: Some(rights), ..good() };
        expect(&findings, "permissions", expected, words);
    }
    let rejected = Some(Err(CallError::Rejected("answers 403".to_owned())));
    let findings = Findings { coordinator: rejected, ..good() };
    expect(&findings, "coordinator", Verdict::Fail, "TrainerPolicy");
}

#[test]
fn keys_are_found_and_accepted() {
    let none = Findings {
        backend: Some(Backend::Aws),
        keys: Some(Err("no AWS credentials found".to_owned())),
        ..Findings::default()
    };
    expect(&none, "credentials", Verdict::Fail, "AWS_PROFILE");
    expect(&none, "bucket", Verdict::Skip, "there are no credentials");
    let old =
        Findings { caller: Some(Err(Trouble::KeysRefused("ExpiredToken".to_owned()))), ..good() };
    expect(&old, "credentials", Verdict::Fail, "ExpiredToken");
    let no_sts = Trouble::Other("HTTP 404".to_owned());
    let no_sts = Findings { caller: Some(Err(no_sts)), ..good() };
    expect(&no_sts, "credentials", Verdict::Ok, "accepted by the coordinator");
}

#[test]
fn workers_are_of_this_class_and_have_room() {
    let foreign = Findings { worker: Some(Ok(worker("riscv", None))), ..good() };
    expect(&foreign, "functions", Verdict::Warn, "--local-workers");
    let here = NUMERICS.split('/').next().unwrap();
    for (reserved, unreserved, expected) in [
        (None, 900, Verdict::Ok),
        (None, 10, Verdict::Warn),
        (Some(100), 10, Verdict::Ok),
        (Some(31), 900, Verdict::Warn),
        (Some(0), 900, Verdict::Fail),
    ] {
        let findings = Findings {
            worker: Some(Ok(worker(here, reserved))),
            quota: Some(Ok(Quota { limit: 1000, unreserved })),
            ..good()
        };
        let found = verdict(&findings, "concurrency");
        assert_eq!(found.0, expected, "{reserved:?} {unreserved}: {}", found.1);
    }
    let gone = Trouble::Missing("ResourceNotFoundException".to_owned());
    let findings = Findings { worker: Some(Err(gone)), ..good() };
    expect(&findings, "functions", Verdict::Fail, "deploy the stack again");
}

#[test]
fn half_an_emulator_is_reported() {
    let emulated = Findings { overrides: overrides(), url_region: None, ..good() };
    expect(&emulated, "platform", Verdict::Ok, "an emulator: AWS_ENDPOINT_URL=http");
    let half = Findings { overrides: overrides(), ..good() };
    expect(&half, "platform", Verdict::Warn, "the coordinator is on AWS");
    let url = Some("http://127.0.0.1:9/".to_owned());
    let half = Findings { url_region: None, coordinator_url: url, ..good() };
    expect(&half, "platform", Verdict::Warn, "127.0.0.1:9");
}
