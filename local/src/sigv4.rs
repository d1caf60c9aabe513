//! Verifies AWS Signature Version 4 on incoming requests by signing them again.
//!
//! The signer is `aws-sigv4`, as in the SDK, applied to exactly the headers that the caller claims to have signed, so
//! canonicalisation cannot differ from the clients'. Only signatures in headers are accepted, not presigned URLs.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use aws_smithy_runtime_api::client::identity::Identity;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use http::request::Parts;

use crate::Credentials;

/// Largest accepted difference of a request's date from now, as on AWS.
const SKEW: Duration = Duration::from_secs(15 * 60);

/// More signed headers than any SDK sends.
const MAX_SIGNED_HEADERS: usize = 64;

/// Reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// No signature, or not one of version 4 in the headers.
    #[error("the request is not signed; sign it with SigV4 and the keys of this service")]
    Missing,
    /// A signature that cannot be read.
    #[error("the authorization header is malformed: {0}")]
    Malformed(&'static str),
    /// Signed with a key that is not this service's.
    #[error("unknown access key {0:?}; use the keys of this service")]
    UnknownKey(String),
    /// Signed for another region, service or day.
    #[error("signed for scope {given:?}, expected {expected:?}")]
    Scope {
        /// `date/region/service/aws4_request` as signed.
        given: String,
        /// Scope expected by this server.
        expected: String,
    },
    /// The clocks of caller and server differ too much.
    #[error("the request's date {0:?} is more than 15 minutes from now; set the clock")]
    Skew(String),
    /// The secret or the content differs from what was signed.
    #[error("the signature does not match the request and the secret key")]
    Mismatch,
}

impl SignatureError {
    /// AWS error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing => "MissingAuthenticationTokenException",
            Self::Malformed(_) => "IncompleteSignatureException",
            Self::UnknownKey(_) => "UnrecognizedClientException",
            Self::Scope { .. } | Self::Skew(_) | Self::Mismatch => "InvalidSignatureException",
        }
    }
}

/// Verifies requests to one service of one region with one key pair.
#[derive(Debug, Clone)]
pub struct Verifier {
    access_key_id: String,
    identity: Identity,
    region: String,
    service: &'static str,
}

impl Verifier {
    /// A verifier for `service` (`dynamodb`, `lambda`) in `region`.
    #[must_use]
    pub fn new(credentials: &Credentials, region: &str, service: &'static str) -> Self {
        let identity = aws_credential_types::Credentials::new(
            &credentials.access_key_id,
            &credentials.secret_access_key,
            None,
            None,
            "gristmill-local",
        );
        Self {
            access_key_id: credentials.access_key_id.clone(),
            identity: identity.into(),
            region: region.to_owned(),
            service,
        }
    }

    /// Verifies that the request, including its body, was signed with the secret within 15 minutes of `now`.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn verify(
        &self,
        parts: &Parts,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), SignatureError> {
        let given = Authorization::parse(parts)?;
        if given.access_key != self.access_key_id {
            return Err(SignatureError::UnknownKey(given.access_key.to_owned()));
        }
        let date = header(parts, "x-amz-date").ok_or(SignatureError::Malformed("no x-amz-date"))?;
        let time = parse_date(date).ok_or(SignatureError::Malformed("x-amz-date is not a date"))?;
        let expected = format!("{}/{}/{}/aws4_request", &date[..8], self.region, self.service);
        if given.scope != expected {
            return Err(SignatureError::Scope { given: given.scope.to_owned(), expected });
        }
        let skew = now.duration_since(time).unwrap_or_else(|ahead| ahead.duration());
        if skew > SKEW {
            return Err(SignatureError::Skew(date.to_owned()));
        }
        let signature = self.sign_again(parts, &given, time, body)?;
        if same(signature.as_bytes(), given.signature.as_bytes()) {
            Ok(())
        } else {
            Err(SignatureError::Mismatch)
        }
    }

    fn sign_again(
        &self,
        parts: &Parts,
        given: &Authorization<'_>,
        time: SystemTime,
        body: &[u8],
    ) -> Result<String, SignatureError> {
        let host = header(parts, "host").ok_or(SignatureError::Malformed("no host"))?;
        let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        let mut headers = Vec::with_capacity(given.signed_headers.len());
        for &name in &given.signed_headers {
            // The signer adds the date itself. A header that is claimed but absent never matches.
            if name == "x-amz-date" {
                continue;
            }
            let before = headers.len();
            for value in parts.headers.get_all(name) {
                let value = value.to_str().map_err(|_| SignatureError::Mismatch)?;
                headers.push((name, value));
            }
            if headers.len() == before {
                return Err(SignatureError::Mismatch);
            }
        }
        let mut settings = SigningSettings::default();
        // Only signed headers are passed, so none need to be excluded.
        settings.excluded_headers = None;
        let params = v4::SigningParams::builder()
            .identity(&self.identity)
            .region(&self.region)
            .name(self.service)
            .time(time)
            .settings(settings)
            .build()
            .map_err(|_| SignatureError::Mismatch)?
            .into();
        let request = SignableRequest::new(
            parts.method.as_str(),
            format!("http://{host}{path}"),
            headers.into_iter(),
            SignableBody::Bytes(body),
        )
        .map_err(|_| SignatureError::Mismatch)?;
        let signed = sign(request, &params).map_err(|_| SignatureError::Mismatch)?;
        Ok(signed.signature().to_owned())
    }
}

/// The parts of an `Authorization: AWS4-HMAC-SHA256 ...` header.
struct Authorization<'a> {
    access_key: &'a str,
    scope: &'a str,
    signed_headers: Vec<&'a str>,
    signature: &'a str,
}

impl<'a> Authorization<'a> {
    fn parse(parts: &'a Parts) -> Result<Self, SignatureError> {
        let text = header(parts, "authorization").ok_or(SignatureError::Missing)?;
        let fields = text.strip_prefix("AWS4-HMAC-SHA256").ok_or(SignatureError::Missing)?;
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for field in fields.split(',') {
            match field.trim().split_once('=') {
                Some(("Credential", value)) => credential = Some(value),
                Some(("SignedHeaders", value)) => signed_headers = Some(value),
                Some(("Signature", value)) => signature = Some(value),
                _ => return Err(SignatureError::Malformed("unknown field")),
            }
        }
        let (access_key, scope) = credential
            .and_then(|c| c.split_once('/'))
            .ok_or(SignatureError::Malformed("no credential"))?;
        let signed_headers: Vec<&str> = signed_headers
            .ok_or(SignatureError::Malformed("no signed headers"))?
            .split(';')
            .collect();
        if signed_headers.len() > MAX_SIGNED_HEADERS || !signed_headers.contains(&"host") {
            return Err(SignatureError::Malformed("host is not among the signed headers"));
        }
        let signature = signature.ok_or(SignatureError::Malformed("no signature"))?;
        Ok(Self { access_key, scope, signed_headers, signature })
    }
}

fn header<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    parts.headers.get(name).and_then(|value| value.to_str().ok())
}

/// `20260102T030405Z` as a time.
fn parse_date(text: &str) -> Option<SystemTime> {
    if text.len() != 16 || !text.is_ascii() {
        return None;
    }
    let (y, mo, d) = (&text[..4], &text[4..6], &text[6..8]);
    let (h, mi, s) = (&text[9..11], &text[11..13], &text[13..15]);
    let spaced = format!("{y}-{mo}-{d}{}{h}:{mi}:{s}{}", &text[8..9], &text[15..]);
    DateTime::from_str(&spaced, Format::DateTime).ok()?.try_into().ok()
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && black_box(a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y))) == 0
}

#[cfg(test)]
mod tests;
