//! Signs requests to a function URL.

use aws_sigv4::{
    http_request::{PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4::SigningParams,
};
use aws_smithy_runtime_api::client::{identity::Identity, orchestrator::HttpRequest};
use aws_smithy_types::body::SdkBody;
use http::{Method, Uri, header};
use std::time::SystemTime;

const JSON: &str = "application/json";

/// A POST of JSON, signed (Signature Version 4) for the service `lambda`.
pub(crate) fn sign_post(
    uri: &Uri,
    region: &str,
    body: Vec<u8>,
    identity: &Identity,
) -> Result<HttpRequest, String> {
    let mut settings = SigningSettings::default();
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    let params = SigningParams::builder()
        .identity(identity)
        .region(region)
        .name("lambda")
        .time(SystemTime::now())
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?;
    let headers = [(header::CONTENT_TYPE.as_str(), JSON)];
    let url = uri.to_string();
    let body_to_sign = SignableBody::Bytes(&body);
    let signable =
        SignableRequest::new(Method::POST.as_str(), &url, headers.into_iter(), body_to_sign);
    let signed = signable.and_then(|signable| sign(signable, &params.into()));
    let (instructions, _) = signed.map_err(|error| error.to_string())?.into_parts();
    let mut request = http::Request::builder()
        .method(Method::POST)
        .uri(uri.clone())
        .header(header::CONTENT_TYPE, JSON)
        .body(SdkBody::from(body))
        .map_err(|error| error.to_string())?;
    instructions.apply_to_request_http1x(&mut request);
    request.try_into().map_err(|error| format!("{error}"))
}
