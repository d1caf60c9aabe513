//! Lambda's asynchronous invocation as an [`Invoker`].

use crate::fault::Fault;
use async_trait::async_trait;
use aws_sdk_lambda::{
    config::{
        interceptors::InterceptorContext,
        retry::{ClassifyRetry, RetryAction},
    },
    primitives::Blob,
    types::InvocationType,
};
use bytes::Bytes;
use gristmill_ports::{InvokeError, Invoked, Invoker};

/// Most bytes of an asynchronous event.
const MAX_EVENT_BYTES: usize = 1 << 20;
const TOO_MANY_REQUESTS: u16 = 429;

/// Starts functions by name or ARN, without waiting for them to run.
#[derive(Debug, Clone)]
pub struct LambdaInvoker {
    client: aws_sdk_lambda::Client,
}

impl LambdaInvoker {
    pub(crate) fn new(client: aws_sdk_lambda::Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Invoker for LambdaInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Invoked, InvokeError> {
        let failed = |reason| InvokeError { function: function.to_owned(), reason };
        if payload.len() > MAX_EVENT_BYTES {
            let reason = format!("an event of {} bytes is over the 1 MiB limit", payload.len());
            return Err(failed(reason));
        }
        let sent = self
            .client
            .invoke()
            .function_name(function)
            .invocation_type(InvocationType::Event)
            .payload(Blob::new(payload))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(Invoked::Accepted),
            Err(error) => {
                let fault = Fault::new("Invoke", function, &error);
                match fault.status {
                    Some(TOO_MANY_REQUESTS) => Ok(Invoked::Throttled),
                    _ => Err(failed(fault.text)),
                }
            }
        }
    }
}

/// A throttled invocation is an answer the scaler plans with; waiting for room is its decision.
#[derive(Debug)]
pub(crate) struct ThrottlesAreAnswers;

impl ClassifyRetry for ThrottlesAreAnswers {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        match context.response() {
            Some(response) if response.status().as_u16() == TOO_MANY_REQUESTS => {
                RetryAction::RetryForbidden
            }
            _ => RetryAction::NoActionIndicated,
        }
    }

    fn name(&self) -> &'static str {
        "ThrottlesAreAnswers"
    }
}
