//! A failed request in one line: operation, resource, the service's code and message, and whether a retry may
//! help.

use aws_config::meta::ProviderChainError;
use aws_credential_types::provider::error::{CredentialsError, TokenError};
use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use std::{error::Error, fmt};

/// Longest quoted part of a foreign message, in characters.
const MAX_QUOTE_CHARS: usize = 300;

/// Attempts of the SDK when it found no credentials, and its name for the profile.
type Tried = ProviderChainError<CredentialsError>;
const PROFILE: &str = "Profile";
const NO_CREDENTIALS: &str = "no AWS credentials found: set AWS_ACCESS_KEY_ID and \
                              AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";

/// Codes that allow a retry although their status is a 4xx.
const PASSING_CODES: [&str; 10] = [
    "InternalServerError",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TransactionConflictException",
];

#[derive(Debug, Clone)]
pub(crate) struct RequestFault {
    /// Whether a retry may help; the request may already have had its effect.
    pub is_passing: bool,
    /// HTTP status, if there was a response.
    pub status: Option<u16>,
    pub code: Option<String>,
    /// Complete message.
    pub text: String,
}

impl RequestFault {
    /// Describes why `operation` on `resource` failed.
    pub fn new<E>(
        operation: &str,
        resource: impl fmt::Display,
        error: &SdkError<E, HttpResponse>,
    ) -> Self
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        let status = error.raw_response().map(|response| response.status().as_u16());
        let code = error.as_service_error().and_then(|error| error.code()).map(str::to_owned);
        let reason = match error {
            SdkError::ServiceError(context) => {
                let message = context.err().message().unwrap_or_default();
                match (code.as_deref(), status) {
                    (Some(code), _) if message.is_empty() => code.to_owned(),
                    (Some(code), _) => format!("{code}: {message}"),
                    (None, Some(status)) => format!("HTTP {status} {message}"),
                    (None, None) => message.to_owned(),
                }
            }
            SdkError::TimeoutError(_) => "no answer in time".to_owned(),
            other => reason(other),
        };
        let is_passing = match error {
            SdkError::ServiceError(_) => {
                status.is_some_and(is_passing_status)
                    || code.as_deref().is_some_and(|code| PASSING_CODES.contains(&code))
            }
            SdkError::ConstructionFailure(_) => false,
            SdkError::DispatchFailure(failure) => !failure.is_user() && !lacks_credentials(error),
            _ => true,
        };
        let text = format!("{operation} on {resource}: {}", one_line(&reason));
        Self { is_passing, status, code, text }
    }

    /// Whether the service names the error `code`.
    pub fn has_code(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

pub(crate) fn is_passing_status(status: u16) -> bool {
    status >= 500 || status == 429 || status == 408
}

/// The innermost cause, which describes the failure; the outer ones are only context.
pub(crate) fn reason(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = credentials_error(error) {
        return without_credentials(error);
    }
    let innermost = chain(error).last().map(ToString::to_string);
    one_line(&innermost.unwrap_or_default())
}

/// Why there are no credentials, and what to do.
fn without_credentials(error: &CredentialsError) -> String {
    use CredentialsError::{CredentialsNotLoaded, InvalidConfiguration, ProviderTimedOut};
    let causes = |error: &CredentialsError| {
        let is_context = |error: &&(dyn Error + 'static)| {
            error.is::<CredentialsError>() || error.is::<TokenError>()
        };
        let causes = chain(error).filter(|error| !is_context(error));
        let mut causes: Vec<_> = causes.map(ToString::to_string).collect();
        causes.dedup();
        one_line(&causes.join(": "))
    };
    let wrong =
        |why: String| format!("the AWS profile is wrong: {why}: correct it, or set AWS_PROFILE");
    match error {
        CredentialsNotLoaded(_) => {
            let tried = chain(error).find_map(<dyn Error>::downcast_ref::<Tried>);
            let mut attempts = tried.into_iter().flat_map(|tried| tried.attempts());
            let profile = attempts.find(|attempt| attempt.name() == PROFILE);
            let why = profile.map(|attempt| causes(attempt.error()));
            why.filter(|why| !why.is_empty()).map_or_else(|| NO_CREDENTIALS.to_owned(), wrong)
        }
        InvalidConfiguration(_) => wrong(causes(error)),
        ProviderTimedOut(_) => format!("no AWS credentials: {error}"),
        _ => format!(
            "no AWS credentials: {}: if the profile needs it, log in again: aws sso login, or aws login",
            causes(error)
        ),
    }
}

/// At most [`MAX_QUOTE_CHARS`] characters of `text`, without line breaks.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(MAX_QUOTE_CHARS) {
        Some((end, _)) => format!("{}...", &words[..end]),
        None => words,
    }
}

fn lacks_credentials(error: &(dyn Error + 'static)) -> bool {
    use CredentialsError::{CredentialsNotLoaded, InvalidConfiguration};
    matches!(credentials_error(error), Some(CredentialsNotLoaded(_) | InvalidConfiguration(_)))
}

fn credentials_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CredentialsError> {
    chain(error).find_map(<dyn Error>::downcast_ref)
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_becomes_one_short_line() {
        assert_eq!(one_line("a\n  b\tc"), "a b c");
        let long = one_line(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), MAX_QUOTE_CHARS + 3);
    }

    #[test]
    fn the_innermost_cause_is_named() {
        let inner = std::io::Error::other("connection refused");
        let error = aws_smithy_runtime_api::client::result::ConnectorError::io(inner.into());
        assert_eq!(reason(&error), "connection refused");
    }
}
