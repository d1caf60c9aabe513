//! Lambda's asynchronous invocation as an [`Invoker`].

use crate::sdk::{
    fault::RequestFault,
    lambda::{LambdaClient, TOO_MANY_REQUESTS},
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_ports::{InvokeError, InvokeOutcome, Invoker};

/// Most bytes of an asynchronous event.
const MAX_EVENT_BYTES: usize = 1 << 20;
const NOT_FOUND: u16 = 404;

/// Starts functions by name or ARN without waiting for them to run.
#[derive(Debug, Clone)]
pub struct LambdaInvoker {
    client: LambdaClient,
}

impl LambdaInvoker {
    pub(crate) fn new(client: LambdaClient) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Invoker for LambdaInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let failed = |reason, gone| InvokeError { function: function.to_owned(), reason, gone };
        if payload.len() > MAX_EVENT_BYTES {
            let reason = format!("an event of {} bytes is over the 1 MiB limit", payload.len());
            return Err(failed(reason, false));
        }
        match self.client.invoke(function, payload).await {
            Ok(_) => Ok(InvokeOutcome::Accepted),
            Err(error) => {
                let fault = RequestFault::new("Invoke", function, &error);
                match fault.status {
                    Some(TOO_MANY_REQUESTS) => Ok(InvokeOutcome::Throttled),
                    status => Err(failed(fault.text, status == Some(NOT_FOUND))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdk::testing::{Answer, Server};

    async fn invoked(answer: u16) -> (Result<InvokeOutcome, InvokeError>, Server) {
        let server = Server::start(move |_, _| Answer::status(answer, "{}")).await;
        let event = Bytes::from_static(b"{\"v\":1}");
        (server.aws().invoker().invoke("worker", event).await, server)
    }

    #[tokio::test]
    async fn an_event_is_sent_without_waiting() {
        let (outcome, server) = invoked(202).await;
        assert_eq!(outcome.unwrap(), InvokeOutcome::Accepted);
        let asked = &server.asked()[0];
        assert_eq!(asked.target, "/2015-03-31/functions/worker/invocations");
        assert_eq!(asked.header("x-amz-invocation-type"), "Event");
        assert_eq!(asked.body, "{\"v\":1}");
    }

    #[tokio::test]
    async fn a_throttle_is_an_answer_and_not_tried_again() {
        let (outcome, server) = invoked(429).await;
        assert_eq!(outcome.unwrap(), InvokeOutcome::Throttled);
        assert_eq!(server.asked().len(), 1);
    }

    #[tokio::test]
    async fn faults_are_retried_and_then_returned() {
        let (outcome, server) = invoked(500).await;
        let error = outcome.unwrap_err().to_string();
        assert!(error.starts_with("cannot invoke worker: ") && error.contains("500"), "{error}");
        assert_eq!(server.asked().len(), 4);
    }

    #[tokio::test]
    async fn an_event_over_the_limit_is_not_sent() {
        let server = Server::start(|_, _| Answer::status(202, "")).await;
        let event = Bytes::from(vec![b' '; MAX_EVENT_BYTES + 1]);
        assert!(server.aws().invoker().invoke("worker", event).await.is_err());
        assert!(server.asked().is_empty());
    }
}
