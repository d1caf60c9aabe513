//! The keys of the stand-ins, and Signature Version 4, checked by signing again what was received.

use super::loopback::Asked;
use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4::SigningParams,
};
use aws_smithy_types::{DateTime, date_time::Format};
use std::time::SystemTime;

pub const REGION: &str = "us-east-1";
pub const ACCESS_KEY_ID: &str = "AKIDEXAMPLE";
pub const SECRET_ACCESS_KEY: &str = "wJalrXUtnFEMI";

/// Whether a request is signed for `service` with the keys, over all headers that it says are signed.
pub fn is_signed(asked: &Asked, service: &str) -> bool {
    signature(asked, service).is_some_and(|expected| asked.header("authorization") == expected)
}

/// The `Authorization` header of a request; `None` without a list of signed headers and a date.
fn signature(asked: &Asked, service: &str) -> Option<String> {
    let (_, names) = asked.header("authorization").split_once("SignedHeaders=")?;
    let (names, _) = names.split_once(',')?;
    // The signer adds the date itself.
    let headers = names.split(';').filter(|name| *name != "x-amz-date");
    let headers = headers.map(|name| (name, asked.header(name)));
    let credentials = Credentials::new(ACCESS_KEY_ID, SECRET_ACCESS_KEY, None, None, "stand-in");
    let identity = credentials.into();
    let mut settings = SigningSettings::default();
    // The list names what is signed.
    settings.excluded_headers = None;
    let params = SigningParams::builder()
        .identity(&identity)
        .region(REGION)
        .name(service)
        .time(time(asked.header("x-amz-date"))?)
        .settings(settings)
        .build()
        .unwrap()
        .into();
    let url = format!("http://{}{}", asked.header("host"), asked.target);
    let body = SignableBody::Bytes(&asked.body);
    let signable = SignableRequest::new(&asked.method, url, headers, body).unwrap();
    let (instructions, _) = sign(signable, &params).unwrap().into_parts();
    let mut made = instructions.headers();
    made.find(|(name, _)| *name == "authorization").map(|(_, value)| value.to_owned())
}

/// `20260102T030405Z` as a time.
fn time(date: &str) -> Option<SystemTime> {
    let part = |range| date.get(range);
    let day = [part(0..4)?, part(4..6)?, part(6..8)?].join("-");
    let hour = [part(9..11)?, part(11..13)?, part(13..15)?].join(":");
    DateTime::from_str(&format!("{day}T{hour}Z"), Format::DateTime).ok()?.try_into().ok()
}
