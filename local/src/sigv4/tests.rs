//! Signatures by the SDK, valid and altered.

use super::*;

fn credentials() -> Credentials {
    Credentials { access_key_id: "AKIDEXAMPLE".into(), secret_access_key: "secret".into() }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

const NOW: u64 = 1_790_000_000;

/// A request signed by the SDK's signer.
fn signed(uri: &str, body: &[u8], credentials: &Credentials, time: SystemTime) -> Parts {
    let identity: Identity = aws_credential_types::Credentials::new(
        &credentials.access_key_id,
        &credentials.secret_access_key,
        None,
        None,
        "test",
    )
    .into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region("us-east-1")
        .name("lambda")
        .time(time)
        .settings(SigningSettings::default())
        .build()
        .unwrap()
        .into();
    let mut request = http::Request::post(uri)
        .header("host", "127.0.0.1:9000")
        .header("content-type", "application/json")
        .header("x-extra", " two   words ")
        .body(())
        .unwrap();
    let headers: Vec<(String, String)> = request
        .headers()
        .iter()
        .map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned()))
        .collect();
    let signable = SignableRequest::new(
        "POST",
        uri,
        headers.iter().map(|(n, v)| (n.as_str(), v.as_str())),
        SignableBody::Bytes(body),
    )
    .unwrap();
    let (instructions, _) = sign(signable, &params).unwrap().into_parts();
    instructions.apply_to_request_http1x(&mut request);
    request.into_parts().0
}

fn verifier() -> Verifier {
    Verifier::new(&credentials(), "us-east-1", "lambda")
}

const URI: &str = "http://127.0.0.1:9000/a%20b/c?x=1&empty=&y=%2F";

#[test]
fn a_signed_request_passes_and_any_change_to_it_does_not() {
    let parts = signed(URI, b"body", &credentials(), at(NOW));
    assert_eq!(verifier().verify(&parts, b"body", at(NOW + 899)), Ok(()));
    assert_eq!(verifier().verify(&parts, b"bodY", at(NOW)), Err(SignatureError::Mismatch));

    let mut changed = parts.clone();
    changed.uri = "http://127.0.0.1:9000/a%20b/c?x=2&empty=&y=%2F".parse().unwrap();
    assert_eq!(verifier().verify(&changed, b"body", at(NOW)), Err(SignatureError::Mismatch));

    let mut changed = parts.clone();
    changed.headers.insert("x-extra", "other".parse().unwrap());
    assert_eq!(verifier().verify(&changed, b"body", at(NOW)), Err(SignatureError::Mismatch));

    let mut changed = parts.clone();
    changed.headers.remove("x-extra");
    assert_eq!(verifier().verify(&changed, b"body", at(NOW)), Err(SignatureError::Mismatch));

    let mut added = parts;
    added.headers.insert("connection", "keep-alive".parse().unwrap());
    assert_eq!(verifier().verify(&added, b"body", at(NOW)), Ok(()));
}

#[test]
fn another_secret_key_scope_or_time_is_refused_by_name() {
    let mut other = credentials();
    other.secret_access_key = "guess".into();
    let parts = signed(URI, b"", &other, at(NOW));
    assert_eq!(verifier().verify(&parts, b"", at(NOW)), Err(SignatureError::Mismatch));

    other.access_key_id = "AKIDOTHER".into();
    let parts = signed(URI, b"", &other, at(NOW));
    assert_eq!(
        verifier().verify(&parts, b"", at(NOW)),
        Err(SignatureError::UnknownKey("AKIDOTHER".into()))
    );

    let parts = signed(URI, b"", &credentials(), at(NOW));
    for now in [NOW - 901, NOW + 901] {
        let verdict = verifier().verify(&parts, b"", at(now));
        assert!(matches!(verdict, Err(SignatureError::Skew(_))), "{verdict:?}");
    }
    let elsewhere = Verifier::new(&credentials(), "us-east-1", "dynamodb");
    let verdict = elsewhere.verify(&parts, b"", at(NOW));
    assert!(matches!(verdict, Err(SignatureError::Scope { .. })), "{verdict:?}");
}

#[test]
fn hostile_headers_are_refused_without_a_panic() {
    for authorization in [
        "",
        "Basic x",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=, SignedHeaders=, Signature=",
        "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=a, Signature=c",
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/x, SignedHeaders=host, Signature=c",
        "AWS4-HMAC-SHA256 ====,,,",
    ] {
        for date in ["", "2026", "20269999T999999Z", "éééééééé", "20260921T142640Z"] {
            let mut parts = signed(URI, b"", &credentials(), at(NOW));
            parts.headers.insert("authorization", authorization.parse().unwrap());
            if let Ok(date) = date.parse() {
                parts.headers.insert("x-amz-date", date);
            }
            assert!(verifier().verify(&parts, b"", at(NOW)).is_err(), "{authorization} {date}");
        }
    }
}
